"""Stacks in cells: every edge is where its sum is, to half a cell, whatever lies below it."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.text.styled import Piece
from gpuscope.text.units import GIB
from gpuscope.tui.charts.axes import Heights
from gpuscope.tui.charts.cell_fit import (
    CELL,
    FAR_OFF,
    HALF,
    Rest,
    Stack,
    edges_of,
    in_parts,
    rest_of,
    zero_of,
)
from gpuscope.tui.charts.stacked import WARNING, _draw
from gpuscope.tui.theme import ASCII, MONOCHROME, UNICODE, UNREAD, Glyphs

LAYERS = ("allocated", "cached", "outside", "other", "driver", "series7")
LOOKS = [UNICODE, MONOCHROME, ASCII]
SIZES = st.one_of(st.floats(0, 1), st.floats(0, 8), st.floats(0, 60))
"""Of layers, in eighths of a cell."""
STACKS = st.lists(SIZES, min_size=1, max_size=len(LAYERS))


def drawn_edges(stack: Stack, rows: int, axis: bool, glyphs: Glyphs) -> list[tuple[float, str]]:
    """Where each colour of a drawn column ends, in eighths above 0, and its token."""
    heights = Heights(0, rows * 8.0 + axis * HALF, rows + axis, HALF / CELL * axis, 0)
    (column,), feet = _draw([stack], rows, heights, glyphs)
    assert len(column) == rows
    parts: list[tuple[float, str]] = [(HALF, feet[0])] if feet else []
    parts += [part for cell in column for part in parts_of(cell, glyphs)]
    return ended(parts, 0.0 if feet or not axis or glyphs is not UNICODE else float(HALF))


def parts_of(cell: Piece, glyphs: Glyphs) -> list[tuple[float, str]]:
    """The eighths of a cell that belong to each token, from below."""
    glyph, spec = cell
    front, _, back = spec.partition(" on ")
    if glyph == " ":
        return []
    if glyph not in UNICODE.up or glyphs is not UNICODE:
        return [(8, front)]
    filled = UNICODE.up.index(glyph)
    return [(filled, front), (8 - filled, back)] if back else [(filled, front)]


def ended(parts: list[tuple[float, str]], start: float) -> list[tuple[float, str]]:
    ends: list[tuple[float, str]] = []
    for size, token in parts:
        start += size
        if size and ends and ends[-1][1] == token:
            ends[-1] = (start, token)
        elif size:
            ends.append((start, token))
    return ends


@pytest.mark.parametrize("glyphs", LOOKS, ids=["colour", "monochrome", "ascii"])
@given(sizes=STACKS, rows=st.integers(1, 24), axis=st.booleans())
@example(sizes=[5.1, 1.4], rows=12, axis=True)
@example(sizes=[2.4, 2.4, 2.4], rows=1, axis=False)
@example(sizes=[4.0, 4.0, 15.0], rows=3, axis=False)
@example(sizes=[39.0, 4.0], rows=6, axis=False)
def test_every_edge_is_where_its_sum_is_to_half_a_cell(
    glyphs: Glyphs, sizes: list[float], rows: int, axis: bool
) -> None:
    stack = tuple(zip(sizes, LAYERS, strict=False))
    room = rows * 8.0 + axis * HALF * (glyphs is UNICODE)
    sums = [min(total, room) for total in accumulate(sizes)]
    edges = drawn_edges(stack, rows, axis, glyphs)
    top = edges[-1][0] if edges else 0.0
    assert abs(top - sums[-1]) <= HALF + 1e-6
    # without parts of cells a little more, where a layer would have no cell else
    beyond = HALF + 0.5 if glyphs is UNICODE else FAR_OFF
    for edge, _ in edges:
        assert min(abs(edge - total) for total in sums) <= beyond + 1e-6, edges
    drawn = [token for _, token in edges]
    assert drawn == sorted(drawn, key=LAYERS.index), "in their order, each once"
    if glyphs is UNICODE and sums[-1] >= 4.5:
        assert abs(top - sums[-1]) <= 0.51, "the total is exact to an eighth"


@pytest.mark.parametrize("glyphs", LOOKS, ids=["colour", "monochrome", "ascii"])
@given(st.lists(st.integers(0, 60 * GIB), min_size=2, max_size=6), st.integers(1, 41))
def test_the_same_total_has_the_same_top_however_it_is_divided(
    glyphs: Glyphs, parts: list[int], rows: int
) -> None:
    heights = Heights(0, 400.0 * GIB, rows + 1, HALF / CELL)
    one, other = ((sum(parts), "driver"),), tuple(zip(parts, LAYERS, strict=False))
    columns, feet = _draw([one, other], rows, heights, glyphs)
    tops = [[glyph for glyph, _ in column if glyph != " "] for column in columns]
    assert len(tops[0]) == len(tops[1])
    assert (0 in feet) == (1 in feet)
    if glyphs is UNICODE:
        assert tops[0][-1:] == tops[1][-1:] or tops[0][-1] == "█"


@given(sizes=STACKS, rows=st.integers(1, 24), axis=st.booleans())
@example(sizes=[5.1, 1.4], rows=12, axis=True)
def test_no_layer_is_drawn_in_place_of_a_larger_one(
    sizes: list[float], rows: int, axis: bool
) -> None:
    """What is left out is thin, and less than one beside it that is drawn."""
    sizes = [size for size in sizes if size]
    stack = tuple(zip(sizes, LAYERS, strict=False))
    if sum(sizes) > rows * 8:
        return
    tokens = {token for _, token in drawn_edges(stack, rows, axis, UNICODE)}
    for size, token in stack:
        if token not in tokens and sum(sizes) >= 1:
            assert size <= HALF + 0.5, (size, token, tokens)
            assert max(sizes) >= size
    if tokens:
        largest = max(stack)
        assert largest[1] in tokens or largest[0] <= HALF + 0.5


@given(st.lists(SIZES, min_size=1, max_size=5), st.integers(1, 24))
def test_without_colour_a_layer_of_a_cell_is_always_seen(sizes: list[float], rows: int) -> None:
    stack = tuple(zip(sizes, LAYERS, strict=False))
    if sum(sizes) > rows * 8:
        return
    seen = Counter(token for _, token in drawn_edges(stack, rows, False, MONOCHROME))
    assert all(seen[token] for size, token in stack if size >= CELL + 1)


@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME])
@given(held=st.floats(0, 60))
def test_an_edge_that_does_not_move_is_drawn_as_flat(glyphs: Glyphs, held: float) -> None:
    """What is below it may come and go: 3 of 4 layers end at the same sum."""
    below = (held, "allocated"), (60 - held, "cached")
    edges = drawn_edges((*below, (11.3, "outside")), 12, True, glyphs)
    assert edges[-1] == ((71, "outside") if glyphs is UNICODE else (72, "outside"))
    border = next((end for end, token in edges[::-1] if token != "outside"))
    assert border == (60 if glyphs is UNICODE else 64)


@pytest.mark.parametrize("thin", [1.5, 3.0])
def test_a_thin_layer_between_others_stays_while_the_one_below_it_grows(thin: float) -> None:
    for n in range(128):
        stack = ((16 + n / 4, "allocated"), (thin, "cached"), (9.0, "outside"))
        assert "cached" in {token for _, token in drawn_edges(stack, 12, True, UNICODE)}


def test_the_larger_of_two_thin_layers_is_drawn_at_every_size() -> None:
    """Also where the axis hides half a cell of it."""
    for each in range(1, 200):
        edges = drawn_edges(
            ((1.79 * each / 8, "cached"), (0.49 * each / 8, "other")), 8, True, UNICODE
        )
        tokens = [token for _, token in edges]
        assert tokens in ([], ["cached"], ["cached", "other"]), each
        assert tokens or 2.28 * each / 8 < 1


@pytest.mark.parametrize("glyphs", LOOKS, ids=["colour", "monochrome", "ascii"])
@given(below=st.floats(1, 70), beyond=st.floats(1, 10))
def test_a_warning_is_never_left_out(glyphs: Glyphs, below: float, beyond: float) -> None:
    stack = ((below / 2, "allocated"), (below / 2, "cached"), (beyond, WARNING))
    whole = glyphs is not UNICODE
    edges = edges_of(stack, 1.0, HALF, 88, whole, WARNING)
    if edges[-1][0] > CELL:
        assert edges[-1][1] == WARNING
        assert len(edges) == 1 or edges[-1][0] > edges[-2][0]


def test_a_boundary_inside_a_cell_shows_both_layers() -> None:
    heights = Heights(0, 100.0, 4, 0, 0)
    (column,), _ = _draw([((50.0, "allocated"), (50.0, "cached"))], 4, heights, UNICODE)
    assert column == [("█", "allocated on allocated")] * 2 + [("█", "cached on cached")] * 2
    heights = Heights(0, 100.0, 2, 0, 0)
    (column,), _ = _draw([((62.5, "allocated"), (37.5, "cached"))], 2, heights, UNICODE)
    assert column[1] == ("▂", "allocated on cached")


def test_edges_are_clipped_at_the_capacity() -> None:
    stack = ((100.0, "allocated"), (100.0, "cached"))
    assert edges_of(stack, 8 * 10 / 140, 0, 80) == ((57, "allocated"), (80, "cached"))


@pytest.mark.parametrize("glyphs", LOOKS)
def test_what_was_not_read_is_a_texture_and_never_a_fill(glyphs: Glyphs) -> None:
    parts = ((3.4, "allocated"), (5.3, UNREAD), (1.2, "other"))
    drawn, _ = _draw([parts, ((9.9, UNREAD),)], 10, Heights(0, 10.0, 10, 0, 0), glyphs)
    for column in drawn:
        for glyph, style in column:
            assert " on unread" not in style
            assert (glyph == glyphs.sparse) is (style == UNREAD)
    assert sum(style == UNREAD for _, style in drawn[0]) in (5, 6)
    assert {style for _, style in drawn[1]} <= {UNREAD, "text"}
    assert glyphs.fill(UNREAD) not in {glyphs.fill(token) for token in LAYERS}


def step(*parts: float) -> Stack:
    """A training step of two GPUs in milliseconds: backward, forward, optimizer, syncs."""
    return tuple(zip(parts, LAYERS, strict=False))


STEPS = [step(60 + n % 5, 8.5 + n % 3 / 2, 1.5 + n % 4 / 2, 5.6 - n % 3) for n in range(40)]


@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME], ids=["colour", "monochrome"])
@pytest.mark.parametrize("rows", [3, 4, 5, 6, 8, 9, 12, 16, 24, 40])
def test_what_is_drawn_of_a_step_is_as_large_as_it_is_in_every_column(
    glyphs: Glyphs, rows: int
) -> None:
    heights = Heights(0, 100.0, rows + 1, HALF / CELL)
    scale, most, whole = heights.each * CELL, (rows + 1) * CELL, glyphs is not UNICODE
    rest = rest_of(STEPS, scale, zero_of(whole), most, whole)
    parts = [in_parts(one, rest) for one in STEPS]
    columns, feet = _draw(parts, rows, heights, glyphs)
    assert len(feet) == (0 if whole else len(STEPS)), "half a row of the axis cannot be filled"
    seen = set()
    for at, (stack, column) in enumerate(zip(parts, columns, strict=True)):
        foot = [(HALF, feet[at])] if at in feet else []
        ends = ended([*foot, *(part for cell in column for part in parts_of(cell, glyphs))], 0)
        starts = (0.0, *(end for end, _ in ends))
        drawn = {token: end - start for start, (end, token) in zip(starts, ends, strict=False)}
        for amount, token in stack:
            assert abs(drawn.get(token, 0) - amount * scale) <= HALF * (2 if whole else 1)
        seen.add(tuple(token for _, token in ends))
    assert len(seen) == 1, "the same layers in the same order from column to column"


def test_a_layer_of_about_an_eighth_is_in_all_columns_or_in_none() -> None:
    """Ten minutes of a step that waits for its input."""
    random = Random(1)
    steps = [
        step(random.gauss(38, 2), random.gauss(1.4, 0.1), random.gauss(0.5, 0.2)) for _ in range(10)
    ]
    for rows in range(3, 32):
        scale, most = (rows + 0.5) * CELL / 60, (rows + 1) * CELL
        rest = rest_of(steps, scale, HALF, most, whole=False)
        drawn = [edges_of(in_parts(one, rest), scale, HALF, most) for one in steps]
        assert len({tuple(token for _, token in edges) for edges in drawn}) == 1, rows


def test_the_smaller_one_of_two_is_kept_while_it_is_true_to_half_a_cell() -> None:
    """Five percent of a step, at any height of the step in its uppermost cell."""
    steps = [step(36 + n / 2, 1.7 + n % 3 / 10) for n in range(16)]
    scale = 2.4
    rest = rest_of(steps, scale, HALF, 200, whole=False)
    assert rest.tokens == ()
    for one in steps:
        (below, _), (top, _) = edges_of(one, scale, HALF, 200)
        assert abs(top - below - one[1][0] * scale) <= HALF


def test_without_colour_an_eighth_of_a_step_has_a_cell() -> None:
    for rows in range(7, 30):
        heights = Heights(0, 100.0, rows + 1, HALF / CELL)
        scale, most = heights.each * CELL, (rows + 1) * CELL
        rest = rest_of(STEPS, scale, zero_of(True), most, whole=True)
        columns, _ = _draw([in_parts(one, rest) for one in STEPS], rows, heights, MONOCHROME)
        for column in columns:
            assert "cached" in {token for _, token in column}, rows


def test_a_layer_that_is_large_for_a_moment_is_not_left_out_of_the_chart() -> None:
    calm, high = step(50.0, 0.2, 5.0), step(50.0, 30.0, 5.0)
    rest = rest_of([*[calm] * 5, high], 1.0, 0, 88, whole=False)
    assert "cached" not in rest.tokens


def test_what_is_there_alone_for_a_time_is_not_drawn_as_what_comes_later() -> None:
    cached = [((0.0, "allocated"), (2.4, "cached"))] * 5
    both = [((60.0, "allocated"), (2.4, "cached"))] * 20
    rest = rest_of(cached + both, 1.0, HALF, 88, whole=False)
    assert rest.token in ("", "cached")


def test_a_layer_that_is_alone_for_a_time_keeps_its_colour_beside_specks_of_others() -> None:
    """What the driver holds before torch's first tensors are more than a few bytes."""
    stepping = ((9.8, "allocated"), (13.9, "cached"), (2.4, "outside"))
    starting = ((0.05, "allocated"), (0.01, "cached"), (1.6, "outside"))
    rest = rest_of([stepping, starting], 1.0, HALF, 40, whole=False)
    assert not rest.trace
    for stack in (stepping, starting):
        assert "outside" in [
            token for _, token in edges_of(in_parts(stack, rest), 1.0, HALF, 40)
        ], stack


