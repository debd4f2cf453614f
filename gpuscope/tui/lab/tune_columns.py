"""All candidates of a search in full, side by side, where a large terminal has rows for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...text import styled
from ...text.styled import Line
from .tune_text import detail_lines

CELLS, GAP, MOST_COLUMNS = 56, 3, 3
"""The least cells of a column, those between two, and how many columns there are at most."""


def candidates_lines(candidates: Sequence[Mapping[str, Any]], width: int, rows: int) -> list[Line]:
    """Return what is known of each candidate, in columns of at most ``rows`` lines.

    Where that is too much, only those are there of which it is known why they were not kept; none
    where these have no room either.
    """
    columns = max(min((width + GAP) // (CELLS + GAP), MOST_COLUMNS), 1)
    cells = (width - GAP * (columns - 1)) // columns
    for shown in (candidates, [one for one in candidates if one.get("reason")]):
        blocks = [styled.hang_lines(list(detail_lines(one)), cells) for one in shown]
        if blocks and (found := in_columns(blocks, cells, columns, rows)):
            return found
    return []


def in_columns(blocks: Sequence[Sequence[Line]], cells: int, columns: int, rows: int) -> list[Line]:
    """Return blocks of lines in columns of equal width, from top to bottom, none without room."""
    total = sum(len(block) + 1 for block in blocks) - 1
    for height in range(max(-(-total // columns), 1), rows + 1):
        filled: list[list[Line]] = [[]]
        for block in blocks:
            if filled[-1] and len(filled[-1]) + 1 + len(block) > height:
                filled.append([])
            filled[-1] += [[], *block] if filled[-1] else block
        if len(filled) <= columns and max(map(len, filled)) <= height:
            return _beside(filled, cells)
    return []


def _beside(columns: Sequence[Sequence[Line]], cells: int) -> list[Line]:
    """Return the lines of columns that stand beside one another."""
    out: list[Line] = []
    for at in range(max(map(len, columns))):
        line: Line = []
        for number, column in enumerate(columns):
            blank = number * (cells + GAP) - styled.cells(line)
            line += [(" " * blank, "text"), *(column[at] if at < len(column) else [])]
        out.append([piece for piece in line if piece[0]])
    return out
