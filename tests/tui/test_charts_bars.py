"""Bars and small histories have an exact width.

Zero is not unknown, and a little is not nothing.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.device_state import NEARLY_FULL
from gpuscope.tui.charts.spark import load_line, own_top, spark
from gpuscope.tui.theme import ASCII, MONOCHROME, UNICODE, Glyphs
from gpuscope.tui.widgets.bars import Bar, Meter, meter, stacked_bar
from gpuscope.wire.frames import Unknown

UNKNOWN = Unknown("not_supported", "no such reading")
amounts = st.one_of(st.floats(), st.just(UNKNOWN), st.none(), st.floats(0, 200))
parts = st.lists(
    st.tuples(amounts, st.sampled_from(["allocated", "cached", "driver", "free"])), max_size=6
)


def plain(pieces: list[tuple[str, str]]) -> str:
    return "".join(text for text, _ in pieces)


@given(
    parts, amounts, st.integers(0, 60), st.sampled_from([UNICODE, MONOCHROME, ASCII]), st.booleans()
)
def test_a_bar_is_as_wide_as_asked_whatever_it_holds(parts, total, width, glyphs, slim) -> None:  # type: ignore[no-untyped-def]
    assert len(plain(stacked_bar(parts, total, width, glyphs, slim=slim))) == width


@given(st.lists(amounts, max_size=80), st.integers(0, 60), amounts)
def test_a_history_is_as_wide_as_asked(values, width, maximum) -> None:  # type: ignore[no-untyped-def]
    values = [None if isinstance(value, Unknown) else value for value in values]
    assert len(spark(values, width, None if isinstance(maximum, Unknown) else maximum)) == width


@given(st.one_of(st.just(0.0), st.floats(1e-9, 140)), st.integers(1, 60))
def test_length_is_right_to_an_eighth_of_a_cell(amount: float, width: int) -> None:
    bar = plain(stacked_bar([(amount, "allocated")], 140, width)).replace(UNICODE.track, " ")
    eighths = sum(UNICODE.across.index(char) for char in bar)
    exact = amount / 140 * width * 8
    assert abs(eighths - exact) <= 0.51 or (eighths == 1 and 0 < exact < 1)


def test_boundaries_inside_a_cell_show_both_sides() -> None:
    assert stacked_bar([(5, "allocated"), (3, "cached")], 8, 1) == [("▋", "allocated on cached")]
    assert stacked_bar([(8, "allocated"), (8, "cached")], 32, 4) == [
        ("█", "allocated on allocated"),
        ("█", "cached on cached"),
        ("▁▁", "free"),
    ]


@pytest.mark.parametrize("slim", [True, False])
@pytest.mark.parametrize("glyphs", [UNICODE, MONOCHROME])
def test_what_was_not_read_is_a_texture_and_never_a_fill(glyphs: Glyphs, slim: bool) -> None:
    parts = [(33.0, "allocated"), (40.0, "unread"), (20.0, "other")]
    cells = [
        (glyph, style)
        for text, style in stacked_bar(parts, 100, 20, glyphs, slim=slim)
        for glyph in text
    ]
    assert sum(style == "unread" for _, style in cells) in (7, 8, 9)
    assert all((glyph == glyphs.sparse) is (style == "unread") for glyph, style in cells)


def test_without_colour_only_a_solid_bar_ends_within_a_cell() -> None:
    total = 5.52 * 1024
    ends = [
        plain(stacked_bar([(size, "allocated")], total, 26, MONOCHROME, slim=True)).rstrip("·")
        for size in (1.5, 64, 218, 436)
    ]
    assert ends == ["▏", "▎", "█", "██"]
    small = plain(stacked_bar([(64, "cached")], total, 26, MONOCHROME, slim=True))
    assert small.startswith("▒·"), "a part of a solid cell would be read as allocated"
    large = plain(stacked_bar([(1500, "cached")], total, 26, MONOCHROME, slim=True))
    assert large.startswith("▒▒▒▒▒▒▒·"), "a pattern has whole cells"


def test_zero_is_the_track_and_unknown_is_the_dotted_line() -> None:
    assert stacked_bar([(0, "allocated")], 140, 6) == [("▁▁▁▁▁▁", "free")]
    assert stacked_bar([(UNKNOWN, "allocated")], 140, 6) == [("┄┄┄┄┄┄", "muted")]
    assert stacked_bar([(1, "allocated")], UNKNOWN, 6) == [("┄┄┄┄┄┄", "muted")]
    assert meter(0, 6, "ok") == [("▁▁▁▁▁▁", "free")]
    assert meter(UNKNOWN, 6, "ok") == [("┄┄┄┄┄┄", "muted")]
    assert meter(math.nan, 6, "ok") == [("┄┄┄┄┄┄", "muted")]


def test_beside_an_unknown_part_nothing_is_called_free() -> None:
    pieces = stacked_bar([(70, "allocated"), (UNKNOWN, "other")], 140, 8)
    assert pieces == [("████", "allocated on allocated"), ("┄┄┄┄", "muted")]


def test_a_little_is_not_nothing() -> None:
    assert plain(stacked_bar([(0.001, "driver")], 140, 10)).startswith("▏")
    assert plain(stacked_bar([(0.001, "driver")], 140, 10, MONOCHROME)).startswith("╳")


def test_a_slim_bar_is_a_line_to_half_a_cell_without_steps() -> None:
    assert plain(stacked_bar([(104, "ok")], 160, 10, slim=True)) == "━━━━━━╸───"
    assert plain(meter(100, 4, "ok", slim=True)) == "━━━━"
    assert plain(meter(0, 4, "ok", slim=True)) == "────"
    assert plain(meter(0.1, 4, "ok", slim=True)) == "╸───", "a little is not nothing"
    assert plain(meter(50, 4, "ok", MONOCHROME, slim=True)) == "━━··"
    assert plain(meter(50, 4, "ok", ASCII, slim=True)) == "##.."
    assert plain(meter(50, 4, "muted", slim=True, idling=True)) == "╍╍──", "no progress"
    assert plain(meter(50, 4, "muted", ASCII, slim=True, idling=True)) == "::.."


def test_the_course_of_a_load_is_hatched_where_it_is_no_progress() -> None:
    loads = [None, 90.0, 0.0, 90.0, None]
    assert plain(load_line(loads, 5, 100.0, 3)) == " ▇▁░┄"


@given(st.floats(0.2, 0.8), st.sampled_from([2, 3, 9, 40]))
def test_slim_bars_of_the_same_bytes_begin_alike_wherever_the_parts_meet(
    share: float, width: int
) -> None:
    """The parts of a training move within a step: a bar's first cell does not follow them."""
    held = 140 / width * 0.9
    bar = stacked_bar(
        [(held * share, "allocated"), (held * (1 - share), "cached")], 140, width, slim=True
    )
    assert bar[0] == ("━", "allocated")


