"""A history in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...text.styled import Line, merged
from ..theme import UNICODE, Glyphs

BELOW_THE_LINE = 8 / 7
"""The largest of a course is an eighth lower than its line, so that busy rows stay apart."""
LOAD_TOP = 100 * BELOW_THE_LINE
IDLE_PERCENT = 1.0
STEADY, LOW = 0.1, 4.0
"""Values that change by no more than this share are steady, and drawn as a low line: at one part in
``LOW`` of the height.
"""


def own_top(values: Sequence[float | None]) -> float:
    """Return the top of the scale of values that have no most of their own.

    Values that hardly change are a low line: a wall of full blocks would look like a load.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return 0.0
    return max(known) * (LOW if is_steady(known) else BELOW_THE_LINE)


def is_steady(values: Sequence[float | None], share: float = STEADY) -> bool:
    """Return whether values differ by no more than a ``share`` of the largest."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return not known or max(known) - min(known) <= share * max(map(abs, known))


def spark(
    values: Sequence[float | None],
    width: int,
    maximum: float | None = None,
    glyphs: Glyphs = UNICODE,
) -> str:
    """Return the last ``width`` values as columns of eighths, the newest at the right.

    The scale goes from 0 to ``maximum`` (None: the largest of them). Zero is the lowest block,
    so that it differs from no data (blank) and from unknown (┄).
    """
    if width <= 0:
        return ""
    shown = list(values[-width:])
    known = [v for v in shown if v is not None and math.isfinite(v)]
    top = maximum if maximum is not None and maximum > 0 else max(known, default=0.0)
    steps = len(glyphs.up) - 1
    columns = []
    for value in shown:
        if value is None or not math.isfinite(value):
            columns.append(glyphs.unknown)
        elif top <= 0:
            columns.append(glyphs.up[1])
        else:
            columns.append(glyphs.up[round(min(max(value / top * steps, 1), steps))])
    return "".join(columns).rjust(width)


def load_line(
    values: Sequence[float | None], width: int, top: float, wasted: int, glyphs: Glyphs = UNICODE
) -> Line:
    """Return the course of a load. From the value ``wasted`` on it is no progress, and hatched.

    What lies before the first known value is blank.
    """
    first = next((at for at, value in enumerate(values) if value is not None), len(values))
    drawn = spark(values[first:], width, top, glyphs)
    cells: Line = []
    for at, (char, value) in enumerate(zip(drawn, values, strict=False)):
        works = value is not None and value >= IDLE_PERCENT
        wasted_here = works and at >= wasted
        token = "faint" if wasted_here else "ok" if works else "idle"
        cells.append((glyphs.hatch if wasted_here else char, token))
    return merged(cells)
