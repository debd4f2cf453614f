"""This panel shows many readings over time, each in a line or a few, with its figures.

A reading that hardly changes takes one line and leaves the room to those that move. Each line ends
with the value now and with the smallest and the largest of the time that is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from textual.strip import Strip

from ...store.view import History
from ...text import styled
from ...text.styled import Line, merged
from ...text.units import age_text
from ...text.width import cells as text_cells
from ..cells import fit
from ..theme import Glyphs, Tokens
from .axes import time_axis
from .bins import Bins
from .load_strips import binned, load_token, spread
from .spark import BELOW_THE_LINE, is_steady
from .strips import TimedChart, empty_strips, strip_of

STEADY = 0.02
"""A reading that changes by no more of its largest value is steady: a line without a height."""
SEEN = 0.15
"""Of its scale: what changes by less is seen as well in one line."""
MOST_ROWS, ROOMY_ROWS = 3, 7
"""The most lines of a reading; and of one that moves, where lines are free that would only part
the readings. Of others more lines would only be a higher wall of colour.
"""
RANGE, STEADY_WORD = "min – max", "steady"
SILENT = "warn"
"""The token of the words for a reading that has stopped."""
SILENT_SECONDS = 5.0
"""From so long on that the newest values are unknown, that is said in place of the range."""
LEAST_COURSE = 12
"""Cells of a course at least; where there are fewer, the smallest and the largest are left out."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A reading over time. ``say`` writes one of its values with the unit.

    ``top`` is the most that it can be, None where its values decide. ``floor`` is where its scale
    begins: 0, or None for a curve whose shape matters more than its height, such as a loss.
    ``step_age`` is the age in seconds of the step that the newest value is of, where it is of one:
    a value of a step is left out only after a while. One ``by_load`` is a load with a ``top``: its
    colours are those of the strips of load, by quarters; ``token`` says only what it belongs to.
    """

    label: str
    token: str
    history: History
    say: Callable[[float], str]
    top: float | None = None
    floor: float | None = 0.0
    step_age: float | None = None
    by_load: bool = False

    def token_of(self, value: float) -> str:
        """Return the token in which a value is drawn."""
        if not self.by_load or not self.top:
            return self.token
        return load_token(min(max(value / self.top, 0.0), 1.0))


def moves(history: History) -> bool:
    """Return whether a reading changes by so much that its course is worth several lines."""
    return not is_steady(history.values, STEADY)


def is_seen(trend: Trend) -> bool:
    """Return whether a reading changes by so much of its scale that more lines show more of it.

    One that is always near its top is a wall of colour in three lines.
    """
    return is_seen_in(trend, trend.history.values)


def is_seen_in(trend: Trend, values: Sequence[float | None]) -> bool:
    """Return whether these values of a reading change by so much of its scale."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    moving = not is_steady(known, STEADY)
    if not moving or trend.floor is None:
        return moving
    return max(known) - min(known) >= SEEN * (trend.top or max(known))


class Trends(TimedChart):
    """Readings one below the other, over one axis of time.

    Free lines are spread evenly. Where they are few, those of one colour belong together.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trends: tuple[Trend, ...] = ()
        self._window, self._now = 60.0, 0.0
        self._clock: float | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of the shown readings, from top to bottom."""
        return tuple(trend.label for trend in self._trends)

    def show(
        self,
        trends: Sequence[Trend],
        window_seconds: float,
        now: float | None,
        clock: float | None = None,
    ) -> None:
        """Draw the last ``window_seconds`` before ``now``; readings never seen are left out.

        ``clock`` is the wall clock at ``now`` where that is not this moment.
        """
        known = [one for one in trends if any(v is not None for v in one.history.values)]
        self._trends, self._window, self._clock = tuple(known), window_seconds, clock
        newest = (one.history.seconds[-1] for one in known)
        self._now = max(newest, default=0.0) if now is None else now
        self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        trends = self._trends
        if not trends or height < 1:
            return empty_strips(self._empty, width, height, tokens)
        figures = [_figures(trend, self._now) for trend in trends]
        names = max(text_cells(trend.label) for trend in trends)
        now_cells = max(text_cells(now) for now, *_ in figures) + 1
        range_cells = max(text_cells(between) for _, between, _ in figures) + 2
        ranges = (text for _, text, token in figures if token != SILENT and text != STEADY_WORD)
        heading = RANGE if any(ranges) else ""
        range_cells = max(range_cells, text_cells(heading) + 2)
        if width - names - 1 - now_cells - range_cells < LEAST_COURSE:
            range_cells = 0
        inner = width - names - 1 - now_cells - range_cells
        if inner < LEAST_COURSE // 2:
            return empty_strips(self._empty, width, height, tokens)
        axis = 2 if height >= len(trends) + 2 else 0
        bins = Bins.ending(self._now, self._window, inner)
        between_them = len(trends) - 1
        room = height - axis - between_them  # areas that touch would be one blot
        room = room if room >= len(trends) else height - axis
        moving = [is_seen(one) for one in trends]
        high = [is_seen(one) or one.top is not None for one in trends]
        # those that move come first where there is no room for all
        rows = max(rows_of_trends(high, room), rows_of_trends(moving, room), key=sum)
        rows = with_free_rows(rows, moving, room)
        tokens_of = [one.token for one in trends[: len(rows)]]
        blanks = spread(height - axis - sum(rows), by_colour(tokens_of))
        out: list[Line] = []
        for trend, (now, between, token), lines, free in zip(
            trends, figures, rows, blanks, strict=False
        ):
            out += [[]] * free
            course = binned(trend.history, bins, self._now, hold_last=False)
            for at, cells in enumerate(drawn_course(trend, course, lines, tokens.glyphs), 1):
                last = at == lines
                line: Line = [(fit(trend.label if last else "", names + 1), "muted"), *cells]
                line += [(fit(now if last else "", now_cells, "right"), "text")]
                line += [(fit(between if last else "", range_cells, "right"), token)]
                out.append(line)
        if axis:
            # The axis of a live chart ends with "now", which then heads the newest values, too.
            newest = "" if self._clock is None else "now"
            ends = fit(newest, now_cells, "right"), fit(heading, range_cells, "right")
            line, labels = time_axis(self._window, names, inner, self._clock)
            labels = [(fit(styled.plain(labels), names + 1 + inner), "muted")]
            out += [line, [*labels, ("".join(ends) if range_cells else "", "faint")]]
        return [strip_of(line, width, tokens) for line in out]


