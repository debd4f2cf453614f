"""Tell which rank of a job works a little longer than the others, and since when.

Pure functions over courses: for each rank the seconds of its own work in a step, one figure for
each window of time, the oldest first, of the same windows for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt

from .ranks import median

LATEST = 3
"""How many of the latest windows a rank is judged by, where these are of 16 s or more."""
MOST = 15
"""How many windows the noise is estimated from."""
LEAST = 1.07
"""How many times as long as the others it works at least, over the latest windows."""
LEAST_EACH = 1.03
"""The same in each of them."""
DISTANCE = 5.5
"""How many standard errors it lies from the others at least, where many windows are known."""
FEW = 10.0
"""If the noise is estimated from n differences, the distance must be 1 + FEW / n times as large."""
FLOOR = 0.005
"""The noise of a window is at least this share of it."""
STILL = 0.5
"""It has been slower for as long as its excess is at least this share of the latest."""


@dataclass(frozen=True, slots=True)
class Slower:
    """The rank at ``place`` works ``ratio`` times as long as the others.

    ``since`` is the first window in which it does, None where no earlier one is known.
    """

    place: int
    ratio: float
    since: int | None


def slower_rank(courses: Sequence[Sequence[float]], latest: int = LATEST) -> Slower | None:
    """Return the rank that has been slower than the others for some windows, None without one.

    It must be so by more than the noise between windows explains. ``latest`` is how many of the
    latest windows it is judged by.
    """
    windows = min((len(course) for course in courses), default=0)
    if len(courses) < 2 or windows < latest or any(x <= 0 for c in courses for x in c):
        return None
    logs = [[log(value) for value in course] for course in courses]
    sums = [sum(course[-latest:]) for course in logs]
    worst = max(range(len(logs)), key=sums.__getitem__)
    others = [course for at, course in enumerate(logs) if at != worst]
    usual = [median(course[at] for course in others) for at in range(windows)]
    excess = [value - middle for value, middle in zip(logs[worst], usual, strict=True)]
    mean = sum(excess[-latest:]) / latest
    if mean < log(LEAST) or min(excess[-latest:]) < log(LEAST_EACH):
        return None
    moves = [abs(b - a) for course in _apart(logs) for a, b in pairwise(course)]
    both = sqrt(1 + 1 / len(others))
    error = max(_noise(moves), FLOOR * both) / sqrt(latest)
    if mean < DISTANCE * (1 + FEW / len(moves)) * error:
        return None
    began = windows - latest
    while began > 0 and excess[began - 1] >= STILL * mean:
        began -= 1
    return Slower(worst, exp(mean), began or None)


def _apart(logs: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return how far each rank lies from the others by window: what all share is no noise here."""
    found = []
    for at, course in enumerate(logs):
        others = [one for place, one in enumerate(logs) if place != at]
        found.append([value - median(one[n] for one in others) for n, value in enumerate(course)])
    return found


def _noise(moves: Sequence[float]) -> float:
    """Return the standard deviation of a window's excess from how far neighbours lie apart.

    A rank that becomes slower moves once, which does not count in a median.
    """
    return 1.4826 * median(moves) / sqrt(2)
