"""The parts that the texts of snapshots and of their differences are made of."""

from __future__ import annotations

from collections.abc import Sequence

from ..text import styled
from ..text.styled import Line
from ..text.units import count_text
from ..text.width import cells, cut
from .drawing import Charset
from .model import (
    Frame,
    Note,
    StackRow,
)

LABEL_CELLS = 11
MORE_FRAMES = 3


def note_lines(notes: Sequence[Note]) -> list[Line]:
    return [[("! ", "warn"), (note.text, "text")] for note in notes]


def pair(name: str, text: str) -> Line:
    return [(f"{name:<{LABEL_CELLS}} ", "muted"), (text, "text")]


def blocks_text(count: int) -> str:
    return count_text(count, "block")


def amount_line(amount: str, count: str, text: str) -> Line:
    return [(f"{amount:>10}", "text"), (f"{count:>7}", "muted"), (f"  {text}", "muted")]


def headline(
    amount: str, count: str, frames: Sequence[Frame], number: int, width: int, glyphs: Charset
) -> Line:
    if not frames:
        return [(amount, "text"), (count, "muted"), ("  without a recorded stack", "muted")]
    frame = frames[min(number, len(frames) - 1)]
    place = frame.place
    room = max(10, width - 21 - cells(place))
    line = [
        (amount, "text"),
        (count, "muted"),
        (f"  {cut(frame.function, room, glyphs.ellipsis)}", "text"),
        (f"  {place}", "accent"),
    ]
    room = width - styled.cells(line) - 2
    # The innermost call is named, too, because one line calls many things.
    if frame is not frames[0] and room > 12:
        called = f"in {frames[0].function} {frames[0].place}"
        line.append((f"  {cut(called, room, glyphs.ellipsis)}", "muted"))
    return line


def frame_lines(row: StackRow, width: int, glyphs: Charset, full: bool) -> list[Line]:
    """Return the frames outside the headline in one line, or all of them, one in each line."""
    margin = " " * 19
    if full:
        return [
            [
                (margin, ""),
                (
                    cut(
                        f"{frame.function}  {frame.file}:{frame.line}", width - 19, glyphs.ellipsis
                    ),
                    "muted",
                ),
            ]
            for frame in row.frames
        ]
    outer = row.frames[row.headline + 1 : row.headline + 1 + MORE_FRAMES]
    if not outer:
        return []
    text = "  ".join(f"{glyphs.arrow} {frame.function} {frame.place}" for frame in outer)
    return [[(margin, ""), (cut(text, width - 19, glyphs.ellipsis), "muted")]]
