"""Starting, restarting and ending the worker from a program without torch."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpuscope.lab import launch, metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import PYTHON_VARIABLE, LabRun
from tests.fakes import lab_runs
from tests.fakes.forking import forking_python
from tests.fakes.waiting import alive, until, until_true

ROOT = Path(__file__).resolve().parents[2]
BARE = getattr(sys, "_base_executable", sys.executable)
"""The Python that the virtual environment was made from: usually without torch."""
TINY = LabConfig(model="mlp-tiny", device="cpu")


@pytest.fixture
def bare() -> str:
    """A Python of at least 3.10 that has no torch."""
    if subprocess.run([BARE, "-c", "import torch"], capture_output=True).returncode == 0:
        pytest.skip(f"{BARE} has torch")
    return BARE


@pytest.fixture
def _forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is a fork of a process that has imported torch."""
    pytest.importorskip("torch")
    monkeypatch.setenv(PYTHON_VARIABLE, forking_python(tmp_path))


class Heard:
    """Everything a run says; the records are those of the worker that was started last."""

    def __init__(self) -> None:
        self.records: list[metrics.Record] = []
        self.states: list[str] = []

    def state(self, run: LabRun) -> None:
        if run.state == "starting":
            self.records.clear()
        self.states.append(run.state)

    async def steps(self, count: int) -> None:
        """Returns when ``count`` steps have been reported."""
        await until_true(
            lambda: sum(isinstance(one, metrics.Step) for one in self.records) >= count,
            120,
            lambda: self.records,
        )


def with_run(
    work: Callable[[LabRun, Heard], Awaitable[None]], config: LabConfig | None = None
) -> LabRun:
    async def whole() -> LabRun:
        heard = Heard()
        run = LabRun(config or TINY, heard.records.append, heard.state)
        try:
            await work(run, heard)
        finally:
            await run.stop()
        return run

    pytest.importorskip("torch")
    return asyncio.run(whole())


@pytest.mark.usefixtures("_forks")
@pytest.mark.slow
def test_start_restart_with_another_toggle_and_a_signal_from_outside() -> None:
    async def work(run: LabRun, heard: Heard) -> None:
        assert (run.state, run.pid) == ("idle", None)
        await run.start()
        first = run.pid
        assert first is not None
        await heard.steps(2)
        assert run.state == "running"
        await run.start()
        assert run.pid == first
        await run.restart(run.config.changed("amp", "bf16"))
        assert not alive(first)
        assert heard.states == ["starting", "running", "stopping", "stopped", "starting"]
        await heard.steps(1)
        assert run.started is not None
        assert run.started.config["amp"] == "bf16"
        assert run.pid not in (None, first)
        os.kill(run.pid, signal.SIGKILL)
        await run.wait()

    run = with_run(work)
    assert (run.state, run.pid) == ("failed", None)
    assert run.failure is not None
    assert "SIGKILL" in run.failure.what


