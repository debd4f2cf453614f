"""This chart has one lane for each GPU, in which time goes to the right.

Height and colour both say the load. Lanes do not cross or cover one another as lines do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from textual.strip import Strip

from ...store.view import History
from ...text import styled
from ...text.styled import Line, Piece, merged
from ...text.units import percent_text
from ..cells import fit
from ..theme import LOADS, Glyphs, Tokens
from .axes import time_axis
from .bins import Bins, first_at, hold_seconds
from .legend import LEAST_ROWS, Entries, is_whole, legend_of
from .strips import TimedChart, strip_of

FIGURE_CELLS = 13
"""The cells at the right of a lane for its newest value and the mean of what it shows."""
NOW_CELLS = 6
IDLE_PERCENT = 1.0
BLANK: Piece = (" ", "text")
LOW_EIGHTHS = 5
"""Of a cell: the height of a full load where lanes have no line between them. Higher ones would be
one wall of colour.
"""
MOST_ROWS, LONG_CELLS = 2, 90
"""A higher lane says no more: only its wall of colour grows. A long one has one line, but where
they have a page of their own.
"""
ROOMY_ROWS, ROOMY = 3, 5
"""The most lines of a lane where there are so many lines for each."""
WASTED = "faint"
"""The token of a load without progress. It is no alarm, because words say what is wrong."""

NO_PROGRESS = "no progress"


@dataclass(frozen=True, slots=True)
class Lane:
    """A load over time, in percent, with the word that stands before it.

    ``first`` begins a group: a line is left free before it where there is room. From the moment
    ``wasted_since`` on the load is no progress, and is only hatched. ``alarm`` is what is wrong
    with a device that gives no readings, and stands where others have their figures: the newest
    value, and the mean from the moment ``begins`` on. What is before is not of the job.
    """

    label: str
    history: History
    first: bool = False
    wasted_since: float | None = None
    alarm: str = ""
    begins: float | None = None


def mean_sign(glyphs: Glyphs) -> str:
    """Return what stands before a mean."""
    return "m" if glyphs.about.isascii() else "ø"


class Shares(NamedTuple):
    """Rows of the axis, of a lane, left over, and free before each lane.

    ``low`` says that lanes touch and are drawn low.
    """

    axis: int
    rows: int
    over: int
    blanks: list[int]
    low: bool


class LoadStrips(TimedChart):
    """Lanes of equal height, up to two lines, above an axis at the bottom.

    Lines that are left over part the lanes, or groups of them, or show the mean of lanes of one
    line.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lanes: tuple[Lane, ...] = ()
        self._window, self._now = 60.0, 0.0
        self._clock: float | None = None
        self.may_be_high = False

    def show(
        self,
        lanes: Sequence[Lane],
        window_seconds: float,
        now: float | None,
        clock: float | None = None,
    ) -> None:
        """Draw the last ``window_seconds`` before ``now``, by default the newest moment.

        ``clock`` is the wall clock at ``now`` where that is not this moment.
        """
        self._lanes, self._window, self._clock = tuple(lanes), window_seconds, clock
        newest = (lane.history.seconds[-1] for lane in lanes if lane.history.seconds)
        self._now = max(newest, default=0.0) if now is None else now
        glyphs = self.tokens.glyphs
        steps = len(LOADS)
        entries = [
            (
                glyphs.up[2 * at + 2],
                token,  # the last one has the unit of all: the border has room for one line
                f"{100 * at // steps}-{100 * (at + 1) // steps}" + " %" * (at == steps - 1),
            )
            for at, token in enumerate(LOADS)
        ]
        of_job = any(lane.begins is not None for lane in lanes)
        sound = (one for one in lanes if not one.alarm)
        if any(_figures(_newest(one), self._mean(one), glyphs)[1] for one in sound):
            entries.insert(0, (mean_sign(glyphs), "faint", "mean of job" if of_job else "mean"))
        if any(lane.wasted_since is not None for lane in lanes):
            entries.append((glyphs.hatch, WASTED, NO_PROGRESS))
        self.legend(entries)
        self._fit_legend()  # other lanes may have another height
        self.repaint()

    def _legend_lines(self, width: int, height: int) -> tuple[Line, Line]:
        """Return the legend, in which the colours of a load are never parted.

        Where they have no room, the mean and the hatch still have: they are signs, not colours.
        """
        cells, elsewhere = width - 2, self.legend_elsewhere
        signs = [entry for entry in self._legend if entry[1] not in LOADS]
        loads = [entry for entry in self._legend if entry[1] in LOADS]
        above: Line = []
        border = legend_of(self._legend, cells)
        if not is_whole(self._legend, ([], border)):
            above, border = legend_of(signs, cells), legend_of(loads, cells)
            if height < LEAST_ROWS or not is_whole(self._legend, (above, border)):
                above, border = [], _brief_legend(signs, cells, elsewhere)
        if self._shares(width, height).low and self.tokens.glyphs.eighths:
            heights = dict(zip(self.tokens.glyphs.up[2::2], (1, 2, 4, LOW_EIGHTHS), strict=False))
            border = [
                (self.tokens.glyphs.up[heights[text]], token) if token in LOADS else (text, token)
                for text, token in border
            ]
        return above, border

    def _shares(self, width: int, height: int) -> Shares:
        """Return how the rows are shared among the lanes and what is between them."""
        lanes = self._lanes
        count = max(len(lanes), 1)
        inner = width - max((len(lane.label) for lane in lanes), default=0) - 1 - FIGURE_CELLS
        axis = min(max(height - count, 0), 2)
        most = ROOMY_ROWS if height - axis >= ROOMY * count else MOST_ROWS
        most = most if inner < LONG_CELLS or self.may_be_high else 1
        rows = min(max((height - axis + 1) // count - 1, 1), most)  # and a line between them
        over = height - axis - rows * count
        groups = [at for at in range(1, count) if lanes[at].first]
        blanks = [0] * count  # a line between any two lanes, or between groups, or nowhere
        apart, top = divmod(over, max(count - 1, 1))
        if not groups and apart >= top:
            blanks = [top] + [apart] * (count - 1)
        elif over >= count - 1:
            blanks = spread(over, [*groups, *(at for at in range(1, count) if at not in groups)])
        elif groups and over >= len(groups):
            for at, free in zip((0, *groups), spread(over, range(1, len(groups) + 1)), strict=True):
                blanks[at] = free
        touch = count > 1 and not all(blanks[1:])
        return Shares(axis, rows, over, blanks, rows == 1 and touch)

    def _mean(self, lane: Lane) -> float | None:
        """Return the mean of a lane's readings, which does not depend on how wide it is drawn."""
        begin = self._now - self._window
        begin = begin if lane.begins is None else max(begin, lane.begins)
        return mean_of(readings_since(lane.history, begin))

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        lanes = self._lanes
        known = any(v is not None for lane in lanes for v in lane.history.values)
        names = max((len(lane.label) for lane in lanes), default=0)
        inner = width - names - 1 - FIGURE_CELLS
        if not known or inner < 8 or height < 1:
            line = strip_of([(fit(self._empty, width, "centre"), "muted")], width, tokens)
            return [strip_of((), width, tokens)] * (max(height - 1, 0) // 2) + [line]
        axis, rows, over, blanks, low = self._shares(width, height)
        # a letter is no lower than another, and does not touch the one above it
        full = LOW_EIGHTHS if low and tokens.glyphs.eighths else rows * 8 - 1
        bins = Bins.ending(self._now, self._window, inner)
        courses = [
            (lane.label, binned(lane.history, bins, self._now, hold_last=not lane.alarm))
            for lane in lanes
        ]
        out: list[Line] = []
        groups = any(lane.first for lane in lanes[1:])
        kinds = {lane.label.partition(" ")[0] for lane in lanes}
        # lines that no lane can have alone; the mean of CPU and memory would say nothing
        if over > 0 and low and not groups and len(kinds) == 1:
            sound = [c for lane, (_, c) in zip(lanes, courses, strict=True) if not lane.alarm]
            means = [mean_of(values) for values in zip(*sound, strict=True)]
            whole = mean_of([self._mean(lane) for lane in lanes if not lane.alarm])
            newest = mean_of([_newest(lane) for lane in lanes])
            of_all = _figures(newest, whole, tokens.glyphs)
            out += _lane("mean", means, 1, names + 1, tokens.glyphs, of_all, most=full)
            out += [[]] if over > 1 else []
        shown = list(zip(lanes, courses, blanks, strict=True))[: height - axis]
        for lane, (label, values), free in shown:
            out += [[]] * free
            begin = bins.count if lane.wasted_since is None else bins.index(lane.wasted_since)
            glyphs, figures = (
                tokens.glyphs,
                _figures(_newest(lane), self._mean(lane), tokens.glyphs),
            )
            out += _lane(label, values, rows, names + 1, glyphs, figures, begin, lane.alarm, full)
        out = [[]] * (height - axis - len(out)) + out
        if axis:
            out += time_axis(self._window, names, inner, self._clock)[2 - axis :]
        return [strip_of(line, width, tokens) for line in out]


def _brief_legend(signs: Entries, cells: int, elsewhere: str) -> Line:
    """Return the signs with the words in place of the colours of a load; the hatch is kept last.

    That a bar is as high as its load is what one would think, and gives way first.
    """
    mean = legend_of([one for one in signs if one[2] != NO_PROGRESS], cells)
    hatch = legend_of([one for one in signs if one[2] == NO_PROGRESS], cells)
    words: Line = [(elsewhere, "muted")] if elsewhere else []
    for parts in ((mean, words, hatch), (mean, hatch), (words, hatch), (hatch,)):
        spaced = [piece for part in parts if part for piece in (("  ", "muted"), *part)][1:]
        if styled.cells(spaced) <= cells:
            return spaced
    return []


def spread(free: int, order: Sequence[int]) -> list[int]:
    """Return how many of the ``free`` lines stand before each block, as evenly as possible.

    ``order`` has all blocks but the first, and says which of them get what is left over.
    """
    each, over = divmod(max(free, 0), len(order) + 1)
    return [each + (at in order[:over]) for at in range(len(order) + 1)]


def binned(history: History, bins: Bins, now: float, hold_last: bool = True) -> list[float | None]:
    """Return the mean load of each bin, None where nothing is known.

    A bin between two samples repeats the older one, unless they are far apart. So does a bin after
    the last sample, unless ``hold_last`` is off: nothing is known of a device that is silent, nor
    from a sample on of which, and of all after it, nothing is known.
    """
    sums, counts = [0.0] * bins.count, [0] * bins.count
    seconds, values = history.seconds, history.values
    if not len(history):
        return [None] * bins.count
    for i in range(first_at(seconds, bins.start), len(history)):
        place, value = bins.index(seconds[i]), values[i]
        if place >= bins.count:
            break
        if place >= 0 and value is not None and math.isfinite(value):
            sums[place] += value
            counts[place] += 1
    found: list[float | None] = [
        total / count if count else None for total, count in zip(sums, counts, strict=True)
    ]
    hold = max(math.ceil(hold_seconds(seconds) / bins.width), 1)
    last, since = None, 0
    for place, value in enumerate(found):
        if value is not None:
            last, since = value, 0
        elif last is not None and since < hold and bins.start + place * bins.width <= now:
            since += 1
            found[place] = last
    if not hold_last:
        found[bins.count - since :] = [None] * since
        known = next((i for i in range(len(history) - 1, -1, -1) if values[i] is not None), -1)
        if 0 <= known < len(history) - 1:
            end = max(bins.index(seconds[known + 1]), bins.index(seconds[known]) + 1, 0)
            found[end:] = [None] * len(found[end:])
    return found


def readings_since(history: History, moment: float) -> list[float]:
    """Return what was read from a moment on."""
    values = history.values[first_at(history.seconds, moment) :]
    return [value for value in values if value is not None and math.isfinite(value)]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known."""
    seen = [value for value in values if value is not None]
    return sum(seen) / len(seen) if seen else None


def _newest(lane: Lane) -> float | None:
    """Return the value that a lane has now."""
    return lane.history.values[-1] if lane.history.values else None


def _figures(newest: float | None, mean: float | None, glyphs: Glyphs) -> tuple[str, str]:
    """Return the newest value, and the mean where it is another one."""
    now, usual = (
        percent_text(value / 100, whole=True) if value is not None else ""
        for value in (newest, mean)
    )
    return now, f"{mean_sign(glyphs)} {usual}" if usual not in ("", now) else ""


def _lane(
    label: str,
    values: Sequence[float | None],
    rows: int,
    names: int,
    glyphs: Glyphs,
    figures: tuple[str, str],
    wasted: int | None = None,
    alarm: str = "",
    most: int | None = None,
) -> list[Line]:
    """Return a lane between its name and its figures or alarm, both on its lowest line."""
    ends_wasted = wasted is not None and wasted < len(values)
    text, token = (alarm, "bad") if alarm else (figures[0], "muted" if ends_wasted else "text")
    mean = "" if alarm else figures[1]
    drawn = lane_rows(values, rows, glyphs, wasted, most)
    return [
        [
            (fit(label if row == rows - 1 else "", names), "muted"),
            *cells,
            (fit(text if row == rows - 1 else "", NOW_CELLS, "right"), token),
            (fit(mean if row == rows - 1 else "", FIGURE_CELLS - NOW_CELLS, "right"), "faint"),
        ]
        for row, cells in enumerate(drawn)
    ]


def lane_rows(
    values: Sequence[float | None],
    rows: int,
    glyphs: Glyphs,
    wasted: int | None = None,
    most: int | None = None,
) -> list[Line]:
    """Return a lane as ``rows`` lines, the top one first. From the bin ``wasted`` on it is hatched.

    A full load has ``most`` eighths, by default one less than the lines have, so that busy
    neighbours stay apart.
    What lies before the first known value is blank, a gap after it is drawn as unknown.
    """
    first = next((at for at, value in enumerate(values) if value is not None), len(values))
    full = most or rows * 8 - 1
    half = full // 2 if rows == 1 else 3  # of a cell: what is lower has no room for a hatch
    bars = [_bar(value, full) for value in values[first:]]
    if wasted is not None:
        for at in range(max(wasted - first, 0), len(bars)):
            eighths, token = bars[at]
            bars[at] = eighths, WASTED if token in LOADS else token
    out: list[Line] = []
    for row in range(rows - 1, -1, -1):
        cells: Line = [(" " * first, "text")]
        for eighths, token in bars:
            if token == WASTED and eighths > row * 8 + half:
                cells.append((glyphs.hatch, token))
            elif token == WASTED and eighths > 0 and row:
                cells.append(BLANK)
            elif eighths > row * 8:
                cells.append((glyphs.up[min(eighths - row * 8, 8)], token))
            else:
                cells.append((glyphs.unknown, "faint") if eighths < 0 and not row else BLANK)
        out.append(merged(cells))
    return out


def _bar(value: float | None, most: int) -> tuple[int, str]:
    """Return the height of a load in eighths of a cell, and its token; below 0 where unknown."""
    if value is None:
        return -1, "faint"
    share = min(max(value / 100, 0.0), 1.0)
    token = load_token(share) if value >= IDLE_PERCENT else "idle"
    return max(round(share * most), 1), token


def load_token(share: float) -> str:
    """Return the token of a load from 0 to 1, by its quarter."""
    return LOADS[min(int(share * len(LOADS)), len(LOADS) - 1)]
