"""Jobs: which trainers and processes belong together, and who keeps the others waiting."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.stalls import worst_rank
from gpuscope.store.view import JobView
from gpuscope.text.process_name import short_command, short_script, shown_command
from gpuscope.wire.frames import Def, Event, GpuDef, ProcDef, TrainerDef, UseDef
from tests.fakes.wire import SECOND, heard, hello, row, sample


def jobs(
    defs: list[Def], ages: dict[int, dict[str, Any]] | None = None, *more: Any
) -> list[JobView]:
    rows = [row(number, "t", **readings) for number, readings in (ages or {}).items()]
    tick = sample(1, h=[], g=[], p=[], u=[], t=rows, a=[])
    return list(heard(hello(), *defs, tick, *more).view().host.jobs)


def process(number: int, **facts: Any) -> Def:
    return Def(number, proc=ProcDef(number, 1, **facts))


def trainer(number: int, **facts: Any) -> Def:
    """A trainer with id number + 100 in the process of that number."""
    return Def(number + 100, trainer=TrainerDef(number, 1, proc=number, **facts))


def ranks(*ids: int) -> list[Def]:
    return [d for i in ids for d in (process(i), trainer(i, rank=i, world_size=len(ids), job="j"))]


def test_ranks_of_a_job_are_one_line_sorted_by_rank():
    (job,) = jobs([*ranks(3, 1, 2)])
    assert job.key == "j"
    assert [t.definition.rank for t in job.trainers] == [1, 2, 3]
    assert [p.definition.pid for p in job.processes] == [1, 2, 3]


def test_a_trainer_without_a_job_key_is_a_job():
    one, two = jobs(
        [process(1, user="bob", mine=True), trainer(1, script="/x/a.py"), process(2), trainer(2)]
    )
    assert (one.key, one.title, one.user, one.mine) == ("1:1", "a.py", "bob", True)
    assert (two.key, two.title, two.user, two.mine) == ("2:1", "pid 2", None, False)


def test_a_process_that_uses_a_device_without_a_probe_is_a_job_and_others_are_not():
    defs = [
        Def(50, gpu=GpuDef("GPU-a", 0)),
        process(1, command="./burn --all"),
        process(2),
        Def(60, use=UseDef(1, 50)),
    ]
    (job,) = jobs(defs)
    assert (job.key, job.title, job.trainers, len(job.processes)) == ("1:1", "burn", (), 1)
    assert (
        jobs(defs, None, Event(60, "gone", 101 * SECOND, "x"), Event(1, "gone", 101 * SECOND, "x"))
        == []
    )


def test_a_process_with_a_probe_is_not_listed_twice():
    (job,) = jobs([Def(50, gpu=GpuDef("GPU-a", 0)), *ranks(1), Def(60, use=UseDef(1, 50))])
    assert len(job.trainers) == 1


def test_after_an_elastic_restart_only_the_newest_of_a_rank_counts():
    defs = [process(1), trainer(1, rank=0, job="j"), process(2), trainer(2, rank=1, job="j")]
    again = [Event(1, "gone", 101 * SECOND, "x"), process(3), trainer(3, rank=0, job="j")]
    (job,) = jobs(defs, None, *again)
    assert [(t.definition.pid, t.gone is None) for t in job.trainers] == [(3, True), (2, True)]
    (job,) = jobs(defs, None, *again, Event(3, "gone", 102 * SECOND, "y"))
    assert [(t.definition.pid, t.gone is None) for t in job.trainers] == [(3, False), (2, True)]


def test_jobs_that_ended_come_last():
    listed = jobs([*ranks(1), process(2), trainer(2)], None, Event(1, "gone", 101 * SECOND, "x"))
    assert [job.key for job in listed] == ["2:1", "j"]


def steps(**ages: float) -> dict[int, dict[str, Any]]:
    """Rows for ranks r1, r2 …: half a second a step, the last one so long ago."""
    return {
        100 + int(name[1:]): {"step_seconds": 0.5, "step_age_seconds": age}
        for name, age in ages.items()
    }


def test_the_rank_that_keeps_the_others_waiting_is_named():
    (job,) = jobs(ranks(1, 2, 3), steps(r1=0.4, r2=9.0, r3=0.6))
    worst, reason = worst_rank(job.trainers)
    assert worst is not None
    assert worst.definition.rank == 2
    assert reason == "rank 2: last step 9.00 s ago, the others 500 ms; a step usually takes 500 ms"


@pytest.mark.parametrize(
    "ages",
    [
        {"r1": 0.4, "r2": 0.5, "r3": 0.6},  # all alike
        {"r1": 60.0, "r2": 60.2, "r3": 60.4},  # all idle: nobody is behind
        {"r1": 0.1, "r2": 1.9, "r3": 0.1},  # less than two seconds behind
        {"r1": 30.0},  # nobody to compare with
    ],
)
def test_no_rank_is_named_when_none_is_far_behind(ages):
    (job,) = jobs(ranks(*(int(name[1:]) for name in ages)), steps(**ages))
    assert worst_rank(job.trainers) == (None, "")


def test_slow_steps_are_not_late_steps():
    rows = {
        number: {"step_seconds": 10.0, "step_age_seconds": age}
        for number, age in ((101, 1.0), (102, 9.0))
    }
    (job,) = jobs(ranks(1, 2), rows)
    assert worst_rank(job.trainers) == (None, "")


def test_unknown_ages_and_ended_ranks_do_not_count():
    rows = {
        101: {"step_seconds": 0.5, "step_age_seconds": 50.0},
        102: {"step_seconds": 0.5, "step_age_seconds": 0.1},
    }
    (job,) = jobs(ranks(1, 2, 3), rows)
    worst, _ = worst_rank(job.trainers)
    assert worst is not None
    assert worst.definition.rank == 1
    (job,) = jobs(ranks(1, 2, 3), rows, Event(1, "gone", 101 * SECOND, "x"))
    assert worst_rank(job.trainers) == (None, "")


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("/opt/conda/bin/python3.11 -u /data/train.py --lr 1", "train.py"),
        ("python -m pkg.train --x y.py", "pkg.train"),
        ("python -c import_this", "python -c"),
        ("python3 -m gpuscope.lab.worker --config {}", "gpuscope lab"),
        ("torchrun --nproc 2 train.py", "train.py"),
        ("python /venv/bin/torchrun --nproc-per-node 2 -m pkg.train", "pkg.train"),
        ("python /venv/bin/accelerate launch --num_processes 2 train.py", "train.py"),
        ("python -X dev -W ignore /venv/bin/pytest -q -m '' tests", "pytest"),
        ("python tools/train -c large.yaml", "train"),
        ("python -u -", "python"),
        ("/usr/bin/Xorg :0", "Xorg"),
        ("", ""),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_a_command_is_called_what_people_call_it(command, title):
    assert short_command(command) == title


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/opt/bin/python3.11 -u src/train.py --lr 1", "train.py --lr 1"),
        ("python -X dev -W error -m pkg.train --x", "pkg.train --x"),
        ("python -Bu /data/train.py", "train.py"),
        ("/venv/bin/python3 /venv/bin/torchrun --nproc 2 train.py", "torchrun --nproc 2 train.py"),
        ("/venv/bin/python -c print(1)", "python -c print(1)"),
        ("python3", "python3"),
        ("python -", "python -"),
        ("bash -c python train.py", "bash -c python train.py"),
        ("", ""),
    ],
)
def test_a_command_is_shown_from_its_script_on(command: str, shown: str):
    assert shown_command(command) == shown


def test_a_process_of_the_lab_is_called_by_its_model_and_not_by_all_its_switches():
    start = "/opt/bin/python3.12 -m gpuscope.lab.worker --stop-on-eof --config "
    assert shown_command(start + '{"model": "gpt-small", "batch": 8}') == "gpuscope lab gpt-small"
    assert shown_command(start + '{"batch"') == "gpuscope lab"
    assert shown_command("grep gpuscope.lab.worker x") == "grep gpuscope.lab.worker x"
    assert short_script("/lib/gpuscope/lab/rank.py") == "gpuscope lab"
    assert short_script("-c") == "python -c"
