"""This module draws the layers of a stack that hardly moves.

Such a stack is a wall of colour: what changes in it is less than a cell. Above a low stack each
layer has a line with its amount, and where it changes by enough its course from the least on. All
courses have one scale: of two that look alike none changes by more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from ...store.view import History
from ...text import styled
from ...text.styled import Line
from ...text.width import cells as text_cells
from ..cells import fit
from ..theme import Glyphs
from .axes import Heights
from .bins import Bins, first_at
from .canvas import HALF_A_DOT, Canvas
from .load_strips import binned
from .trends import rows_of_trends

FLAT_SHARE, FLAT_AGAIN = 0.1, 0.07
"""Of the axis: a stack none of whose edges moves by more is flat; one that moved has to become so
calm before it is flat again.
"""
LEAST_MOMENTS = 8
"""Of which fewer say nothing about what moves."""
SPAN_SHARE, LEAST_SHARE = 0.05, 0.005
"""Of the axis: the least that the height of a course stands for, so that none makes a drama of
little, and the change of a layer below which it has no course.
"""
STACK_ROWS = 14
"""Of the stack below the courses, with its axis, an event and step numbers."""
COURSE_ROWS, MOST_COURSE_ROWS = 3, 5
PARTED_FROM = 4
"""Rows of a layer from which on the last is blank: else its course runs into the next name."""
STEADY = "steady"
LEAST_TOLD = 0.8
"""Of the height of a course: rounded ends are that far apart, or have one more digit."""


class Course(NamedTuple):
    """A layer over the time that is shown: its readings, the least, the most and the newest."""

    label: str
    token: str
    history: History
    least: float
    most: float
    now: float
    moves: bool


def courses_of(
    layers: Sequence[tuple[str, str, Sequence[float | None]]],
    seconds: Sequence[float],
    start: float,
    top: float,
) -> list[Course]:
    """Return the course of each layer (label, token, values) that holds anything."""
    first, out = first_at(seconds, start), []
    for label, token, values in layers:
        shown = values[first : len(seconds)]
        known = [one for one in shown if one is not None and math.isfinite(one)]
        if not known or max(known) <= 0:
            continue
        least, most = min(known), max(known)
        moves = most - least > LEAST_SHARE * top
        past = History(tuple(seconds[first:]), tuple(shown))
        out.append(Course(label, token, past, least, most, known[-1], moves))
    return out


def is_flat(
    layers: Sequence[Sequence[float | None]],
    seconds: Sequence[float],
    start: float,
    top: float,
    before: bool,
) -> bool:
    """Return whether no edge of the stack moves by as much as can be seen well.

    ``before`` is what was said of the picture before this one.
    """
    first = first_at(seconds, start)
    moments = zip(*(values[first : len(seconds)] for values in layers), strict=False)
    edges: list[tuple[float, ...]] = []
    for amounts in moments:
        known = [one for one in amounts if one is not None and math.isfinite(one)]
        if len(known) == len(amounts):
            total, found = 0.0, []
            for one in known:
                total += one
                found.append(total)
            edges.append(tuple(found))
    if len(edges) < LEAST_MOMENTS:
        return False
    moved: float = max(max(edge) - min(edge) for edge in zip(*edges, strict=True))
    return moved <= top * (FLAT_SHARE if before else FLAT_AGAIN)


def rows_of_layers(moving: Sequence[bool], height: int) -> list[int]:
    """Return the rows of each layer, of which the first has its name; none where there is no room.

    The stack below them has the rest of ``height``.
    """
    room = height - 1 - STACK_ROWS
    if room < len(moving):
        return []
    return rows_of_trends(moving, room, MOST_COURSE_ROWS + 1)


def wanted_rows(moving: Sequence[bool]) -> int:
    """Return the rows in which all layers and the stack are shown well."""
    return len(moving) + 1 + sum(moving) * COURSE_ROWS + STACK_ROWS


def between_text(least: str, most: str, brief: bool = False) -> str:
    """Return two amounts as a range, with the unit once where both have the same.

    A ``brief`` one stands behind an amount of that unit, and does without it.
    """
    amount, _, unit = least.partition(" ")
    if not most.endswith(f" {unit}"):
        return f"{least} – {most}"
    return f"{amount}–{most.partition(' ')[0]}" if brief else f"{amount} – {most}"


def course_lines(
    courses: Sequence[Course],
    rows: Sequence[int],
    bins: Bins,
    now: float,
    top: float,
    margin: int,
    say: Callable[[float], str],
    glyphs: Glyphs,
    unit: float = 1.0,
) -> list[Line]:
    """Return the lines of all layers, ``margin`` cells from the left, and a blank one below.

    ``top`` is where the axis of the stack ends. Each course has an axis of its own, in ``unit``.
    """
    out: list[Line] = []
    span = max(*(one.most - one.least for one in courses), SPAN_SHARE * top)
    names = max(text_cells(one.label) for one in courses)
    sizes = max(text_cells(say(one.now)) for one in courses)
    blank = (" " * margin, "text")
    for one, lines in zip(courses, rows, strict=True):
        between = between_text(say(one.least), say(one.most))
        between = STEADY if say(one.least) == say(one.most) else between
        head: Line = [blank, (f"{glyphs.fill(one.token)} ", one.token)]
        head.append((fit(one.label, names), "muted"))
        head.append((fit(say(one.now), sizes + 2, "right"), "text"))
        room = margin + bins.count - styled.cells(head)
        brief = between_text(say(one.least), say(one.most), brief=True) if between != STEADY else ""
        fitting = (text for text in (f"   {between}", f"  {brief}") if text_cells(text) <= room)
        head.append((next(fitting, ""), "faint"))
        out.append(head)
        parted = lines >= PARTED_FROM and one is not courses[-1]
        if lines > 1:
            values = [
                None if value is None else value - one.least
                for value in binned(one.history, bins, now)
            ]
            high = lines - 1 - parted
            drawn = line_through(values, high, span, one.token, glyphs)
            ends = (one.least + span) / unit, one.least / unit
            sides = axis_of(*ends, high, margin)
            out += [[(side, "faint"), *line] for side, line in zip(sides, drawn, strict=True)]
            out += [[]] * parted
    return [*out, []]


def axis_of(most: float, least: float, rows: int, margin: int) -> list[str]:
    """Return the axis of a course from the top, with the values at its ends where these fit.

    In a single row there is no height to name.
    """
    labels = ("", "")
    for digits in (0, 1, 2):
        found = f"{most:.{digits}f}", f"{least:.{digits}f}"
        if max(map(len, found)) < margin and found[0] != found[1]:
            labels = found
            if float(found[0]) - float(found[1]) >= LEAST_TOLD * (most - least):
                break
    ends = {0: labels[0], rows - 1: labels[1]} if rows > 1 else {}
    return [
        ends.get(at, "").rjust(margin - 1) + ("┤" if ends.get(at) else "│") for at in range(rows)
    ]


def line_through(
    values: Sequence[float | None], rows: int, top: float, token: str, glyphs: Glyphs
) -> list[Line]:
    """Return a line through values from 0 to ``top`` in ``rows`` lines, the top one first.

    It is no area: the scale begins at the least value, and an area would look like all of it.
    """
    canvas, across = Canvas(len(values), rows), max(len(values) - 1, 1)
    canvas.begin(token, glyphs.lines[0][0])
    heights = Heights(0.0, top, rows, HALF_A_DOT, HALF_A_DOT)  # there are no ticks: all is used
    for known, stretch in groupby(enumerate(values), lambda one: one[1] is not None):
        points = [(float(at), value) for at, value in stretch if value is not None]
        if known:
            xs, ys = [at for at, _ in points], [value for _, value in points]
            canvas.add(*canvas.placed(xs, ys, 0.0, float(across), heights))
    return canvas.pieces("text")
