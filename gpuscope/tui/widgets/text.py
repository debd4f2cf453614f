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

    The widget's natural height is their number.
    """

    DEFAULT_CSS = """
    Lines { height: auto; }
    """

    def __init__(self, lines: Sequence[Sequence[Piece]] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lines: tuple[Sequence[Piece], ...] = tuple(lines)

    @property
    def rows(self) -> int:
        """Return how many lines there are, which is the height at the next layout."""
        return len(self._lines)

    def show(self, lines: Sequence[Sequence[Piece]]) -> None:
        """Replace all lines."""
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
        lines = map(visible_line, self._lines[:height])
        return [
            strip_of(styled.cut(line, width, tokens.glyphs.ellipsis), width, tokens)
            for line in lines
        ]
