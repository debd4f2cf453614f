"""Readings in a line each: which have more lines, and what stands at their ends."""

from __future__ import annotations

from dataclasses import replace

from textual.app import App, ComposeResult

from gpuscope.store.view import History
from gpuscope.text.styled import plain
from gpuscope.tui.charts.bins import Bins
from gpuscope.tui.charts.legend import legend_lines
from gpuscope.tui.charts.load_strips import LOW_EIGHTHS, Lane, LoadStrips, binned, lane_rows
from gpuscope.tui.charts.trends import (
    Trend,
    Trends,
    drawn_course,
    moves,
    rows_of_trends,
    with_free_rows,
)
from gpuscope.tui.shared.host_trends import of_a_core_text, top_of_cores
from gpuscope.tui.theme import UNICODE
from tests.tui.snapshots import run, text


class Both(App[None]):
    """A chart of each kind, one below the other."""

    def compose(self) -> ComposeResult:
        yield Trends(classes="panel")
        strips = LoadStrips(classes="panel")
        strips.legend_elsewhere = "bar height = load"
        yield strips


def history(*values: float | None) -> History:
    return History(tuple(float(at) for at in range(len(values))), values)


def test_a_reading_that_moves_has_more_lines_and_a_steady_one_has_one():
    assert not moves(history(5.0, 5.05, None, 5.0))
    assert moves(history(5.0, 2.0))
    assert rows_of_trends([False, True, False], 5) == [1, 3, 1]
    assert rows_of_trends([True, True], 3) == [1, 1], "not enough for both"
    assert rows_of_trends([False] * 4, 2) == [1, 1], "the last ones have no room"


def test_free_lines_go_to_the_readings_that_move():
    assert with_free_rows([3, 3, 1], [True, False, False], 11) == [7, 3, 1]
    assert with_free_rows([3, 3], [True, True], 9) == [4, 4], "evenly, or not at all"
    assert with_free_rows([3, 3], [True, True], 7) == [3, 3]
    assert with_free_rows([3, 1], [False, False], 30) == [3, 1], "no higher wall of colour"
    assert with_free_rows([3], [True], 30) == [7]


def test_a_power_is_drawn_in_the_colours_of_a_load_by_quarters_of_its_limit():
    past = history(70.0, 200.0, 400.0, 690.0, None, 720.0)
    power = Trend("power", "series4", past, str, 700.0, by_load=True)
    (row,) = drawn_course(power, past.values, 1, UNICODE)
    cells = [(token, text) for text, token in row]
    assert [token for token, _ in cells] == [
        "load1", "load2", "load3", "load4", "faint", "load4",
    ]  # fmt: skip
    unlimited = replace(power, top=None)
    (row,) = drawn_course(unlimited, past.values, 1, UNICODE)
    assert {token for _, token in row} == {"series4", "faint"}, "no limit, no quarters"


def test_a_legend_too_long_for_the_border_takes_a_line_and_hides_no_colour():
    entries = [("█", "allocated", name) for name in ("allocated", "cached", "outside", "other")]
    above, border = legend_lines(entries, 24, 12)
    text = "".join(text for text, _ in [*above, *border])
    assert all(name in text for _, _, name in entries)
    assert legend_lines(entries, 80, 12)[0] == []
    above, border = legend_lines(entries, 30, 12)
    assert len([text for text, token in above if token == "allocated"]) == 2, "none stands alone"
    low = "".join(text for text, _ in legend_lines(entries, 24, 5)[1])
    assert "+" in low, "a low chart has no line for it"


def test_what_has_stopped_is_not_steady_and_its_hatch_is_explained():
    found: list[str] = []

    async def show(pilot) -> None:
        values = [5.0] * 20 + [None] * 40
        past, still = history(*values), history(*[5.0] * 60)
        trends = [
            Trend("step", "load1", past, str, step_age=47.0),
            Trend("CPU", "load1", past, str),
            Trend("host", "load1", still, str),
            Trend("gap", "load1", history(*[5.0] * 58, None, None), str),
        ]
        pilot.app.query_one(Trends).show(trends, 60.0, 59.0)
        lane = Lane("GPU 0", still, wasted_since=20.0)
        strips = pilot.app.query_one(LoadStrips)
        strips.show([lane], 60.0, 59.0)
        await pilot.pause()
        found.extend([text(pilot.app), plain(strips._subtitle)])

    run(Both, show, 46, 14)
    lines = {line.split()[0]: line for line in found[0].splitlines() if line.split()}
    assert "none for 47 s" in lines["step"], "the age of the step, not of the last value"
    assert "none for 40 s" in lines["CPU"]
    assert "steady" in lines["host"]
    assert "steady" in lines["gap"]
    assert found[1] == "bar height = load  ░ no progress", "no lane has a mean beside its value"


