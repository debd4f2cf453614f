"""This module draws the cells of a stack, and moves its edges so that each can be drawn.

All edges are rounded from zero, none from the layer below it: the top is the total whatever lies
below, and a layer that stays where it is is drawn where it was. A cell has two colours, so it can
show two layers; where the stack ends inside it, the second colour is the empty ground, and it can
show one. The upper half of the axis, on which a stack stands, shows one as well. Edges that share
such a cell are moved, by less than half a cell; where that is not enough the smallest layer is
drawn as a part of the larger one of those beside it. Without colour a cell shows one layer, and
each edge is the nearest edge of a cell, or the next one where a layer of half a cell would vanish.

What would be drawn at another size than it has is joined in all columns of a chart, and not in
each by itself: else parts would come and go from one column to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import accumulate, pairwise

from ...text.styled import Line, Piece, merged
from ..theme import UNREAD, Glyphs

Stack = tuple[tuple[float, str], ...]
"""One column, bottom up: (amount, token)."""
Edges = tuple[tuple[int, str], ...]
"""A column, bottom up: (top of a layer in eighths above the lowest cell's lower edge, token)."""

Groups = tuple[tuple[int, int, str], ...]
"""Layers that are drawn as one, bottom up: the first, the one after the last, and the token."""

CELL, HALF = 8, 4
REACH = 3
"""Eighths by which an edge may be moved: with the rounding to them less than half a cell."""
TRUE_TO = 2.0
"""Eighths by which what is drawn of a layer may differ from its size: of the last two half a cell,
because without the smaller one nothing is told apart any more.
"""
SEEN = 0.5
"""Eighths of a layer from which on it has to be drawn in each column, or in none."""
FAR_OFF = CELL - 0.5
"""Eighths that an edge may be off where cells are whole and a layer would have none else."""
COLUMNS_ASKED = 32
"""As many columns, spread over a chart, say how its layers are drawn."""
BAR_CELLS = 4
"""A line through a layer's pattern, or along its top that is a line, has one cell of so many."""
UNTRUE, UNTRUE_AGAIN = 0.05, 0.2
"""The most columns in which a size may be wrong: with other groups than before, and with those."""


def in_whole_cells(glyphs: Glyphs) -> bool:
    """Tell whether a cell belongs to one layer as a whole."""
    return bool(glyphs.patterns) or not glyphs.eighths


def edges_of(
    stack: Stack, scale: float, zero: int, most: int, whole: bool = False, kept: str = ""
) -> Edges:
    """Return the edges of a column as they are drawn.

    An amount of 1 is ``scale`` eighths, and 0 is ``zero`` eighths high: half a cell where that is
    the axis. Nothing is above ``most``. A layer with the token ``kept`` is always drawn. What is
    less than an eighth is drawn with the larger one beside it, and nothing of a total that is.
    """
    layers = [(amount, token) for amount, token in stack if amount > 0]
    if sum(amount for amount, _ in layers) * scale < 1:
        return ()
    while len(layers) > 1:
        thin = min(
            (n for n, (_, token) in enumerate(layers) if token != kept), key=_size_in(layers)
        )
        if layers[thin][0] * scale >= 1:
            break
        layers = _joined(layers, thin)
    # the sums of bytes are exact: the same total has the same top; and 3.99999999 eighths are 4
    sums = accumulate(amount for amount, _ in layers)
    ends = [round(zero + amount * scale, 6) for amount in sums]
    named = [token for _, token in layers]
    if whole:
        return _in_whole_cells([min(end, most) for end in ends], named, zero, kept)
    rounded = [min(math.floor(end + 0.5), most) for end in ends]
    if zero:  # the axis is filled or not
        rounded[-1] = max(rounded[-1], CELL)
    return fit_cells(tuple(zip(rounded, named, strict=True)), zero, kept)


def _nearest(end: float, zero: int) -> int:
    """Return the edge of a cell that is the nearest, or ``zero`` on the axis."""
    if zero and end < CELL:
        return zero if end < (zero + CELL) / 2 else CELL
    return math.floor(end / CELL + 0.5) * CELL


def _in_whole_cells(ends: list[float], named: list[str], zero: int, kept: str) -> Edges:
    """Return the nearest edges of cells, with one cell at least for what is ``kept`` on top.

    A layer of half a cell or more that has none gets one from a layer beside it that has several,
    unless its edge would be far off.
    """
    drawn = [zero, *(_nearest(end, zero) for end in ends)]
    if named[-1] == kept:
        drawn[1:-1] = [min(edge, drawn[-1] - CELL) for edge in drawn[1:-1]]
    starts = [float(zero), *ends[:-1]]
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if drawn[at + 1] > drawn[at] or end - start < HALF:
            continue
        below, above = (n for n in (at - 1, at + 1))
        moved = []
        if below >= 0 and drawn[at] - drawn[below] > CELL:
            moved.append((start - (drawn[at] - CELL), at, drawn[at] - CELL))
        if above < len(ends) and drawn[above + 1] - drawn[above] > CELL:
            moved.append((drawn[above] + CELL - end, above, drawn[above] + CELL))
        if moved and min(moved)[0] <= FAR_OFF:
            _, edge, place = min(moved)
            drawn[edge] = place
    return tuple(zip(drawn[1:], named, strict=True))


def groups_of(
    stacks: Sequence[Stack | None],
    scale: float,
    zero: int,
    most: int,
    whole: bool,
    before: Groups = (),
) -> Groups:
    """Return the layers that are drawn as one in all columns of a chart.

    The smallest ones are joined to the larger one beside them, until what is drawn is as large as
    it should be in nearly every column. The groups of the picture ``before`` stay while they do.
    What was not read is joined to nothing, wherever it is seen: no solid colour stands for it.
    """
    columns = list(dict.fromkeys(stack for stack in stacks if stack))
    seen = any(_unread(one) * scale >= 1 for one in columns)  # also in those that are not asked
    columns = columns[:: math.ceil(len(columns) / COLUMNS_ASKED) or 1]
    if not columns:
        return ()

    def untrue(groups: Groups) -> float:
        grouped = (in_groups(stack, groups) for stack in columns if not (seen and _unread(stack)))
        return sum(not _is_true(one, scale, zero, most, whole) for one in grouped) / len(columns)

    sizes = [[stack[n][0] * scale for stack in columns] for n in range(len(columns[0]))]
    found: Groups = tuple((n, n + 1, token) for n, (_, token) in enumerate(columns[0]))
    while len(found) > 1:
        of_each = [[sum(part) for part in zip(*sizes[a:b], strict=True)] for a, b, _ in found]
        alone = {n for n, (_, _, token) in enumerate(found) if seen and token == UNREAD}
        order = [n for n in range(len(found)) if _may_be_joined(of_each, n, alone)]
        order.sort(key=lambda n: sum(of_each[n]))
        thin = [n for n in order if _is_thin(of_each[n], whole)]
        if not order or (not thin and untrue(found) <= UNTRUE):
            break
        fewer = [_fewer(found, of_each, n, alone) for n in (thin or order)[: 1 if thin else None]]
        found = next((one for one in fewer[1:] and fewer if untrue(one) <= UNTRUE), fewer[0])
    named = tuple(token for _, token in columns[0])
    same = before and before[-1][1] == len(named) and all(t in named[a:b] for a, b, t in before)
    same = same and not any(
        (_is_large(sizes[n]) and named[n] != t)
        or (seen and UNREAD in named[a:b] and named[n] != UNREAD and max(sizes[n]) >= 1)
        for a, b, t in before
        if b - a > 1
        for n in range(a, b)
    )
    stays = same and (len(before) >= len(found) or untrue(found) > 0)
    if stays and untrue(before) <= UNTRUE_AGAIN:
        return before
    return found


def in_groups(stack: Stack, groups: Groups) -> Stack:
    """Return a column with the layers of each group as one."""
    return tuple((sum(amount for amount, _ in stack[a:b]), token) for a, b, token in groups)


def _unread(stack: Stack) -> float:
    return sum(amount for amount, token in stack if token == UNREAD)


def _beside(sizes: list[list[float]], thin: int, alone: Set[int]) -> int | None:
    """Return the larger of the layers beside one, of those that what is seen may be joined to."""
    hidden = max(sizes[thin]) < 1
    beside = [n for n in (thin - 1, thin + 1) if 0 <= n < len(sizes)]
    beside = [n for n in beside if hidden or n not in alone]
    return max(beside, key=lambda n: sum(sizes[n]), default=None)


def _fewer(groups: Groups, sizes: list[list[float]], thin: int, alone: Set[int]) -> Groups:
    """Return groups of which one has become a part of the larger one beside it."""
    other = _beside(sizes, thin, alone)
    if other is None:
        return groups
    first, last = min(thin, other), max(thin, other)
    named = other if other in alone else max(thin, other, key=lambda n: sum(sizes[n]))
    token = groups[named][2]
    whole = (groups[first][0], groups[last][1], token)
    return (*groups[:first], whole, *groups[last + 1 :])


def _may_be_joined(sizes: list[list[float]], thin: int, alone: Set[int]) -> bool:
    """Return whether a layer is less than a cell, large in no column, and seen alone in none."""
    other = _beside(sizes, thin, alone)
    if other is None or thin in alone or _is_large(sizes[thin]):
        return False
    both = zip(sizes[thin], sizes[other], strict=True)
    return not any(size >= 1 and not beside for size, beside in both)


def _is_large(sizes: Sequence[float]) -> bool:
    """Return whether a layer is a cell where it is seen, or one and a half in any column."""
    seen = [size for size in sizes if size >= 1]
    return bool(seen) and (sum(seen) / len(seen) >= CELL or max(seen) >= CELL + HALF)


def _is_thin(sizes: Sequence[float], whole: bool) -> bool:
    """Return whether a layer has no room of its own in any column, and hardly in one."""
    seen = [size for size in sizes if size > 0]
    least = HALF if whole else 1
    return not seen or (sum(seen) / len(seen) < least and max(seen) < least * 2)


def _is_true(stack: Stack, scale: float, zero: int, most: int, whole: bool) -> bool:
    """Return whether each layer of a column is drawn as large as it is, and none above a larger."""
    edges = edges_of(stack, scale, zero, most, whole)
    starts = (zero, *(end for end, _ in edges))
    drawn = {token: end - start for start, (end, token) in zip(starts, edges, strict=False)}
    sizes = [(amount * scale, drawn.get(token, 0)) for amount, token in stack]
    if sum(size for size, _ in sizes) > most - zero:
        return True  # it is cut off
    if any(not shown for size, shown in sizes if size > (TRUE_TO if whole else SEEN)):
        return False  # it would come and go from column to column
    if whole:
        return True
    ranked = [shown for _, shown in sorted(sizes)]
    in_order = all(less <= more + 1 for less, more in pairwise(ranked))
    true_to = TRUE_TO if len(stack) > 2 else HALF
    return in_order and all(abs(shown - size) <= true_to for size, shown in sizes)


@lru_cache(maxsize=4096)
def fit_cells(edges: Edges, zero: int = 0, kept: str = "") -> Edges:
    """Return the nearest edges that can be drawn, of as many of the layers as possible."""
    ends, named = [end for end, _ in edges], [token for _, token in edges]
    found = _placed(ends, zero, named[-1] == kept)
    if found:
        return tuple(zip(found, named, strict=True))
    sizes = [end - start for end, start in zip(ends, (zero, *ends), strict=False)]
    layers = [(float(size), token) for size, token in zip(sizes, named, strict=True)]
    others = sorted((n for n in range(len(layers)) if named[n] != kept), key=_size_in(layers))
    fewer = [_edges_of(_joined(layers, n), zero) for n in others]
    helps = (one for one in fewer if _placed([end for end, _ in one], zero, one[-1][1] == kept))
    return fit_cells(next(helps, fewer[0]), zero, kept)


def _edges_of(layers: list[tuple[float, str]], zero: int) -> Edges:
    ends = accumulate((size for size, _ in layers), initial=zero)
    return tuple((int(end), token) for end, (_, token) in zip(list(ends)[1:], layers, strict=True))


def _size_in(layers: list[tuple[float, str]]) -> Callable[[int], float]:
    return lambda number: layers[number][0]


def _joined(layers: list[tuple[float, str]], thin: int) -> list[tuple[float, str]]:
    """Return layers of which one has become a part of the larger one beside it."""
    beside = [n for n in (thin - 1, thin + 1) if 0 <= n < len(layers)]
    other = max(beside, key=_size_in(layers))
    first, last = min(thin, other), max(thin, other)
    whole = (layers[thin][0] + layers[other][0], max(layers[thin], layers[other])[1])
    return [*layers[:first], whole, *layers[last + 1 :]]


def _placed(ends: list[int], zero: int, kept: bool) -> tuple[int, ...]:
    """Return the nearest places of these edges, the last of which stays; none where it has none.

    Each full cell has one edge inside it at most; a topmost cell that is not full, and the axis,
    have none. With ``kept`` the edge below the topmost layer may lie further off.
    """
    top = ends[-1]
    paths: dict[int, tuple[int, tuple[int, ...]]] = {zero: (0, ())}
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        places = [top] if last else range(end - REACH, min(end + REACH, top - 1) + 1)
        if kept and number == len(ends) - 2:
            places = [(top - 1) // CELL * CELL]
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for place in places:
            inside = bool(place % CELL) and not last
            if inside and (place > top // CELL * CELL or place < CELL * bool(zero)):
                continue
            before = [
                path
                for at, path in paths.items()
                if at < place and not (place % CELL and at % CELL and at // CELL == place // CELL)
            ]
            if before:
                cost, path = min(before)
                reached[place] = cost + (place - end) ** 2, (*path, place)
        paths = reached
    return paths[top][1] if top in paths else ()


def cell_of(edges: Edges, bottom: int, glyphs: Glyphs, zero: int = 0) -> Piece:
    """Return the cell that begins ``bottom`` eighths high, of a stack that begins at ``zero``."""
    shares = [
        (min(end, bottom + 8) - bottom, token)
        for start, (end, token) in zip((zero, *(end for end, _ in edges)), edges, strict=False)
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


def foot_of(edges: Edges, zero: int) -> str:
    """Return the token of what stands on the axis, "" where nothing does."""
    found = next((token for end, token in edges if end > zero), "") if zero else ""
    return "" if found == UNREAD else found


def on_feet(axis: Line, feet: Mapping[int, str], margin: int, glyphs: Glyphs) -> Line:
    """Return the axis with the part of its row above its line filled where a stack stands on it.

    The line is 0 and runs through the middle of the row. Without parts of cells all is filled.
    """
    chars = [(char, spec) for text, spec in axis for char in text]
    whole = in_whole_cells(glyphs)
    return merged(
        (glyphs.fill(feet[at]) if whole else glyphs.upper, feet[at])
        if at in feet and char in "─┬"
        else (char, spec)
        for at, (char, spec) in enumerate(chars, -margin)
    )


def draw_line(columns: list[Line], high: int, glyphs: Glyphs, first: int = 0) -> None:
    """Draw a line from column ``first`` on where anything is known, ``high`` eighths up.

    It is at the edge of a cell that is nearer, so that no layer below it seems to pass it. Without
    parts of cells it takes whole ones, but none that is the only one of its layer.
    """
    row, low = high // 8, high % 8 < HALF
    whole = in_whole_cells(glyphs)
    for place, column in enumerate(columns[first:], first):
        glyph, spec = column[row]
        if column[0][0] == glyphs.unknown:
            continue
        if (glyph == glyphs.bar or (whole and glyph != " ")) and place % BAR_CELLS:
            continue  # between two of these the layer is still seen
        line, style = glyphs.up[1] if low else glyphs.high, "text"
        if whole:
            if glyph != " " and sum(other == spec for _, other in column) == 1:
                continue
            line = glyphs.dashes
        elif glyph in glyphs.up[1:]:
            filled, names = glyphs.up.index(glyph), spec.split(" on ")
            below = filled >= HALF and not low if len(names) > 1 else filled >= HALF + low
            ground = names[0] if below else names[1] if len(names) > 1 else ""
            style = f"selected on {ground}" if ground else "text"
        columns[place] = [*column[:row], (line, style), *column[row + 1 :]]
