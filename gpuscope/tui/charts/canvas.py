"""Lines on a grid of cells, two by four dots each, drawn in braille or as one character a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...text.styled import Line, Piece, merged
from .axes import Heights

BRAILLE = "braille"
"""The marker that draws with dots."""
DASHES = {
    BRAILLE: (1, 1), "dashes": (4, 2), "long dashes": (8, 6), "dots": (2, 1),
    "far dashes": (8, 2), "far dots": (4, 1),
}  # fmt: skip
"""Markers that draw with dots: of how many dots along the line how many are drawn. They stay where
they are while the line moves.
"""
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of a dot in its character, by row from below and column."""
_BLANK = 0x2800
HALF_A_DOT = 1 / 8
"""In rows: the middle of the lowest dots lies so far above the lower edge."""

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

    def begin(self, token: str, marker: str) -> None:
        """Begin the next line, in the colour of ``token``.

        ``marker`` is one of :data:`DASHES` or a character.
        """
        self._settle()
        self._token, self._marker = token, marker

    def placed(
        self, xs: Sequence[float], ys: Sequence[float], x_low: float, x_high: float, up: Heights
    ) -> tuple[list[int], list[int]]:
        """Return where points of a plot lie, in dots from the lower left corner.

        All of them are within the limits, and finite.
        """
        x_dots = (self.columns * 2 - 1) / (x_high - x_low)
        # rounded first: 9.99999999 is 10
        return (
            [math.floor(round(0.5 + (x - x_low) * x_dots, 8)) for x in xs],
            [math.floor(up.of(y) * 4) for y in ys],
        )

    def add(self, xs: Sequence[int], ys: Sequence[int]) -> None:
        """Add an unbroken stretch of the line, through these dots."""
        dots, (every, drawn) = self._dots, DASHES.get(self._marker, (1, 1))
        lines = zip(xs, ys, [*xs[1:], *xs[-1:]], [*ys[1:], *ys[-1:]], strict=True)
        for x, y, x_next, y_next in lines:
            across, up = abs(x_next - x), abs(y_next - y)
            steps = max(across, up, 1)
            x_step, y_step = (x_next - x) / steps, (y_next - y) / steps
            for step in range(steps):
                at_x, at_y = int(x + step * x_step), int(y + step * y_step)
                if (at_x if across >= up else at_y) % every < drawn:
                    cell = at_x >> 1, at_y >> 2
                    dots[cell] = dots.get(cell, 0) | _DOTS[at_y & 3][at_x & 1]

    def _settle(self) -> None:
        """End the line, whose cells then cover what was drawn there before."""
        dotted = self._marker in DASHES
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
