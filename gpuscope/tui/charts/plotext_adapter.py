"""The only file that knows plotext (5.x). It is handed clean numbers and gives back lines of styled pieces.

plotext 5 takes 18 s for one point a million times above the axis, raises on infinities, and draws into one global
figure. So every series is cut to the window, clipped to the axis, thinned to two points per column and split where it
was unknown before plotext sees it, and a figure is built and read in one go, in the app's thread. It is imported on the
first draw: a start does not wait for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .bins import Bins, first_at, hold_seconds

COLOUR_BASE = 16
"""Series n is drawn in the terminal's colour COLOUR_BASE + n, which is read back as its number: no colour of
plotext's ever reaches the screen."""
MAX_RUNS = 64
"""Unbroken pieces of one series that are drawn; beyond, the oldest go. Each costs plotext about 0.1 ms."""
_SGR = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True, slots=True)
class Line:
    """One series: x ascending, y None where unknown, both of one length; ``token`` colours it, ``marker`` is
    plotext's."""

    token: str
    marker: str
    xs: Sequence[float]
    ys: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes: limits (finite, high above low) and ticks as (position, label)."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    x_axis: bool = True


Run = tuple[list[float], list[float]]


def runs_of(line: Line, frame: Frame, columns: int) -> list[Run]:
    """What plotext may see of a line: unbroken runs inside the window, each value finite and within the axis, at most
    two points per column (its lowest and highest, in their order). Never raises, whatever the numbers."""
    bins = Bins(frame.x_low, (frame.x_high - frame.x_low) / max(columns, 1), columns)
    hold = max(hold_seconds(line.xs), bins.width * 2)
    runs: list[Run] = []
    column: list[tuple[float, float]] = []  # points of the current column
    at, last = -1, -math.inf

    def close() -> None:
        if column:
            low = min(column, key=_value)
            high = max(column, key=_value)
            for x, y in (low, high) if low[0] < high[0] else (high, low) if high[0] < low[0] else (low,):
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


def _value(point: tuple[float, float]) -> float:
    return point[1]


def draw(lines: Sequence[Line], frame: Frame, width: int, height: int) -> list[list[tuple[str, str]]]:
    """``height`` lines of pieces, each ``width`` cells: the chart with its axes. The first line of ``lines`` is drawn
    last, on top of the others."""
    import plotext  # 24 to 55 ms, once

    figure: Any = plotext
    figure.clear_figure()
    figure.limit_size(False, False)
    figure.plot_size(width, height)
    figure.theme("clear")
    margin = max((len(label) for _, label in frame.y_ticks), default=0) + 1
    columns = max(width - margin, 1)
    for number, line in reversed(list(enumerate(lines))):
        for xs, ys in runs_of(line, frame, columns):
            figure.plot(xs, ys, marker=line.marker, color=COLOUR_BASE + number)
    figure.xlim(frame.x_low, frame.x_high)
    figure.ylim(frame.y_low, frame.y_high)
    figure.xticks([x for x, _ in frame.x_ticks], [label for _, label in frame.x_ticks])
    figure.yticks([y for y, _ in frame.y_ticks], [label for _, label in frame.y_ticks])
    figure.xaxes(frame.x_axis, False)
    figure.yaxes(True, False)
    painted = figure.build()
    return parse(painted, [line.token for line in lines])[:height]


def parse(text: str, tokens: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Lines of pieces from what plotext built: colour COLOUR_BASE + n becomes ``tokens[n]``, no colour "faint"."""
    lines = []
    for row in text.split("\n"):
        pieces: list[tuple[str, str]] = []
        spec = "faint"
        for index, part in enumerate(_SGR.split(row)):
            if index % 2:
                code = part.rpartition(";")[2]
                number = int(code) - COLOUR_BASE if part.startswith("38;5;") else -1
                spec = tokens[number] if 0 <= number < len(tokens) else "faint"
            elif part:
                pieces.append((part, spec))
        lines.append(pieces)
    return lines
