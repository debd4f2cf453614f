"""This widget shows lines of styled text, and repaints only what has changed.

Status lines, key figures and empty states are made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.geometry import Size
from textual.strip import Strip

from ...text import styled
from ...text.styled import Piece
from ..cells import visible_line
from ..charts.strips import Painted, strip_of
from ..terminal.natural_height import height_changed
from ..theme import Tokens

DASH = ("–", "faint")
"""The piece that stands in a cell with nothing to say."""


class Lines(Painted):
    """Lines of styled pieces, which are cut with an ellipsis where they are too long.

    The widget's natural height is their number. One that ``counts_rest`` says in its last row how
    many lines have no room.
    """

    DEFAULT_CSS = """
    Lines { height: auto; }
    """

    def __init__(
        self, lines: Sequence[Sequence[Piece]] = (), counts_rest: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._counts_rest = counts_rest
        self._lines: tuple[Sequence[Piece], ...] = tuple(lines)

    @property
    def rows(self) -> int:
        """Return how many lines there are, which is the height at the next layout."""
        return len(self._lines)

    def show(self, lines: Sequence[Sequence[Piece]]) -> None:
        lines = tuple(tuple(line) for line in lines)
        if lines == self._lines:
            return
        taller = len(lines) != len(self._lines)
        self._lines = lines
        if taller and self.is_mounted:
            height_changed(self)
        self.repaint()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return max((styled.cells(line) for line in self._lines), default=0)

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        ellipsis = tokens.glyphs.ellipsis
        shown: Sequence[Sequence[Piece]] = self._lines[:height]
        if self._counts_rest and len(self._lines) > height:
            shown = with_rest_counted(self._lines, height, width, ellipsis)
        lines = map(visible_line, shown)
        return [strip_of(styled.cut(line, width, ellipsis), width, tokens) for line in lines]


def with_rest_counted(
    lines: Sequence[Sequence[Piece]], rows: int, cells: int, ellipsis: str
) -> list[Sequence[Piece]]:
    """Return the first ``rows`` of a text, which end with how many more there are.

    A heading is not shown without a line below it.
    """
    shown = list(lines[: max(rows, 0)])
    while shown and (not shown[-1] or is_heading(shown[-1])):
        shown.pop()
    left_out = sum(bool(line) and not is_heading(line) for line in lines[len(shown) :])
    more = f" {left_out:,} more"
    if len(shown) < rows:
        return [*shown, [(ellipsis + more, "muted")]]
    if not shown:
        return []
    last = [*shown.pop(), (" " * cells, "muted")]  # too long, so that it ends with the ellipsis
    return [*shown, [*styled.cut(last, cells - len(more), ellipsis), (more, "muted")]]


def is_heading(line: Sequence[Piece]) -> bool:
    """Return whether a line is the heading of those below it."""
    return bool(line) and all(token == "title" for _, token in line)