def rows_of_trends(moving: Sequence[bool], height: int, most: int = MOST_ROWS) -> list[int]:
    """Return the lines of each reading that has room: those that move have more where there are.

    A reading that has no line is left out at the end.
    """
    count = min(len(moving), max(height, 0))
    rows, left = [1] * count, height - count
    for _ in range(most - 1):
        movers = [at for at in range(count) if moving[at]]
        if len(movers) > left:
            break
        for at in movers:
            rows[at] += 1
        left -= len(movers)
    return rows


def with_free_rows(rows: Sequence[int], moving: Sequence[bool], height: int) -> list[int]:
    """Return the lines of each reading with those that are free, for the ones that move."""
    out, left = list(rows), height - sum(rows)
    movers = [at for at in range(len(out)) if moving[at] and out[at] >= MOST_ROWS]
    for _ in range(min(ROOMY_ROWS - MOST_ROWS, left // len(movers) if movers else 0)):
        for at in movers:
            out[at] += 1
    return out


def wanted_rows(trends: Sequence[Trend]) -> int:
    """Return the rows, with those of the axis, beyond which readings only stand farther apart."""
    high = sum(MOST_ROWS if is_seen(one) or one.top is not None else 1 for one in trends)
    return high + max(len(trends) - 1, 0) + 2


def by_colour(tokens: Sequence[str]) -> list[int]:
    """Return the readings but the first, those before which a line is left free first of all.

    They are the ones of another colour than the reading above.
    """
    return [at for _, at in sorted((a == b, at) for at, (a, b) in enumerate(pairwise(tokens), 1))]


def none_for(seconds: float) -> str:
    """Return the words for values that have been unknown for so long."""
    return f"none for {age_text(seconds)}"


def _figures(trend: Trend, end: float) -> tuple[str, str, str]:
    """Return the newest value; the smallest and the largest where they differ; and their token.

    Where there have been no values for a while, that is said in place of the range.
    """
    known = [v for v in trend.history.values if v is not None and math.isfinite(v)]
    newest = trend.history.values[-1]
    now = trend.say(newest) if newest is not None and math.isfinite(newest) else "–"
    if not known:
        return now, "", "faint"
    if newest is None and (age := _silence(trend, end)) >= SILENT_SECONDS:
        return now, none_for(age), SILENT
    least, most = trend.say(min(known)), trend.say(max(known))
    return now, STEADY_WORD if least == most else f"{least} – {most}", "faint"


def _silence(trend: Trend, end: float) -> float:
    """Return for how long the values of a reading have been unknown."""
    if trend.step_age is not None:
        return trend.step_age
    moments = zip(trend.history.seconds, trend.history.values, strict=True)
    return end - max(moment for moment, value in moments if value is not None)


def drawn_course(
    trend: Trend, values: Sequence[float | None], rows: int, glyphs: Glyphs
) -> list[Line]:
    """Return a course in ``rows`` lines, the top one first.

    One that hardly moves is a line where nothing says how much of what it is: as an area it would
    look like all of it. One with a top is always an area, which is its share of that.
    """
    first = next((at for at, value in enumerate(values) if value is not None), len(values))
    known = [value for value in values if value is not None]
    flat = rows == 1 and trend.top is None and not is_seen_in(trend, values)
    low = trend.floor if trend.floor is not None else min(known, default=0.0)
    high = trend.top or (max(known, default=0.0) - low) * BELOW_THE_LINE + low
    out: list[Line] = []
    for row in range(rows - 1, -1, -1):
        cells: Line = [(" " * first, "text")]
        for value in values[first:]:
            if value is None:
                cells.append((" " if row else glyphs.unknown, "faint"))
            elif flat:
                cells.append((glyphs.groove, trend.token_of(value)))
            else:
                share = (value - low) / (high - low) if high > low else 0.0
                full = rows * 8 - (trend.top is not None)  # the others have a free eighth already
                eighths = max(round(min(max(share, 0.0), 1.0) * full), 1) - row * 8
                glyph = glyphs.up[round(min(max(eighths, 0), 8) * (len(glyphs.up) - 1) / 8)]
                cells.append((glyph, trend.token_of(value)))
        out.append(merged(cells))
    return out
