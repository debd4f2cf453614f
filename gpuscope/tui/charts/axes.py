"""This module chooses round numbers for axes.

They are the same for every chart, so that neighbours line up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...text.clock import MINUTE, SECOND, clock_text
from ...text.styled import Line, merged
from ...text.units import round_seconds


def time_ticks(
    window_seconds: float, width: int, clock: float | None = None
) -> list[tuple[float, str]]:
    """Return the ticks of a time axis, as many as fit into ``width`` cells without touching.

    They are ``[(seconds before the end as a negative number, label)]``, oldest first, ending
    with ``(0, "now")``. All labels of an axis have one unit. Where the axis ends at another time
    than now, ``clock`` is the wall clock at its end, and the labels are times of the day.
    """
    steps = max(min(width // 14, 6), 1)
    known = 0 < window_seconds <= LONGEST
    step = round_seconds(max(window_seconds / steps, 1.0)) if known else 0.0
    befores = [0.0]
    while step and len(befores) * step <= window_seconds * 1.0001:
        befores.append(-len(befores) * step)
    if known and len(befores) == 1:
        befores.append(-window_seconds)
        step = window_seconds
    if clock is not None:
        form = MINUTE if step >= 3600 and step % 60 == 0 else SECOND
        return [(before, clock_text(clock + before, form)) for before in befores[::-1]]
    return [(before, _short(-before, step) if before else "now") for before in befores[::-1]]


LONGEST = 3.2e9
"""A century in seconds. Of a longer window only the end is labelled."""


def _short(seconds: float, step: float) -> str:
    """Return a time before now in few characters, such as ``"-45s"``, ``"-5m"`` or ``"-2h"``.

    Its unit is the longest of which ``step`` has whole ones.
    """
    whole = max(round(step), 1)
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "m"), (1, "s")) if whole % s == 0)
    return f"-{round(seconds / size)}{unit}"


LEAST_SPAN = 0.05
"""The share of a loss that its axis spans at least, so that noise does not look like a mountain."""
NO_CHANGE = 0.001
"""A loss that changes by no more than this share is drawn from 0."""


def nice_step(span: float, ticks: int) -> float:
    """Return the 1, 2, 2.5 or 5 × 10ⁿ that divides ``span`` into at most ``ticks`` parts.

    ``span`` is above 0 and finite.
    """
    raw = span / max(ticks, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10):
        if factor * power >= raw * 0.999999:
            return factor * power
    return 10 * power


def loss_axis(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the ends of the axis of a loss, None where the data choose them."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    if high > 0 and high - low <= NO_CHANGE * high:  # that needs no close look
        step = nice_step(high, 4)
        return 0.0, (math.floor(high / step) + 1) * step
    least = LEAST_SPAN * max(abs(low), abs(high))
    if not 0 < least < math.inf or high - low >= least:
        return None, None
    middle, step = (low + high) / 2, nice_step(least, 2)
    ends = math.floor((middle - least / 2) / step), math.ceil((middle + least / 2) / step)
    return ends[0] * step, ends[1] * step


def round_end(newest: float) -> float:
    """Return where the axis of a curve that still grows ends.

    It is the next of about eight round steps after ``newest``. The axis then stays as it is
    while the curve grows into it, and need not be drawn again for every point.
    """
    if not 0 < newest < math.inf:
        return newest
    step = nice_step(newest, 8)
    return math.ceil(newest / step) * step


class Heights(NamedTuple):
    """Where the values of an axis lie in the rows of its plot: ticks and data alike.

    ``low`` is in the middle of the lowest row and ``high`` in that of the highest one, where their
    ticks are drawn, or so many rows from the edges of the plot.
    """

    low: float
    high: float
    rows: int
    from_bottom: float = 0.5
    from_top: float = 0.5

    @property
    def each(self) -> float:
        """How many rows high one of the values' unit is."""
        return max(self.rows - self.from_bottom - self.from_top, 0.0) / (self.high - self.low)

    def of(self, value: float) -> float:
        """Return the height of a value, in rows above the lower edge of the lowest one."""
        # rounded: 9.99999999 is 10
        return round(self.from_bottom + (value - self.low) * self.each, 8)

    def row(self, value: float) -> int:
        """Return the row that a value is drawn in, from 0 at the bottom."""
        return min(math.floor(self.of(value)), self.rows - 1)


SMALLEST = 1e-290
"""A shorter axis has no labels: its steps cannot be counted in floating point."""


