"""Rows add up, intervals are what theory says, and only what can be cured is a cause."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpuscope.model.step_parts import step_parts
from gpuscope.model.time_cause import Known
from gpuscope.model.time_causes import ranked
from gpuscope.model.time_ledger import FEW_LOOKS, LongStep, interval, read
from gpuscope.wire.frames import Def, Event
from tests.fakes import views


def minute(rows: dict[str, tuple[float, int]], **more: Any) -> dict[str, Any]:
    return {
        "age_seconds": 30.0,
        "seconds": sum(seconds for seconds, _ in rows.values()),
        "steps": 100,
        "looks": sum(looks for _, looks in rows.values()),
        "rows": [[name, seconds, looks] for name, (seconds, looks) in rows.items()],
        "places": [],
        **more,
    }


def answer(*minutes: dict[str, Any]) -> dict[str, Any]:
    return {"minutes": list(minutes), "problem": ""}


def test_minutes_are_added_up_and_rows_add_up_to_the_clock():
    one = minute({"input": (30.0, 150), "forward": (30.0, 150)})
    other = minute({"input": (10.0, 50), "backward": (50.0, 250)}, age_seconds=90.0)
    ledger = read(answer(other, one))
    assert (ledger.seconds, ledger.steps, ledger.looks) == (120.0, 200, 600)
    assert ledger.step_seconds == 0.6
    assert [(row.name, row.seconds) for row in ledger.rows] == [
        ("backward", 50.0),
        ("input", 40.0),
        ("forward", 30.0),
    ]
    assert sum(row.share for row in ledger.rows) == pytest.approx(1.0)
    assert read(answer(other, one), 60.0).seconds == 60.0


def test_the_interval_holds_the_truth_as_often_as_it_says():
    dice, held, tries = random.Random(7), 0, 2000
    for _ in range(tries):
        looks = sum(dice.random() < 0.3 for _ in range(100))
        low, high = interval(looks / 100, 100)
        held += low <= 0.3 <= high
    assert 0.93 <= held / tries <= 0.97
    assert interval(0.0, 100) == (0.0, pytest.approx(0.037, abs=0.001))
    assert interval(0.5, 0) == (0.0, 1.0)


def test_the_interval_is_as_wide_as_the_looks_are_uneven():
    told = minute({"input": (30.0, 150), "forward": (30.0, 150)})
    usual = read(answer(told)).rows[0]
    wide = read(answer({**told, "even_looks": 50.0})).rows[0]
    assert (usual.low, usual.high) == interval(0.5, 300)
    assert (wide.low, wide.high) == pytest.approx(interval(0.5, 50))
    assert wide.high - wide.low > 2 * (usual.high - usual.low)


def test_without_a_gpu_code_of_the_script_is_cured_with_its_own_reads():
    """What curing it brings at most must hold for the whole function, .item() included."""
    rows = {"forward": (20.0, 100), "other": (30.0, 150), "read": (10.0, 50)}
    places = [
        ["other", "train.py:12 log", 29.0],
        ["read", "train.py:13 log", 6.0],
        ["read", "train.py:40 step", 4.0],
    ]
    ledger = read(answer(minute(rows, places=places)))
    (own,) = ranked(ledger, known=Known(on_gpu=False))
    assert own.name == "other"
    assert own.share == pytest.approx((30 + 6) / 60)
    low, high = interval(0.5, 300)
    assert (own.low, own.high) == pytest.approx((low + 0.1, high + 0.1))
    (own,) = ranked(ledger, known=Known(on_gpu=True))
    assert own.share == pytest.approx(0.5), "reads wait for what the GPU has to do anyway"


def test_causes_are_what_can_be_cured_what_brings_most_first():
    rows = {
        "forward": (30.0, 150),
        "read": (10.0, 50),
        "checkpoint": (8.0, 40),
        "input": (11.0, 55),
        "logging": (1.0, 5),
    }
    found = ranked(read(answer(minute(rows))))
    assert [(cause.name, cause.warns) for cause in found] == [("input", True), ("checkpoint", True)]
    assert found[0].share == pytest.approx(11 / 60)


def test_a_few_looks_decide_nothing():
    ledger = read(answer(minute({"input": (5.0, FEW_LOOKS - 1)})))
    assert not ledger.sure
    assert ranked(ledger) == ()


def test_what_a_probe_sends_is_not_trusted():
    wild = {
        "minutes": [
            None,
            {"rows": "no", "places": 4, "looks": float("nan"), "steps": -5},
            {
                "rows": [
                    ["evil\\x1b", 1.0, 5],
                    ["input", float("inf"), 5],
                    [1, 2],
                    ["input", "x", 1],
                ]
            },
        ]
    }
    ledger = read(wild)
    assert [(row.name, row.seconds) for row in ledger.rows] == [("unattributed", 1.0), ("input", 0)]
    assert (ledger.looks, ledger.steps) == (0, 0)
    assert read({}).rows == read({"minutes": 7}).rows == ()


def test_a_row_says_whether_it_is_a_part_of_the_steps():
    rows = {"forward": (50.0, 50), "checkpoint": (30.0, 30), "other": (20.0, 20)}
    ledger = read(answer(minute(rows)))
    assert {row.name: row.inside for row in ledger.rows} == {
        "forward": True,
        "checkpoint": False,
        "other": None,
    }


def test_what_is_not_attributed_is_a_row_even_where_it_is_nothing():
    ledger = read(answer(minute({"forward": (50.0, 50)})))
    assert [(row.name, row.seconds) for row in ledger.whole] == [
        ("forward", 50.0),
        ("unattributed", 0.0),
    ]
    assert read(answer()).whole == ()


def test_a_step_that_took_very_long_is_left_out_but_what_happens_often_is_not():
    usual = minute({"forward": (40.0, 200), "input": (20.0, 100)})
    hung = minute({"input": (50.0, 250), "forward": (10.0, 50)}, steps=21, long_steps=1)
    hung |= {"long_m": 7_000_000_000, "long_seconds": 45.0}
    hung["long"] = [["input", 45.0, 225, "data.py:34 __getitem__"]]
    ledger = read(answer(usual, hung))
    assert (ledger.seconds, ledger.steps, ledger.looks) == (75.0, 120, 375)
    assert {row.name: row.seconds for row in ledger.rows} == {"forward": 50.0, "input": 25.0}
    assert ledger.without == (LongStep(7.0, 45.0),)
    often = read(answer(hung, hung, hung))
    assert (often.seconds, often.steps, often.without) == (180.0, 63, ())
    hung["long"] = [["checkpoint", 45.0, 225, ""]]
    assert read(answer(usual, hung)).seconds == 120.0, "a pause with a name of its own"


def test_a_wall_clock_that_has_only_just_begun_is_not_shown():
    def basis(seconds: float) -> str | None:
        frames = views.cpu_only()
        (entity,) = (one.id for one in frames if isinstance(one, Def) and one.trainer is not None)
        data: dict[str, Any] = {"m": 1, "seconds": seconds, "steps": 9, "looks": 30}
        data |= {"rows": f"other {seconds} 30", "places": ""}
        frames.append(Event(entity, "time", 2, "", data))
        parts = step_parts(views.host_in(views.store_of(frames)).trainers)
        return parts.basis if parts is not None else None

    assert basis(2.0) is None
    assert basis(41.0) == "last 41 s"
    assert basis(241.0) == "last 4 min 01 s"
