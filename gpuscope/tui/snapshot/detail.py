"""What is known of the chosen row of a snapshot: a stack of calls, or a size of blocks.

Of a stack these are its bytes over the trace, the text of its line, and all its calls. Of a size
these are the stacks that hold blocks of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...snapshot.model import Course, DiffRow, Frame, SnapshotDevice, StackRow, Stacks, Summary
from ...snapshot.reader import Reading
from ...snapshot.report import stack_lines
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, count_text, percent_text, signed_bytes_text
from ..theme import Glyphs
from ..widgets.pane import set_title
from .answers import AnsweredLines, Answers
from .courses import AREA_ROWS, course_lines
from .first_page import charset, largest_lines, map_lines
from .rows import NO_STACK, stack_text
from .source import Source, read_source, source_lines

COURSE_ROWS, LEAST_SOURCE_ROWS, SOURCE_ROWS = AREA_ROWS + 4, 4, 16
LEAST_STACK_ROWS = 4
"""Rows of a stack with its heading, below which what stands above it has less."""
TOP = 50


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a list of stacks, with the list that it is from.

    ``at`` is the entry of the trace that the list is of, None where it is of the file's end.
    """

    row: StackRow | DiffRow
    stacks: Stacks
    at: int | None = None


def title_line(place: Place) -> Line:
    """Return how much a stack holds, and in how many blocks."""
    row = place.row
    if isinstance(row, DiffRow):
        change = row.after_bytes - row.before_bytes
        blocks = f"{row.after_count - row.before_count:+,} blocks"
        line: Line = [(signed_bytes_text(change), "title"), (f" in {blocks}: ", "muted")]
        then = f"{bytes_text(row.before_bytes)} before, {bytes_text(row.after_bytes)} after"
        return [*line, (then, "text")]
    stacks = place.stacks
    total = sum(one.bytes for one in stacks.rows) + stacks.other_bytes + stacks.unknown_bytes
    share = f", {percent_text(row.bytes / total)} of what is live" if total else ""
    then = "" if place.at is None else f" after event {place.at:,}"
    text = f" live in {count_text(row.count, 'block')}{share}{then}"
    return [(bytes_text(row.bytes), "title"), (text, "muted")]


def sizes_by_line(place: Place, file: str) -> dict[int, int]:
    """Return the bytes of all stacks that pass through each line of a file."""
    out: dict[int, int] = {}
    for row in place.stacks.rows:
        for line in {frame.line for frame in row.frames if frame.file == file}:
            out[line] = out.get(line, 0) + row.bytes
    return out


def size_lines(
    device: SnapshotDevice, key: str, stacks: Stacks | None, glyphs: Glyphs, cells: int, rows: int
) -> list[Line]:
    """Return who holds the live blocks of a size, or the segments with free runs of it."""
    kind, _, low = key.partition(":")
    if not low.isdigit():
        return [[("the free blocks by size follow", "muted")]]
    if kind == "held":
        chars = charset(glyphs)
        lines = stack_lines(stacks, cells, chars, True) if stacks is not None else []
        if stacks is not None and len(lines) > rows:
            lines = stack_lines(stacks, cells, chars)
        return [styled.cut(line, cells, glyphs.ellipsis) for line in lines[:rows]]
    there = [
        one
        for one in device.segments
        if not one.private and int(low) <= one.largest_free_bytes < 2 * int(low)
    ]
    if not there:
        return [[("no segment has its largest free run in this size", "muted")]]
    out: list[Line] = [[("segments whose largest free run has this size", "accent")]]
    for one in there[: rows - 1]:
        pool = "expandable" if one.expandable else "large" if one.large else "small"
        rest = f"  of a segment of {bytes_text(one.bytes)}, {pool} pool, stream {one.stream}"
        out.append([(f"{bytes_text(one.largest_free_bytes):>10}", "text"), (rest, "muted")])
    return out


class Largest(AnsweredLines):
    """Who holds most of a device, and below it the text of the line that does."""

    def __init__(self, path: Path, answers: Answers, **kwargs: Any) -> None:
        super().__init__(answers, **kwargs)
        self._path = path
        self._taken: float | None = None

    def of(self, device: SnapshotDevice, summary: Summary | None) -> None:
        """Show a device of a snapshot."""
        self.device, self._taken = device, _taken(summary)
        if (row := _first(device)) is not None:
            frame = row.frames[row.headline]
            self.answers.ask(_source_of(frame), read_source, frame, self._path.parent)
        self.draw()

    def lines_of(self, device: SnapshotDevice, cells: int, rows: int) -> Sequence[Line]:
        glyphs = self.tokens.glyphs
        lines, row = largest_lines(device, glyphs, cells, rows), _first(device)
        source = self.answers.get(_source_of(row.frames[row.headline])) if row else None
        room = rows - len(lines) - 2
        if row is not None and isinstance(source, Source) and room >= LEAST_SOURCE_ROWS:
            frame = row.frames[row.headline]
            sizes = sizes_by_line(Place(row, device.stacks), frame.file)
            text = source_lines(source, frame, sizes, self._taken, glyphs, min(room, SOURCE_ROWS))
            lines += [[], *(styled.cut(line, cells, glyphs.ellipsis) for line in text)]
        return lines


