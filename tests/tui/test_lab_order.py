"""What is asked of the lab while something else is still under way comes in its turn.

Nothing is lost.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import LabRun
from gpuscope.tui.runs.demo import Demo
from gpuscope.tui.runs.runs import LabRuns
from tests.fakes import views
from tests.fakes.waiting import alive, until_true
from tests.tui.pilot import in_loop


@pytest.fixture(autouse=True)
def _ledger(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))


class Slow:
    """The workers of a ``LabRun`` are made up, and the one that runs ends when ``ended`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = asyncio.Event()
        self.running: list[LabConfig] = []
        self.begun: list[int] = []

        async def end(run: LabRun) -> None:
            if self.running:
                run._become("stopping")
                await self.ended.wait()
                self.running.clear()
                run._become("stopped")

        async def launch(run: LabRun) -> None:
            run._become("starting")
            self.running.append(run.config)
            self.begun.append(run.config.batch or 0)
            run._become("running")

        async def wait(run: LabRun) -> None:
            while self.running:
                await asyncio.sleep(0)

        monkeypatch.setattr(LabRun, "_end", end)
        monkeypatch.setattr(LabRun, "_launch", launch)
        monkeypatch.setattr(LabRun, "wait", wait)


async def under_way(runs: LabRuns, state: str) -> None:
    await until_true(lambda: runs.state == state, 20)


async def settled(runs: LabRuns) -> None:
    await until_true(lambda: not runs._tasks, 20)


@in_loop
async def test_a_stop_while_a_restart_waits_for_the_worker_before_holds_for_the_next(monkeypatch):
    slow, runs = Slow(monkeypatch), LabRuns(LabConfig(batch=1, device="cpu"), lambda: None)
    assert runs.start() == ""
    await under_way(runs, "running")
    await settled(runs)
    runs.put("batch", 2)
    assert runs.start() == ""
    await under_way(runs, "stopping")
    runs.stop()
    slow.ended.set()
    await settled(runs)
    assert slow.running == []
    assert runs.state == "stopped"


@in_loop
async def test_a_series_that_is_stopped_before_its_first_run_makes_none(monkeypatch):
    slow, runs = Slow(monkeypatch), LabRuns(LabConfig(batch=1, device="cpu"), lambda: None)
    runs.start()
    await under_way(runs, "running")
    await settled(runs)
    runs.measure(LabConfig(batch=2, device="cpu"), LabConfig(batch=3, device="cpu"), 2, 10)
    await under_way(runs, "stopping")
    runs.stop()
    slow.ended.set()
    await settled(runs)
    assert slow.running == []
    assert set(slow.begun) <= {1, 2}
    assert runs.repeats is not None
    assert runs.repeats.state == "stopped"


@in_loop
async def test_a_start_that_nobody_watches_leaves_a_run_that_somebody_started_alone(monkeypatch):
    slow, seen = Slow(monkeypatch), []  # type: ignore[var-annotated]
    slow.ended.set()
    runs = LabRuns(
        LabConfig(batch=1, device="cpu"), lambda: None, lambda: seen[0] if seen else None
    )
    runs.start_when_known()
    assert runs.start(force=True) == ""
    await under_way(runs, "running")
    await settled(runs)
    seen.append(views.store_of(views.cpu_only()).view().host)
    await runs.filed()
    await settled(runs)
    assert slow.begun == [1]


@in_loop
async def test_a_script_that_is_stopped_while_it_starts_is_ended(monkeypatch):
    made, reached = asyncio.Event(), asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def late(*words: Any, **options: Any) -> Any:
        process = await create(*words, **options)
        reached.set()
        await made.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", late)
    demo = Demo("x", False, [sys.executable, "-c", "import time; time.sleep(600)"], lambda: None)
    demo.start()
    await reached.wait()
    demo.stop()
    made.set()
    async with asyncio.timeout(30):
        await demo.wait()
    assert demo.state == "ended"
    assert demo._process is not None
    assert not alive(demo._process.pid)
