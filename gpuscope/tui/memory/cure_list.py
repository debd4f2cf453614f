"""Every fix of What if in full: how it is done, the lines to paste, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...text import styled
from ...text.styled import Line
from ..theme import Glyphs

LABEL = 10
"""Cells of the words in front of the lines of a fix."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A fix with ``lines`` to paste, or in words ``how`` it is done, and ``facts`` with labels.

    ``key`` is that of its row in the table, which several may share.
    """

    key: str
    title: str
    how: str
    lines: str
    facts: Sequence[tuple[str, str]]


def cure_lines(
    cures: Sequence[Cure], key: str | None, cells: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """Return the fixes in the order of the table, in at most ``rows`` lines.

    Where not all have room, the one under the cursor, which is ``key``, comes first.
    """
    parts = [_lines(one, one.key == key, cells, glyphs) for one in cures]
    chosen = next((at for at, one in enumerate(cures) if one.key == key), 0)
    if sum(len(part) + 1 for part in parts) > rows + 1:
        parts = parts[chosen:]
    out: list[Line] = []
    for number, part in enumerate(parts):
        if number and len(out) + 1 + len(part) > rows:
            break
        out += [*([[]] if number else []), *part]
    return styled.first_rows(out, rows, cells, glyphs.ellipsis)


def _lines(one: Cure, chosen: bool, cells: int, glyphs: Glyphs) -> list[Line]:
    sign = f"{glyphs.cursor} " if chosen else "  "
    out = styled.hang([(sign, "accent")], [(one.title, "title")], cells)
    if one.how and not one.lines:
        out += _labelled("how", one.how, "text", cells)
    for line in one.lines.splitlines():
        own = len(line) - len(line.lstrip(" "))
        indent = [(" " * (LABEL + 2 + own), "text")]
        out += styled.hang(indent, [(line.lstrip(" "), "accent")], cells)
    for label, text in one.facts:
        out += _labelled(label, text, "muted", cells)
    return out


def _labelled(label: str, text: str, token: str, cells: int) -> list[Line]:
    return styled.hang([(f"  {label:{LABEL}}", "faint")], [(text, token)], cells)
