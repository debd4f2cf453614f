"""Trainers that are forked from one process: each is a process of its own, and none is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.forked import BAD_FORK, ForkedRun, Forks, can_fork, end_line, ended_with
from gpuscope.lab.launch import PYTHON_VARIABLE, open_worker
from gpuscope.lab.run_series import Made, RunSeries
from tests.fakes.forking import forking_python
from tests.fakes.waiting import alive, until_true

pytest.importorskip("torch")
TINY = LabConfig(model="mlp-tiny", device="cpu", steps=6)

FACTORY = """
import os, signal, sys, torch
def factory(batch, device):
    print("a line", file=sys.stderr)
    if batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if batch == 4:
        raise RuntimeError("no four")
    seen = sys.modules.setdefault("left_behind", type(sys)("left_behind"))
    assert not hasattr(seen, "here"), "state of another run"
    seen.here = True
    torch.set_float32_matmul_precision("medium")
    model = torch.nn.Linear(2, 1)
    x = torch.ones(batch, 2) + torch.rand(batch, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda: model(x).square().mean()
"""


@pytest.fixture
def _forks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks trainers is itself a fork of one that has imported torch."""
    monkeypatch.setenv(PYTHON_VARIABLE, forking_python(tmp_path_factory.mktemp("python")))


def with_forks(body: Callable[[Forks], Awaitable[None]]) -> None:
    async def whole() -> None:
        forks = Forks({"OMP_NUM_THREADS": "1"})
        try:
            await body(forks)
        finally:
            await forks.close()

    asyncio.run(whole())


async def made(
    forks: Forks, config: LabConfig, hear: Callable[[metrics.Record], None] = lambda record: None
) -> ForkedRun:
    run = ForkedRun(config, hear, forks)
    await run.start()
    await run.wait()
    return run


def test_the_end_of_a_trainer_is_a_line_that_no_record_is():
    assert ended_with(end_line(-9)) == -9
    assert ended_with(metrics.encode(metrics.RunEnded({"said": "trainer_ended"}))) is None
    assert ended_with(b"trainer_ended\n") is None


def test_what_is_read_with_torch_is_not_forked():
    assert can_fork(TINY)
    assert not can_fork(TINY.changed("expandable_segments", True))
    assert not can_fork(LabConfig(parallel="ddp", nproc=2))


VARIABLE = """
import os, torch
def factory(batch, device):
    raise RuntimeError(f"the limit is {os.environ.get('A_LIMIT')}")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_forks")
def test_a_variable_can_be_set_after_the_process_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(VARIABLE)
    monkeypatch.chdir(tmp_path)

    async def body(forks: Forks) -> None:
        await forks.process()
        forks.set("A_LIMIT", "12=12")
        run = await made(forks, LabConfig(model="mine:factory", device="cpu"))
        assert run.failure is not None
        assert "the limit is 12=12" in str(run.failure)

    with_forks(body)


COMPILES = """
import os, signal, torch
from torch._inductor import async_compile
def factory(batch, device):
    async_compile.AsyncCompile.warm_pool()
    (pool,) = async_compile._pool_set
    os.kill(pool.process.pid, signal.SIGSTOP)
    open("compiler.pid", "w").write(str(pool.process.pid))
    model = torch.nn.Linear(2, 1)
    x = torch.ones(batch, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda: model(x).square().mean()
"""
"""The compiler's process is not ready when the training ends, and never will be."""


@pytest.mark.slow
def test_a_trainer_does_not_wait_for_the_compilers_process_which_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(COMPILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")

    async def body(forks: Forks) -> None:
        config = LabConfig(model="mine:factory", device="cpu", steps=2)
        run = await asyncio.wait_for(made(forks, config), 120)  # torch would wait for 300 s
        assert run.failure is None
        compiler = int((tmp_path / "compiler.pid").read_text())
        await until_true(lambda: not alive(compiler), 20)

    with_forks(body)


@pytest.mark.slow
@pytest.mark.usefixtures("_forks")
def test_runs_share_nothing_and_a_failure_ends_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    own = LabConfig(model="mine:factory", device="cpu", steps=6, batch=2)
    losses: list[object] = []

    async def body(forks: Forks) -> None:
        server = (await forks.process()).pid
        for _ in range(2):
            run = await made(forks, own)
            assert run.failure is None
            assert run.summary is not None
            assert run.summary["steps"] == 6
            assert list(run.stderr).count("a line") == 1
            losses.append(run.summary["loss_first"])
        killed = await made(forks, own.changed("batch", 3))
        assert killed.failure is not None
        assert "signal 9" in killed.failure.what or "SIGKILL" in killed.failure.what
        failed = await made(forks, own.changed("batch", 4))
        assert failed.failure is not None
        assert "no four" in str(failed.failure)
        assert (await made(forks, TINY)).failure is None
        assert (await forks.process()).pid == server  # one process has forked them all

    with_forks(body)
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_run_ends_when_it_is_told_to_and_a_dead_server_is_started_again():
    async def body(forks: Forks) -> None:
        steps = asyncio.Event()

        def hear(record: metrics.Record) -> None:
            if isinstance(record, metrics.Step) and record.step > 6:
                steps.set()

        run = ForkedRun(TINY.changed("steps", None), hear, forks)
        await run.start()
        await asyncio.wait_for(steps.wait(), 60)
        await run.stop()
        assert run.state == "stopped"
        assert run.summary is not None
        assert run.summary["steps"] > 6

        steps.clear()
        run = ForkedRun(TINY.changed("steps", None), hear, forks)
        await run.start()
        await asyncio.wait_for(steps.wait(), 60)
        os.kill((await forks.process()).pid, signal.SIGKILL)
        await run.wait()
        assert run.failure is not None
        assert (await made(forks, TINY)).failure is None

    with_forks(body)


@pytest.mark.slow
def test_nothing_is_left_when_the_search_is_gone():
    async def body(forks: Forks) -> None:
        pids: list[int] = []
        begun = asyncio.Event()
        run = ForkedRun(TINY.changed("steps", None), lambda record: begun.set(), forks)
        await run.start()
        await asyncio.wait_for(begun.wait(), 60)
        server = await forks.process()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
        pids += [server.pid, *map(int, children.split())]
        assert len(pids) == 2
        assert server.stdin is not None
        server.stdin.close()  # as where its parent has ended
        await run.wait()
        assert not any(alive(pid) for pid in pids)

    with_forks(body)


class Unable(Forks):
    """Answers as the process does whose copies cannot use CUDA."""

    async def process(self) -> asyncio.subprocess.Process:
        line = end_line(BAD_FORK).decode().strip()
        script = f"read command; echo '{line}'; echo '{line}' >&2; read end"
        self._process = await open_worker(["sh", "-c", script], "/", {})
        return self._process


@pytest.mark.slow
@pytest.mark.usefixtures("_forks")
def test_a_trainer_that_cannot_be_forked_is_started_by_itself():
    series = RunSeries(None, {"OMP_NUM_THREADS": "1"}, fork=True)
    series._forks = Unable()
    late = metrics.RunFailure("late", "", "")

    async def whole() -> Made:
        try:
            return await series._make(TINY, lambda record: None, 60, late)
        finally:
            await series._close()

    document, failure = asyncio.run(whole())
    assert failure is None
    assert document is not None
    assert document["steps"] == 6
    assert not series._forks.usable
