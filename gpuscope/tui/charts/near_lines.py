"""Lines that run so near to one another that they are drawn as one.

They would take turns in the same cells, and nobody could tell which is which.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .bins import hold_seconds

NEAR = 0.03
"""Of the axis: two lines this near are less than half a cell apart in a chart of 15 rows."""
MOSTLY, STILL_MOSTLY = 0.8, 0.6
"""The share of the time for which lines are near when they become one, and while they stay it."""
SAMPLES = 60
"""Moments at which lines are compared."""


class Curve(NamedTuple):
    """What is drawn of a line: ``xs`` ascend, and what is unknown is None."""

    xs: Sequence[float]
    ys: Sequence[float | None]

    def at(self, x: float, hold: float) -> float | None:
        """Return where the line passes ``x``, None where it does not."""
        after = bisect_right(self.xs, x, hi=min(len(self.xs), len(self.ys)))
        if not after:
            return None
        x0, y0 = self.xs[after - 1], self.ys[after - 1]
        if y0 is None or x - x0 > hold:
            return None
        if after >= min(len(self.xs), len(self.ys)) or x == x0:
            return y0
        x1, y1 = self.xs[after], self.ys[after]
        return y0 if y1 is None else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Joined(NamedTuple):
    """Which lines another one stands for, by their numbers, and what of them is still drawn."""

    followers: dict[int, int]
    """The number of the line that is drawn for a line."""
    apart: dict[int, list[float | None]]
    """The values of such a line where the two part, if they do."""


def join(
    curves: Sequence[Curve],
    start: float,
    end: float,
    height: float,
    before: Joined,
) -> Joined:
    """Return which lines are near each other for most of the time from ``start`` to ``end``.

    ``height`` is that of the axis, and ``before`` is what was said of the picture before this one.
    """
    out = Joined({}, {})
    holds = [hold_seconds(curve.xs) for curve in curves]
    moments = [start + (end - start) * (at + 0.5) / SAMPLES for at in range(SAMPLES)]
    found = [
        [curve.at(x, hold) for x in moments] for curve, hold in zip(curves, holds, strict=True)
    ]
    for number, curve in enumerate(curves):
        for first in range(number):
            wanted = STILL_MOSTLY if before.followers.get(number) == first else MOSTLY
            if first in out.followers or _share(found[first], found[number], height) < wanted:
                continue
            out.followers[number] = first
            values = _apart(curves[first], curve, start, height, holds[first])
            if any(value is not None for value in values):
                out.apart[number] = values
            break
    return out


def _share(one: Sequence[float | None], other: Sequence[float | None], height: float) -> float:
    """Return for how much of the time in which either is known the two are near."""
    pairs = [pair for pair in zip(one, other, strict=True) if pair != (None, None)]
    near = sum(_is_near(first, second, height) for first, second in pairs)
    return near / len(pairs) if pairs else 0.0


def _is_near(one: float | None, other: float | None, height: float) -> bool:
    return one is not None and other is not None and math.fabs(one - other) <= NEAR * height


def _apart(
    one: Curve, other: Curve, start: float, height: float, hold: float
) -> list[float | None]:
    """Return the values of the other line where it leaves the first, with those on the way."""
    count = min(len(other.xs), len(other.ys))
    points = zip(other.xs[:count], other.ys[:count], strict=True)
    leaves = [
        y is not None and x >= start and not _is_near(one.at(x, hold), y, height) for x, y in points
    ]
    around = [False, *leaves, False]
    kept = [a or b for a, b in pairwise(around)]
    return [other.ys[at] if kept[at] or kept[at + 1] else None for at in range(count)]
