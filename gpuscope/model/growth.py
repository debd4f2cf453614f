"""Judge whether a trainer's memory grows from step to step, how fast, and when it runs out.

The judgement rests on ``step_allocated_bytes``, which is read right after ``optimizer.step()``.
At this fixed point of the step there are no activations, and the rest should be the same each time.

Most rises at that point are harmless: warm-up, caches that fill, a ramp that an evaluation clears,
a copy of the weights that is made once, sequences of changing length. So a slope alone proves
nothing. Memory is said to grow only if the level that it never falls below rises over the whole
window, at a pace that does not slow down, and above everything seen before.

A window of points is divided into blocks of equal count. Each block is represented by a low
quantile of its points, which a leak raises, but spikes and ramps that are cleared again do not. The
slope is that of the least-squares line through the blocks. Its 95 % interval is Student's t for the
number of blocks, widened by (1 + r) / (1 - r) for the correlation r of neighbouring residuals, as
for the mean of an AR(1) series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from weakref import WeakKeyDictionary

from ..store.step_points import Point, StepPoints
from ..store.view import AllocView
from ..text.units import age_text
from .look import T95

MIN_POINTS = 30
"""The fewest points after the warm-up that are evidence."""
WINDOWS = (40, 80, 160, 240)
"""Windows of recent points, so that a late start is found soon; the last one is all that is kept.
"""
BLOCKS = 12
LOW = 0.25
LARGEST_RISE = 0.4
"""The largest share of the whole rise from one block to the next; more is a jump, not growth."""
FALLS = 0.1
"""All falls between blocks together may be at most this share of the whole rise."""
FADING = 0.6
"""The second half must grow at least at this share of the pace of the first: caches fill ever more
slowly.
"""
ABOVE_BEFORE = 0.5
"""A window must end above what was before it, by this share of the range that was usual there."""
POINTS_PER_REACH = 20.0
"""For each twenty points of the window the forecast may reach one more window's length ahead.

The first part of a ramp that is cleared later looks like a leak, so little evidence allows only a
short forecast.
"""


@dataclass(frozen=True, slots=True)
class GrowthRate:
    """Bytes per step with the bounds of their 95 % interval.

    ``grows`` says whether there is all the evidence. If it is false, ``reason`` says in words what
    is missing. ``points`` and ``steps`` are those of the window that the trend rests on.
    """

    slope: float
    low: float
    high: float
    points: int
    steps: float
    grows: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps until the memory runs out, with bounds, and seconds where the pace is known."""

    steps: float
    low: float
    high: float
    seconds: float | None

    @property
    def steps_text(self) -> str:
        """How many steps are left, with the bounds where they differ."""
        low, high = f"{self.low:,.0f}", f"{self.high:,.0f}"
        return f"about {self.steps:,.0f} steps" + (f" ({low}–{high})" if low != high else "")

    @property
    def time_text(self) -> str:
        """How much time is left, "" where the pace is unknown."""
        if self.seconds is None:
            return ""
        return f"~{age_text(self.seconds)}" if self.seconds >= 1 else "< 1 s"

    @property
    def text(self) -> str:
        """Both in one: ``about 19 steps (17–21), ~9 s``."""
        return ", ".join(filter(None, (self.steps_text, self.time_text)))


def forecast(
    trend: GrowthRate | None, headroom_bytes: float | None, step_seconds: float | None
) -> Forecast | None:
    """Forecast when ``headroom_bytes`` are used up.

    They are free on the device or in the part of the allocator's cache that it gives back. None
    where memory does not grow, the room is not known, or that moment lies beyond what the evidence
    reaches.
    """
    if trend is None or not trend.grows or headroom_bytes is None or trend.low <= 0:
        return None
    left = max(0.0, headroom_bytes)
    steps = left / trend.slope
    if steps > trend.points / POINTS_PER_REACH * trend.steps:
        return None
    return Forecast(
        steps,
        left / trend.high,
        left / trend.low,
        None if step_seconds is None else steps * step_seconds,
    )


def trend_of(allocator: AllocView) -> GrowthRate | None:
    """Return the trend of the bytes that an allocator holds after each step.

    None before there are :data:`MIN_POINTS`.
    """
    points = allocator.step_points
    return None if points is None else trend_of_points(points)


