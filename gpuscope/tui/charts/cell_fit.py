"""This module draws the cells of a stack, and moves its edges so that each shows what is in it.

A cell has two colours, so it can show two layers; where the stack ends above it, the second
colour is the empty ground, and it can show one. Without colour a cell shows one layer, and all
edges are edges of cells. They are moved by as little as that takes, and no layer of an eighth of a
cell or more is left out where it need not be, without colour none of half a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from ...text.styled import Line, Piece, merged
from ..theme import UNREAD, Glyphs

Edges = tuple[tuple[int, str], ...]
"""A column, bottom up: (top of a layer in eighths of a cell, token)."""

CELL, HALF = 8, 4
REACH = 4
"""Eighths by which an edge may move, besides to the nearest edges of cells."""
ROUNDED_UP_FROM = 5
"""Eighths of the topmost cell from which on it may be drawn full, and so with two layers."""
MOST_OFF = 3
"""Eighths by which a layer may be drawn too large or too small: with rounding half a cell."""
TOO_FAR, LEFT_OUT, KEPT = 1000.0, 100.0, 1e6
"""What an eighth beyond that costs, a layer that is not drawn, and one that always should be."""


def in_whole_cells(glyphs: Glyphs) -> bool:
    """Tell whether a cell belongs to one layer as a whole."""
    return bool(glyphs.patterns) or not glyphs.eighths


@lru_cache(maxsize=4096)
def fit_cells(edges: Edges, whole: bool = False, kept: str = "") -> Edges:
    """Return the nearest stack whose layers can all be drawn.

    In each full cell it has one edge at most, in a topmost cell that is not full it has none,
    and with ``whole`` all edges are edges of cells. A layer named ``kept`` is not left out.
    """
    layers, start = [], 0
    for end, token in edges:
        if end > start:
            layers.append((end, end - start, token))
            start = end
    if not layers:
        return ()
    ends = [end for end, _, _ in layers]
    if not whole and _can_be_drawn(ends):
        return edges
    found = min(
        (_placed(layers, top, whole, kept) for top in _tops(start, whole)),
        key=_cost,
    )
    return tuple((end, token) for end, (_, _, token) in zip(found[1], layers, strict=True))


def _can_be_drawn(ends: list[int]) -> bool:
    """Tell whether no cell has more edges than two colours show."""
    if len(ends) > 1 and ends[-2] > ends[-1] // CELL * CELL:
        return False
    return not any(_share_a_cell(one, other) for one, other in pairwise(ends[:-1]))


def _tops(top: int, whole: bool) -> list[int]:
    """Return where a stack may end, in eighths."""
    if whole:  # a cell more where each of the layers needs one
        nearest = (top + HALF) // CELL * CELL
        return [nearest, nearest + CELL]
    below, over = top - top % CELL, -(-top // CELL) * CELL
    return [top, over] if top - below >= ROUNDED_UP_FROM else [top]


Placed = tuple[float, tuple[int, ...]]
"""What it costs to draw layers with these tops."""


def _placed(layers: list[tuple[int, int, str]], top: int, whole: bool, kept: str) -> Placed:
    """Return the tops of layers that cost the least, in a stack that ends at ``top``."""
    off = top - layers[-1][0]
    best: dict[int, Placed] = {0: (float(off * off), ())}
    for at, (end, size, token) in enumerate(layers):
        left_out = KEPT if token == kept else LEFT_OUT
        ends = {top} if at == len(layers) - 1 else _ends(end, top, whole)
        best = {
            place: min(
                (
                    (cost + _off(place - before, size, left_out), (*path, place))
                    for before, (cost, path) in best.items()
                    if before <= place and not _share_a_cell(before, place)
                ),
                key=_cost,
                default=(float("inf"), ()),
            )
            for place in sorted(ends)
        }
        best = {place: found for place, found in best.items() if found[1]}
    return best[top]


def _ends(end: int, top: int, whole: bool) -> set[int]:
    """Return where a layer that ends at ``end`` may be drawn to end."""
    if whole:
        below = min(end, top) // CELL * CELL
        return {max(below - CELL, 0), below, min(below + CELL, top)}
    last = top - top % CELL  # above there is no second colour
    below = min(end, top) // CELL * CELL
    found = {below, min(below + CELL, top), top} if top - end <= CELL else {below, below + CELL}
    found.update(range(max(end - REACH, 0), min(end + REACH, last) + 1))
    return found


def _share_a_cell(one: int, other: int) -> bool:
    """Tell whether two edges lie inside the same cell, and apart."""
    return one != other and bool(one % CELL and other % CELL) and one // CELL == other // CELL


def _off(drawn: int, size: int, left_out: float) -> float:
    """Return what it costs to draw so much of a layer of ``size``: most where it is small."""
    off = abs(drawn - size)
    beyond = max(off - MOST_OFF, 0) * TOO_FAR
    return off * off / (size + 1) + beyond + (0.0 if drawn else left_out)


def _cost(placed: Placed) -> float:
    return placed[0]


def cell_of(edges: Edges, bottom: int, glyphs: Glyphs) -> Piece:
    """Return the cell ``bottom`` eighths above zero, of a stack that fits into cells."""
    shares = [
        (min(end, bottom + 8) - bottom, token)
        for start, (end, token) in zip((0, *(end for end, _ in edges)), edges, strict=False)
        if start < bottom + 8 and end > max(start, bottom)
    ]
    if not shares:
        return " ", "text"
    filled, token = shares[0]
    if in_whole_cells(glyphs):
        return glyphs.fill(token), token
    if UNREAD in (named := [name for _, name in shares]):  # a texture, which is no ground
        token = max(shares)[1]
        if token == UNREAD:
            return glyphs.sparse, token
        return (glyphs.up[filled], token) if named[0] == token else (glyphs.up[8], token)
    if len(shares) > 1:
        return glyphs.up[filled], f"{token} on {shares[1][1]}"
    if filled < 8:
        return glyphs.up[filled], token
    # both, so that no seam shows where a font leaves one
    return glyphs.up[8], f"{token} on {token}"


def feet_of(columns: Sequence[Line], glyphs: Glyphs) -> dict[int, str]:
    """Return the colour in which each of these columns stands on the axis, if it is filled."""
    filled = () if in_whole_cells(glyphs) else glyphs.up[1:]
    return {
        at: column[0][1].partition(" on ")[0]
        for at, column in enumerate(columns)
        if column[0][0] in filled
    }


def on_feet(axis: Line, feet: Mapping[int, str], margin: int, glyphs: Glyphs) -> Line:
    """Return the axis with the part of its row above its line filled where a stack stands on it.

    The line is 0 and runs through the middle of the row.
    """
    chars = [(char, spec) for text, spec in axis for char in text]
    return merged(
        (glyphs.upper, feet[at]) if at in feet and char in "─┬" else (char, spec)
        for at, (char, spec) in enumerate(chars, -margin)
    )
