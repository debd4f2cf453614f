"""No healthy training alarms, and leaks of every kind are found soon."""

from __future__ import annotations

from random import Random

import pytest

from gpuscope.model import growth
from gpuscope.model.growth import Forecast, GrowthRate, forecast, trend_of, trend_of_points
from gpuscope.model.memory_room import releasable, rooms
from gpuscope.store.step_points import WARM_UP_POINTS, WARM_UP_STEPS, Track
from tests.fakes import jobs, memories, views
from tests.fakes.cases import each
from tests.fakes.memories import GIB, HEALTHY, MIB

SEEDS = range(2)
POINTS = 500


def track_of(sizes: list[float], first: int = 1) -> Track:
    track = Track()
    for step, size in enumerate(sizes, first):
        track.add(step, size)
    return track


def trend_in(track: Track) -> GrowthRate | None:
    points = track.points
    return None if points is None else trend_of_points(points)


@pytest.mark.slow
@each("kind", HEALTHY)
def test_no_healthy_training_is_said_to_run_out(kind):
    """No healthy training is said to run out of memory.

    It is looked at all along the run, with the room it would really have: its largest size, and 0.5
    to 40 GiB more.
    """
    for seed in SEEDS:
        rng = Random(f"{kind.__name__} {seed}")
        sizes = kind(rng, POINTS)
        top = max(sizes) + rng.uniform(0.5, 40) * GIB
        track = Track()
        for step, size in enumerate(sizes, 1):
            track.add(step, size)
            if step % 3 == 0:
                trend = trend_in(track)
                assert forecast(trend, top - size, 1.0) is None, (seed, step, trend)


@pytest.mark.parametrize(
    ("kind", "within"),
    [
        (memories.constant_leak, 45),
        (memories.small_leak, 45),
        (memories.stepwise_leak, 60),
        (memories.noisy_leak, 100),
        (memories.curriculum, 100),
        (memories.leak_under_lengths, 250),
        (memories.late_leak, 300 + 60),
    ],
)
def test_a_leak_is_found_within_so_many_points(kind, within):
    for seed in range(10):
        track = Track()
        sizes = kind(Random(seed), within)
        for step, size in enumerate(sizes, 1):
            track.add(step, size)
            trend = trend_in(track)
            if trend is not None and trend.grows:
                break
        else:
            raise AssertionError((seed, trend))


def test_the_slope_of_a_leak_is_within_its_interval_and_the_forecast_right():
    """3.4 GiB left at 0.18 GiB a step: nineteen steps."""
    rng = Random(3)
    slope = 0.18 * GIB
    trend = trend_in(track_of([50 * GIB + slope * i + rng.gauss(0, 0.1 * GIB) for i in range(80)]))
    assert trend is not None
    assert trend.grows
    assert trend.low < slope < trend.high
    ends = forecast(trend, 3.4 * GIB, 1.9)
    assert ends is not None
    assert ends.low < 3.4 / 0.18 < ends.high
    assert ends.steps == pytest.approx(3.4 / 0.18, rel=0.05)
    assert ends.seconds == pytest.approx(1.9 * ends.steps)


def test_fewer_than_thirty_points_after_the_warm_up_are_no_evidence():
    sizes = [GIB + 10 * MIB * i for i in range(WARM_UP_STEPS + growth.MIN_POINTS)]
    assert trend_in(track_of(sizes[:-1])) is None
    trend = trend_in(track_of(sizes))
    assert trend is not None
    assert trend.grows


def test_it_says_why_it_does_not_grow():
    flat = trend_in(track_of([GIB] * 60))
    assert flat is not None
    assert "not above 0" in flat.reason
    jump = trend_in(track_of([GIB] * 40 + [2 * GIB] * 40))
    assert jump is not None
    assert "at once" in jump.reason


@pytest.mark.parametrize(
    ("trend", "room"),
    [
        (None, GIB),
        (GrowthRate(MIB, 0.9 * MIB, 1.1 * MIB, 60, 60, False, "it stopped growing"), GIB),
        (GrowthRate(MIB, 0.9 * MIB, 1.1 * MIB, 60, 60, True), None),
        (GrowthRate(MIB, 0.9 * MIB, 1.1 * MIB, 60, 60, True), 1000 * GIB),
    ],
)
def test_without_evidence_room_or_nearness_there_is_no_forecast(trend, room):
    assert forecast(trend, room, 1.0) is None


def test_no_room_left_is_now():
    trend = GrowthRate(MIB, 0.9 * MIB, 1.1 * MIB, 60, 60, True)
    assert forecast(trend, -5.0, None) == Forecast(0, 0, 0, None)


def test_only_whole_free_segments_are_releasable():
    assert releasable(10, 6, 3) == 1
    assert releasable(10, 9, 3) == 0


def test_steps_beyond_what_a_float_tells_apart_do_no_harm():
    track = Track()
    for step in range(200):
        track.add((1 << 62) + step, 10 * step)
    assert trend_in(track) is None


def test_through_the_store_a_leaking_rank_is_the_first_to_die():
    host = views.host_of(jobs.ranks(leaks=2))
    first, *others = rooms(host.devices, host.trainers)
    assert first.trainer.definition.rank == 2
    assert first.runs_out is not None
    assert first.runs_out.steps == pytest.approx(3.4 / 0.18, rel=0.1)
    assert trend_of(first.allocator) is not None
    assert all(room.runs_out is None for room in others)


def test_what_a_trainer_remembers_stands_before_what_was_seen_and_counts_once():
    seen = track_of([10 * GIB + step * MIB for step in range(100, 140)], 100)
    trend = trend_in(seen)
    assert trend is not None
    assert trend.steps < 40
    seen.put_before([(step, 10 * GIB + step * MIB) for step in range(1, 120)])
    trend = trend_in(seen)
    assert trend is not None
    assert trend.grows
    assert trend.steps > 39
    assert len(seen) == 139 - WARM_UP_STEPS
    seen.put_before([])
    assert len(seen) == 139 - WARM_UP_STEPS - WARM_UP_POINTS
