"""Causes are ranked by the rules of now from what clock and look saw of trainings on a real card.

``tests/data/why-h200*.json.gz`` are runs of the gym of time (``bench/time_gym``). The note in each
says on what it was measured, and that rules were made with it in view: it guards them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.time_gym import kept, score

FILES = sorted((Path(__file__).parents[1] / "data").glob("why-h200*.json.gz"), reverse=True)


def trainings() -> Iterator[dict[str, Any]]:
    """All that were kept; those of a second run have another name."""
    for number, path in enumerate(FILES):
        more = f" of run {number + 1}" if number else ""
        for row in kept.read(path):
            yield {**row, "name": row["name"] + more, "subject": row["subject"] + more}


KEPT = {row["name"]: row for row in trainings()}
ROWS = list(kept.as_measured([*KEPT.values()]))


def faulty() -> list[dict[str, Any]]:
    return [row for row in ROWS if score.is_faulty(row)]


def test_the_first_cause_is_the_right_one():
    assert [row["name"] for row in faulty() if not score.is_right(row)] == []
    assert len(faulty()) >= 45


def test_nothing_that_is_healthy_or_cured_is_warned_of():
    quiet = [row for row in ROWS if not score.is_faulty(row) and row["quiet"]]
    loud = {
        row["name"]: [one.name for one in score.named(row["why"]) if one.alarms] for row in quiet
    }
    assert {name: alarms for name, alarms in loud.items() if alarms} == {}
    assert len(quiet) >= 50


def test_at_most_holds_and_is_near_what_the_cures_brought():
    gains = score.gains(ROWS)
    assert [gain.name for gain in gains if not gain.held] == []
    single = [gain for gain in gains if KEPT[gain.name]["single"]]
    near = [gain for gain in single if gain.near]
    assert len(near) >= score.WITHIN_BAR * len(single)
    assert len(single) >= 40


@pytest.mark.parametrize(
    ("name", "row", "share"),
    [
        ("copies-from-pageable-memory", "other", 0.88),
        ("writes-histograms-each-step", "logging", 0.79),
        ("one-worker", "input", 0.75),
        ("optimizer-on-the-host cured", "other", 0.18),
    ],
)
def test_a_thread_that_waits_while_the_gpu_computes_has_nothing_to_win(name, row, share):
    clock = next(one for one in KEPT[name]["clock"]["rows"] if one[0] == row)
    assert clock[2] == pytest.approx(share, abs=0.01), "so much of the thread's time"
    won = sum(one.share for one in kept.judged(KEPT[name]) if one.name == row)
    idle = sum(one[3] for one in KEPT[name]["look"]["rows"] if one[0].startswith("idle-"))
    assert won <= idle + 0.05
    assert won < share - 0.15


def test_without_a_look_the_row_of_the_thread_is_the_bound():
    alone = kept.judged({**KEPT["one-worker"], "look": None})
    assert [(one.name, one.by) for one in alone] == [("input", "clock")]
    assert alone[0].share == pytest.approx(0.746, abs=0.001)


def test_short_epochs_begin_with_a_wait_even_where_workers_are_kept():
    """Steps took 23.4 ms, and 21.2 ms in the same training with one endless epoch."""
    again = KEPT["workers-start-each-epoch cured"]
    lost = 1 - KEPT["one-worker cured"]["step_seconds"] / again["step_seconds"]
    (one,) = kept.judged(again)
    assert one.name == "input"
    assert one.share == pytest.approx(lost, abs=0.02)
