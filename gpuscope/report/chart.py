"""Draw bars, timelines and intervals as SVG elements.

A chart has no fixed width: what scales with the page lies in a nested ``svg`` with a view box of
its own, and texts are placed by percent. Colours are classes, which the style sheet gives values
for light, dark and paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from ..text.units import round_seconds
from .content import BarRow, Curve, MapRow, Ratio, Strip, Timeline
from .elements import element

BAR_HEIGHT, MAP_HEIGHT = 12, 16
EDGE = 2
"""Free above and below the plot of a strip, so that a line at the end of the scale is whole."""
STRIP_HEIGHT, TALL_HEIGHT = 46, 120
"""A strip that is the only one of its timeline is taller."""
UNITS = 100
"""Units of a strip's view box from its bottom to its top."""
TICKS = 6
"""The most times below a timeline."""
"""Seconds between two times of an axis; ``page.js`` gets the same ones."""


def percent(share: float) -> str:
    """Return a share of 1 as the length of an attribute."""
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def bar(one: BarRow) -> Element:
    """Return the bar of a row, with the interval of its share as a line."""
    drawn: list[Element] = []
    if one.share:
        width = percent(max(one.share, 0.002))
        drawn.append(
            element("rect", class_=f"c-{one.token or 'total'}", width=width, height="100%")
        )
    if one.low is not None and one.high is not None and one.high > one.low:
        middle = BAR_HEIGHT / 2
        drawn.append(
            element(
                "line",
                class_="between",
                x1=percent(one.low),
                x2=percent(one.high),
                y1=middle,
                y2=middle,
            )
        )
    return element("svg", drawn, class_="bar", width="100%", height=BAR_HEIGHT, aria_hidden="true")


def map_row(one: MapRow) -> Element:
    """Return a row of a map: what is free below what is not."""
    drawn = [element("rect", class_="c-free", width=percent(one.end), height="100%")]
    drawn += [
        element(
            "rect",
            class_=f"c-{piece.token}",
            x=percent(piece.begin),
            width=percent(piece.end - piece.begin),
            height="100%",
        )
        for piece in one.pieces
    ]
    return element(
        "svg", drawn, class_="bar of-map", width="100%", height=MAP_HEIGHT, aria_hidden="true"
    )


# ── over time ──


def strip(one: Strip, line: Timeline) -> Element:
    """Return the chart of one row of a timeline."""
    tall = TALL_HEIGHT if len(line.strips) == 1 else STRIP_HEIGHT
    buckets = max((len(curve.high) for curve in one.curves), default=1) or 1
    inside = [path for curve in one.curves for path in curve_paths(curve, one.bottom, one.top)]
    inside += [
        element(
            "line",
            element("title", mark.label),
            class_=f"mark {mark.tone}".rstrip(),
            x1=f"{mark.at * buckets:.2f}",
            x2=f"{mark.at * buckets:.2f}",
            y1=0,
            y2=UNITS,
        )
        for mark in line.marks
    ]
    grid = [
        element("line", class_="tick", x1=percent(at), x2=percent(at), y1=0, y2="100%")
        for at, _ in ticks(line.begin, line.seconds)
    ]
    plot = element(
        "svg",
        inside,
        class_="plot",
        width="100%",
        y=EDGE,
        height=tall - 2 * EDGE,
        preserveAspectRatio="none",
        viewBox=f"0 0 {buckets} {UNITS}",
    )
    top, bottom = (
        element("text", text, class_="end", x=3, y=y)
        for text, y in zip(one.ends[::-1], (10, tall - 3), strict=True)
    )
    label = f"{one.label}: {one.value}" if one.value else one.label
    return element(
        "svg",
        element("title", label),
        element("g", grid, class_="grid"),
        plot,
        top,
        bottom,
        class_="strip",
        width="100%",
        height=tall,
        role="img",
    )


def curve_paths(curve: Curve, bottom: float, top: float) -> list[Element]:
    """Return a curve: bands between its lowest and highest values, and lines where both are one.

    It is broken where the values are unknown.
    """
    bands: list[str] = []
    lines: list[str] = []
    for start, run in _runs(curve, bottom, top - bottom or 1.0):
        (lines if all(high == low for high, low in run) else bands).append(_outline(start, run))
    found = []
    for shape, pieces in (("band", bands), ("line", lines)):
        if pieces:
            made = element("path", class_=f"{shape} c-{curve.token}")
            made.set("d", "".join(pieces))
            found.append(made)
    return found


