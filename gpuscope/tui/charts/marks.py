"""This module marks what happened on the time axis of a chart.

One row has glyphs for events, one has labels for round step numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...text.styled import Line, merged
from ..theme import Glyphs
from .axes import nice_step
from .bins import Bins

STEP_CELLS = 12
"""The least cells between two labels of steps."""
_BEFORE = ("oom", "stall", "retry", "spared", "begin", "phase")
"""The order of importance of events; of several in one column, the first is drawn."""


class Tick(NamedTuple):
    """Something that happened at a moment (seconds on the chart's clock).

    ``kind`` is the glyph's name: oom, spared (an OOM that was survived), retry, stall,
    phase, or begin where a training begins.
    ``label`` is written behind the glyph where there is room, else in front of it.
    """

    seconds: float
    kind: str
    token: str
    label: str = ""


def event_row(ticks: Sequence[Tick], bins: Bins, glyphs: Glyphs) -> Line:
    """Return the events in ``bins.count`` cells, empty where no tick falls into the window."""
    placed: dict[int, Tick] = {}
    for tick in ticks:
        at = bins.index(tick.seconds)
        if 0 <= at < bins.count:
            there = placed.get(at)
            if there is None or _BEFORE.index(tick.kind) <= _BEFORE.index(there.kind):
                placed[at] = tick
    if not placed:
        return []
    cells: Line = [(" ", "text")] * bins.count
    for at, tick in placed.items():
        cells[at] = (getattr(glyphs, tick.kind), tick.token)
    for at, tick in placed.items():
        size = len(tick.label)
        for first, last in ((at + 1, at + 1 + size), (at - size, at)):
            around = cells[max(first - (first < at), 0) : last + (first > at)]
            if size and first >= 0 and last <= bins.count and {text for text, _ in around} == {" "}:
                cells[first:last] = [(char, "muted") for char in tick.label]
                break
    return merged(cells)


def step_row(
    seconds: Sequence[float], steps: Sequence[float | None], bins: Bins, glyphs: Glyphs
) -> str:
    """Return a label at each moment a round step number was reached, in ``bins.count`` cells.

    It is "" where there is none.
    """
    known = [
        (at, step)
        for at, step in zip(seconds, steps, strict=True)
        if step is not None and at >= bins.start
    ]
    if len(known) < 2 or not known[-1][1] > known[0][1]:
        return ""
    cells = (known[-1][0] - known[0][0]) / bins.width
    every = math.ceil(nice_step(known[-1][1] - known[0][1], max(int(cells // STEP_CELLS), 1)))
    row = [" "] * bins.count
    free = 0
    for (before, low), (after, high) in pairwise(known):
        number = math.floor(low / every + 1) * every
        if high < number:
            continue
        number = math.floor(high / every) * every  # of several in one interval the last
        moment = before + (after - before) * (number - low) / (high - low)
        at, label = bins.index(moment), glyphs.step + step_text(number)
        if free <= at <= bins.count - len(label):
            row[at : at + len(label)] = label
            free = at + len(label) + 1
    return "".join(row) if free else ""


def step_text(step: float) -> str:
    """Return a step number in few characters, such as ``4120``, ``412k`` or ``4.12M``."""
    if step < 100_000:
        return f"{step:.0f}"
    return f"{step / 1e3:g}k" if step < 1_000_000 else f"{step / 1e6:g}M"


def named_row(name: str, margin: int, pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return a row below the axis with its name in the margin.

    A name wider than that takes the blanks that the row begins with, or is left out: half a
    word says nothing.
    """
    (first, style), *others = pieces
    over = max(len(name) - margin, 0)
    if first[: over + 1].strip():
        return [(" " * margin, style), *pieces]
    return [(name.rjust(margin), style), (first[over:], style), *others]
