"""The parts of a step: their colours, and their shares in words."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.step_colours import SPLIT_TOKENS, tokens_of_rows
from ...model.step_parts import StepParts
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text
from ..theme import Glyphs
from ..widgets.bars import Bar


def tokens_of(parts: StepParts) -> Mapping[str, str]:
    """Return the colour of each part, that of its row in the table where there is a ledger."""
    return tokens_of_rows(list(parts.shares)) if parts.of_ledger else SPLIT_TOKENS


def split_bar(parts: StepParts, tokens: Mapping[str, str] | None = None) -> Bar:
    """Return the parts as a bar, all of which is the step.

    ``tokens`` are the colours of the ranks above and below, where there are some.
    """
    own = tokens if tokens is not None else tokens_of(parts)
    drawn = tuple((share, own.get(name, "other")) for name, share in parts.shares.items())
    return Bar(drawn, 1.0)


def split_pieces(parts: StepParts, cells: int, glyphs: Glyphs | None = None) -> Line:
    """Return the shares of a step in words, the largest first, as many as fit into ``cells``.

    An example is ``compute 81 % · input 9 % · …``. With ``glyphs`` each has the mark that a bar
    has for it: colours of bars are too faint for text.
    """
    out: Line = []
    tokens = tokens_of(parts)
    for name, share in parts.shares.items():
        token = tokens[name]
        part: Line = [(" · ", "faint")] if out else []
        part += [(f"{glyphs.fill(token)} ", token)] if glyphs is not None else []
        part.append((f"{parts.words[name]} {percent_text(share)}", "muted"))
        if share < 0.005 or styled.cells(out) + styled.cells(part) > cells:
            break
        out += part
    return out
