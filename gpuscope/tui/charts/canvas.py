"""Lines on a grid of cells, two by four dots each, drawn in braille or as one character a cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ...text.styled import Line, merged
from .axes import Heights

BRAILLE = "braille"
"""The marker that draws with dots."""
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of a dot in its character, by row from below and column."""
_BLANK = 0x2800
TURN = 4
"""Cells side by side that a line has of those that it shares."""
HALF_A_DOT = 1 / 8
"""In rows: the middle of the lowest dots lies so far above the lower edge."""

Place = tuple[int, int]


class Canvas:
    """A picture of ``columns`` × ``rows`` cells, with row 0 at the top.

    A cell has one colour, and belongs to one line. Lines that run through the same cells take
    turns, so that each of them is seen.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = max(columns, 0), max(rows, 0)
        self._lines: list[tuple[str, str, dict[Place, int]]] = []
        """The token and the marker of each line, and the dots of its cells."""

    def begin(self, token: str, marker: str) -> None:
        """Begin the next line, in the colour of ``token``.

        ``marker`` is :data:`BRAILLE` or a character.
        """
        self._lines.append((token, marker, {}))

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
        dots = self._lines[-1][2]
        lines = zip(xs, ys, [*xs[1:], *xs[-1:]], [*ys[1:], *ys[-1:]], strict=True)
        for x, y, x_next, y_next in lines:
            across, up = abs(x_next - x), abs(y_next - y)
            steps = max(across, up, 1)
            x_step, y_step = (x_next - x) / steps, (y_next - y) / steps
            for step in range(steps):
                at_x, at_y = int(x + step * x_step), int(y + step * y_step)
                cell, dot = (at_x >> 1, at_y >> 2), _DOTS[at_y & 3][at_x & 1]
                dots[cell] = dots.get(cell, 0) | dot

    def _sharing(self) -> dict[Place, list[int]]:
        """Return the lines that run through each cell, the one that it belongs to first."""
        sharing: dict[Place, list[int]] = {}
        for number, (_, _, dots) in enumerate(self._lines):
            for place in dots:
                if place in sharing:
                    sharing[place].append(number)
                else:
                    sharing[place] = [number]
        shared = {place: lines for place, lines in sharing.items() if len(lines) > 1}
        for (x, y), lines in shared.items():
            lines.insert(0, lines.pop((x // TURN + y) % len(lines)))
        if shared:
            self._show_all(sharing, shared)
        return sharing

    def _show_all(self, sharing: dict[Place, list[int]], shared: dict[Place, list[int]]) -> None:
        """Give a cell to each line that got no turn, because it is short."""
        cells = Counter(lines[0] for lines in sharing.values())
        if len(cells) == len(self._lines):
            return
        for lines in shared.values():
            owner = lines[0]
            for number in lines:
                if not cells[number] and cells[owner] != 1:
                    cells[owner] -= 1
                    cells[number] += 1
                    lines.insert(0, lines.pop(lines.index(number)))
                    break

    def _dots_of(self, place: Place, lines: Sequence[int]) -> int:
        """Return the dots of a cell: of other lines as well where they pass at another height.

        Lines that run side by side in a row would look like one that jumps up and down.
        """
        found = self._lines[lines[0]][2][place]
        free = sum(left | right for left, right in _DOTS if not found & (left | right))
        for number in lines[1:]:
            _, marker, dots = self._lines[number]
            if marker == BRAILLE:
                found |= dots[place] & free
        return found

    def pieces(self, blank: str) -> list[Line]:
        """Return the rows from the top, each of ``columns`` cells.

        What nobody drew on is blank, of token ``blank``.
        """
        rows = [[(" ", blank)] * self.columns for _ in range(self.rows)]
        for (x, y), lines in self._sharing().items():
            if 0 <= x < self.columns and 0 <= y < self.rows:
                token, marker, _ = self._lines[lines[0]]
                dots = self._dots_of((x, y), lines)
                glyph = chr(_BLANK | dots) if marker == BRAILLE else marker
                rows[self.rows - 1 - y][x] = (glyph, token)
        return [merged(row) for row in rows]