def trend_of_points(points: StepPoints) -> GrowthRate | None:
    """Return what the points say; None before there are :data:`MIN_POINTS`.

    Many views and many screens share the same points, which are judged once.
    """
    if points not in _JUDGED:
        _JUDGED[points] = judge(points.old, points.recent)
    return _JUDGED[points]


_JUDGED: WeakKeyDictionary[StepPoints, GrowthRate | None] = WeakKeyDictionary()


def judge(old: Sequence[Point], recent: Sequence[Point]) -> GrowthRate | None:
    """The trend of points in order of their steps.

    The window that shows growth counts; where none does, all points.

    ``old`` are thinned points before ``recent``.
    """
    for size in WINDOWS:
        if len(recent) <= size:
            break
        trend = _of_window(recent[-size:], [*old, *recent[:-size]])
        if trend is not None and trend.grows:
            return trend
    stride = max(1, len(recent) // max(1, len(old) // 2)) if old else 1
    return _of_window([*old, *recent[::-1][::stride][::-1]], ())


def _of_window(window: Sequence[Point], before: Sequence[Point]) -> GrowthRate | None:
    """Return the trend of one window, which must rise above ``before``."""
    if len(window) < MIN_POINTS:
        return None
    blocks = _blocks(window)
    steps = window[-1][0] - window[0][0]
    slope, low, high = _line(blocks)
    reason = _doubt(blocks, low) or _not_above([size for _, size in before], blocks)
    return GrowthRate(slope, low, high, len(window), steps, not reason, reason)


def _blocks(window: Sequence[Point]) -> list[Point]:
    count = min(BLOCKS, len(window) // 4)
    out = []
    for index in range(count):
        part = window[index * len(window) // count : (index + 1) * len(window) // count]
        sizes = sorted(size for _, size in part)
        out.append((sum(step for step, _ in part) / len(part), sizes[int(LOW * (len(sizes) - 1))]))
    return out


def _line(points: Sequence[Point]) -> tuple[float, float, float]:
    """Return the least-squares slope and the bounds of its 95 % interval."""
    n = len(points)
    middle_x, middle_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    rest = [y - middle_y - slope * (x - middle_x) for x, y in points]
    variance = sum(r * r for r in rest)
    r = sum(a * b for a, b in pairwise(rest)) / variance if variance > 0 else 0.0
    r = min(max(r, 0.0), 0.8)
    half = T95[n - 3] * sqrt(variance / (n - 2) / spread * (1 + r) / (1 - r))
    return slope, slope - half, slope + half


def _doubt(blocks: Sequence[Point], low: float) -> str:
    """Return why the blocks do not prove growth, or "" if they do."""
    if low <= 0:
        return "the lower 95 % bound of the slope is not above 0"
    sizes = [size for _, size in blocks]
    rises = [b - a for a, b in pairwise(sizes)]
    total = sizes[-1] - sizes[0]
    if total <= 0 or max(rises) > LARGEST_RISE * total:
        return "most of the rise came at once"
    fell = -sum(rise for rise in rises if rise < 0)
    if fell > FALLS * total:
        return "it falls back again"
    half = len(sizes) // 2
    first, second = _pace(blocks[: half + 1]), _pace(blocks[half:])
    if first <= 0 or second < FADING * first:
        return "its growth is slowing down" if second > 0 else "it stopped growing"
    if sizes[-1] < max(sizes) or sizes[-1] - sizes[-2] <= 0 >= sizes[-2] - sizes[-3]:
        return "it stopped growing"
    return ""


def _pace(points: Sequence[Point]) -> float:
    """Rise per step from end to end of a few blocks."""
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _not_above(before: Sequence[float], blocks: Sequence[Point]) -> str:
    """Whether the points before the window reached the level of its end."""
    if not before:
        return ""
    ordered = sorted(before)
    top = ordered[int(0.98 * (len(ordered) - 1))]
    usual = top - ordered[int(0.02 * (len(ordered) - 1))]
    return "" if blocks[-1][1] > top + ABOVE_BEFORE * usual else "it was that high before"
