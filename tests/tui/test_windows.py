"""How much time charts take by themselves, and which parts of a step have rows."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpuscope.tui.shared import windows
from gpuscope.tui.shared.windows import window_of_steps
from gpuscope.tui.theme import UNICODE
from gpuscope.tui.time.rows import split_rows
from gpuscope.wire import frames as f
from tests.fakes import jobs, views


class Trainer:
    """A trainer that has ended no step for a while, after so many seconds of steps."""

    def __init__(self, stepped: float, stood: float) -> None:
        self.minutes = [{"m": int(1000 * 1e9)}]
        self.now, self._age = 1000 + stepped + stood, stood

    def number(self, name: str) -> float | None:
        return self._age if name == "step_age_seconds" else None


@pytest.mark.parametrize(
    ("stepped", "stood", "window"),
    [(7, 13, 20), (7, 153, 180), (18, 552, 600), (7, 786, 900), (7, 1038, 1200), (7200, 786, 900)],
)
def test_the_window_of_a_hang_begins_about_where_something_is_known(
    monkeypatch, stepped, stood, window
):
    monkeypatch.setattr(windows, "stands_still", lambda trainer: True)
    one = Trainer(stepped, stood)
    assert windows.window_of_minutes(cast(Any, one), one.now) == window


@pytest.mark.parametrize(
    ("known", "window"), [(7, 15), (32, 45), (61, 90), (300, 300), (500, 600), (9000, 600)]
)
def test_at_most_a_third_of_a_window_is_blank(known, window):
    assert windows.shortest_window(known) == window


def trainer(age: float = 0.1, world: int = 1, **more: float):
    """A training whose last step ended ``age`` seconds ago."""
    out = [views.hello(), views.host_def(), views.gpu(0)]
    out += views.trainer(48200, 0, world, "ada", True, "job-0")
    values = {**jobs.split(0.5), "step_age_seconds": age, "stall_at": "a.py:1 f", **more}
    if age < 1:
        del values["stall_at"]
    sample = f.Sample(1, int(views.END * 1e9), h=[views.host_row()])
    sample.t.append(views.trainer_row(0, 100, 0.5, **values))
    return views.host_of([*out, sample]).trainers[0]


@pytest.mark.parametrize("age", [100.0, 200.0, 330.0, 552.0, 1000.0, 3000.0])
def test_the_charts_of_a_hang_show_its_last_steps_and_are_not_mostly_of_the_time_before(age):
    window = window_of_steps(trainer(age), age)
    assert window >= age + 15
    assert window <= 2 * age


def test_a_training_of_one_rank_has_no_row_for_communication_that_there_is_not():
    def parts(one) -> set[str]:
        return {row.key.rpartition("split")[-1] for row in split_rows(one, UNICODE)}

    alone = " ".join(parts(trainer(communication_seconds=0.0)))
    assert "communication" not in alone
    assert "compute" in alone
    assert "communication" in " ".join(parts(trainer(communication_seconds=0.1)))
    assert "communication" in " ".join(parts(trainer(world=2, communication_seconds=0.0)))
