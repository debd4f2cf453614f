"""A rank that is a tenth slower is named within a minute, and noise between ranks names none."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest

from gpuscope.model import stragglers
from gpuscope.model.late_rank import late_rank
from gpuscope.model.rank_pace import LATEST, MOST, slower_rank
from gpuscope.model.stragglers import QUICK_LATEST, QUICK_SECONDS
from gpuscope.store.view import HistoryOf, HostView
from gpuscope.text.units import duration_text, percent_text
from gpuscope.wire import frames as f
from tests.fakes import paces, views

NOISES = ("gauss", "wide gauss", "lognormal", "neighbours alike", "pauses", "two lengths")
RANKS = (2, 4, 8)
STEPS = 32
"""A window is the mean of so many steps."""


def quickest(steps: list[float]) -> float:
    return fmean(sorted(steps)[: len(steps) // 3])


def course(
    kind: str,
    dice: random.Random,
    windows: int,
    steps_each: int = STEPS,
    mean: Callable[[list[float]], float] = fmean,
) -> list[float]:
    """The work of one rank in a step, by window: as long as that of the others on average."""
    out, drift = [], 0.0
    for _ in range(windows):
        steps = []
        for _ in range(steps_each):
            value = 1 + 0.05 * dice.gauss(0, 1)
            if kind == "wide gauss":
                value = 1 + 0.1 * dice.gauss(0, 1)
            elif kind == "lognormal":
                value = dice.lognormvariate(0, 0.2)
            elif kind == "neighbours alike":
                drift = 0.95 * drift + dice.gauss(0, 0.31)
                value = 1 + 0.05 * drift
            elif kind == "pauses":
                value += (dice.random() < 0.1) * dice.random()
            elif kind == "two lengths":
                value = 1.5 if dice.random() < 0.4 else value
            elif kind == "busy host":
                value += dice.expovariate(2.5) * (dice.random() < 0.6)
            steps.append(value)
        out.append(mean(steps))
    return out


@pytest.mark.slow
def test_false_alarms_in_ten_minutes_of_healthy_jobs_are_fewer_than_one_in_a_hundred():
    alarms, tries = 0, 40
    for kind in NOISES:
        for count in RANKS:
            dice = random.Random(f"{kind} {count}")
            for _ in range(tries):
                ranks = [course(kind, dice, 30) for _ in range(count)]
                alarms += any(
                    slower_rank([rank[max(0, end - MOST) : end] for rank in ranks]) is not None
                    for end in range(LATEST, 31)
                )
    assert alarms / (tries * len(NOISES) * len(RANKS)) < 0.01


@pytest.mark.slow
def test_the_quickest_steps_of_healthy_ranks_name_nobody_in_ten_minutes_either():
    alarms, tries, windows = 0, 6, int(600 / QUICK_SECONDS)
    for kind in (*NOISES, "busy host"):
        for count in RANKS:
            dice = random.Random(f"{kind} {count}")
            for _ in range(tries):
                ranks = [course(kind, dice, windows, 160, quickest) for _ in range(count)]
                alarms += any(
                    slower_rank([rank[max(0, end - MOST) : end] for rank in ranks], QUICK_LATEST)
                    is not None
                    for end in range(QUICK_LATEST, windows + 1)
                )
    assert alarms <= 1


@pytest.mark.parametrize("count", [2, 4])
def test_on_a_busy_host_the_quickest_steps_name_a_rank_that_all_steps_cannot(count):
    """Others take the cores for as long as a step, now from one rank and now from another."""
    by_all, by_quickest = 0, 0
    for number in range(10):
        for mean in (fmean, quickest):
            dice = random.Random(number)
            ranks = [course("busy host", dice, 7, 160, mean) for _ in range(count)]
            dice = random.Random(number)
            slow = [1.1 * value for value in course("busy host", dice, 7, 160, mean)]
            slower = slower_rank([*ranks[1:], slow], QUICK_LATEST)
            assert slower is None or slower.place == count - 1
            by_all += mean is fmean and slower is not None
            by_quickest += mean is quickest and slower is not None
    assert by_quickest >= 9 > by_all


@pytest.mark.parametrize(("kind", "count"), [("gauss", 2), ("gauss", 8), ("wide gauss", 8)])
def test_a_rank_that_is_a_tenth_slower_for_three_windows_is_found(kind, count):
    dice, found = random.Random(7), 0
    for _ in range(20):
        ranks = [course(kind, dice, 12) for _ in range(count)]
        ranks[1][-LATEST:] = [1.1 * value for value in ranks[1][-LATEST:]]
        slower = slower_rank(ranks)
        if slower is not None:
            assert slower.place == 1
            assert slower.ratio == pytest.approx(1.1, abs=0.05)
            assert slower.since in (8, 9)
            found += 1
    assert found >= 17


def test_one_window_or_two_name_nobody_and_what_is_always_so_has_no_beginning():
    even = [1.0, 1.001] * 6
    assert slower_rank([even, [*even[:-2], 1.1, 1.1]]) is None
    assert slower_rank([even, even]) is None
    assert slower_rank([even]) is None
    slower = slower_rank([even, [1.1 * value for value in even]])
    assert slower is not None
    assert slower.since is None


# ── through a store, as the screens ask ──


def told(seconds: float, times: float = 1.1) -> tuple[HostView, HistoryOf]:
    store = views.store_of(paces.job(seconds, times))
    host = views.host_in(store)
    return host, partial(store.history, host.key)


def test_within_a_minute_it_is_named_with_how_much_slower_it_is_and_since_when():
    host, history = told(paces.LATE + 60.0)
    slow = stragglers.straggler(host.trainers, history, host)
    assert slow is not None
    assert slow.trainer.definition.rank == 3
    assert slow.own_seconds / slow.usual_seconds == pytest.approx(1.1, abs=0.02)
    assert host.sampled_seconds is not None
    assert slow.since == pytest.approx(host.sampled_seconds - 60.0, abs=20.0)
    assert host.wall_seconds is not None
    assert slow.wall == pytest.approx(host.wall_seconds - 60.0, abs=20.0)
    at = time.strftime("%H:%M", time.localtime(slow.wall))
    late = duration_text(slow.own_seconds - slow.usual_seconds)
    found = late_rank(host.trainers, history, host)
    assert found is not None
    share = percent_text(found.share)
    assert found.share == pytest.approx(0.08, abs=0.01)
    assert found.brief == f"the others wait for rank 3, {late} a step ({share}) since {at}"
    assert "mostly compute (+" in found.text
    assert not found.warns


def test_quick_steps_name_a_rank_whose_means_are_too_unsteady_and_its_gain_is_of_the_whole_step():
    dice = random.Random(5)
    frames = paces.job(paces.LATE + 60.0, 1.0)
    for frame in frames:
        for row in frame.t if isinstance(frame, f.Sample) else ():
            slow = 1.1 if row[0] == 303 and frame.q / 2 >= paces.LATE else 1.0
            values = {"compute_seconds": 0.35 + 0.03 * slow + 0.01 * dice.gauss(0, 1)}
            values |= {"quick_own_seconds": 0.3 * slow * (1 + 0.002 * dice.gauss(0, 1))}
            values |= {"communication_seconds": 0.4 - values["compute_seconds"]}
            for name, value in values.items():
                row[1 + f.TRAINER_COLUMNS.index(name)] = value
    store = views.store_of(frames)
    host = views.host_in(store)
    found = stragglers.straggler(host.trainers, partial(store.history, host.key), host)
    assert found is not None
    assert found.trainer.definition.rank == 3
    assert found.own_seconds == pytest.approx(0.33, rel=0.01)
    assert found.late_seconds == pytest.approx(0.03, rel=0.1)
    assert found.step_seconds == pytest.approx(0.41, abs=0.01), "with what it waits in the mean"
    assert found.since == pytest.approx(host.sampled_seconds - 60.0, abs=12.0)


def test_a_job_whose_ranks_are_alike_has_none_and_ranks_on_a_cpu_are_judged_as_closely():
    host, history = told(paces.LATE + 60.0, 1.0)
    assert stragglers.straggler(host.trainers, history, host) is None
    frames_host, later = told(paces.LATE + 60.0)
    for trainer in frames_host.trainers:
        trainer.definition.cuda = False
    slow = stragglers.straggler(frames_host.trainers, later, frames_host)
    assert slow is not None
    assert slow.trainer.definition.rank == 3