def test_a_layer_that_has_become_large_is_drawn_whatever_was_joined_before() -> None:
    little = [((1.0, "allocated"), (0.5, "cached"), (6.0, "outside"))] * 20
    grown = [*little, *[((40.0, "allocated"), (0.5, "cached"), (20.0, "outside"))] * 4]
    before = Rest(("allocated", "cached"), "driver")
    now = rest_of(grown, 1.0, HALF, 120, whole=False, before=before)
    assert not {"allocated", "outside"} & {*now.tokens}


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_not_read_is_joined_to_nothing_where_it_is_seen(whole: bool) -> None:
    """Only what is nowhere seen may be. It is there for a moment in one picture, else for long."""
    soon = [((3.0 + n / 100, "outside"), (0.0, UNREAD), (0.1, "other")) for n in range(99)]
    soon[5] = ((0.0, "outside"), (6.0, UNREAD), (0.1, "other"))
    late = [((1.0, "cached"), (3.0, "outside"), (0.0, UNREAD), (0.1, "other"))] * 3
    late += [((0.0, "cached"), (0.0, "outside"), (40.0, UNREAD), (0.1, "other"))] * 20
    for columns in (soon, late):
        rest = rest_of(columns, 1.0, 0, 88, whole)
        names = [token for _, token in columns[0]]
        assert UNREAD not in (*rest.tokens, rest.token)
        before = Rest(tuple(names[1:]), "driver")
        assert rest_of(columns, 1.0, 0, 88, whole, before) == rest


