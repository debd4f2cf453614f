"""This module draws the cells of a stack, and moves its edges so that each can be drawn.

All edges are rounded from zero, none from the layer below it: the top is the total whatever lies
below, and a layer that stays where it is is drawn where it was. A cell has two colours, so it can
show two layers; where the stack ends inside it, the second colour is the empty ground, and it can
show one. The upper half of the axis, on which a stack stands, shows one as well. Edges that share
such a cell are moved, by half a cell at most; where that is not enough the smallest layer is
drawn as a part of the larger one of those beside it. Without colour a cell shows one layer, and
each edge is the nearest edge of a cell, or the next one where a layer of half a cell would vanish;
a stack then stands above the row of the axis, for half of that cannot be filled.

What would be drawn at another size than it has is left to the rest in all columns of a chart, and
not in each by itself: else parts would come and go from one column to the next. Several layers that
are drawn as one are grey: the colour of a part never stands for another one. The grey is on top,
and all others stay in their order, so that a layer has the same place in each picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ...text.styled import Line, Piece, merged
from ..theme import UNREAD, Glyphs, grey_beside

Stack = tuple[tuple[float, str], ...]
"""One column, bottom up: (amount, token)."""
Edges = tuple[tuple[int, str], ...]
"""A column, bottom up: (top of a layer in eighths above the lowest cell's lower edge, token)."""


class Rest(NamedTuple):
    """The layers that have no room of their own, and the token in which they are drawn.

    One of them keeps its own. A ``trace``, of which too little is there to be seen, is drawn as a
    part of the largest layer, whose token it has then.
    """

    tokens: tuple[str, ...] = ()
    token: str = ""
    trace: bool = False


ALL_APART = Rest()

CELL, HALF = 8, 4
REACH = 3
"""Eighths by which an edge may be moved: with the rounding to them less than half a cell.

It is moved by half a cell where a layer would be lost else.
"""
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
"""The most columns in which a size may be wrong: with another rest than before, and with that."""
BRINK = 1.3
"""How much more a trace may become before it is drawn."""


def in_whole_cells(glyphs: Glyphs) -> bool:
    """Tell whether a cell belongs to one layer as a whole."""
    return bool(glyphs.patterns) or not glyphs.eighths


def edges_of(
    stack: Stack, scale: float, zero: int, most: int, whole: bool = False, kept: str = ""
) -> Edges:
    """Return the edges of a column as they are drawn.

    An amount of 1 is ``scale`` eighths, and 0 is ``zero`` eighths high: half a cell where that is
    the axis, and a whole one where cells are. Nothing is above ``most``. A layer with the token
    ``kept`` is always drawn. What is less than an eighth is drawn with the larger one beside it,
    and nothing of a total that is.
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

    A layer of half a cell or more that would have none gets one, for which others move up or down
    unless an edge would be far off.
    """
    top = _nearest(ends[-1], zero)
    most = max(top - CELL, zero) if named[-1] == kept else top
    paths: dict[int, tuple[int, float, tuple[int, ...]]] = {zero: (0, 0.0, ())}
    start = float(zero)
    for number, end in enumerate(ends, 1):
        nearest = min(_nearest(end, zero), most)
        places = [at for at in (nearest - CELL, nearest, nearest + CELL) if zero <= at <= most]
        places = [at for at in places if at == nearest or abs(at - end) <= FAR_OFF]
        if number == len(ends):
            places = [top]
        reached: dict[int, tuple[int, float, tuple[int, ...]]] = {}
        for place in places:
            before = [
                (lost + (at == place and end - start >= HALF), off, path)
                for at, (lost, off, path) in paths.items()
                if at <= place
            ]
            if before:
                lost, off, path = min(before)
                cost = (place - end) ** 2 + (place != nearest)  # none moves without need
                reached[place] = lost, off + cost, (*path, place)
        paths, start = reached, end
    return tuple(zip(paths[top][2], named, strict=True))


def rest_of(
    stacks: Sequence[Stack | None],
    scale: float,
    zero: int,
    most: int,
    whole: bool,
    before: Rest | None = None,
    least: Collection[str] = (),
    beside: Collection[str] = (),
) -> Rest:
    """Return the layers that have no room of their own, and how they are drawn in all columns.

    The smallest ones are added to them until what is drawn is as large as it should be in nearly
    every column. Those ``least`` belong to them in any case. ``beside`` the chart there are other
    parts with a colour. The rest of the picture ``before`` stays while it does. What was not read
    belongs to it only there: no solid colour stands for it.
    """
    columns = list(dict.fromkeys(stack for stack in stacks if stack))
    seen = any(_unread(one) * scale >= 1 for one in columns)  # also in those that are not asked
    there = {token for stack in columns for amount, token in stack if amount > 0}
    columns = columns[:: math.ceil(len(columns) / COLUMNS_ASKED) or 1]
    if not there:
        return ALL_APART
    sizes = {t: [stack[n][0] * scale for stack in columns] for n, (_, t) in enumerate(columns[0])}
    named = [token for token in sizes if token in there]

    def sum_of(token: str) -> float:
        return sum(sizes[token])

    least = [token for token in least if token in there]
    largest = max([token for token in named if token not in least] or named, key=sum_of)

    def total_of(tokens: Collection[str]) -> list[float]:
        return [sum(part) for part in zip(*(sizes[t] for t in tokens), strict=True)]

    def never_alone(total: Sequence[float]) -> bool:
        """Return whether the largest is seen beside it: else its colour would be of nothing."""
        return all(at >= 1 or each < 1 for at, each in zip(sizes[largest], total, strict=True))

    def as_trace(rest: Rest) -> Rest:
        return Rest(rest.tokens, largest, trace=True)

    def is_little(rest: Rest) -> bool:
        """Return whether it may be left out where it would be on top in some columns only."""
        total = total_of(rest.tokens)
        little = bool(total) and sum(total) / len(total) < HALF and max(total) < CELL
        return little and never_alone(total)

    def drawn(tokens: Collection[str]) -> Rest:
        """Return how these are drawn: one as itself, several in grey, a trace not at all."""
        joined = tuple(token for token in named if token in tokens)
        if not joined:
            return ALL_APART
        total = total_of(joined)
        stays = BRINK if before == as_trace(Rest(joined)) else 1.0
        if _is_trace([size / stays for size in total], whole) and never_alone(total):
            return as_trace(Rest(joined))
        most_of = max(joined, key=sum_of)
        of_others = [each - at for each, at in zip(total, sizes[most_of], strict=True)]
        alone = len(joined) == 1 or _is_trace(of_others, whole)
        return Rest(joined, most_of if alone else grey_beside({*there, *beside}))

    def untrue(rest: Rest) -> float:
        shown = (in_parts(one, rest) for one in columns if not (seen and _unread(one)))
        return sum(not _is_true(one, scale, zero, most, whole) for one in shown) / len(columns)

    order = sorted(named, key=sum_of)
    order = [t for t in order if t not in (largest, *least) and not (seen and t == UNREAD)]
    thin = [t for t in order if _is_thin(sizes[t], whole)]
    order = [t for t in order if t not in thin and not is_large(sizes[t])]
    found = drawn({*least, *thin})
    while order and untrue(found) > UNTRUE:
        found = drawn({*found.tokens, order.pop(0)})
    if untrue(found) > (0.0 if before == as_trace(found) else UNTRUE) and is_little(found):
        found = as_trace(found)
    if before is None or before != drawn(before.tokens) or {*before.tokens} - {*named, *least}:
        return found
    without = [t for t in named if t not in before.tokens and t != largest]
    if any(_is_thin([size * BRINK for size in sizes[t]], whole) for t in without):
        return found
    kept = {*before.tokens} - {*least}
    if any(is_large(sizes[t]) or (seen and t == UNREAD) for t in kept) or largest in kept:
        return found
    stays = {*least} <= {*before.tokens} and untrue(before) <= UNTRUE_AGAIN
    return before if stays and (len(before.tokens) <= len(found.tokens) or untrue(found)) else found


def in_parts(stack: Stack, rest: Rest) -> Stack:
    """Return a column with the rest as one layer, and all others in their order.

    It is on top, or where the layer is in whose colour it is drawn: what is known by its place in
    one picture has the same place in the next.
    """
    if not rest.tokens:
        return stack
    amount = sum(part for part, token in stack if token in rest.tokens)
    if not rest.trace and rest.token not in rest.tokens:
        # of its colour there may be a layer of which nothing is there
        others = (one for one in stack if one[1] not in (*rest.tokens, rest.token))
        return (*others, (amount, rest.token))
    added = {rest.token: amount} if rest.trace else {}
    shown = (one for one in stack if one[1] not in rest.tokens or one[1] == rest.token)
    return tuple(
        (amount if token in rest.tokens else part + added.get(token, 0.0), token)
        for part, token in shown
    )


def _unread(stack: Stack) -> float:
    return sum(amount for amount, token in stack if token == UNREAD)


def is_large(sizes: Sequence[float], joined: bool = False) -> bool:
    """Return whether a layer is a cell where it is seen, or one and a half in any column.

    One that was ``joined`` to others before has to be larger, so that it does not come and go.
    """
    stays = BRINK if joined else 1.0
    seen = [size / stays for size in sizes if size >= 1]
    return bool(seen) and (sum(seen) / len(seen) >= CELL or max(seen) >= CELL + HALF)


def _is_thin(sizes: Sequence[float], whole: bool) -> bool:
    """Return whether a layer has no room of its own in any column, and hardly in one."""
    seen = [size for size in sizes if size > 0]
    least = HALF if whole else 1
    return not seen or (sum(seen) / len(seen) < least and max(seen) < least * 2)


def _is_trace(sizes: Sequence[float], whole: bool) -> bool:
    """Return whether a layer is nowhere large, and would come and go from column to column."""
    least = HALF if whole else 1
    return max(sizes) < least * 2 and min((size for size in sizes if size > 0), default=0) < least


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
    on_top = named[-1] == kept
    found = _placed(ends, zero, on_top) or _placed(ends, zero, on_top, reach=HALF)
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


def _placed(ends: list[int], zero: int, kept: bool, reach: int = REACH) -> tuple[int, ...]:
    """Return the nearest places of these edges, the last of which stays; none where it has none.

    Each full cell has one edge inside it at most; a topmost cell that is not full, and the axis,
    have none. With ``kept`` the edge below the topmost layer may lie further off.
    """
    top = ends[-1]
    paths: dict[int, tuple[int, tuple[int, ...]]] = {zero: (0, ())}
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        places = [top] if last else range(end - reach, min(end + reach, top - 1) + 1)
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
    found = next((token for end, token in edges if end > zero), "") if zero == HALF else ""
    return "" if found == UNREAD else found


def zero_of(whole: bool) -> int:
    """Return how many eighths above the lower edge of the axis a stack begins."""
    return CELL if whole else HALF


def on_feet(axis: Line, feet: Mapping[int, str], margin: int, glyphs: Glyphs) -> Line:
    """Return the axis with the part of its row above its line filled where a stack stands on it.

    The line is 0 and runs through the middle of the row.
    """
    chars = [(char, spec) for text, spec in axis for char in text]
    return merged(
        (glyphs.upper, feet[at]) if at in feet and char in "─┬" else (char, spec)
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