def test_a_hatch_is_seen_in_a_low_lane() -> None:
    (row,) = lane_rows([95.0, 52.0, 20.0], 1, UNICODE, wasted=0, most=LOW_EIGHTHS)
    assert "".join(part for part, _ in row) == UNICODE.hatch * 2 + UNICODE.up[1]
    assert {token for _, token in row} == {"faint"}, "no colour of a load that works"
    (row,) = lane_rows([95.0, 40.0], 1, UNICODE, most=LOW_EIGHTHS)
    assert "".join(part for part, _ in row) == "▅▂", "three eighths stay free above it"


def test_a_share_is_an_area_also_where_it_hardly_moves_and_other_readings_are_a_line():
    def drawn(*values: float, top: float | None = 100.0) -> str:
        trend = Trend("load", "load1", history(*values), str, top)
        return plain(drawn_course(trend, values, 1, UNICODE)[0])

    assert drawn(90.0, 96.0, 92.0) == "▆▇▆", "93 % is no hairline"
    assert drawn(50.0, 52.0, 55.0) == "▄▄▄"
    assert drawn(4.0, 4.0, 4.0) == "▁▁▁"
    assert drawn(20.0, 60.0, 90.0) == "▁▄▆", "what moves has a course"
    assert drawn(5.0, 5.0, top=None) == "──"
    assert drawn(5.0, 5.4, 5.2, top=None) == "───", "a steady step is a line, not a slab"
    assert drawn(5.0, 8.0, 5.2, top=None) == "▄▇▅"


def test_a_load_of_cores_has_a_scale_of_one_core_at_least():
    assert top_of_cores() == top_of_cores(history(None, 3.0)) == 100.0
    assert top_of_cores(history(20.0, 240.0), history(50.0)) == 240.0
    idle = Trend("CPU", "load1", history(1.0, 3.0, 0.0), of_a_core_text, top_of_cores())
    (row,) = drawn_course(idle, idle.history.values, 1, UNICODE)
    assert plain(row) == "▁▁▁", "0.03 cores are no full bar"


def test_a_course_ends_with_the_reading_from_which_on_nothing_is_known() -> None:
    """Readings far apart are held up to the next one, and not beyond one that says it is over."""
    seconds, bins = tuple(float(at) for at in range(0, 60, 5)), Bins.ending(59.0, 60.0, 60)
    course = binned(History(seconds, (*[20.0] * 6, *[None] * 6)), bins, 59.0, hold_last=False)
    last = max(at for at, value in enumerate(course) if value is not None)
    assert last == bins.index(30.0) - 1
    gap = binned(History(seconds, (*[20.0] * 6, None, *[20.0] * 5)), bins, 59.0, hold_last=False)
    assert None not in gap[bins.index(0.0) : bins.index(55.0)], "a gap of a moment is held"


def test_the_colours_of_a_load_are_never_parted_and_the_mean_is_explained() -> None:
    colours = "▂ 0-25  ▄ 25-50  ▆ 50-75  █ 75-100 %"
    found: dict[tuple[int, int], tuple[str, str]] = {}

    async def show(pilot) -> None:
        strips = pilot.app.query_one(LoadStrips)
        strips.legend_elsewhere = "bar height = load"
        past = history(*[float(at) for at in range(60)])
        strips.show([Lane("GPU 0", past, wasted_since=20.0, begins=5.0)], 60.0, 59.0)
        for size in ((90, 12), (57, 12), (57, 7), (38, 7), (16, 7)):
            above, border = strips._legend_lines(*size)
            found[size] = plain(above), plain(border)

    run(Both, show, 60, 20)
    signs, brief = "ø mean of job  ░ no progress", "bar height = load  ░ no progress"
    assert found[90, 12] == ("", f"ø mean of job  {colours}  ░ no progress")
    assert found[57, 12] == (signs, colours)
    assert found[57, 7] == ("", brief.replace("bar", "ø mean of job  bar"))
    assert found[38, 7] == ("", signs), "a bar is as high as its load, as one would think"
    assert found[16, 7] == ("", "░ no progress")