def test_what_was_not_read_takes_no_layer_beside_it_away() -> None:
    """Its texture may not be drawn as high as it is: no joining of others would mend that."""
    shares = ("allocated", "cached", "outside", UNREAD, "other")
    read = [tuple(zip((9.8, 14.0, 3.0, 0.0, 0.04), shares, strict=True))] * 40
    not_yet = [tuple(zip((0.0, 0.0, 2.0, 8.6, 0.04), shares, strict=True))] * 3
    rest = rest_of(read + not_yet, 1.0, HALF, 88, whole=False)
    assert not {"allocated", "cached", UNREAD} & {*rest.tokens}


def test_the_layers_of_a_chart_do_not_come_and_go_with_each_picture() -> None:
    """What is on the brink stays as it was before."""
    random = Random(3)
    steps = [
        step(random.gauss(60, 2), random.gauss(8.5, 1), 2 + random.random(), random.gauss(5, 0.7))
        for _ in range(160)
    ]
    changes = 0
    for rows in (4, 9, 13, 19):
        scale, most = (rows + 0.5) * CELL / 100, (rows + 1) * CELL
        before = rest_of(steps[:40], scale, HALF, most, whole=False)
        for at in range(1, 120):
            shown = steps[at : at + 40 - at % 2]
            now = rest_of(shown, scale, HALF, most, whole=False, before=before)
            changes += now != before
            before = now
    assert changes <= 4


