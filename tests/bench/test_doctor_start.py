"""How long ``gpuscope doctor`` takes as a process of its own: on a log, on a large one, and on this machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

RUNS = 9
LARGE_BYTES = 100 << 20
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.50 GiB "
    "of which 0.75 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the "
    "allocated memory 21.00 GiB is allocated by PyTorch, and 0.75 GiB is reserved by PyTorch but unallocated.\n"
)


def seconds(target: str, text: bytes) -> float:
    begin = time.perf_counter()
    words = [sys.executable, "-m", "gpuscope", "doctor", "--json", target]
    done = subprocess.run(words, input=text, capture_output=True, timeout=60)
    assert done.returncode == 2, done.stderr
    return time.perf_counter() - begin


def test_a_log_on_standard_input():
    taken = [seconds("-", OOM.encode()) for _ in range(RUNS)]
    print(f"\ndoctor on a log: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s of {RUNS}")
    assert statistics.median(taken) <= 0.4


def test_a_log_of_100_mb(tmp_path):
    path = tmp_path / "log"
    line = "epoch 3 step {} loss 1.25 lr 0.001 tokens/s 43210 grad norm 0.75 of this run\n"
    block = "".join(map(line.format, range(10_000))).encode()
    with path.open("wb") as file:
        while file.tell() < LARGE_BYTES:
            file.write(block)
        file.write(OOM.encode())
    taken = seconds(str(path), b"")
    print(f"\ndoctor on 100 MiB: {taken:.2f} s")
    assert taken <= 5


def test_without_a_target():
    """0.4 s without a driver; 2 s with as many GPUs as a host has."""
    bar = 2.0 if Path("/proc/driver/nvidia/version").exists() else 0.4
    taken = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        words = [sys.executable, "-m", "gpuscope", "doctor", "--json"]
        done = subprocess.run(words, capture_output=True, timeout=60)
        taken.append(time.perf_counter() - begin)
        assert done.returncode in (0, 1, 2), done.stdout
    print(
        f"\ndoctor here: median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s of {RUNS}, bar {bar:g} s"
    )
    assert statistics.median(taken) <= bar
