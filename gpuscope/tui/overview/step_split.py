"""The parts of a step: their colours, and their shares in words."""

from __future__ import annotations

from ...model.step_time import SPLIT
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text
from ..theme import Glyphs

SPLIT_TOKENS = dict(
    zip(SPLIT, ("cached", "outside", "allocated", "series3", "series6", "other"), strict=True)
)
"""The colours of series 2, 4 and 1 under their names as layers, which have patterns of their own
without colour.
"""


def split_pieces(shares: dict[str, float], cells: int, glyphs: Glyphs | None = None) -> Line:
    """Return the shares of a step in words, the largest first, as many as fit into ``cells``.

    An example is ``compute 81 % · input 9 % · …``. With ``glyphs`` each has the mark that a bar
    has for it: colours of bars are too faint for text.
    """
    out: Line = []
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        token = SPLIT_TOKENS[name]
        part: Line = [(" · ", "faint")] if out else []
        part += [(f"{glyphs.fill(token)} ", token)] if glyphs is not None else []
        part.append((f"{name} {percent_text(share)}", "muted"))
        if share < 0.005 or styled.cells(out) + styled.cells(part) > cells:
            break
        out += part
    return out
