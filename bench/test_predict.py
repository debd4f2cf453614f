"""Measure how long a prediction takes.

GPT-124M and a GPT of 1.3 billion parameters are predicted, with their what-ifs; the memory of both
processes is measured too.

The bars assume two cores of their own. They are compared with the CPU time of both processes
together, which does not depend on other programs; seconds on the clock are printed too.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from bench.soak.kills import processor_seconds
from gpuscope.predict.answer import Card, TracedRequest
from gpuscope.predict.child import Tracer
from gpuscope.predict.request import Request, Traced

pytestmark = pytest.mark.bench
CARD = Card("h200", "h200", 143771 << 20, "9.0")
WHAT_IF_SECONDS = 3.0
MOST_MIB = 2048


def _mib(pid: int) -> int:
    """Return the peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


@pytest.mark.parametrize(
    ("model", "batch", "bar"), [("bench.predict.families:gpt_small", 8, 5.0), ("gpt-1.3b", 4, 20.0)]
)
def test_a_prediction_and_its_what_ifs(
    model: str, batch: int, bar: float, report: Callable[..., None]
) -> None:
    pytest.importorskip("torch")
    with Tracer() as child:
        begin = time.perf_counter()
        child.start()
        process = child._process
        assert process is not None
        pid = process.pid

        def cpu() -> float:
            own = resource.getrusage(resource.RUSAGE_SELF)
            return own.ru_utime + own.ru_stime - before + processor_seconds(pid)

        def traced(request: Request) -> Traced:
            traces.append(request)
            return child.trace(request, 300)

        own = resource.getrusage(resource.RUSAGE_SELF)
        before = own.ru_utime + own.ru_stime
        traces: list[Request] = []
        asking = TracedRequest(Request(model, batch=batch), traced, CARD)
        first, wall = cpu(), time.perf_counter() - begin
        marks: list[tuple[str, float]] = []
        asking.find_fixes(None, lambda fix: marks.append((fix.key, cpu())))
        marks.append(("", cpu()))
        each = {name: after - at for (name, at), (_, after) in pairwise(marks)}
        slowest = max(each, key=lambda name: each[name])
        report(
            f"predict {model.rpartition(':')[2]}",
            cpu_seconds=f"{first:.1f}",
            wall=f"{wall:.1f}",
            what_ifs=len(each),
            all_of_them=f"{sum(each.values()):.1f}",
            slowest=f"{slowest} {each[slowest]:.1f}",
            parent_mib=_mib(os.getpid()),
            child_mib=_mib(pid),
        )
        assert child._process is process
        assert first <= bar
        assert each[slowest] <= WHAT_IF_SECONDS
        assert max(_mib(os.getpid()), _mib(pid)) <= MOST_MIB