def test_a_part_too_small_to_count_does_not_colour_a_bar_of_one_cell() -> None:
    bar = stacked_bar([(0.1, "allocated"), (5.0, "cached")], 140, 9, slim=True)
    assert bar[0] == ("╸", "cached")


@given(st.floats(40, 110), st.sampled_from([12, 20, 26, 40]))
def test_equal_parts_are_equally_long_in_slim_bars_whatever_is_before_them(
    allocated: float, width: int
) -> None:
    parts = [(allocated, "allocated"), (6.0, "cached"), (4.1, "outside")]
    cells = [t for text, t in stacked_bar(parts, 140, width, slim=True) for _ in text]
    for amount, token in parts[1:]:
        size = amount / 140 * width
        count = cells.count(token)
        assert count == round(size) or (1 / 3 <= size < 1 / 2 and count == 1)
    assert abs(cells.count("allocated") - allocated / 140 * width) < 1.5


@pytest.mark.parametrize("width", [9, 10, 11])
def test_a_part_of_nearly_half_a_cell_is_seen_in_bars_of_neighbouring_widths(width: int) -> None:
    parts = [(60.0, "allocated"), (6.0, "cached"), (3.0, "outside"), (1.0, "driver")]
    tokens = [token for _, token in stacked_bar(parts, 140, width, slim=True)]
    assert tokens == ["allocated", "cached", "border"]


def test_many_small_parts_of_a_slim_bar_do_not_all_go_to_the_largest() -> None:
    small = ("cached", "outside", "other", "driver")
    parts = [(20.0, "allocated"), *((4.0, token) for token in small)]
    cells = [t for text, t in stacked_bar(parts, 100, 10, slim=True) for _ in text]
    assert cells[:5] == ["allocated", "allocated", "cached", "outside", "border"]


def test_what_lies_beyond_the_mark_is_in_the_colour_of_a_warning() -> None:
    def tokens(used: float, width: int) -> list[str]:
        cell = Bar(((used, "allocated"),), 140, warn_beyond=NEARLY_FULL)
        return [token for text, token in cell.draw(width, UNICODE) for _ in text]

    assert tokens(139, 40)[-2:] == ["warn", "warn"]
    assert tokens(139, 9)[-2:] == ["allocated", "warn"]
    assert "warn" in tokens(135, 40)
    assert "warn" not in tokens(132, 40)


@pytest.mark.parametrize(
    ("glyphs", "drawn"),
    [
        (UNICODE, "━" * 38 + "╋╋"),
        (MONOCHROME, "█" * 38 + "!!"),
        (ASCII, "#" * 38 + "!!"),
    ],
    ids=["unicode", "monochrome", "ascii"],
)
def test_what_lies_beyond_the_mark_has_a_texture_of_its_own(glyphs: Glyphs, drawn: str) -> None:
    for used, tight in ((139, True), (130, False)):
        cell = Bar(((used, "allocated"),), 140, warn_beyond=NEARLY_FULL)
        assert (plain(cell.draw(40, glyphs)) == drawn) == tight
        assert (glyphs.tight in plain(cell.draw(40, glyphs))) == tight


def test_too_much_is_clipped() -> None:
    assert plain(stacked_bar([(300, "allocated"), (10, "cached")], 140, 5)) == "█████"


def test_a_course_that_hardly_changes_is_a_low_line() -> None:
    for values in ([68.0, 70.0, 69.0], [4113.0] * 3):
        assert set(spark(values, 3, own_top(values))) == {"▂"}
    moves = [10.0, None, 70.0]
    assert spark(moves, 3, own_top(moves)) == "▁┄▇", "the largest is an eighth below its line"
    assert own_top([None]) == 0.0


def test_a_history_tells_zero_from_unknown_from_absent() -> None:
    assert spark([0, None, 100, 50], 6, 100) == "  ▁┄█▄"
    assert spark([0, 0], 2) == "▁▁"
    assert spark([200, 100], 2, 100) == "██"


def test_cells_of_tables_draw_themselves_at_any_width() -> None:
    for cell in (Bar(((70, "allocated"),), 140), Meter(50, "ok")):
        for width in (0, 1, 7, 30):
            assert len(plain(cell.draw(width, UNICODE))) == width
