"""Measure how long another thread of the trainer waits while a snapshot is written.

Our way of writing is compared with a plain pickle and with JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROOT = Path(__file__).parent.parent
ENTRIES = 120_000
CODE = f"""
import json, pickle, resource, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from gpuscope.probe import blob_file, long_requests, snapshots
from gpuscope.wire.frames import Request
from tests.fakes import allocator

how = sys.argv[1]
whole = allocator.snapshot({ENTRIES})
if how == "ours":
    cuda = type("memory", (), {{"_snapshot": staticmethod(lambda: whole)}})
    snapshots.cuda_memory = lambda: cuda
gaps, running = [], True

def ticker():
    # A thread of the trainer: wants the interpreter every half millisecond, and a little of it.
    last = time.perf_counter()
    while running:
        time.sleep(0.0005)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now

thread = threading.Thread(target=ticker)
thread.start()
time.sleep(0.3)
gaps.clear()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
if how == "ours":
    act = long_requests.LongRequest(Request("snapshot", 1, {{}}, 600.0), None, 0, lambda: None)
    answer = snapshots.take(act, {ENTRIES})
    size = answer.size
    answer.blob.close()
elif how == "pickle":
    size = len(pickle.dumps(whole))
    del whole
elif how == "json":
    size = len(json.dumps(whole))
    del whole
else:
    size = 0
    time.sleep(1)
seconds = time.perf_counter() - begin
time.sleep(0.1)
running = False
thread.join()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"stall": max(gaps), "seconds": seconds, "bytes": size, "grown": (after - before) * 1024}}))
"""  # noqa: E501


def measure(how: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True, timeout=120
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_a_snapshot_of_120k_entries_stalls_other_threads_for_less_than_100_ms(
    report: Callable[..., None],
) -> None:
    found = {
        how: min((measure(how) for _ in range(3)), key=lambda one: one["stall"])
        for how in ("idle", "ours", "pickle", "json")
    }
    for how, one in found.items():
        report(
            f"snapshot of {ENTRIES} entries, {how}",
            longest_stall_ms=f"{1e3 * one['stall']:.1f}",
            seconds=f"{one['seconds']:.3f}",
            mb=f"{one['bytes'] / 1e6:.1f}",
            memory_grown_mb=f"{one['grown'] / 1e6:.0f}",
        )
    assert found["ours"]["stall"] <= 0.1
    assert found["ours"]["stall"] < found["pickle"]["stall"] / 2
    assert found["ours"]["stall"] < found["json"]["stall"] / 5
