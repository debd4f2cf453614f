"""The parts of a step: their colours, and their shares in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from ...model.step_colours import REST, SPLIT_TOKENS, tokens_of_rows
from ...model.step_parts import LEAST_SHARE, StepParts
from ...text import styled
from ...text.styled import Line
from ...text.units import brief_duration_text, percent_text
from ...text.width import cells as text_cells
from ..cells import fit
from ..theme import Glyphs, grey_beside
from ..widgets.bars import Bar

BAR_CELLS = 40
"""The cells of the longest bar of a part that has a line of its own."""
OTHERS = "others"
"""The parts that are drawn and named as one."""


def tokens_of(parts: StepParts) -> Mapping[str, str]:
    """Return the colour of each part, that of its row in the table where there is a ledger."""
    if not parts.of_ledger:
        found = {name: SPLIT_TOKENS.get(name, REST) for name in parts.shares}
    else:
        found = tokens_of_rows(list(parts.shares))
    if OTHERS in found:
        found[OTHERS] = grey_beside({one for name, one in found.items() if name != OTHERS})
    return found


def split_bar(parts: StepParts, tokens: Mapping[str, str] | None = None) -> Bar:
    """Return the parts as a bar, all of which is the step.

    ``tokens`` are the colours of the ranks above and below, where there are some.
    """
    own = tokens if tokens is not None else tokens_of(parts)
    drawn = tuple((share, own.get(name, "other")) for name, share in parts.shares.items())
    return Bar(drawn, 1.0)


def all_named(parts: StepParts, cells: int, glyphs: Glyphs | None = None) -> StepParts:
    """Return the parts so that :func:`split_pieces` names each of them in ``cells``.

    Names are shorter where there is no room for all, and then the smallest are one part.
    """
    told = {name: share for name, share in parts.shares.items() if share >= LEAST_SHARE}
    if styled.cells(_pieces(parts, glyphs)) > cells:
        brief = {name: words.removesuffix(" pass") for name, words in parts.words.items()}
        parts = replace(parts, words=brief)
    for count in range(len(told), 0, -1):
        first = dict(list(told.items())[:count])
        more = len(told) - count
        words = {**parts.words, OTHERS: "rest"}
        shares = {**first, OTHERS: 1.0 - sum(first.values())} if more else first
        found = replace(parts, shares=shares, words=words)
        if more != 1 and styled.cells(_pieces(found, glyphs)) <= cells:
            return found
    return parts


def _pieces(parts: StepParts, glyphs: Glyphs | None) -> Line:
    return split_pieces(parts, sys.maxsize, glyphs)


def split_pieces(parts: StepParts, cells: int, glyphs: Glyphs | None = None) -> Line:
    """Return the shares of a step in words, the largest first, as many as fit into ``cells``.

    An example is ``compute 81 % · input 9 % · …``. With ``glyphs`` each has the mark that a bar
    has for it: colours of bars are too faint for text.
    """
    out: Line = []
    tokens = tokens_of(parts)
    for name, share in parts.shares.items():
        token = tokens.get(name, REST)
        part: Line = [(" · ", "faint")] if out else []
        part += [(f"{glyphs.fill(token)} ", token)] if glyphs is not None else []
        part.append((f"{parts.words[name]} {percent_text(share)}", "muted"))
        if share < LEAST_SHARE or styled.cells(out) + styled.cells(part) > cells:
            break
        out += part
    return out


def part_lines(parts: StepParts, room: int, glyphs: Glyphs) -> list[Line]:
    """Return the parts of a step, a line each: its colour and name, its time, its share, a bar."""
    tokens = tokens_of(parts)
    names = max(text_cells(parts.words[name]) for name in parts.shares)
    bar = min(room - names - 21, BAR_CELLS)
    out: list[Line] = []
    for name, share in parts.shares.items():
        token = tokens[name]
        each = brief_duration_text(share * parts.seconds) if parts.seconds else ""
        line: Line = [(f"{glyphs.fill(token)} ", token), (fit(parts.words[name], names), "text")]
        line.append((fit(each, 9, "right"), "text"))
        line.append((fit(percent_text(share), 7, "right") + "  ", "muted"))
        line += Bar(((share, token),), 1.0).draw(bar, glyphs) if bar >= 8 else []
        out.append(line)
    return out
