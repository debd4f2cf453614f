"""This is a line chart with axes, drawn by plotext in braille.

It shows anything that is a number over time, such as utilisation or loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from textual.strip import Strip

from ...text.styled import Line
from ..theme import Glyphs, Tokens
from . import plotext_adapter as adapter
from .axes import even_ticks, label_of, nice_step, time_ticks, value_ticks
from .bins import Bins, first_at
from .near_lines import Curve, Joined, join
from .strips import TimedChart, empty_strips, strip_of


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    ``seconds`` ascend and are on one clock with the chart's other series; a value that was
    unknown is None and leaves a gap. ``token`` gives the colour.
    """

    label: str
    token: str
    seconds: Sequence[float]
    values: Sequence[float | None]


ALIKE = 0.02
"""Lines whose means differ by no more than this share are drawn as one."""
MARGIN = 4
"""Cells left of the plot: the labels of most axes and the axis itself."""
AXIS_HEIGHT = 6
"""From this height on, there is a line between the plot and the labels of the time axis."""
LARGEST = 1e30
"""Values beyond are drawn at the edge: the axis would have no meaning."""
LEAST_SPAN = 1e-3
"""The share of the largest value that an axis spans at least, so that noise stays flat."""


class LineChart(TimedChart):
    """Lines over the last seconds, or over steps.

    Of series that are near each other most of the time one is drawn, and the others where they
    leave it. Where other series run through the same cells they take turns in them. Below a line
    nothing is filled: cells are too coarse to end at it, and the edge looks like one more line. The
    legend is the subtitle.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._series: tuple[Series, ...] = ()
        self._start = self._now = 0.0
        self._low, self._high = 0.0, 1.0
        self._scrolls = True
        self._known = False
        self._shares = False
        self._x: Literal["time", "steps"] = "time"
        self._places: list[int] = []
        """What number each series has in the legend."""
        self._joined = Joined({}, {})

    def show(
        self,
        series: Sequence[Series],
        window_seconds: float | None = 60.0,
        y_min: float | None = 0.0,
        y_max: float | None = None,
        now: float | None = None,
        x: Literal["time", "steps"] = "time",
        clock: float | None = None,
    ) -> None:
        """Draw ``window_seconds`` before ``now``, or everything when it is None.

        ``now`` is by default the newest moment of all series. ``y_min`` and ``y_max`` None are
        taken from the data; a value outside is drawn at the edge. The unit is in the title. With
        ``x="steps"`` the ``seconds`` are step numbers and the axis names them.
        ``clock`` is the wall clock at ``now`` where that is not this moment.
        """
        timed = {
            at: one
            for at, one in enumerate(series)
            if one.seconds and math.isfinite(one.seconds[-1])
        }
        self._x, self._scrolls, self._clock = x, window_seconds is not None, clock
        self._shares = y_min == 0 and y_max is not None
        newest = max((one.seconds[-1] for one in timed.values()), default=0.0)
        oldest = min((one.seconds[0] for one in timed.values()), default=0.0)
        self._now = newest if now is None else now
        span = window_seconds if window_seconds and window_seconds > 0 else self._now - oldest
        self._start = self._now - (span if span > 0 else 1.0)
        # one that has no value now is not drawn, nor named; the others keep their lines
        shown = {
            at: one for at, one in timed.items() if values_between([one], self._start, self._now)
        }
        self._series = tuple(shown.values())
        seen = values_between(self._series, self._start, self._now)
        self._known = bool(seen)
        self._low, self._high, beyond = limits(seen, y_min, y_max)
        glyphs = self.tokens.glyphs
        curves = [Curve(one.seconds, one.values) for one in self._series]
        height = self._high - self._low
        self._joined = join(curves, self._start, self._now, height, self._joined)
        self._places = list(shown)
        entries = self._entries(series, self._places, glyphs)
        if beyond is not None:
            entries.append((glyphs.bad, "warn", f"up to {label_of(beyond, 1)}"))
        self.legend(entries)
        self.repaint()

    def _entries(
        self, series: Sequence[Series], places: Sequence[int], glyphs: Glyphs
    ) -> list[tuple[str, str, str]]:
        """Return the legend of the lines; ``places`` are those of the ones that are drawn."""
        near, apart = self._joined
        order: dict[int, list[int]] = {at: [at] for at in places}
        for number, first in near.items():  # each after the one that it is near to
            order[places[first]] += order.pop(places[number])
        entries = []
        for first, others in order.items():
            parted = [at for at in others[1:] if places.index(at) in apart]
            names = [series[at].label for at in others if at not in parted]
            label = f" {glyphs.about} ".join(names) + f" {glyphs.about}" * bool(parted)
            entries.append((glyphs.line(first)[1], series[first].token, label))
            entries += [(glyphs.line(at)[1], series[at].token, series[at].label) for at in parted]
        return entries

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        if not self._known or width < 12 or height < 2:
            return empty_strips(self._empty, width, height, tokens)
        frame, above = self._frame(width, height)
        glyphs = tokens.glyphs
        near, apart = self._joined
        lines = [
            adapter.PlottedLine(
                one.token, glyphs.line(self._places[i])[0], one.seconds, apart.get(i, one.values)
            )
            for i, one in enumerate(self._series)
            if i in apart or i not in near
        ]
        unknown = glyphs.unknown if self._x == "time" else ""
        drawn = adapter.draw(lines, frame, width, height - above, unknown)
        blank: list[Line] = [[]] * above
        return [strip_of(line, width, tokens) for line in (*blank, *drawn)]

    def _frame(self, width: int, height: int) -> tuple[adapter.Axes, int]:
        """Return the axes of a chart of so many rows, and how many stay blank above its plot."""
        start, end = self._start, self._now
        # whole columns on the clock, so that the picture moves and does not shimmer
        if self._scrolls:
            bins = Bins.ending(end, end - start, max((width - MARGIN) * 2, 1))
            start, end = bins.start, bins.end
        if self._x == "steps":
            x_ticks = value_ticks(start, end, max((width - MARGIN) // 5, 2))
        else:
            x_ticks = [
                (end + before, label)
                for before, label in time_ticks(end - start, width - MARGIN, self._clock)
            ]
        low, high = self._low, self._high
        x_axis = height >= AXIS_HEIGHT
        most = height - 2  # from the lowest value, on the axis or in the lowest row, to the top
        y_ticks, taken = even_ticks(low, high, most, self._shares)
        return adapter.Axes(start, end, low, high, x_ticks, y_ticks, x_axis), most - taken


def values_between(series: Sequence[Series], start: float, end: float) -> list[float]:
    """Return all known values of the window, in no order."""
    found = []
    for one in series:
        for i in range(first_at(one.seconds, start), min(len(one.seconds), len(one.values))):
            value = one.values[i]
            if one.seconds[i] > end:
                break
            if value is not None and math.isfinite(value):
                found.append(min(max(float(value), -LARGEST), LARGEST))
    return found


def limits(
    seen: list[float], y_min: float | None, y_max: float | None
) -> tuple[float, float, float | None]:
    """Return the value axis (low, high above low), and the largest value when it lies beyond.

    One spike a hundred times above all others would make a flat line of them. Open ends are
    rounded outwards. Values that hardly differ get an axis that shows them as a flat line.
    """
    beyond = None
    ranked = sorted(seen)
    low = y_min if y_min is not None else ranked[0] if ranked else 0.0
    high = y_max if y_max is not None else ranked[-1] if ranked else 1.0
    if y_max is None and len(ranked) >= 20:
        usual = ranked[int(len(ranked) * 0.95) - 1]
        if ranked[-1] - low > 20 * (usual - low) > 0:
            high, beyond = low + 1.5 * (usual - low), ranked[-1]
    least = max(abs(low), abs(high), 1 / LARGEST) * LEAST_SPAN
    if not high - low > least:
        room = max(abs(low) * 0.05, least, 1e-9 if seen and low else 0.5)
        high = max(high, low) + room
        if y_min is None and seen:
            low = max(low - room, 0.0) if low >= 0 else low - room
    step = nice_step(high - low, 4)
    if y_min is None:
        low = math.floor(low / step) * step
    if y_max is None:
        high = math.ceil(high / step - 1e-9) * step
    return low, high, beyond


def alike_text(drawn: int, known: int, what: str = "ranks") -> str:
    """Return a name for one line: ``7 ranks alike``, or ``4 of 7 ...`` where not all are drawn."""
    return f"{drawn} of {known} {what} alike" if drawn < known else f"{drawn} {what} alike"


def one_if_alike(series: Sequence[Series], label: str) -> Sequence[Series]:
    """Return one line, named ``label``, for lines that would cover one another, else all of them.

    It is the line with the largest mean.
    """
    known = [[value for value in one.values if value is not None] for one in series]
    if len(series) < 2 or not all(known):
        return series
    means = [sum(values) / len(values) for values in known]
    if max(means) - min(means) > ALIKE * max(map(abs, means)):
        return series
    most = series[means.index(max(means))]
    return [Series(label, series[0].token, most.seconds, most.values)]
