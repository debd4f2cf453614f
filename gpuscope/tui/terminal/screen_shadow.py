"""What the terminal shows, as far as we know: so that nothing is sent twice.

Textual draws whole widgets whenever a screen is laid out anew, several times while a tab is opened,
mostly the same cells. On a link of 30 kB/s each full screen takes a second.
"""

from __future__ import annotations

from itertools import pairwise

from textual.strip import Strip

from .strip_cells import changed_spans

Placed = tuple[int, int, int, Strip]
"""Where a piece of a line goes: column, row, one column beyond its end, and what it is."""
MAX_PIECES = 64
"""How many pieces are noted on a line before they are joined, which is slow and rarely needed."""


class Shadow:
    """The lines that a terminal of a given size shows.

    A line that is None is not known.
    """

    def __init__(self) -> None:
        self._lines: list[Strip | None] = []
        self._noted: list[list[tuple[int, int, Strip]]] = []
        self._width = 0

    def forget(self) -> None:
        """Forget all lines, because the terminal was cleared or others wrote on it."""
        self._lines, self._noted = [], []

    def fit(self, width: int, height: int) -> None:
        """Start again if the size has changed."""
        if (width, height) != (self._width, len(self._lines)):
            self._width = width
            self._lines, self._noted = [None] * height, [[] for _ in range(height)]

    def note(self, x: int, y: int, end: int, strip: Strip) -> None:
        """Note that this piece is sent, whatever the terminal showed there."""
        if not 0 <= y < len(self._lines):
            return
        if x <= 0 and end >= self._width:
            self._lines[y], self._noted[y] = strip, []
        elif self._lines[y] is not None:
            # the others lie below it now
            others = [one for one in self._noted[y] if one[0] < x or one[1] > end]
            self._noted[y] = [*others, (x, end, strip)]
            if len(others) >= MAX_PIECES:
                self._line(y)

    def changes(self, x: int, y: int, end: int, strip: Strip) -> list[Placed]:
        """Return what of this piece the terminal does not show yet, and note it as sent."""
        line = self._line(y) if 0 <= y < len(self._lines) else None
        self.note(x, y, end, strip)
        if line is None:
            return [(x, y, end, strip)]
        spans = changed_spans(line.crop(x, end), strip)
        return [
            (x + first, y, x + first + cells, strip.crop(first, first + cells))
            for first, cells in spans
        ]

    def _line(self, y: int) -> Strip | None:
        line, noted = self._lines[y], self._noted[y]
        if line is not None and noted:
            line = _with_pieces(line, noted)
            self._lines[y], self._noted[y] = line, []
        return line


def _with_pieces(line: Strip, noted: list[tuple[int, int, Strip]]) -> Strip:
    """Return a line with these pieces on it, the later ones above the earlier ones."""
    ordered = sorted(noted, key=lambda one: one[0])
    if any(before[1] > after[0] for before, after in pairwise(ordered)):
        for x, end, piece in noted:
            line = Strip.join([line.crop(0, x), piece, line.crop(end)])
        return line
    parts: list[Strip] = []
    at = 0
    for x, end, piece in ordered:
        parts += [line.crop(at, x), piece]
        at = end
    return Strip.join([*parts, line.crop(at)])
