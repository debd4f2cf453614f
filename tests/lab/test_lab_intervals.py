"""The intervals that comparisons rest on: against tables, and against what they promise."""

from __future__ import annotations

import math
import random

import pytest

from gpuscope.lab import intervals
from gpuscope.probe.steps import median_interval


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_students_t_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert intervals.t_quantile(freedom) == pytest.approx(expected, abs=1e-4)


def test_students_t_between_whole_degrees_lies_between_them() -> None:
    assert intervals.t_quantile(3) < intervals.t_quantile(2.5) < intervals.t_quantile(2)


def test_paired_ratio_by_hand() -> None:
    # logarithms of the ratios: ln 2, ln 2.2, ln 1.8
    logs = [math.log(2.0), math.log(2.2), math.log(1.8)]
    mean = sum(logs) / 3
    error = 4.3027 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 / 3)
    found = intervals.paired([1.0, 10.0, 5.0], [2.0, 22.0, 9.0])
    assert found.middle == pytest.approx(math.exp(mean))
    assert found.low == pytest.approx(math.exp(mean - error), rel=1e-4)
    assert found.high == pytest.approx(math.exp(mean + error), rel=1e-4)


def test_what_slows_both_of_a_pair_cancels() -> None:
    slow = [1.0, 3.0, 0.5]
    found = intervals.paired(slow, [2 * x for x in slow])
    assert (found.middle, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    apart = intervals.separate(slow, [2 * x for x in slow])
    assert apart.middle == pytest.approx(2.0)
    assert apart.low < 0.5 < 8 < apart.high


def test_a_single_pair_has_no_spread() -> None:
    assert intervals.paired([1.0], [2.0]) == (2.0, None, None)
    assert intervals.separate([1.0, 2.0], [3.0])[1:] == (None, None)


def share(trials: int, hit: object) -> float:
    return sum(hit() for _ in range(trials)) / trials  # type: ignore[operator]


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    """Intervals hold what they promise of a known truth.

    They hold at least 95 % within what 400 trials can tell (four standard errors: 90.6 %).
    """
    source = random.Random(20)

    def paired() -> bool:
        common = [source.gauss(0, 0.5) for _ in range(5)]
        a = [math.exp(x + source.gauss(0, 0.03)) for x in common]
        b = [1.5 * math.exp(x + source.gauss(0, 0.03)) for x in common]
        _, low, high = intervals.paired(a, b)
        return low <= 1.5 <= high

    def separate() -> bool:
        a = [math.exp(source.gauss(0, 0.03)) for _ in range(4)]
        b = [1.5 * math.exp(source.gauss(0, 0.10)) for _ in range(6)]
        _, low, high = intervals.separate(a, b)
        return low <= 1.5 <= high

    def medians() -> bool:
        sides = []
        for scale in (1.0, 1.5):
            steps = sorted(scale * math.exp(source.gauss(0, 0.2)) for _ in range(40))
            sides.append(((steps[19] + steps[20]) / 2, *median_interval(steps)))
        _, low, high = intervals.of_medians(*sides)
        return low <= 1.5 <= high

    for hit in (paired, separate, medians):
        assert share(400, hit) >= 0.906, hit.__name__


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        ((1.84, 1.79, 1.9), "1.84 × [1.79, 1.90]"),
        ((1.003, 1.001, 1.005), "1.003 × [1.001, 1.005]"),
        ((0.05, 0.03, 0.09), "0.050 × [0.030, 0.090]"),
        ((0.05, 0.01, 0.09), "too noisy (0.01–0.09)"),
        ((2.0, 1e-9, 5e6), "too noisy (0.00–>999)"),
        ((2.0, 0.7, 14.3), "too noisy (0.70–14)"),
        ((2.9, None, None), "2.90 ×"),
        ((None, None, None), "–"),
    ],
)
def test_a_ratio_shows_how_wide_its_interval_is(ratio, text):
    assert intervals.ratio_text(*ratio) == text
