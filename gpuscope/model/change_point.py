"""Find the moment since when a series is different: the change point of step times.

Pure functions over histories: pairs of a moment and a value, the oldest first. The step time of
each stretch of time is its median, and two spans differ if their medians do, compared with the
spread within them. A single pause moves no median.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from .ranks import median

STRETCHES = 60
"""The most stretches of equal length into which a history is cut."""
LEAST_SECONDS = 10.0
"""The shortest stretch: readings a second apart are medians of mostly the same steps."""
SPAN = 4
"""The fewest stretches on each side of a change."""
DISTANCE = 6.0
"""The fewest standard errors between the medians.

So far that drifting noise, whose neighbours are alike, seldom gets there: the test that draws
noise of five kinds has the rate of false alarms.
"""
APART = 0.9
"""The share of the pairs of stretches, one before and one after, in which the later is slower."""
FLOOR = 0.005
"""The spread of a median is at least this share of it: clocks and rounding."""

Series = Sequence[tuple[float, float]]
"""(seconds, value), the oldest first."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A lasting change of a series at ``seconds``: its medians before and after it."""

    seconds: float
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else float("inf")


def change_of(series: Series) -> ChangePoint | None:
    """Return the most distinct lasting change of a series, None if it has none."""
    parts = _stretches(series)
    values = [value for _, value in parts]
    cuts = range(SPAN, len(parts) - SPAN + 1)
    cut = min(cuts, key=lambda at: _cost(values[:at]) + _cost(values[at:]), default=None)
    best = None if cut is None else _change_between(parts[cut][0], values[:cut], values[cut:])
    if best is None:
        return None
    last = median(value for _, value in parts[-SPAN:])
    lasts = abs(last - best.before) > 0.5 * abs(best.after - best.before)
    return best if lasts else None


def changed_at(series: Series, moment: float) -> ChangePoint | None:
    """Return how a series changed at a moment that something else has named.

    None where it did not, or where too little of it is known.
    """
    parts = _stretches(series)
    before = [value for at, value in parts if at < moment]
    after = [value for at, value in parts if at >= moment]
    if len(before) < SPAN or len(after) < SPAN:
        return None
    return _change_between(moment, before, after)


def _change_between(
    moment: float, before: Sequence[float], after: Sequence[float]
) -> ChangePoint | None:
    """Return the change between two spans, None where they do not differ clearly."""
    distance = _distance(before, after)
    if abs(distance) < DISTANCE:
        return None
    ordered = sorted(before)
    if distance > 0:
        apart = sum(bisect_left(ordered, value) for value in after)
    else:
        apart = sum(len(ordered) - bisect_right(ordered, value) for value in after)
    if apart < APART * len(before) * len(after):
        return None
    return ChangePoint(moment, median(before), median(after))


def _cost(values: Sequence[float]) -> float:
    """Return how far all values lie from their median: the upper half less the lower half."""
    ordered, half = sorted(values), len(values) // 2
    return sum(ordered[len(ordered) - half :]) - sum(ordered[:half])


def _distance(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how many standard errors the medians of two spans lie apart."""
    middle, later = median(before), median(after)
    spread = max(_spread(before), _spread(after), FLOOR * max(abs(middle), abs(later)), 1e-9)
    return (later - middle) / (1.2533 * spread * sqrt(1 / len(before) + 1 / len(after)))


def _spread(values: Sequence[float]) -> float:
    """The standard deviation as the median distance from the median tells it."""
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _stretches(series: Series) -> list[tuple[float, float]]:
    """The median of each stretch of time that has values, with the moment it begins."""
    if not series:
        return []
    begin, end = series[0][0], series[-1][0]
    length = max(LEAST_SECONDS, (end - begin) / STRETCHES)
    cells: dict[int, list[tuple[float, float]]] = {}
    for at, value in series:
        cells.setdefault(int((at - begin) / length), []).append((at, value))
    return [
        (cells[number][0][0], median(value for _, value in cells[number]))
        for number in sorted(cells)
    ]
