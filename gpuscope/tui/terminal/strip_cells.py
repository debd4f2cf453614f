"""Where two painted lines differ, cell by cell, and a stretch of cells cut out of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ...text.width import cells as text_cells

MERGE_CELLS = 6
"""Unchanged cells between two changed ones that are cheaper to send than another cursor movement
and style.
"""

_USUAL = re.compile("[ -~°·–…●◆▲○◇▸▾\u2500-\u259f\u2800-\u28ff]*").fullmatch
"""What most lines consist of, and all of it takes one cell each: one look instead of one at every
piece.
"""


def changed_spans(old: Strip, new: Strip) -> list[tuple[int, int]]:
    """Return where two lines of equal width differ, as ``[(first cell, cells)]``.

    The spans go from left to right; near ones are joined, and wide characters are never cut in
    half.
    """
    if old is new:
        return []
    before, after = list(old), list(new)
    if before == after:
        return []
    if old.cell_length != new.cell_length:
        return [(0, max(old.cell_length, new.cell_length))]
    simple = narrow(before) and narrow(after)
    spans: list[tuple[int, int]] = []
    begin = end = -1
    for first, last in (
        _differing_runs(before, after) if simple else _differing(_cells(before), _cells(after))
    ):
        if begin < 0:
            begin = first
        elif first - end > MERGE_CELLS:
            spans.append((begin, end - begin))
            begin = first
        end = last
    return [*spans, (begin, end - begin)] if begin >= 0 else spans


def narrow(pieces: Iterable[Segment]) -> bool:
    """Tell whether every character of these pieces takes one cell.

    Then characters can be counted as cells.
    """
    texts = [text for text, _, _ in pieces]
    return bool(_USUAL("".join(texts))) or all(
        text.isascii() or _each_takes_one(text) for text in texts
    )


@lru_cache(maxsize=4096)
def _each_takes_one(text: str) -> bool:
    """Remembered, because bars and borders come again with every line drawn."""
    return all(text_cells(char) == 1 for char in text)


def _differing_runs(before: list[Segment], after: list[Segment]) -> Iterator[tuple[int, int]]:
    """Stretches of cells in which two lines of narrow characters differ.

    The lines are equally long.

    Both are walked from one change of style to the next, so that what is equal costs one comparison
    of two texts.
    """
    here, there = iter(before), iter(after)
    text = other = ""
    style = look = None
    at = 0
    while True:
        while not text:
            piece = next(here, None)
            if piece is None:
                return
            text, style, _ = piece
        while not other:
            other, look, _ = next(there)
        size = min(len(text), len(other))
        if style is not look and style != look:
            yield at, at + size
        elif text[:size] != other[:size]:
            begin = -1
            for place, (one, two) in enumerate(zip(text, other, strict=False), at):
                if one != two:
                    begin = place if begin < 0 else begin
                elif begin >= 0:
                    yield begin, place
                    begin = -1
            if begin >= 0:
                yield begin, at + size
        text, other, at = text[size:], other[size:], at + size


def _differing(before: list[_Cell], after: list[_Cell]) -> Iterator[tuple[int, int]]:
    """Yield the cells of two stretches of equal width that differ.

    Each is (first, one beyond the last) of whole characters.
    """
    end = 0
    for index, (a, b) in enumerate(zip(before, after, strict=True)):
        if a == b or index < end:
            continue
        start, end = index, index + 1
        for line in (before, after):
            while start and not line[start][0]:
                start -= 1
            while end < len(line) and not line[end][0]:
                end += 1
        yield start, end


_Cell = tuple[str, Style | None]


def _cells(pieces: Iterable[Segment]) -> list[_Cell]:
    """Return one entry per cell.

    The second half of a wide character is ``""``, and a combining mark belongs to its base.
    """
    cells: list[_Cell] = []
    for text, style, _ in pieces:
        if text.isascii() or _each_takes_one(text):
            cells.extend((char, style) for char in text)
            continue
        for char in text:
            size = text_cells(char)
            if size:
                cells.append((char, style))
                cells.extend([("", style)] * (size - 1))
            elif cells:
                at = len(cells) - 1
                while at and not cells[at][0]:
                    at -= 1
                cells[at] = (cells[at][0] + char, cells[at][1])
    return cells


def cut_out(strip: Strip, first: int, last: int) -> list[Segment]:
    """The pieces of a line from cell ``first`` up to ``last``.

    Cheaper than ``Strip.crop``, which remembers all its answers: a span of a line that changes is
    asked for once.
    """
    found: list[Segment] = []
    at = 0
    for piece in strip:
        text = piece.text
        if not (text.isascii() or _each_takes_one(text)):
            return list(strip.crop(first, last))
        end = at + len(text)
        if end > first:
            inside = at >= first and end <= last
            found.append(
                piece if inside else Segment(text[max(first - at, 0) : last - at], piece.style)
            )
        if end >= last:
            break
        at = end
    return found
