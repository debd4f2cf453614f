"""This is the base of dialogs of text, which wrap it again whenever their width changes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from ...text import styled
from ...text.styled import Line
from .dialog import Dialog
from .text import Lines

LEAST_CELLS = 30
"""The narrowest text."""


class TextDialog(Dialog):
    """A dialog of lines that subclasses give by :meth:`text`.

    ``heading`` stands in its frame. Subclasses with more than lines compose themselves.
    """

    def __init__(self, heading: str = "") -> None:
        super().__init__()
        self.heading = heading
        self.lines = Lines()

    def text(self) -> Iterable[Line]:
        """Return the lines, before they are wrapped."""
        raise NotImplementedError

    def wrapped(self) -> list[Line]:
        return styled.hang_lines(self.text(), self.cells)

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = self.heading
            yield self.lines

    def on_mount(self) -> None:  # Textual calls this beside the one of a subclass
        self.redraw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    @property
    def cells(self) -> int:
        """Return the width of a line in cells."""
        return max(LEAST_CELLS, self.lines.size.width or self._cells_to_come())

    def _cells_to_come(self) -> int:
        """Return the width of a line once the dialog is laid out, so that it is drawn once."""
        size, styles = self.app.size, self.body.styles
        widths = [
            width.resolve(size, size, Fraction(1))
            for width in (styles.width, styles.max_width)
            if width is not None
        ]
        return int(min(widths)) - styles.gutter.width - styles.scrollbar_size_vertical

    def redraw(self) -> None:
        """Draw the lines again."""
        if self.is_open:
            self.lines.show(self.wrapped())