def value_ticks(low: float, high: float, height: int) -> list[tuple[float, str]]:
    """Return ``[(value, label)]`` from bottom to top for an axis of ``height`` rows.

    They are the ends of the axis and round values between them, at least two rows apart.
    """
    span = high - low
    if not span > SMALLEST or not math.isfinite(span):
        return []
    step = nice_step(span, max(min((height - 1) // 2, 4), 1))
    digits = _digits((step,), step)
    ticks = []
    value = math.ceil(low / step - 1e-9) * step
    while value <= high + step * 1e-9:
        ticks.append((value, label_of(value, digits)))
        value += step
    if ticks and high - ticks[-1][0] > step * 1e-9:  # the axis always names its end
        row = span / max(height - 1, 1)
        if high - ticks[-1][0] < 2 * row and len(ticks) > 1:
            ticks.pop()
        ticks.append((high, label_of(high, digits)))
    return ticks


CLOSE, BEST, FAR = 3, 4, 6
"""Rows from tick to tick that are read well: the least, the best and the most."""
ROUND = {10: 0.0, 20: 0.0, 50: 0.0, 25: 0.2, 15: 0.5, 30: 0.5, 40: 0.5}
"""The cost of a step between ticks by its leading digits: some are easier to count in."""
TWO_DIGITS, THREE_DIGITS, ROUNDED = 1.5, (6.0, 2.5), 8.0
"""The cost of all other steps, by how many digits they have. Three are less for the quarters of a
capacity, such as 175 of 700, than in ``0.625, 1.250, 1.875``.
"""
MOST_LOST = 6
"""At most one row in this many is given up for better ticks, or one in a lower chart."""
LOST, TOO_CLOSE, TOO_FAR, OFF_ZERO = 0.5, 1.5, 0.7, 2.5
"""What a row given up costs, a row below or above the best distance, and ticks that leave out 0."""


def even_ticks(
    low: float, high: float, rows: int, shares: bool = False
) -> tuple[list[tuple[float, str]], int]:
    """Return ticks that are whole rows apart, and how many of ``rows`` the axis then takes.

    They are ``[(value, label)]`` from bottom to top: the ends, and values between them that are
    equally many rows apart, at least two and best three to six. An axis gives up a few rows
    where its steps are then easier to read. ``shares`` are parts of a capacity from 0 on: their
    labels may be rounded to three digits.
    """
    span = high - low
    if not span > SMALLEST or not math.isfinite(span):
        return [], rows
    best, taken, parts = math.inf, rows, 1
    for one in range(rows, rows - max(1, rows // MOST_LOST) - 1, -1):
        for apart in (apart for apart in range(2, one // 2 + 1) if one % apart == 0):
            step = span * apart / one
            cost = _step_cost(step, shares) + LOST * (rows - one)
            cost += TOO_CLOSE * max(CLOSE - apart, 0) + TOO_FAR * max(apart - FAR, 0)
            cost += 0.1 * abs(apart - BEST)
            cost += OFF_ZERO * (abs(low / step - round(low / step)) > 1e-6)
            if cost < best:
                best, taken, parts = cost, one, one // apart
    digits = _digits((low, high, span / parts), high if shares else span / parts)
    ticks = [low + span * part / parts for part in range(parts)] + [high]
    return [(value, label_of(value, digits)) for value in ticks], taken


def _step_cost(step: float, shares: bool) -> float:
    """Return how hard it is to count in steps of this size: infinite where no label can say it."""
    leading = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
    for scale, cost in ((10, TWO_DIGITS), (100, THREE_DIGITS[shares])):
        if abs(leading * scale - round(leading * scale)) < 1e-6 * scale:
            return ROUND.get(round(leading * scale), cost) if scale == 10 else cost
    return ROUNDED if shares else math.inf


def _digits(values: Collection[float], size: float) -> int:
    """Return how many digits after the point say all of these values.

    There are at most three digits in all of a value of this ``size``.
    """
    most = min(max(2 - math.floor(math.log10(abs(size)) + 1e-9), 0), 9)
    exact = (n for n in range(most) if all(abs(x - round(x, n)) <= size * 1e-6 for x in values))
    return next(exact, most)


AS_GOOD_AS = 0.005
"""The share by which a memory may be larger or smaller than the whole ten that it is called by."""


def nominal(size: float) -> float:
    """Return the size that a memory is called by: 24 for 23.54, 128 for 125.9, 140 for 140.4.

    It is a whole ten that is as good as ``size``, or the roundest number that is at most 3 percent
    above ``size``, which may be one itself.
    """
    if not 0 < size < math.inf or math.isclose(size, float(f"{size:.2g}"), rel_tol=1e-6):
        return size
    if abs(size - round(size / 10) * 10) <= size * AS_GOOD_AS:
        return round(size / 10) * 10.0
    power = 2.0 ** math.floor(math.log2(size))
    for step in (power, power / 2, power / 4, power / 8, 10.0, power / 16, power / 32):
        whole = math.ceil(size / step - 1e-9) * step
        if whole <= size * 1.03:
            return whole
    return size


def label_of(value: float, digits: int) -> str:
    """Return a short number: ``"140"``, ``"0.25"``, ``"1.2e+08"``."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace(".0e", "e")
    return f"{value:.{digits}f}"


def time_axis(
    window_seconds: float, margin: int, inner: int, clock: float | None = None, base: str = ""
) -> list[Line]:
    """Return the two lines under a chart: the axis with its ticks, and the labels.

    The labels at the left of the chart take ``margin`` cells; ``base`` is the one of the axis.
    """
    axis = ["─"] * inner
    labels = [" "] * (margin + 1 + inner)
    for seconds, label in reversed(time_ticks(window_seconds, inner, clock)):
        at = (
            round((inner - 1) * (1 + seconds / window_seconds)) if window_seconds > 0 else inner - 1
        )
        first = min(max(margin + 1 + at - len(label) // 2, 0), len(labels) - len(label))
        around = labels[max(first - 1, 0) : first + len(label) + 1]
        if 0 <= at < inner and all(char == " " for char in around):
            axis[at] = "┬"
            labels[first : first + len(label)] = label
    return [
        [(base.rjust(margin), "muted"), ("└" + "".join(axis), "faint")],
        [("".join(labels), "muted")],
    ]


def mark_unknown(line: Line, places: Collection[int], marker: str) -> Line:
    """Return a line with a marker in those of its cells that are blank or axis."""
    chars = [(char, spec) for text, spec in line for char in text]
    return merged(
        (marker, "faint") if place in places and char in " ─" else (char, spec)
        for place, (char, spec) in enumerate(chars)
    )
