"""This module cuts time into columns that stay where they are.

Bins lie on the clock, not on the newest sample. A chart that scrolls therefore moves by whole
columns and its picture does not shimmer, and between two moves nothing has to be sent to the
terminal at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Bins:
    """A row of ``count`` bins of equal width, of which the last one contains ``now``."""

    start: float
    width: float
    count: int

    @classmethod
    def ending(cls, now: float, window_seconds: float, count: int) -> Bins:
        """Return bins over ``window_seconds`` up to ``now``, on multiples of the bin width."""
        width = max(window_seconds, 1e-6) / max(count, 1)
        last = math.floor(now / width)
        return cls((last - count + 1) * width, width, count)

    def index(self, seconds: float) -> int:
        """Return the bin of a moment; below 0 or ``count`` and more when it lies outside."""
        return math.floor((seconds - self.start) / self.width + 1e-9)

    @property
    def end(self) -> float:
        """Return the moment at which the last bin ends."""
        return self.start + self.width * self.count


def first_at(seconds: Sequence[float], moment: float) -> int:
    """Return the index of the first entry at or after ``moment``; ``seconds`` ascend."""
    return bisect_left(seconds, moment)


def hold_seconds(seconds: Sequence[float]) -> float:
    """Return how long one sample speaks for: three times the usual distance of samples.

    That is the distance between the newest ones. Longer is a gap.
    """
    recent = seconds[-64:]
    steps = sorted(b - a for a, b in pairwise(recent) if b > a)
    return steps[len(steps) // 2] * 3 if steps else 1.0