def _runs(curve: Curve, bottom: float, span: float) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the known parts of a curve: where each begins, and its upper and lower heights."""

    def height(value: float) -> int:
        return round(UNITS * (1 - min(max((value - bottom) / span, 0.0), 1.0)))

    run: list[tuple[int, int]] = []
    start = 0
    for at, (low, high) in enumerate(zip((*curve.low, None), (*curve.high, None), strict=True)):
        if low is not None and high is not None:
            start = start if run else at
            run.append((height(high), height(low)))
        elif run:
            yield start, run
            run = []


def _outline(start: int, run: Sequence[tuple[int, int]]) -> str:
    """Return a part of a curve in relative commands, which are the shortest.

    A bucket is as wide as 1, so that a single one is visible.
    """
    highs = [high for high, _ in run]
    lows = [low for _, low in run]
    highs, lows = [*highs, highs[-1]], [*lows, lows[-1]]
    there = "".join(f"l1 {b - a}" for a, b in pairwise(highs))
    back = "".join(f"l-1 {b - a}" for a, b in pairwise(lows[::-1]))
    lines = f"M{start} {highs[0]}{there}"
    return lines if highs == lows else f"{lines}L{start + len(run)} {lows[-1]}{back}z"


def ticks(begin: float | None, seconds: float) -> list[tuple[float, str]]:
    """Return the times below a timeline: each with its place, a share of the length.

    ``begin`` is as in :class:`~gpuscope.report.content.Timeline`.
    """
    if not seconds > 0 or not math.isfinite(seconds):
        return []
    step = round_seconds(seconds / TICKS)
    first = begin or 0.0
    number = math.ceil(first / step - 1e-6)
    found = []
    while number * step <= first + seconds + 1e-6:
        at = number * step
        found.append((max((at - first) / seconds, 0.0), _tick_text(at, step, begin is None)))
        number += 1
    return found


def _tick_text(at: float, step: float, relative: bool) -> str:
    """Return a time of the day, with its seconds where these differ between ticks."""
    whole = math.floor(at + 1e-6)
    day, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}"
    if step < 60:
        clock += f":{rest % 60:02d}"
    if step < 1:
        clock += f".{round((at - whole) * 10) % 10}"
    if step >= 86400 and not relative:
        return time.strftime("%d %b", time.gmtime(day * 86400))
    return f"{day} d {clock}" if relative and day else clock


def axis(line: Timeline) -> Element:
    """Return the times below a timeline."""
    texts = [
        element("text", text, class_="tick", x=percent(at), y=12, text_anchor=_anchor(at))
        for at, text in ticks(line.begin, line.seconds)
    ]
    return element("svg", texts, class_="axis", width="100%", height=16, aria_hidden="true")


def _anchor(at: float) -> str:
    return "start" if at < 0.04 else "end" if at > 0.96 else "middle"


# ── ratios ──


def scale_of(rows: Sequence[Ratio]) -> tuple[float, float]:
    """Return the ends of the scale on which these ratios lie, with 1 on it.

    It goes at most as far beyond the ratios as they are apart: of a few runs an interval may be so
    wide that the ratios would all lie on one spot. What goes beyond is cut.
    """
    values = [1.0, *(row.value for row in rows if row.value is not None)]
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    low, high = min(values), max(values)
    beyond = high - low or 0.1
    lowest, highest = min([*ends, low]), max([*ends, high])
    low, high = max(lowest, low - beyond, 0.0), min(highest, high + beyond)
    margin = 0.04 * (high - low or 1.0)
    return max(low - margin, 0.0), high + margin


def interval(row: Ratio, ends: tuple[float, float]) -> Element:
    """Return a ratio as a dot on its interval, and a line at 1."""
    low, high = ends

    def place(value: float) -> str:
        return percent((value - low) / (high - low))

    middle = BAR_HEIGHT / 2
    drawn = [element("line", class_="one", x1=place(1), x2=place(1), y1=0, y2="100%")]
    tone = f"c-{row.tone or 'muted'}"
    if row.low is not None and row.high is not None:
        drawn.append(
            element(
                "line",
                class_=f"span {tone}",
                x1=place(row.low),
                x2=place(row.high),
                y1=middle,
                y2=middle,
            )
        )
    if row.value is not None:
        drawn.append(element("circle", class_=tone, cx=place(row.value), cy=middle, r=4))
    return element("svg", drawn, class_="bar", width="100%", height=BAR_HEIGHT, aria_hidden="true")
