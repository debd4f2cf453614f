"""Measure from a toggle to the first step of the new run.

How much longer than ``import torch`` alone.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from bench.conftest import alternate
from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import LabRun

pytestmark = pytest.mark.bench


def _import_torch() -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import torch"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def _toggle() -> float:
    """Flip ``amp`` while a run is on; return the seconds to the first step with it."""

    async def whole() -> float:
        step = asyncio.Event()
        run = LabRun(
            LabConfig(model="gpt", device="cpu"),
            lambda record: step.set() if isinstance(record, metrics.Step) else None,
        )
        try:
            await run.start()
            await asyncio.wait_for(step.wait(), 60)
            begin = time.perf_counter()
            changed = asyncio.create_task(run.restart(run.config.changed("amp", "bf16")))
            # records of the old run may still come
            while run.started is None or run.started.config["amp"] != "bf16":
                await asyncio.sleep(0.005)
            step.clear()
            await asyncio.wait_for(step.wait(), 60)
            seconds = time.perf_counter() - begin
            await changed
            return seconds
        finally:
            await run.stop()

    return asyncio.run(whole())


def test_the_first_step_after_a_toggle_comes_soon(report: Callable[..., None]) -> None:
    pytest.importorskip("torch")
    ours, bare, _ = alternate(_toggle, _import_torch, 5)
    report(
        "lab: toggle to first step, CPU",
        seconds=f"{ours:.2f}",
        import_torch=f"{bare:.2f}",
        over=f"{ours - bare:.2f}",
    )
    assert ours - bare <= 4