@pytest.mark.usefixtures("_forks")
@pytest.mark.slow
def test_a_run_of_n_steps_ends_by_itself() -> None:
    async def work(run: LabRun, heard: Heard) -> None:
        await run.start()
        await run.wait()
        assert run.state == "stopped"

    run = with_run(work, TINY.changed("steps", 3))
    assert run.summary is not None
    assert run.summary["steps"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_a_step_in_progress_is_waited_for_unless_it_is_to_end_at_once(
    at_once: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.3)  # less than the worker takes for its step
    monkeypatch.setenv(PYTHON_VARIABLE, str(lab_runs.stand_in(tmp_path)[0]))

    async def work(run: LabRun, heard: Heard) -> None:
        await run.start()
        await heard.steps(2)
        stopping = asyncio.create_task(run.stop())
        if at_once:
            await until_true(lambda: run.state == "stopping", 60)
            run.kill()
        await stopping
        assert run.state == "stopped"

    run = with_run(work, TINY.changed("batch", lab_runs.SLOW))
    assert (run.summary is None) == at_once, "one that is killed writes nothing down"


@pytest.mark.usefixtures("_forks")
@pytest.mark.slow
def test_two_restarts_at_once_leave_one_worker_and_one_that_hears_nothing_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(run: LabRun, heard: Heard) -> None:
        await asyncio.gather(
            run.restart(TINY.changed("seed", 1)), run.restart(TINY.changed("seed", 2))
        )
        await heard.steps(1)
        assert run.started is not None
        assert run.started.config["seed"] == 2
        assert heard.states.count("starting") == 2
        assert "stopped" in heard.states
        monkeypatch.setattr(launch, "STOP_SECONDS", 0.3)
        pid = run.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await run.stop()
        assert not alive(pid)
        assert run.state == "stopped"

    with_run(work)


@pytest.mark.usefixtures("_forks")
@pytest.mark.slow
def test_the_failure_of_the_worker_is_the_failure_of_the_run() -> None:
    async def work(run: LabRun, heard: Heard) -> None:
        await run.start()
        await run.wait()

    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a CUDA device")
    run = with_run(work, TINY.changed("device", "cuda"))
    assert run.state == "failed"
    assert run.failure is not None
    assert "--device cpu" in run.failure.next


@pytest.mark.slow
def test_ranks_that_hear_nothing_are_killed_with_their_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(run: LabRun, heard: Heard) -> None:
        await run.start()
        await heard.steps(2)
        monkeypatch.setattr(launch, "STOP_RANKS_SECONDS", 0.3)
        assert run.pid is not None
        family = [run.pid, *children(run.pid)]
        assert len(family) == 3
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        await run.stop()
        assert run.state == "stopped"
        until(lambda: not any(map(alive, family)), seconds=10)

    with_run(work, LabConfig(model="mlp-tiny", device="cpu", parallel="ddp"))


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_a_rank_of_somebody_elses_job_starts_a_worker_that_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*launch.RANK_VARIABLES, "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    environ = launch.environment("/ours")
    assert not [
        name for name in environ if name in launch.RANK_VARIABLES or name.startswith("TORCHELASTIC")
    ]
    assert environ["PYTHONPATH"] == "/ours:/theirs"


def test_what_a_killed_worker_leaves_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that it had started holds its output open: nobody waits for that one."""
    python, left = tmp_path / "python", tmp_path / "left"
    real = shlex.quote(sys.executable)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {real} "$@"\nsleep 600 &\necho $! > {left}\nkill -9 $$\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))

    async def work(run: LabRun, heard: Heard) -> None:
        await run.start()
        await asyncio.wait_for(run.wait(), 20)
        assert run.failure is not None
        assert "SIGKILL" in run.failure.what
        until(lambda: not alive(int(left.read_text())), seconds=5)

    with_run(work)


ORPHAN = """
import asyncio
from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import LabRun

async def main():
    heard = asyncio.Event()
    config = LabConfig(model="mlp-tiny", device="cpu")
    run = LabRun(config, lambda record: (print(record.kind, run.pid, flush=True), heard.set()))
    await run.start()
    await heard.wait()
    LEAVE

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "let go"])
def test_a_worker_does_not_outlive_its_parent(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    if way == "killed":
        request.getfixturevalue("_forks")
    # Let go, the worker may be gone at once: it is looked at first.
    leave = (
        "await asyncio.sleep(60)"
        if way == "killed"
        else "await asyncio.to_thread(input); run.let_go()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ORPHAN.replace("LEAVE", leave)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline().split()[1])
    assert alive(pid)
    if way == "killed":
        parent.kill()
    _, errors = parent.communicate(b"" if way == "killed" else b"\n", timeout=60)
    assert errors == b""
    until(lambda: not alive(pid), seconds=20)
    if way == "let go":
        assert list(tmp_path.glob("gpuscope-lab-*")) == []


def ask(python: str, **environ: str) -> subprocess.CompletedProcess[str]:
    code = "from gpuscope.lab.launch import find_python; print(find_python())"
    clean = {name: value for name, value in os.environ.items() if name != PYTHON_VARIABLE}
    return subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
    )


def test_the_running_python_is_taken_when_it_has_torch() -> None:
    pytest.importorskip("torch")
    assert ask(sys.executable).stdout.strip() == sys.executable


def test_without_torch_here_the_python3_of_path_is_asked(bare: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "python3").symlink_to(bare)
    assert ask(bare, PATH=str(Path(sys.executable).parent)).stdout.strip() == str(
        Path(sys.executable).parent / "python3"
    )
    nowhere = ask(bare, PATH=str(tmp_path))
    assert nowhere.returncode
    assert "pip install torch" in nowhere.stderr
    assert f"{tmp_path}/python3 has none" in nowhere.stderr


def test_the_variable_wins_and_is_checked(bare: str) -> None:
    pytest.importorskip("torch")
    assert ask(bare, **{PYTHON_VARIABLE: sys.executable}).stdout.strip() == sys.executable
    assert (
        "/nowhere/python cannot be run"
        in ask(sys.executable, **{PYTHON_VARIABLE: "/nowhere/python"}).stderr
    )
    assert (
        "did not answer like Python" in ask(sys.executable, **{PYTHON_VARIABLE: "/bin/true"}).stderr
    )
    assert f"{bare} has none" in ask(sys.executable, **{PYTHON_VARIABLE: bare}).stderr
