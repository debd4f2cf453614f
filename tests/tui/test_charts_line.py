"""The line chart: its axes, its legend, and that no series can break it."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot

from gpuscope.text.clock import MINUTE, clock_text
from gpuscope.text.styled import cells
from gpuscope.tui import theme
from gpuscope.tui.charts.axes import (
    even_ticks,
    nominal,
    round_end,
    time_axis,
    time_ticks,
    value_ticks,
)
from gpuscope.tui.charts.line import LARGEST, LineChart, Series, limits, values_between
from gpuscope.tui.charts.near_lines import Curve, Joined, join
from tests.tui.snapshots import grid, run, text


@pytest.fixture
def no_frames_for_nobody():
    """What goes to the terminal is looked at here."""


numbers = st.one_of(st.none(), st.floats())


class One(App[None]):
    CSS = "LineChart { border: round white; }"

    def __init__(self) -> None:
        super().__init__()
        theme.register(self)
        self.theme = theme.DARK

    def compose(self) -> ComposeResult:
        yield LineChart()


lows, highs = st.sampled_from([None, 0.0]), st.sampled_from([None, 100.0])


@given(st.lists(st.floats(-LARGEST, LARGEST), max_size=60), lows, highs)
def test_an_axis_is_finite_and_its_labels_few(
    seen: list[float], y_min: float | None, y_max: float | None
) -> None:
    low, high, _ = limits(seen, y_min, y_max)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    ticks = value_ticks(low, high, 12)
    assert len(ticks) <= 8
    assert all(len(label) <= 9 for _, label in ticks)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([0.0, 93.0], (0, 100)),
        ([2.31, 2.9], (2.2, 3.0)),
        ([5.0], (5, 6)),
        ([], (0, 1)),
        ([-3.0, 9.0], (-5, 10)),
    ],
)
def test_open_axes_end_at_round_numbers(seen: list[float], expected: tuple[float, float]) -> None:
    low, high, beyond = limits(seen, None, None)
    assert low <= min(seen, default=0)
    assert high >= max(seen, default=1)
    assert beyond is None
    assert high - low <= 2.5 * (max(seen) - min(seen)) if len(seen) > 1 else True


def test_one_spike_does_not_flatten_the_rest_and_is_named() -> None:
    _, high, beyond = limits([2.0 + n / 100 for n in range(100)] + [1e8], 0, None)
    assert beyond == 1e8
    assert 3 <= high <= 10
    assert limits([float(n) for n in range(100)], 0, None)[2] is None


def test_only_the_window_counts_for_the_axis() -> None:
    series = [Series("", "series1", [0, 1, 2, 3], [100.0, math.nan, None, 5.0])]
    assert values_between(series, 1, 3) == [5.0]


def test_ticks() -> None:
    assert [label for _, label in value_ticks(0, 100, 12)] == ["0", "25", "50", "75", "100"]
    assert [label for _, label in value_ticks(0, 1, 6)] == ["0", "0.5", "1.0"]
    ticks, taken = even_ticks(0, 140, 13, True)
    assert [label for _, label in ticks] == ["0", "35", "70", "105", "140"]
    assert taken == 12, "a row is given up for quarters of as many rows"
    assert [label for _, label in even_ticks(0, 23.5406, 12, True)[0]][-1] == "23.5"
    assert [label for _, label in even_ticks(3, 6, 4)[0]] == ["3.0", "4.5", "6.0"]
    assert [label for _, label in even_ticks(3, 6, 3)[0]] == ["3", "6"]
    assert [label for _, label in even_ticks(1.9012, 1.9024, 4)[0]] == [
        "1.9012",
        "1.9018",
        "1.9024",
    ]
    assert [label for _, label in time_ticks(60, 70)] == ["-60s", "-45s", "-30s", "-15s", "now"]
    assert [label for _, label in time_ticks(3600, 40)] == ["-60m", "-30m", "now"]
    assert [label for _, label in time_ticks(300, 140)][:2] == ["-5m", "-4m"]
    assert [label for _, label in time_ticks(120, 84)][:2] == ["-120s", "-100s"]
    day = 1_700_000_000.0
    at = [clock_text(day - before) for before in (60, 30, 0)]
    assert [label for _, label in time_ticks(60, 40, day)] == at
    at = [clock_text(day - before, MINUTE) for before in (7200, 3600, 0)]
    assert [label for _, label in time_ticks(7200, 40, day)] == at
    assert time_ticks(math.nan, 70) == time_ticks(1e308, 70) == [(0.0, "now")]


@given(st.sampled_from([0.0, 1.95, 2.2]), st.floats(1e-3, 1e6), st.integers(1, 40))
@example(0.0, 600.0, 7)
@example(0.0, 140.0, 11)
@example(1.95, 0.1, 8)
def test_ticks_are_equally_many_rows_apart(low: float, span: float, rows: int) -> None:
    for shares in (False, True):
        ticks, taken = even_ticks(low, low + span, rows, shares)
        assert rows - max(1, rows // 6) <= taken <= rows
        assert ticks[0][0] == low
        assert ticks[-1][0] == low + span, "an axis always names its end"
        places = [(value - low) / span * taken for value, _ in ticks]
        assert places == pytest.approx([round(place) for place in places], abs=1e-5)
        apart = {round(b) - round(a) for a, b in pairwise(places)}
        assert len(apart) == 1
        assert len(ticks) == 2 or apart.pop() >= 2


def test_a_tall_axis_has_a_tick_every_three_to_six_rows() -> None:
    for high in (100, 140, 700, 24, 450):
        for rows in range(15, 41):
            ticks, taken = even_ticks(0, high, rows, True)
            assert 3 <= taken / (len(ticks) - 1) <= 9, (high, rows)
            assert len(ticks) >= 3


@pytest.mark.parametrize(
    ("size", "named"),
    [
        (23.5406, 24),
        (125.867, 128),
        (139.8, 140),
        (140.4, 140),
        (140, 140),
        (100, 100),
        (31.2, 32),
        (79.6, 80),
    ],
)
def test_a_memory_is_called_by_a_round_size(size: float, named: float) -> None:
    assert nominal(size) == named


def test_a_growing_axis_ends_at_a_round_number_close_behind_its_newest_point() -> None:
    assert [round_end(x) for x in (0, 7, 100, 1001, 1199)] == [0, 7, 100, 1200, 1200]
    ends = [round_end(x) for x in range(1, 5000)]
    assert all(
        x <= end <= max(x * 1.25, x + 1) for x, end in zip(range(1, 5000), ends, strict=True)
    )
    assert len(set(ends)) < 80


@given(st.floats(), st.integers(0, 200))
def test_time_ticks_stand_any_window(window: float, width: int) -> None:
    assert 1 <= len(time_ticks(window, width)) <= 40


@given(st.integers(1, 10**6), st.integers(0, 8), st.integers(8, 200))
def test_the_time_axis_is_as_wide_as_the_chart(window: int, margin: int, inner: int) -> None:
    axis, labels = time_axis(window, margin, inner)
    assert cells(axis) == cells(labels) == margin + 1 + inner
    assert labels[0][0].endswith("now")


def test_a_legend_that_was_told_before_there_was_room_for_it_comes_with_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(pilot: Pilot[None]) -> None:
        chart = pilot.app.query_one(LineChart)
        with monkeypatch.context() as patch:
            patch.setattr(LineChart, "size", Size(0, 0))
            chart.show([Series("all cores", "series1", [0.0, 60.0], [10.0, 20.0])])
        chart.refresh()
        assert "all cores" not in text(pilot.app)
        chart.repaint()
        while "all cores" not in text(pilot.app):
            await pilot.pause()

    run(One, body, 40, 10)


def test_the_widget_shows_lines_axes_and_legend() -> None:
    async def body(pilot: object) -> None:
        app: App[None] = pilot.app  # type: ignore[attr-defined]
        chart = app.query_one(LineChart)
        assert "no readings yet" in text(app)
        seconds = [n / 2 for n in range(121)]
        one = Series("GPU 3", "series1", seconds, [50.0] * 121)
        chart.show([one, Series("mean", "series2", seconds, [20.0] * 121)], 60, 0, 100)
        await pilot.pause()  # type: ignore[attr-defined]
        shown = text(app)
        assert "100┤" in shown
        assert "━ GPU 3  ━ mean" in shown
        assert "-60s" in shown
        assert "now" in shown
        colours = {style.color for row in grid(app) for char, style in row if "⠀" < char <= "⣿"}
        assert colours == {chart.tokens.colour("series1"), chart.tokens.colour("series2")}

    run(One, body, 70, 16)


def test_a_line_is_between_the_ticks_that_its_value_is_between() -> None:
    """To half a cell, read like a ruler, in charts of every height."""

    async def body(pilot: Pilot[None]) -> None:
        chart = pilot.app.query_one(LineChart)
        for value in (0.0, 4.0, 33.0, 50.0, 71.0, 100.0):
            chart.show([Series("", "accent", range(61), [value] * 61)], y_max=100.0)
            for height in (4, 5, 6, 7, 10, 17, 40):
                ticks, drawn = {}, None
                strips = chart.paint(60, height, theme.Tokens.of(pilot.app))
                for above, strip in enumerate(strips):
                    if label := re.match(r" *(\d+)[┤└]", strip.text):
                        ticks[float(label[1])] = -above - 0.5
                    dots = ord(strip.text.rstrip()[-1:] or " ") - 0x2800
                    if dots > 0:
                        at = next(
                            at for at, bits in enumerate((0x09, 0x12, 0x24, 0xC0)) if dots & bits
                        )
                        drawn = -above - (at + 0.5) / 4
                each = (ticks[100.0] - ticks[0.0]) / 100
                assert drawn is not None
                assert abs(drawn - ticks[0.0] - value * each) <= 0.5, (value, height)
                for tick, place in ticks.items():
                    assert abs(place - ticks[0.0] - tick * each) < 0.25, "an even scale"

    run(One, body, 60, 20)


def test_what_is_unknown_since_its_last_reading_is_drawn_so_and_what_ended_is_not() -> None:
    seconds = [n / 2 for n in range(121)]

    async def body(pilot: object) -> None:
        app: App[None] = pilot.app  # type: ignore[attr-defined]
        chart = app.query_one(LineChart)

        async def bottom(*series: Series) -> str:
            chart.show(series, 60, 0, 100, now=60.0)
            await pilot.pause()  # type: ignore[attr-defined]
            rows = text(app).splitlines()
            lowest = next(at for at, row in enumerate(rows) if " 0└" in row)
            assert "┄" not in rows[lowest - 1], "it would be a value"
            return rows[lowest]

        lost = Series("GPU 1", "series1", seconds, [50.0] * 60 + [None] * 61)
        assert (await bottom(lost)).count("┄") in (32, 33), "half of the axis, but for its ticks"
        assert "┄" not in await bottom(lost, Series("GPU 2", "series2", seconds, [50.0] * 121))
        assert "┄" not in await bottom(Series("x", "series1", seconds[:60], [50.0] * 60))
        late = Series("x", "series1", seconds, [None] * 60 + [50.0] * 61)
        assert "┄" not in await bottom(late), "nothing was known before"

    run(One, body, 74, 16)


def test_steps_are_named_on_the_axis() -> None:
    async def body(pilot: object) -> None:
        app: App[None] = pilot.app  # type: ignore[attr-defined]
        steps = [float(n) for n in range(0, 401, 4)]
        loss = Series("loss", "series1", steps, [8 / (1 + n / 40) for n in steps])
        app.query_one(LineChart).show([loss], None, x="steps")
        await pilot.pause()  # type: ignore[attr-defined]
        assert "now" not in text(app)
        assert "400" in text(app)

    run(One, body, 70, 16)


@given(
    st.lists(st.tuples(st.floats(-1e12, 1e12), numbers), max_size=80),
    st.integers(5, 90),
    st.integers(1, 20),
)
@settings(max_examples=20, deadline=None)
def test_the_widget_stands_any_series(
    points: list[tuple[float, float | None]], width: int, height: int
) -> None:
    points = sorted(points, key=lambda point: point[0])

    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(LineChart)  # type: ignore[attr-defined]
        for window, low, high in ((60, 0, 100), (None, None, None), (1e6, 0, None)):
            chart.show(
                [Series("x", "series1", [s for s, _ in points], [v for _, v in points])],
                window,
                low,
                high,
            )
            await pilot.pause()  # type: ignore[attr-defined]
            assert all(len(row) == width for row in grid(pilot.app))  # type: ignore[attr-defined]

    run(One, body, width, height)


def test_showing_the_same_again_sends_nothing_to_the_terminal() -> None:
    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(LineChart)  # type: ignore[attr-defined]
        series = [Series("x", "series1", [n / 2 for n in range(121)], [50.0] * 121)]
        chart.show(series, 60, 0, 100)
        await pilot.pause()  # type: ignore[attr-defined]
        asked: list[object] = []
        chart.refresh = lambda *regions, **_: asked.append(regions)
        chart.show(series, 60, 0, 100)
        assert asked == []

    run(One, body, 70, 16)


def test_a_value_of_0_is_on_the_line_of_the_axis() -> None:
    async def body(pilot: Pilot[None]) -> None:
        chart, tokens = pilot.app.query_one(LineChart), theme.Tokens.of(pilot.app)
        chart.show([Series("x", "series1", range(61), [0.0] * 61)], 60, 0, 100)
        *plot, axis, _ = (strip.text for strip in chart.paint(40, 12, tokens))
        assert re.match(r" *0└⠒+", axis)
        assert not set("".join(plot)) & set(map(chr, range(0x2801, 0x2900)))

    run(One, body, 60, 20)


def test_lines_that_are_near_each_other_are_one_until_they_part() -> None:
    seconds = range(61)
    wave = [500.0 + 100 * math.sin(n / 9) for n in seconds]
    one = Series("GPU 0", "series1", seconds, wave)
    near = Series(
        "GPU 1",
        "series4",
        seconds,
        [value + (-1) ** n * 9 for n, value in zip(seconds, wave, strict=True)],
    )
    leaves = Series("GPU 1", "series4", seconds, [*wave[:55], *[50.0] * 6])
    far = Series("GPU 1", "series4", seconds, [value - 200 for value in wave])

    async def body(pilot: Pilot[None]) -> None:
        chart, tokens = pilot.app.query_one(LineChart), theme.Tokens.of(pilot.app)

        def shown(*series: Series) -> tuple[str, set[object]]:
            chart.show(series, 60, 0, 700)
            strips = chart.paint(60, 16, tokens)
            inks = {
                part.style.color
                for strip in strips
                for part in strip
                if part.style and set(part.text) & set(map(chr, range(0x2801, 0x2900)))
            }
            return "".join(text for text, _ in chart._subtitle), inks

        colours = [tokens.style(name).color for name in ("series1", "series4")]
        legend, inks = shown(one, near)
        assert (legend, inks) == ("━ GPU 0 ≈ GPU 1", {colours[0]})
        legend, inks = shown(one, leaves)
        assert (legend, inks) == ("━ GPU 0 ≈  ━ GPU 1", {*colours}), "where it leaves it is drawn"
        legend, inks = shown(one, far)
        assert (legend, inks) == ("━ GPU 0  ━ GPU 1", {*colours})
        legend, inks = shown(one, far, Series("GPU 2", "series3", seconds, near.values))
        assert (legend, inks) == ("━ GPU 0 ≈ GPU 2  ━ GPU 1", {*colours})
        short = Series("GPU 1", "series4", seconds[50:], wave[50:])
        legend, _ = shown(one, short)
        assert legend == "━ GPU 0  ━ GPU 1", "one that is known for a moment only stays itself"

    run(One, body, 74, 20)


def test_a_line_that_has_been_one_with_another_stays_it_a_little_longer() -> None:
    """Else the legend would change with every reading."""
    flat = Curve(range(61), [50.0] * 61)
    parts = Curve(range(61), [50.0] * 43 + [90.0] * 18)
    apart = join([flat, parts], 0.0, 60.0, 100.0, Joined({}, {}))
    assert apart == Joined({}, {})
    still = join([flat, parts], 0.0, 60.0, 100.0, Joined({1: 0}, {}))
    assert still.followers == {1: 0}
    assert still.apart[1] == [None] * 42 + [50.0] + [90.0] * 18


@given(lines=st.lists(st.lists(numbers, max_size=20), max_size=4), height=st.floats(1e-3, 1e30))
def test_no_readings_break_the_comparison_of_lines(
    lines: list[list[float | None]], height: float
) -> None:
    curves = [Curve(range(len(values)), values) for values in lines]
    joined = join(curves, 0.0, 20.0, height, Joined({}, {}))
    assert all(first < number for number, first in joined.followers.items())
    assert all(first not in joined.followers for first in joined.followers.values())


def test_a_curve_without_a_value_in_the_time_shown_is_not_in_the_legend_either() -> None:
    seconds = tuple(float(n) for n in range(100))
    ended = tuple(1.0 if n < 30 else None for n in range(100))

    async def body(pilot: Pilot[None]) -> None:
        chart = pilot.app.query_one(LineChart)
        known = Series("steps on", "series4", seconds, (2.0,) * 100)
        chart.show([Series("stands", "series1", seconds, ended), known], 60.0, now=99.0)
        await pilot.pause()
        assert "steps on" in text(pilot.app)
        assert "stands" not in text(pilot.app)
        chart.show([Series("stands", "series1", seconds, ended), known], 80.0, now=99.0)
        await pilot.pause()
        assert "stands" in text(pilot.app)

    run(One, body, 60, 14)
