"""Verdicts on jobs that were made to die: the rank and the cause that come first.

The jobs that were held out were scored once before they were read; README.md of the data has what
was wrong then. These bars keep what is right now.
"""

from __future__ import annotations

import shutil

import pytest

from bench.dead_jobs.score import DATA, answer_of, causes, score
from gpuscope.doctor.dead import WORDINGS
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.verdict import judge


@pytest.mark.slow
@pytest.mark.parametrize(
    ("half", "culprit", "cause"),
    [
        ("dev", 0.97, 0.95),
        ("held_out", 0.97, 0.9),
        ("other_trainers", 0.95, 0.95),
        ("nccl", 1.0, 1.0),
    ],
)
def test_the_first_rank_and_cause_are_right_and_none_is_sure_and_wrong(half, culprit, cause):
    found = score(half, answer_of)
    assert found.culprit >= culprit, found
    assert found.cause >= cause, found
    assert not found.wrong_definite, found


def test_verdicts_use_the_words_of_the_test_data():
    known = {name for name in WORDINGS.findings if name.startswith("dead.")}
    assert {f"dead.{name}" for name in causes()} == known


@pytest.mark.parametrize(
    ("name", "cause", "ranks", "where"),
    [
        ("nccl-loop-evaluate", "code-hang", (1,), "train.py:337"),
        ("nccl-stages-circle", "point-to-point", (), "pipeline.py:119"),
        ("nccl-stages-waits-for-data", "input-hang", (0,), "pipeline.py:53"),
    ],
)
def test_the_logs_of_nccl_alone_say_who_hung_and_where(tmp_path, name, cause, ranks, where):
    """Without dumps and the launcher's output: by the watchdog's stacks and the others' own."""
    shutil.copytree(DATA / "nccl" / name / "logs", tmp_path / "logs")
    one = judge(read_job([tmp_path], name)).suspects[0]
    assert (one.cause, one.ranks, one.where) == (f"dead.{cause}", ranks, where)
