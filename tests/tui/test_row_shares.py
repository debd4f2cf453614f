"""Rows of a column: boxes as high as their text, then lists that are cut, then charts."""

from __future__ import annotations

from gpuscope.store.view import History
from gpuscope.tui.charts.load_strips import spread
from gpuscope.tui.charts.trends import Trend, by_colour, is_seen
from gpuscope.tui.lab.tune_text import in_columns
from gpuscope.tui.widgets.row_shares import Want, share_rows


def test_a_text_is_whole_before_a_chart_grows():
    text, chart = Want(9), Want(8, 5, 30)
    assert share_rows(40, (text, chart)) == [9, 30]
    assert share_rows(20, (text, chart)) == [9, 11]
    assert share_rows(15, (text, chart)) == [9, 6]


def test_what_is_cut_comes_before_what_only_grows():
    load, listed = Want(6, most=20), Want(14, 8)
    assert share_rows(20, (load, listed)) == [6, 14], "the list first"
    assert share_rows(30, (load, listed)) == [16, 14]


def test_what_has_less_than_its_least_is_not_shown_and_leaves_its_rows_to_others():
    assert share_rows(9, (Want(5), Want(7, 6), Want(9, 3))) == [5, 0, 4]
    assert share_rows(3, (Want(0), Want(4))) == [0, 0]


def test_a_reading_that_stays_near_its_top_has_no_more_lines():
    def power(*watts: float) -> Trend:
        history = History(tuple(map(float, range(len(watts)))), watts)
        return Trend("power", "idle", history, str, 700.0)

    assert not is_seen(power(600.0, 640.0))
    assert is_seen(power(90.0, 640.0))


def test_free_lines_stand_between_colours_first_and_are_spread_evenly():
    order = by_colour(["a", "a", "b", "b"])
    assert [spread(free, order) for free in (-1, 0, 1, 2, 3, 4, 9)] == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 1, 1],
        [1, 1, 1, 1],
        [2, 2, 3, 2],
    ]


def test_candidates_stand_in_columns_or_not_at_all():
    blocks = [[[(name, "text")]] * 2 for name in "abc"]
    lines = in_columns(blocks, 10, 2, 5)
    assert ["".join(text for text, _ in line).split() for line in lines] == [
        ["a", "c"], ["a", "c"], [], ["b"], ["b"],
    ]  # fmt: skip
    assert in_columns(blocks, 10, 2, 4) == []
