"""Forked trainers on a real GPU: CUDA starts in each, and nothing is left for the next one."""

from __future__ import annotations

import asyncio

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.forked import ForkedRun, Forks
from gpuscope.lab.machine import MEMORY_VARIABLE

pytestmark = pytest.mark.gpu
BASE = LabConfig(model="gpt-small", device="cuda", batch=4, steps=12)


def test_each_trainer_starts_cuda_and_an_out_of_memory_one_changes_nothing():
    async def whole() -> list[ForkedRun]:
        forks = Forks()
        await forks.process()
        forks.set(MEMORY_VARIABLE, str(12 << 30))  # it is known when the process already runs
        runs = []
        try:
            for config in (
                BASE,
                BASE.changed("batch", 512),
                BASE.changed("compile", "reduce-overhead"),
                BASE,
            ):
                run = ForkedRun(config, lambda record: None, forks)
                await run.start()
                await run.wait()
                runs.append(run)
        finally:
            await forks.close()
        return runs

    first, too_large, compiled, again = asyncio.run(whole())
    assert not any(run.refused for run in (first, too_large, compiled, again))
    assert too_large.failure is not None
    assert "memory" in too_large.failure.what
    assert compiled.failure is None
    for run in (first, again):
        assert run.failure is None
        assert run.summary is not None
    assert first.summary["peak_allocated_bytes"] == pytest.approx(
        again.summary["peak_allocated_bytes"], rel=0.001
    )
    assert first.summary["peak_reserved_bytes"] == again.summary["peak_reserved_bytes"]
    assert first.summary["loss_first"] == pytest.approx(again.summary["loss_first"], rel=1e-4)
