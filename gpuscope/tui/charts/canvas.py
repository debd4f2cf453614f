"""Lines on a grid of cells: braille, two by four dots a cell, or one character a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...text.styled import Line, Piece, merged

BRAILLE = "braille"
"""The marker that draws with dots."""
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of a dot in its character, by row from below and column."""
_UPPER = sum(sum(bits) for bits in _DOTS[2:])
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
        self._tops: list[int] = []
        """Of each column the row of the line that has a background below it; empty for none."""
        self._below = ""

    @property
    def _fine(self) -> Place:
        """Dots across and up in a cell."""
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
        """An unbroken stretch of the line through these dots."""
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
        """The line is complete: its cells cover what was there."""
        dotted = self._marker == BRAILLE
        for place, bits in self._dots.items():
            self._cells[place] = (chr(_BLANK | bits) if dotted else self._marker, self._token)
        self._dots = {}

    def fill_below(self, below: str) -> None:
        """Give the cells below the line that was drawn last the background of a token.

        The line's own cell has it too where the line is in the upper half of it.
        """
        tops = [-1] * self.columns
        for x, y in self._dots:
            if 0 <= x < self.columns and y > tops[x]:
                tops[x] = y
        dots, on = self._dots, f"{self._token} on {below}"
        high = [(x, y) for x, y in enumerate(tops) if dots.get((x, y), 0) & _UPPER]
        lower = [(x, y) for x, y in dots if 0 <= x < self.columns and y < tops[x]]
        self._settle()
        for place in (*high, *lower):
            self._cells[place] = (self._cells[place][0], on)
        self._tops, self._below = tops, f"text on {below}"

    def pieces(self, blank: str) -> list[Line]:
        """Return the rows from the top, each of ``columns`` cells.

        What nobody drew on is blank, of token ``blank``.
        """
        self._settle()
        drawn: dict[int, list[tuple[int, Piece]]] = {}
        for (x, y), cell in self._cells.items():
            if 0 <= x < self.columns:
                drawn.setdefault(y, []).append((x, cell))
        lowest, highest = min(self._tops, default=-1), max(self._tops, default=-1)
        rows: list[Line] = []
        nothing, below = (" ", blank), (" ", self._below)
        for y in range(self.rows - 1, -1, -1):
            cells = drawn.get(y, ())
            if not cells and y >= highest:
                rows.append([(" " * self.columns, blank)] if self.columns else [])
            elif not cells and y < lowest:
                rows.append([(" " * self.columns, self._below)])
            else:
                row = [below if y < top else nothing for top in self._tops]
                row = row or [nothing] * self.columns
                for x, cell in cells:
                    row[x] = cell
                rows.append(merged(row))
        return rows