def _first(device: SnapshotDevice) -> StackRow | None:
    """Return the largest stack whose calls are known."""
    return next((row for row in device.stacks.rows if row.frames), None)


class Detail(AnsweredLines):
    """A panel that asks for what it shows: the child process, and the disk for source text."""

    DEFAULT_CSS = "Detail { width: 1fr; height: 1fr; }"

    def __init__(self, path: Path, answers: Answers, **kwargs: Any) -> None:
        super().__init__(answers, **kwargs)
        self._path = path
        self._taken: float | None = None
        self._of: Place | str | None = None
        self._more = True

    def of(
        self,
        reading: Reading,
        device: SnapshotDevice,
        summary: Summary | None,
        chosen: Place | str | None,
        more: bool,
    ) -> None:
        """Show a row of a list of stacks, or the sizes that have the key ``chosen``.

        Where there is ``more``, no other panel has the course of a stack, or the map of the sizes.
        """
        self.device, self._taken, self._of = device, _taken(summary), chosen
        self._more = more
        number, ask = device.device, self.answers.ask
        if isinstance(chosen, str):
            kind, _, low = chosen.partition(":")
            if kind == "held" and low.isdigit():
                ask((number, chosen), reading.sized, number, int(low), TOP)
        elif chosen is not None and chosen.row.frames:
            row = chosen.row
            if isinstance(row, StackRow) and row.number >= 0 and device.trace is not None:
                ask(("course", number, row.number), reading.course, number, row.number)
            frame = row.frames[row.headline]
            ask(_source_of(frame), read_source, frame, self._path.parent)
        self.draw()

    def lines_of(self, device: SnapshotDevice, cells: int, rows: int) -> Sequence[Line]:
        glyphs, answers, chosen = self.tokens.glyphs, self.answers, self._of
        if isinstance(chosen, str):
            set_title(self, "Who holds blocks of this size")
            found = answers.get((device.device, chosen))
            stacks = found if isinstance(found, Stacks) else None
            lines = size_lines(device, chosen, stacks, glyphs, cells, rows)
            drawn = map_lines(device, glyphs, cells, rows - len(lines) - 2) if self._more else []
            return (
                [*lines, [], [("all segments to one scale", "accent")], *drawn] if drawn else lines
            )
        set_title(self, "The chosen stack")
        row = chosen.row if chosen is not None else None
        out: list[Line] = [title_line(chosen)] if chosen is not None else []
        if chosen is None or row is None or not row.frames:
            return [*out, [(NO_STACK, "muted")]]
        frame = row.frames[row.headline]
        source = answers.get(_source_of(frame))
        least = COURSE_ROWS + 2 * LEAST_STACK_ROWS * (2 if isinstance(source, Source) else 1)
        if self._more and isinstance(row, StackRow) and rows >= least:
            course = answers.get(("course", device.device, row.number))
            if isinstance(course, Course):
                out += course_lines(course, device, chosen.at, glyphs, cells)
        room = rows - len(out) - min(len(row.frames) + 2, max(LEAST_STACK_ROWS, rows // 2))
        if isinstance(source, Source) and room > LEAST_SOURCE_ROWS:
            sizes = sizes_by_line(chosen, frame.file)
            out += [*source_lines(source, frame, sizes, self._taken, glyphs, room - 1), []]
        elif isinstance(source, str):
            out.append([("source ", "accent"), (source, "muted")])
        calls = [[("calls", "accent"), (", innermost first", "muted")]]
        calls += _calls(row, rows - len(out) - 1)
        return [styled.cut(line, cells, glyphs.ellipsis) for line in [*out, *calls][:rows]]


def _calls(row: StackRow | DiffRow, rows: int) -> list[Line]:
    """Return the calls of a stack; where there are too many, those inside torch are left out."""
    lines = [list(line) for line in stack_text(row)]
    left_out = min(len(lines) - rows + 1, row.headline - 1)
    if left_out < 2:
        return lines
    inner = row.headline - left_out
    some: Line = [(f"  {left_out} calls in between", "faint")]
    return [*lines[:inner], some, *lines[row.headline :]]


def _taken(summary: Summary | None) -> float | None:
    """Return when a snapshot was taken, in seconds since the epoch."""
    taken = summary.taken_us if summary is not None else None
    return None if taken is None else taken / 1e6


def _source_of(frame: Frame) -> object:
    return ("source", frame.file, frame.line, frame.function)
