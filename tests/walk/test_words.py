"""What a user reads in passing is right.

That is figures as the screens write them, and exit codes that a script can rely on.
"""

from __future__ import annotations

import threading
import time

import pytest

from gpuscope.probe.stall import StallWatch
from gpuscope.probe.steps import Steps
from tests.fakes.in_process import command


@pytest.mark.parametrize(
    ("usual", "written"),
    [
        (0.0228, "22.8 ms"),
        (0.99996, "1 s"),
        (1.84, "1.84 s"),
        (0.9994, "999 ms"),
        (1250.0, "1250 s"),
    ],
)
def test_a_stall_is_told_in_the_unit_of_the_screens(monkeypatch, usual, written):
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, daemon=True)
    thread.start()
    told: list[tuple] = []
    steps = Steps()
    stall = StallWatch(steps, lambda *event: told.append(event), lambda: 0)
    now = time.perf_counter()
    monkeypatch.setattr("gpuscope.probe.stall.time.perf_counter", lambda: now)
    try:
        steps.thread = thread.ident
        steps.last = now
        steps.durations.extend([usual] * 20)
        for _ in range(6):
            now += 1000.0 + usual
            stall.tick()
    finally:
        gate.set()
    (event,) = told
    assert f", usually one every {written}; " in event[1]
    assert event[2]["usual_seconds"] == usual


def test_an_address_that_is_none_is_a_fault_of_usage():
    pytest.importorskip("prometheus_client", reason="needs the extra export")
    for wrong in ("999", "localhost:", "127.0.0.1:x", "127.0.0.1:70000"):
        done = command("export", "--listen", wrong)
        assert (done.returncode, done.stdout) == (64, ""), done.stderr
        assert "HOST:PORT" in done.stderr
