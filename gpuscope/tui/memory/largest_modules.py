"""The modules of a model that hold most, in a few lines."""

from __future__ import annotations

from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, percent_text
from ..cells import fit
from ..theme import Glyphs
from ..widgets.bars import Bar
from .module_tree import Module, Tree
from .tables import TOKENS

SIZE, SHARE, BAR = 11, 7, 24


def largest(tree: Tree, count: int) -> list[Module]:
    """Return the parts of a model that hold most, the largest first, at most ``count``.

    A module gives way to those that it is made of, the largest first, while they have room.
    """
    found = list(tree.roots)
    while True:
        inner = [one for one in found if one.children]
        widest = max(inner, key=lambda one: one.total, default=None)
        if widest is None or len(found) - 1 + len(widest.children) > count:
            break
        found.remove(widest)
        found += widest.children
    return sorted(found, key=lambda one: -one.total)[:count]


def module_lines(tree: Tree, rows: int, cells: int, glyphs: Glyphs) -> list[Line]:
    """Return the largest parts of a model in at most ``rows`` lines with their heading."""
    whole = tree.total
    found = [one for one in largest(tree, rows - 1) if one.total]
    if not found or not whole:
        return []
    head = fit("TOTAL", SIZE, "right") + fit("SHARE", SHARE, "right")
    lines: list[Line] = [[(f"{head}  {'':{BAR}}  MODULE", "muted")]]
    for one in found:
        parts = tuple((float(getattr(one, name)), token) for name, token in TOKENS)
        lines.append(
            [
                (fit(bytes_text(one.total), SIZE, "right"), "text"),
                (fit(percent_text(one.total / whole, whole=True), SHARE, "right"), "muted"),
                ("  ", "text"),
                *Bar(parts, float(whole)).draw(BAR, glyphs),
                (f"  {one.key.replace('/', '.')}", "text"),
                (f"  {one.kind}", "faint"),
            ]
        )
    return [styled.cut(line, cells) for line in lines]
