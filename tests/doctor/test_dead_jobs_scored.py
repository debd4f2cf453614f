"""Verdicts on jobs that were made to die: the rank and the cause that come first.

The jobs that were held out were scored once before they were read; README.md of the data has what
was wrong then. These bars keep what is right now.
"""

from __future__ import annotations

import shutil

import pytest

from bench.dead_jobs.score import DATA, answer_of, causes, score
from gpuscope.doctor import report, table
from gpuscope.doctor.dead import WORDINGS, examine
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.first_failure import judge


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


def advice(name):
    """Return the first finding on a job, and all the advice, as the terminal shows them."""
    found = report.finish(examine([DATA / "nccl" / name], name), table.load()).findings
    fixes = [fix for one in found for fix in one.fixes]
    return found[0], "\n".join(part for fix in fixes for part in (fix.title, fix.code, fix.command))


def test_a_wait_of_the_programs_own_is_not_answered_with_a_timeout_of_the_loader():
    first, text = advice("nccl-stages-waits-for-data")
    assert first.where == "pipeline.py:53"
    assert "raise TimeoutError" in text
    assert "DataLoader" not in text


@pytest.mark.parametrize(
    "name", ["nccl-stages-waits-for-data", "nccl-stages-wide-tensor", "nccl-sigkill"]
)
def test_nobody_is_told_to_use_sbatch_where_nothing_says_that_a_scheduler_ended_it(name):
    assert "sbatch" not in advice(name)[1]


def test_a_kill_without_a_reason_is_to_be_looked_up_and_not_guessed():
    first, text = advice("nccl-sigkill")
    assert first.cause == "dead.killed"
    assert "dmesg" in text
    assert "num_workers" not in text
    assert judge(read_job([DATA / "nccl" / "nccl-sigkill"], "job")).abstained == ()


def test_the_assertion_of_a_kernel_is_shown_and_what_torch_always_adds_is_not():
    first, _ = advice("nccl-device-assert")
    assert first.title.endswith("CUDA error: device-side assert triggered")
    assert any("index out of bounds" in one.text for one in first.evidence)
    assert not any("cudaErrorAssert" in one.text for one in first.evidence)


def test_no_smaller_batch_is_advised_where_one_tensor_is_larger_than_the_gpu():
    first, text = advice("nccl-out-of-memory")
    assert first.title == "Rank 1 ran out of GPU memory: tried to allocate 16384.00 GiB"
    assert "micro-batch" not in text
    assert "Print the shapes" in text
