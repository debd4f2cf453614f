"""The live bytes of stacks over the trace: of one with an axis, or of the largest as strips."""

from __future__ import annotations

from collections.abc import Sequence

from ...snapshot.drawing import area, column_of
from ...snapshot.model import Course, SnapshotDevice
from ...snapshot.reader import Reading
from ...snapshot.report_pieces import LABEL_CELLS
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, count_text
from ..theme import Glyphs
from .answers import AnsweredLines
from .first_page import charset
from .rows import where

AREA_ROWS, STRIP_ROWS, MOST_STRIP_ROWS = 6, 2, 5
LEAST_ROWS = 2 + STRIP_ROWS
"""The rows of the strip of one stack with its name, and of the axis."""


def course_lines(
    course: Course, device: SnapshotDevice, at: int | None, glyphs: Glyphs, cells: int
) -> list[Line]:
    """Return the bytes of a stack over the trace as an area, and how its blocks came and went."""
    trace, chars = device.trace, charset(glyphs)
    if trace is None or not course.bytes.high:
        return []
    top = max(*course.bytes.high, 1)
    columns = max(10, cells - LABEL_CELLS - 1)
    out: list[Line] = [[("over the trace", "accent"), (", requested bytes", "muted")]]
    for number, text in enumerate(area(course.bytes, columns, AREA_ROWS, top, chars)):
        label = bytes_text(top) if not number else "0 B" if number == AREA_ROWS - 1 else ""
        out.append([(f"{label:>{LABEL_CELLS}} ", "muted"), (text, "allocated")])
    marks = _axis(trace.entries, columns)
    below: Line = [(" " * (LABEL_CELLS + 1), "muted"), (marks, "faint")]
    if at is not None:
        column = column_of(at, trace.timeline.index, columns)
        sign = "^" if chars.edge == "|" else "▲"
        below[1:] = [(marks[:column], "faint"), (sign, "accent"), (marks[column + 1 :], "faint")]
    came = f"{count_text(course.allocated, 'block')} allocated and {course.freed:,} freed"
    out += [below, [(" " * (LABEL_CELLS + 1), "muted"), (f"{came} while it was recorded", "text")]]
    return [*out, []]


def _axis(entries: int, columns: int) -> str:
    end = f"event {entries:,}"
    return "event 1".ljust(columns - len(end)) + end


def strip_rows(device: SnapshotDevice, rows: int) -> int:
    """Return how many rows each of the strips has where all together have ``rows``."""
    count = max(1, len(device.stacks.rows))
    return max(STRIP_ROWS, min(MOST_STRIP_ROWS, (rows - 1) // count - 1))


def wanted_rows(device: SnapshotDevice, rows: int) -> int:
    """Return how many of ``rows`` the strips use, each with its name, and their axis."""
    return min(rows, len(device.stacks.rows) * (1 + strip_rows(device, rows)) + 1)


class Courses(AnsweredLines):
    """The largest stacks as strips over the trace, so that one that grows stands out."""

    _chosen = ""

    def of(self, reading: Reading, device: SnapshotDevice, chosen: str, rows: int) -> None:
        """Show as many of a device's largest stacks as ``rows`` have room for."""
        self.device, self._chosen = device, chosen
        for row in device.stacks.rows[: max(0, (rows - 1) // (1 + STRIP_ROWS))]:
            question = ("course", device.device, row.number)
            self.answers.ask(question, reading.course, device.device, row.number)
        self.draw()

    def lines_of(self, device: SnapshotDevice, cells: int, rows: int) -> Sequence[Line]:
        if device.trace is None:
            return []
        glyphs, chars = self.tokens.glyphs, charset(self.tokens.glyphs)
        out: list[Line] = []
        high = strip_rows(device, rows)
        for number, row in enumerate(device.stacks.rows):
            if len(out) + high + 2 > rows:
                break
            course = self.answers.get(("course", device.device, row.number))
            if not isinstance(course, Course) or not course.bytes.high:
                continue
            here = str(number) == self._chosen
            top = max(*course.bytes.high, 1)
            most = f"  at most {bytes_text(top)}"
            name: Line = [
                (glyphs.cursor + " " if here else "  ", "accent"),
                *where(row.frames, row.headline),
            ]
            name = styled.cut(name, cells - len(most), glyphs.ellipsis)
            out.append(styled.spread(name, [(most, "muted")], cells))
            token = "allocated" if here else "cached"
            out += [[(text, token)] for text in area(course.bytes, cells, high, top, chars)]
        return [*out, [(_axis(device.trace.entries, cells), "faint")]] if out else []
