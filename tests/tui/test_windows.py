"""How much time charts take by themselves, and which parts of a step have rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuscope.model.standstill import stands_still
from gpuscope.store.view import History
from gpuscope.tui.shared import windows
from gpuscope.tui.shared.windows import reach_of, span_of_steps, window_of_load
from gpuscope.tui.theme import UNICODE
from gpuscope.tui.time.rows import split_rows
from gpuscope.wire import frames as f
from tests.fakes import jobs, views


@pytest.mark.parametrize(
    ("known", "window"),
    [(7, 15), (32, 60), (61, 120), (150, 180), (300, 300), (500, 600), (9000, 600)],
)
def test_a_window_has_all_that_is_known_up_to_ten_minutes(known, window):
    assert windows.shortest_window(known) == window


def test_the_axis_of_a_young_training_changes_a_few_times_and_only_grows():
    shown = [windows.shortest_window(second / 2) for second in range(2 * 1200)]
    assert shown == sorted(shown)
    assert len(set(shown)) == 7


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


@pytest.mark.parametrize("age", [100.0, 552.0, 3000.0])
def test_charts_of_steps_end_with_the_last_step_of_a_training_that_hangs(age):
    now = 5000.0
    moments = [now - age - 20 + n for n in range(20)] + [now - age + 30, now]
    course = History(tuple(moments), (*([0.5] * 20), None, None))
    hangs = trainer(age)
    assert reach_of(hangs, 600.0) == 600.0 + age
    span = span_of_steps(hangs, [course], 600.0, now)
    assert span == (30.0, now - age - 1, ", last 30 s of steps")


def test_charts_of_steps_end_now_while_a_training_steps():
    course = History((4990.0, 4999.0), (0.5, 0.5))
    steps = trainer()
    assert reach_of(steps, 60.0) == 60.0
    assert span_of_steps(steps, [course], 60.0, 5000.0) == (60.0, 5000.0, " over 1 min")


@pytest.mark.parametrize(("read", "shown"), [(8, 15.0), (25, 30.0), (240, 300.0), (4000, 600.0)])
def test_readings_beside_a_hang_begin_with_what_was_read_of_it(read, shown):
    host = views.host_of(jobs.ranks(stalled=True))
    hangs = next(one for one in host.trainers if stands_still(one))
    now = host.sampled_seconds
    assert now is not None

    def history(entity: int, column: str, seconds: float | None) -> History:
        since = tuple(now - n for n in range(read, -1, -1) if n <= (seconds or n))
        return History(since, (50.0,) * len(since))

    session = SimpleNamespace(history=history)
    assert window_of_load(session, host, hangs, 600.0) == shown
    well = trainer()
    assert window_of_load(session, host, well, 600.0) == 600.0, "its steps stand beside them"
    assert window_of_load(session, host, None, 600.0) == 600.0


def test_a_training_of_one_rank_has_no_row_for_communication_that_there_is_not():
    def parts(one) -> set[str]:
        return {row.key.rpartition("split")[-1] for row in split_rows(one, UNICODE)}

    alone = " ".join(parts(trainer(communication_seconds=0.0)))
    assert "communication" not in alone
    assert "compute" in alone
    assert "communication" in " ".join(parts(trainer(communication_seconds=0.1)))
    assert "communication" in " ".join(parts(trainer(world=2, communication_seconds=0.0)))
