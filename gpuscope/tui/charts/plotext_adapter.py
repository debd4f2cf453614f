"""This is the only file that knows plotext (5.x), which draws the axes.

It draws them once for as long as they stay the same. The lines inside are drawn by
``canvas.py``: plotext takes 5 ms for what takes 0.4 ms there, every time, and 18 s for one
point a million times above the axis. Every series is cut to the window, clipped to the axis,
thinned to two points per column and split where it was unknown. plotext draws into one global
figure, which is built and read in one go, in the app's thread. It is imported on the first
draw: a start does not wait for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...text.styled import Line, Piece, merged
from .axes import Heights, mark_unknown
from .bins import Bins, first_at, hold_seconds
from .canvas import Canvas

MAX_RUNS = 64
"""Unbroken pieces of one series that are drawn; beyond, the oldest go."""
_SGR = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True, slots=True)
class PlottedLine:
    """One series, with x ascending and y None where unknown, both of one length.

    ``token`` colours it, ``marker`` is one of ``canvas``.
    """

    token: str
    marker: str
    xs: Sequence[float]
    ys: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes: limits (finite, high above low) and ticks as (position, label)."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    x_axis: bool = True


Run = tuple[list[float], list[float]]


def runs_of(line: PlottedLine, frame: Axes, columns: int) -> list[Run]:
    """Return what is drawn of a line: its unbroken runs inside the window.

    Each value is finite and within the axis, and each column has at most two points (its lowest
    and highest, in their order). It never raises, whatever the numbers.
    """
    bins = Bins(frame.x_low, (frame.x_high - frame.x_low) / max(columns, 1), columns)
    hold = max(hold_seconds(line.xs), bins.width * 2)
    runs: list[Run] = []
    column: list[tuple[float, float]] = []  # points of the current column
    at, last = -1, -math.inf

    def close() -> None:
        if len(column) == 1:  # as most are, where the window is short
            runs[-1][0].append(column[0][0])
            runs[-1][1].append(column[0][1])
            column.clear()
        elif column:
            low = min(column, key=_value)
            high = max(column, key=_value)
            for x, y in (
                (low, high) if low[0] < high[0] else (high, low) if high[0] < low[0] else (low,)
            ):
                runs[-1][0].append(x)
                runs[-1][1].append(y)
            column.clear()

    broken = True
    for i in range(max(first_at(line.xs, frame.x_low), 0), min(len(line.xs), len(line.ys))):
        x, y = line.xs[i], line.ys[i]
        if not math.isfinite(x) or x > frame.x_high:
            break
        if y is None or not math.isfinite(y):
            broken = True
            continue
        if broken or x - last > hold:
            close()
            runs.append(([], []))
            broken, at = False, -1
        place = min(max(bins.index(x), 0), columns - 1)
        if place != at:
            close()
            at = place
        column.append((x, min(max(float(y), frame.y_low), frame.y_high)))
        last = x
    close()
    return runs[-MAX_RUNS:]


def _unknown_columns(lines: Sequence[PlottedLine], frame: Axes, columns: int) -> list[int]:
    """Return the columns of the plot in which no line is known any more.

    A reading that is unknown since its last value is not the same as none: before the first value,
    and where readings have stopped, there are no such columns.
    """
    each = (frame.x_high - frame.x_low) / columns
    known = [line for line in lines if any(value is not None for value in line.ys)]
    gaps = [_gaps(line, frame.x_low, each) for line in known if None in line.ys]
    if not known or len(gaps) < len(known):
        return []
    centres = (frame.x_low + (column + 0.5) * each for column in range(columns))
    return [
        column
        for column, moment in enumerate(centres)
        if all(_within(moment, found) for found in gaps)
    ]


def _gaps(line: PlottedLine, start: float, each: float) -> list[tuple[float, float]]:
    """Return the stretches in which a line is unknown although it was known before."""
    hold, found = max(hold_seconds(line.xs), 2 * each), []
    since: float | None = None
    known = False
    for x, y in zip(line.xs, line.ys, strict=False):
        if y is not None:
            if since is not None and x > start:
                found.append((since, x))
            known, since = True, None
        elif known and since is None:
            since = x
    return found if since is None else [*found, (since, line.xs[-1] + hold)]


def _within(moment: float, stretches: Sequence[tuple[float, float]]) -> bool:
    return any(start <= moment < end for start, end in stretches)


def _value(point: tuple[float, float]) -> float:
    return point[1]


def draw(
    lines: Sequence[PlottedLine],
    frame: Axes,
    width: int,
    height: int,
    unknown: str = "",
) -> list[Line]:
    """Return the chart with its axes as ``height`` lines of pieces, each ``width`` cells.

    The line of the time axis is the lowest value, and what has it is drawn there. Where nothing is
    known any more, the axis (without one, the lowest row) consists of ``unknown``: a line in the
    plot would be a value.
    """
    around = _around(frame, width, height)
    margin = margin_of(frame.y_ticks)
    columns = max(width - margin, 1)
    rows = height - frame.x_axis - bool(frame.x_ticks)
    under = int(frame.x_axis)
    canvas = Canvas(columns, rows + under)
    heights = Heights(frame.y_low, frame.y_high, rows + under)
    for line in lines:
        canvas.begin(line.token, line.marker)
        for xs, ys in runs_of(line, frame, columns):
            canvas.add(*canvas.placed(xs, ys, frame.x_low, frame.x_high, heights))
    if width <= margin or rows <= 0:
        return [list(pieces) for pieces in around]
    painted = canvas.pieces("faint")
    ticks = {rows - 1 + under - heights.row(value): label for value, label in frame.y_ticks}
    drawn = []
    for y, pieces in enumerate(around):
        side = ticks.get(y, "").rjust(margin - 1)
        if y < rows:
            drawn.append([(side + ("┤" if y in ticks else "│"), "faint"), *painted[y]])
        elif y < rows + under:
            axis = "".join(text for text, _ in pieces)[margin:].ljust(columns)
            drawn.append([(side + "└", "faint"), *_on_axis(axis, painted[y])])
        else:
            drawn.append(list(pieces))
    if unknown and (found := _unknown_columns(lines, frame, columns)):
        base = rows if frame.x_axis else rows - 1
        drawn[base] = mark_unknown(drawn[base], {margin + column for column in found}, unknown)
    return drawn


def _on_axis(axis: str, line: Line) -> Line:
    """Return the axis with what is drawn on it: a line at its lowest value."""
    cells = [(char, spec) for text, spec in line for char in text]
    return merged(
        (char, spec) if char != " " else (mark, "faint")
        for mark, (char, spec) in zip(axis, cells, strict=False)
    )


def margin_of(ticks: Sequence[tuple[float, str]]) -> int:
    """Cells left of the plot: the labels of the value axis and its line."""
    return max((len(label) for _, label in ticks), default=0) + 1


def _around(frame: Axes, width: int, height: int) -> tuple[tuple[Piece, ...], ...]:
    """Return the axes alone.

    They stay where they are while a window of time moves on, and are kept.
    """
    x_span, y_span = frame.x_high - frame.x_low, frame.y_high - frame.y_low
    return _axes(
        tuple((round((x - frame.x_low) / x_span, 9), label) for x, label in frame.x_ticks),
        tuple((round((y - frame.y_low) / y_span, 9), label) for y, label in frame.y_ticks),
        frame.x_axis,
        width,
        height,
    )


@lru_cache(maxsize=64)
def _axes(
    x_ticks: tuple[tuple[float, str], ...],
    y_ticks: tuple[tuple[float, str], ...],
    x_axis: bool,
    width: int,
    height: int,
) -> tuple[tuple[Piece, ...], ...]:
    """Return what plotext draws around an empty plot whose axes go from 0 to 1."""
    import plotext  # 24 to 55 ms, once
    from plotext import _utility

    # plotext sends the ticks through a set. Of two labels that do not fit beside each other it
    # draws the first, so which one that was depended on the hashes of this process.
    _utility.no_duplicates = lambda values: list(dict.fromkeys(values))
    x_ticks = (*x_ticks[:1], *x_ticks[:0:-1])  # both ends stay; then the newest
    figure: Any = plotext
    figure.clear_figure()
    figure.limit_size(False, False)
    figure.plot_size(width, height)
    figure.theme("clear")
    figure.plot([0.0], [0.0], marker=" ")  # without any point it draws no ticks
    figure.xlim(0.0, 1.0)
    figure.ylim(0.0, 1.0)
    figure.xticks([x for x, _ in x_ticks], [label for _, label in x_ticks])
    figure.yticks([y for y, _ in y_ticks], [label for _, label in y_ticks])
    figure.xaxes(x_axis, False)
    figure.yaxes(True, False)
    return tuple(((text, "faint"),) for text in parse(figure.build())[:height])


def parse(text: str) -> list[str]:
    """Return the lines that plotext built, without its colours."""
    return [_SGR.sub("", row) for row in text.split("\n")]