HELD = {"allocated": 1, "cached": 2, "outside": 4, "driver": 8}


@pytest.mark.parametrize(
    ("rest", "order"),
    [
        (Rest(("cached", "outside"), "idle"), ["allocated", "driver", "idle"]),
        (Rest(("cached", "outside"), "outside"), ["allocated", "outside", "driver"]),
        (Rest(("cached", "outside"), "allocated", trace=True), ["allocated", "driver"]),
    ],
    ids=["grey", "as one of them", "trace"],
)
def test_the_layers_keep_their_order_whatever_is_joined(rest: Rest, order: list[str]) -> None:
    stack = tuple((float(size), token) for token, size in HELD.items())
    joined = in_parts(stack, rest)
    assert [token for _, token in joined] == order
    assert sum(size for size, _ in joined) == sum(HELD.values())


def test_what_is_on_top_in_some_columns_only_is_in_none() -> None:
    """A top cell that is not full shows one layer: above another one a thin one has no room."""
    steps = [step(30.0 + n / 4, 1.3) for n in range(32)]
    rest = rest_of(steps, 1.0, HALF, 88, whole=False)
    drawn = [edges_of(in_parts(one, rest), 1.0, HALF, 88) for one in steps]
    assert {tuple(token for _, token in edges) for edges in drawn} == {("allocated",)}
    assert rest_of(steps[1:], 1.0, HALF, 88, whole=False, before=rest) == rest
