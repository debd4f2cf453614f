"""Logs of many forms: bars that leave their line open, JSON, colours, words of other trainers."""

from __future__ import annotations

import json

import pytest

from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.first_failure import judge

from .test_dead_jobs import LOST, first, traceback

BAR = (
    "\r 42%|████▏     | 25/60 [00:01<00:01, 23.92it/s]"
    "\r 43%|████▎     | 26/60 [00:01<00:01, 22.44it/s]"
)
WHOLE = (
    'Traceback (most recent call last):\n  File "/home/me/t.py", line 7, in read\nValueError: bad'
)


@pytest.mark.parametrize("prefix", ["", "[default0]:"])
def test_an_exception_behind_an_open_progress_bar_is_of_the_rank_that_it_names(tmp_path, prefix):
    text = prefix + BAR + traceback(2, "ValueError: bad row")
    text += traceback(0, LOST) + traceback(1, LOST)
    (tmp_path / "job.log").write_text(f"world_size=3\n{text}")
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.exception", (2,))
    if prefix:
        assert read_job([tmp_path], "job").ranks[0].step == 26


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("filler", [0, 6000])
def test_a_rank_and_an_exception_in_json_are_read(tmp_path, nested, filler):
    def row(rank, **more):
        where = {"extra": {"rank": rank}} if nested else {"rank": rank}
        at = "2026-11-26T14:00:05.25Z"
        return json.dumps({"timestamp": at, "level": "info", **where, **more}) + "\n"

    stack = WHOLE.replace("ValueError", f"    # {'x' * filler}\nValueError")
    text = "".join(row(n, event="train_step", step=4) for n in range(3))
    text += row(1, event="uncaught", exception=stack)
    text += "".join(row(n, exception=WHOLE.replace("ValueError: bad", LOST)) for n in (0, 2))
    (tmp_path / "job.log").write_text(text)
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.exception", (1,))
    assert one.evidence[0].source == "job.log:4"
    assert one.time is not None


def test_json_that_is_damaged_or_deep_is_read_as_any_text(tmp_path):
    lines = ['{"rank": 1, "step": 3', "{" * 3000 + '"rank": 2', '{"rank": "x"}', '{"rank": [1]}']
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n" + traceback(0, "ValueError: bad"))
    assert first(tmp_path).cause == "dead.exception"


@pytest.mark.parametrize(
    "last",
    [
        "`Trainer.fit` stopped: `max_epochs=2` reached.",
        "{'train_runtime': '0.0868', 'train_steps_per_second': '138.2', 'train_loss': '0.73'}",
    ],
)
def test_a_log_that_ends_with_a_trainers_own_last_words_ended_well(tmp_path, last):
    (tmp_path / "job.log").write_text(f"Epoch 1: loss 0.4\n{last}\n")
    assert [one.cause for one in judge(read_job([tmp_path], "job")).suspects] == ["dead.finished"]
    (tmp_path / "job.log").write_text(f"Epoch 1: loss 0.4\n{last}\n{WHOLE}\n")
    assert first(tmp_path).cause == "dead.exception"


def test_a_rank_that_lightning_counts_and_that_left_nothing_is_missed(tmp_path):
    text = "".join(
        f"Initializing distributed: GLOBAL_RANK: {n}, MEMBER: {n + 1}/4\n" for n in range(4)
    )
    text += "".join(traceback(n, LOST) for n in range(3))
    (tmp_path / "job.log").write_text(text)
    one = first(tmp_path)
    assert (one.cause, one.ranks, one.confidence) == ("dead.killed", (3,), "likely")


def test_the_logs_of_a_node_that_was_lost_at_its_start_count(tmp_path):
    for node, folder, ranks in (("node01", "a", (0, 1)), ("node02", "b", (2, 3))):
        rows = ""
        for local, rank in enumerate(ranks):
            place = tmp_path / "logs" / f"none_{folder}" / "attempt_0" / str(local)
            place.mkdir(parents=True)
            text = f"[rank{rank}]:[W1126 18:25:56.54 reducer.cpp:1529] Warning: unused\n"
            rows += f"[default{local}]:{text}"
            text += traceback(rank, LOST) if node == "node01" else ""
            (place / "stderr.log").write_text(text)
        (tmp_path / f"{node}.log").write_text(rows)
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.node-lost", (2, 3))
