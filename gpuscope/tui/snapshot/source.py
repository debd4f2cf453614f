"""The lines of a source file around one that allocates, where this machine has the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...snapshot.model import Frame
from ...text.clock import DATE_AND_SECOND, clock_text
from ...text.styled import Line
from ...text.units import bytes_text
from ...wire.clean import clean
from ..theme import Glyphs

MOST_BYTES = 1 << 20
"""The largest file that is read: a larger one is no source that anybody wrote."""
MOST_CELLS = 200
SIZE_CELLS, NUMBER_CELLS = 9, 6


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a file, and when it was changed last, in seconds since the epoch."""

    path: Path
    lines: tuple[str, ...]
    changed: float


def read_source(frame: Frame, folder: Path) -> Source | str:
    """Return the file of a frame, or why it is not shown. A path may be relative to ``folder``.

    Torch records the path that Python ran, and no text. A file whose line is not in the function of
    that name any more was changed since, and would mislead.
    """
    path = folder / frame.file
    try:
        if not frame.file or not path.is_file():
            return f"{frame.file or 'the file'} is not on this machine"
        found = path.stat()
        if found.st_size > MOST_BYTES:
            return f"{path.name} has {bytes_text(found.st_size)}: too large for a source file"
        text = path.read_text("utf-8", "replace")
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"
    lines = tuple(clean(line.expandtabs(4), MOST_CELLS) for line in text.split("\n"))
    if not 1 <= frame.line <= len(lines) or not _is_in(frame, lines):
        return f"{path.name} is another version: its line {frame.line} is not in {frame.function}"
    return Source(path, lines, found.st_mtime)


def _is_in(frame: Frame, lines: tuple[str, ...]) -> bool:
    """Return whether a function of the frame's name begins at or above its line."""
    if not frame.function.isidentifier():  # <module>, <lambda> and the like have no line
        return True
    begins = re.compile(rf"\s*(?:async\s+)?def\s+{frame.function}\b")
    return any(begins.match(line) for line in lines[: frame.line])


def source_lines(
    source: Source,
    frame: Frame,
    sizes: Mapping[int, int],
    taken: float | None,
    glyphs: Glyphs,
    rows: int,
) -> list[Line]:
    """Return a heading and the lines around a frame's, with the bytes of each line.

    ``taken`` is when the snapshot was taken. ``sizes`` are the bytes of all stacks by the line that
    they pass through.
    """
    changed = taken is not None and source.changed > taken + 1
    note = f"   changed {clock_text(source.changed, DATE_AND_SECOND)}, after the snapshot"
    head: Line = [("source ", "accent"), (clean(str(source.path)), "muted")]
    out: list[Line] = [[*head, *([(note, "warn")] if changed else ())]]
    around = max(1, rows - 1)
    first = max(1, min(frame.line - around // 2, len(source.lines) - around + 1))
    for number in range(first, min(first + around, len(source.lines) + 1)):
        here = number == frame.line
        size = bytes_text(sizes[number]) if number in sizes else ""
        out.append(
            [
                (f"{size:>{SIZE_CELLS}}", "allocated"),
                (f" {glyphs.cursor if here else ' '}", "accent"),
                (f"{number:>{NUMBER_CELLS}}  ", "text" if here else "faint"),
                (source.lines[number - 1], "title" if here else "muted"),
            ]
        )
    return out
