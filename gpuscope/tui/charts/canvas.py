"""Lines on a grid of cells: braille, two by four dots a cell, or one character a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...text.styled import Line, Piece, merged

BRAILLE = "braille"
"""The marker that draws with dots."""
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of a dot in its character, by row from below and column."""
_BLANK = 0x2800

Place = tuple[int, int]


class Canvas:
    """A picture of ``columns`` × ``rows`` cells, with row 0 at the top.

    A cell belongs to one line: who draws there last.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = max(columns, 0), max(rows, 0)
        self._cells: dict[Place, Piece] = {}
        self._token, self._marker = "", BRAILLE
        self._dots: dict[Place, int] = {}

    @property
    def _fine(self) -> Place:
        """Return the numbers of dots across and up in a cell."""
        return (2, 4) if self._marker == BRAILLE else (1, 1)

    def begin(self, token: str, marker: str) -> None:
        """Begin the next line, in the colour of ``token``.

        ``marker`` is :data:`BRAILLE` or a character.
        """
        self._settle()
        self._token, self._marker = token, marker

    def placed(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        x_low: float,
        x_high: float,
        y_low: float,
        y_high: float,
    ) -> tuple[list[int], list[int]]:
        """Return where points of a plot lie, in dots from the lower left corner.

        All of them are within the limits, and finite.
        """
        across, up = self._fine
        x_dots, y_dots = (
            (self.columns * across - 1) / (x_high - x_low),
            (self.rows * up - 1) / (y_high - y_low),
        )
        # rounded first: 9.99999999 is 10
        return (
            [math.floor(round(0.5 + (x - x_low) * x_dots, 8)) for x in xs],
            [math.floor(round(0.5 + (y - y_low) * y_dots, 8)) for y in ys],
        )

    def add(self, xs: Sequence[int], ys: Sequence[int]) -> None:
        """Add an unbroken stretch of the line, through these dots."""
        across, up = self._fine
        dots, plain = self._dots, (across, up) == (1, 1)
        lines = zip(xs, ys, [*xs[1:], *xs[-1:]], [*ys[1:], *ys[-1:]], strict=True)
        for x, y, x_next, y_next in lines:
            steps = max(abs(x_next - x), abs(y_next - y), 1)
            x_step, y_step = (x_next - x) / steps, (y_next - y) / steps
            for step in range(steps):
                at_x, at_y = int(x + step * x_step), int(y + step * y_step)
                if plain:
                    dots[at_x, at_y] = 1
                else:
                    cell = at_x >> 1, at_y >> 2
                    dots[cell] = dots.get(cell, 0) | _DOTS[at_y & 3][at_x & 1]

    def _settle(self) -> None:
        """End the line, whose cells then cover what was drawn there before."""
        dotted = self._marker == BRAILLE
        for place, bits in self._dots.items():
            self._cells[place] = (chr(_BLANK | bits) if dotted else self._marker, self._token)
        self._dots = {}

    def pieces(self, blank: str) -> list[Line]:
        """Return the rows from the top, each of ``columns`` cells.

        What nobody drew on is blank, of token ``blank``.
        """
        self._settle()
        drawn: dict[int, list[tuple[int, Piece]]] = {}
        for (x, y), cell in self._cells.items():
            if 0 <= x < self.columns:
                drawn.setdefault(y, []).append((x, cell))
        rows: list[Line] = []
        for y in range(self.rows - 1, -1, -1):
            row = [(" ", blank)] * self.columns
            for x, cell in drawn.get(y, ()):
                row[x] = cell
            rows.append(merged(row))
        return rows
