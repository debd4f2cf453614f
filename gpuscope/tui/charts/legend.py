"""The legend of a chart: what its colours mean, in its border and in a line of its own.

A colour that is on the screen is explained: where the border has no room for all of them, the first
ones stand in a line below the chart.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...text.styled import Line
from ...text.width import cells as text_cells
from ...text.width import cut

Entries = Sequence[tuple[str, str, str]]
"""(glyph, token, label) of each colour."""
LEAST_ROWS = 8
"""A chart with fewer rows than this has no row to spare for its legend."""
LEAST_LABEL = 8
"""Cells to which the label of an entry may be cut."""
LEAST_NAME = 3
"""With fewer cells, what stands before a bracket is left out."""


def legend_lines(entries: Entries, cells: int, rows: int, elsewhere: str = "") -> tuple[Line, Line]:
    """Return the line below a chart of so many ``rows``, mostly empty, and that in its border.

    No entry stands alone on the first line where it can have company. Where even both have no
    room for all, labels of the second are cut, or the last ones are left out and counted.
    """
    if rows >= LEAST_ROWS and _cells(entries, 1) > cells:
        for first in (*range(2, len(entries) - 1), 1, len(entries) - 1):
            if _cells(entries[first:], 1) <= cells and _cells(entries[:first], 1) <= cells:
                gap = 2 if _cells(entries[first:], 2) <= cells else 1
                return _join(entries[:first], gap), _join(entries[first:], gap)
        fitting = [n for n in range(1, len(entries) - 1) if _cells(entries[:n], 1) <= cells]
        if fitting and not elsewhere:
            first = fitting[-1]
            return _join(entries[:first], 1), legend_of(entries[first:], cells)
    return [], legend_of(entries, cells, elsewhere)


def is_whole(entries: Entries, lines: tuple[Line, Line]) -> bool:
    """Tell whether these two lines of a legend have the whole label of each entry."""
    text = "".join(text for line in lines for text, _ in line)
    return all(label in text for _, _, label in entries)


def _cells(entries: Entries, gap: int) -> int:
    sizes = (text_cells(glyph) + 1 + text_cells(label) + gap for glyph, _, label in entries)
    return sum(sizes) - gap


def legend_of(
    entries: Entries,
    cells: int,
    elsewhere: str = "",
) -> Line:
    """Return the pieces of a legend that fit into ``cells`` cells.

    Names are cut before entries are left out. Those left out, the last ones, are counted at its
    end; with ``elsewhere`` that stands in place of a part.
    """
    for gap in (2, 1):
        if _cells(entries, gap) <= cells:
            return _join(entries, gap)
    if elsewhere:
        return [(elsewhere, "muted")] if text_cells(elsewhere) <= cells else []
    if brief := _abbreviated(entries, cells):
        return _join(brief, 1)
    for kept in range(len(entries) - 1, 0, -1):
        for others in (f" +{len(entries) - kept} more", f" +{len(entries) - kept}"):
            room = cells - text_cells(others)
            named = entries[:kept] if _cells(entries[:kept], 1) <= room else ()
            if named := named or _abbreviated(entries[:kept], room):
                return [*_join(named, 1), (others, "muted")]
    return []


def _abbreviated(entries: Entries, cells: int) -> Entries:
    """Return all entries with the longest labels cut, none where that leaves too little of them."""
    longest = max((text_cells(label) for _, _, label in entries), default=0)
    for most in range(longest - 1, LEAST_LABEL - 1, -1):
        brief = [(glyph, token, _shortened(label, most)) for glyph, token, label in entries]
        if _cells(brief, 1) <= cells:
            return brief
    return ()


def _shortened(label: str, most: int) -> str:
    """Return a label in ``most`` cells. What tells it from others, in brackets, is cut last."""
    name, bracket, detail = label.rpartition(" (")
    if not bracket or text_cells(label) <= most:
        return cut(label, most)
    room = most - text_cells(bracket + detail)
    if room >= LEAST_NAME:
        return cut(name, room) + bracket + detail
    return cut(detail.removesuffix(")"), most)


def _join(entries: Entries, gap: int) -> Line:
    pieces: Line = []
    for place, (glyph, token, label) in enumerate(entries):
        pieces += [(" " * gap if place else "", "muted"), (glyph, token), (f" {label}", "muted")]
    return [piece for piece in pieces if piece[0]]
