"""A lasting change is found where it is, and noise is no change."""

from __future__ import annotations

import random

import pytest

from gpuscope.model.change_point import change_of, changed_at

NOISES = ("gauss", "lognormal", "neighbours alike", "pauses", "two lengths", "exact")


def noise(kind: str, dice: random.Random, count: int = 300) -> list[tuple[float, float]]:
    """Ten minutes of step times, two seconds apart."""
    series, drift = [], 0.0
    for number in range(count):
        value = 0.1
        if kind == "gauss":
            value *= 1 + 0.05 * dice.gauss(0, 1)
        elif kind == "lognormal":
            value *= dice.lognormvariate(0, 0.2)
        elif kind == "neighbours alike":
            drift = 0.95 * drift + dice.gauss(0, 0.31)
            value *= 1 + 0.05 * drift
        elif kind == "pauses":
            value = value * (1 + 0.03 * dice.gauss(0, 1)) + (dice.random() < 0.1) * dice.random()
        elif kind == "two lengths":
            value = 0.15 if dice.random() < 0.4 else value * (1 + 0.02 * dice.gauss(0, 1))
        series.append((2.0 * number, max(value, 1e-4)))
    return series


@pytest.mark.slow
def test_false_alarms_over_noise_are_fewer_than_one_in_a_hundred():
    dice, alarms, tries = random.Random(11), 0, 60
    for kind in NOISES:
        for _ in range(tries):
            change = change_of(noise(kind, dice))
            alarms += change is not None and change.ratio >= 1.15
    assert alarms / (tries * len(NOISES)) < 0.01


@pytest.mark.parametrize("kind", ["gauss", "neighbours alike", "pauses", "exact"])
def test_steps_that_take_a_quarter_longer_are_found_within_a_few_seconds(kind):
    dice, found = random.Random(5), []
    for _ in range(40):
        at = dice.uniform(100.0, 500.0)
        series = [(s, v * (1.25 if s >= at else 1.0)) for s, v in noise(kind, dice)]
        change = change_of(series)
        if change is not None and abs(change.seconds - at) < 20.0:
            assert change.ratio == pytest.approx(1.25, abs=0.1)
            found.append(at)
    assert len(found) >= 36


def test_a_change_that_is_over_again_does_not_last():
    series = [(2.0 * n, 0.2 if 100 <= n < 220 else 0.1) for n in range(300)]
    change = change_of(series)
    assert change is None or change.after <= change.before


def test_too_little_is_no_change():
    assert change_of([]) is None
    assert change_of([(2.0 * n, 0.1 if n < 15 else 0.2) for n in range(25)]) is None
    found = change_of([(2.0 * n, 0.1 if n < 150 else 0.2) for n in range(175)])
    assert found is not None
    assert found.seconds == pytest.approx(300.0, abs=10.0)


def test_another_series_is_judged_at_the_moment_of_the_first():
    dice = random.Random(2)
    clock = [(2.0 * n, (1980 if n < 150 else 1200) + dice.gauss(0, 9)) for n in range(300)]
    change = changed_at(clock, 300.0)
    assert change is not None
    assert change.before == pytest.approx(1980, abs=10)
    assert change.after == pytest.approx(1200, abs=10)
    assert changed_at([(s, 5.0) for s, _ in clock], 300.0) is None
    assert changed_at(clock[140:], 300.0) is None, "nothing is known of before"
