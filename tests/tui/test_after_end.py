"""The page of a job that has ended says where it stood, what to run next, and how long it ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.cli import past_trainers
from gpuscope.probe import blackbox
from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.text import styled
from gpuscope.tui.shared.after_end import after_end
from gpuscope.wire import frames as f
from tests.fakes import jobs, views

RAISED: dict[str, Any] = {
    "how": "exception",
    "type": "KeyError",
    "message": "'label'",
    "stack": [
        [f"/home/ada/{name}.py", line, "f"] for name, line in zip("abcde", range(5), strict=True)
    ],
    "time": 1.0,
}


def box(folder, pid: int, start: int, how: dict[str, Any] | None) -> str:
    """Write a black box such as this trainer would leave, and return its path."""
    made = blackbox.BlackBox(
        lambda hz: f.Hello(role="probe", cols={"t": ["step"]}, pid=pid, t=1.0, m=5)
    )
    definition = f.Def(TRAINER_ID, trainer=f.TrainerDef(pid=pid, start=start, script="train.py"))
    row = f.Sample(1, 10**9, t=[[TRAINER_ID, 7]])
    made.sample(row, {}, {TRAINER_ID: definition}, {})
    if how is not None:
        made.ended(how)
    path = folder / f"{pid}-{start}.box"
    (folder / made.path.rpartition("/")[2]).rename(path)
    return str(path)


def dead(reason: str, count: int = 1):
    frames = jobs.ranks(count, 20.0)
    last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
    ends = [f.Event(300 + n, "gone", last + 10**9, reason) for n in range(count)]
    return views.host_of([*frames, *ends, f.Sample(10**6, last + 2 * 10**9)])


def lines_of(host, local: bool = True, replay: object = None) -> list[str]:
    session = SimpleNamespace(
        happened=SimpleNamespace(stopped={}), local=local and replay is None, replay=replay
    )
    (job,) = [one for one in host.jobs if one.trainers]
    return [styled.plain(line) for line in after_end(session, host, job)]  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(tmp_path / "a folder"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "a folder"


def test_the_stack_of_its_exception_and_the_commands_with_the_path_of_its_box(folder):
    host = dead("exited: KeyError: 'label'")
    (trainer,) = host.trainers
    path = box(folder, trainer.definition.pid, trainer.definition.start, RAISED)
    stack, doctor, replay, ran = lines_of(host)
    assert stack == "stack: /home/ada/a.py:0 f ← /home/ada/b.py:1 f ← /home/ada/c.py:2 f ← 2 more"
    assert doctor.startswith(f"next: gpuscope doctor '{path}' ")
    assert replay.startswith(f"      gpuscope replay '{path}' ")
    assert ran == ("ran: 2 h 01 min, from 12:13:20 to 14:14:21")


def test_without_a_box_or_elsewhere_or_in_a_recording_the_command_is_another(folder):
    host = dead(f.NO_LAST_WORDS)
    stack, step, _ = lines_of(host)
    assert "not known" in stack
    assert step.startswith("next: gpuscope doctor LOGFILE")
    assert str(folder) in step
    assert lines_of(host, local=False)[1].startswith("next: gpuscope doctor    on node-17: ")
    replay = SimpleNamespace(path="/home/ada/old run.gsr")
    assert lines_of(host, replay=replay)[1] == "next: gpuscope doctor '/home/ada/old run.gsr'"
    assert "no exception" not in lines_of(dead("exited: KeyError: 'label'"))[0]


def test_a_replayed_box_has_the_stack_of_its_exception(folder):
    path = box(folder, 4_000_001, 7, RAISED)
    past = past_trainers.read(path)
    ((_, host, _),) = past.jobs
    stack, step = lines_of(host, replay=SimpleNamespace(path=path))[:2]
    assert stack == "stack: /home/ada/a.py:0 f ← /home/ada/b.py:1 f ← /home/ada/c.py:2 f ← 2 more"
    assert step == f"next: gpuscope doctor '{path}'"


@pytest.mark.parametrize("reason", [f"exited: {f.PROGRAM_ENDED}", f"exited: {f.INTERRUPTED}"])
def test_a_job_that_ended_well_or_was_stopped_has_nothing_to_do_next(folder, reason):
    (ran,) = lines_of(dead(reason))
    assert ran.startswith("ran: ")


def test_of_several_ranks_the_one_that_failed_is_named(folder):
    frames = jobs.ranks(3, 20.0)
    last = max(frame.m for frame in frames if isinstance(frame, f.Sample))
    reasons = (f.NO_LAST_WORDS, "exited: KeyError: 'label'", f.NO_LAST_WORDS)
    ends = [f.Event(300 + n, "gone", last + 10**9, why) for n, why in enumerate(reasons)]
    host = views.host_of([*frames, *ends, f.Sample(10**6, last + 2 * 10**9)])
    trainer = next(one for one in host.trainers if one.definition.rank == 1)
    path = box(folder, trainer.definition.pid, trainer.definition.start, RAISED)
    stack, doctor, *_ = lines_of(host)
    assert stack.startswith("stack of rank 1: /home/ada/a.py:0 f")
    assert path in doctor


def test_a_damaged_box_breaks_nothing(folder):
    host = dead("exited: KeyError: 'label'")
    d = host.trainers[0].definition
    folder.mkdir(parents=True)
    (folder / f"{d.pid}-{d.start}.box").write_bytes(b"\xff" * 9000)
    stack, doctor, *_ = lines_of(host)
    assert "not known" in stack
    assert doctor.startswith("next: gpuscope doctor ")
