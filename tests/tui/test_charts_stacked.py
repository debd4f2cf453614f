"""Stacked memory: peaks kept, gaps shown, tops exact to an eighth of a cell."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.strip import Strip

from gpuscope.store.view import History
from gpuscope.text.units import GIB
from gpuscope.tui.charts.axes import Heights
from gpuscope.tui.charts.cell_fit import draw_line
from gpuscope.tui.charts.marks import Tick
from gpuscope.tui.charts.stack_axis import TIMES, axis_top, unit_of
from gpuscope.tui.charts.stack_columns import Layer, stack_columns
from gpuscope.tui.charts.stacked import Peak, StackedChart, TimeChart, _draw
from gpuscope.tui.theme import MONOCHROME, UNICODE, UNREAD, Glyphs, Tokens
from tests.tui.snapshots import grid, run, text

UP = UNICODE.up
LAYERS = ("allocated", "cached", "outside", "other", "driver")


def columns(
    values: list[float | None], count: int, rate: float = 1.0, now: float | None = None
) -> list[float | None]:
    seconds = [n / rate for n in range(len(values))]
    stacks = stack_columns(
        [Layer("allocated", "", values)], seconds, len(values) / rate, now, count
    )
    return [None if stack is None else stack[0][0] for stack in stacks]


def test_of_several_samples_in_a_column_the_largest_stands() -> None:
    assert columns([1, 9, 2, 3, 4, 1, 2, 8], 4) == [9, 3, 4, 8]


def test_fewer_samples_than_columns_repeat_the_older_one() -> None:
    assert columns([1, 2, 3], 6) == [1, 1, 2, 2, 3, 3] or None not in columns([1, 2, 3], 6)[1:]


def test_unknown_is_a_gap_and_not_zero() -> None:
    assert columns([1, 2, None, None, 3, 4], 6) == [1, 2, None, None, 3, 4]


def test_when_samples_stop_the_chart_goes_on_empty() -> None:
    seen = columns([5.0] * 20, 20, now=29.0)
    assert seen[:10] == [5.0] * 10
    assert seen[-6:] == [None] * 6


def test_a_layer_that_was_never_known_does_not_hide_the_others() -> None:
    known = Layer("other", "", [1.0, 2.0])
    never = Layer("allocated", "", [None, None])
    assert stack_columns([never, known], [0, 1], 2, None, 2) == [
        ((1.0, "other"),),
        ((2.0, "other"),),
    ]


def test_columns_stay_where_they_are_while_time_passes() -> None:
    """Between two moves of a column nothing is drawn anew, and a move shifts everything by one."""
    values: list[float | None] = [float(n % 7) for n in range(200)]
    seconds = [n / 2 for n in range(200)]
    layer = [Layer("allocated", "", values)]
    early, later = (stack_columns(layer, seconds[:count], 40, None, 40) for count in (181, 183))
    assert later[:-2] == early[1:-1]


def filled(top: float, rows: int) -> Heights:
    """Heights by which ``top`` fills so many rows without an axis below them."""
    return Heights(0, top, rows, 0, 0)


SHARES = ([1.0], [0.6, 0.4], [0.5, 0.2, 0.15, 0.1, 0.05], [0.9, 0.04, 0.06])
"""How a stack is divided."""


def top_and_ticks(strips: list[Strip]) -> tuple[float, dict[float, float]]:
    """Where the last column ends, and where each tick is, in cells from the bottom."""
    top, ticks = None, {}
    for below, strip in zip(range(len(strips))[::-1], strips, strict=True):
        label = re.match(r" *([\d.]+)[┤└]", strip.text)
        if label:
            ticks[float(label[1])] = below + 0.5
        last = list(strip)[-1]
        if top is None and last.text[-1] in UP[1:]:
            both = last.style is not None and last.style.bgcolor is not None
            top = below + (1 if both else UP.index(last.text[-1]) / 8)
        elif top is None and last.text[-1] == UNICODE.bar:  # in the middle of its cell
            top = below + 0.5
    return top or float(0 in ticks), ticks


@pytest.mark.parametrize("shares", SHARES, ids=len)
def test_the_top_of_a_stack_is_between_the_ticks_that_its_value_is_between(
    shares: list[float],
) -> None:
    """To half a cell, read like a ruler, in charts of every height and for axes of every length."""

    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart = app.query_one(StackedChart)
        for card in (139.8, 23.5):
            for value in (0.02, 0.3, 0.505, 0.75, 0.96, 1.0):
                held = value * card * GIB
                layers = [
                    Layer(token, token, [part * held] * 121)
                    for token, part in zip(LAYERS, shares, strict=False)
                ]
                chart.show(layers, [n / 2 for n in range(121)], 60, card * GIB)
                for height in (1, 2, 3, 4, 5, 7, 13, 41):
                    strips = chart.paint(60, height, Tokens.of(app))
                    top, ticks = top_and_ticks(strips[:-1] if height >= 4 else strips)
                    zero, most = ticks.setdefault(0.0, 0.0), max(ticks)
                    each = (ticks[most] - zero) / most
                    due = zero + held / unit_of(held)[1] * each
                    assert abs(top - due) <= 0.5, (card, held, height)
                    for tick, place in ticks.items():
                        assert abs(place - zero - tick * each) < 0.25, "an even scale"

    run(One, body, 60, 20)


def test_without_colour_each_layer_has_its_glyph() -> None:
    (column,), _ = _draw(
        [((50.0, "allocated"), (25.0, "cached"), (25.0, "other"))], 4, filled(100.0, 4), MONOCHROME
    )
    assert [glyph for glyph, _ in column] == ["█", "█", "▒", "⠶"]


class One(App[None]):
    def compose(self) -> ComposeResult:
        yield StackedChart()


class Framed(App[None]):
    CSS = "StackedChart { border: round white; }"

    def compose(self) -> ComposeResult:
        yield StackedChart()


class FramedTimes(App[None]):
    CSS = "TimeChart { border: round white; }"

    def compose(self) -> ComposeResult:
        yield TimeChart()


class OneOfTimes(App[None]):
    def compose(self) -> ComposeResult:
        yield TimeChart()


def test_the_widget_draws_axis_capacity_and_time() -> None:
    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        assert "no readings yet" in text(pilot.app)  # type: ignore[attr-defined]
        layer = Layer("allocated", "allocated", [20 * GIB, *[70 * GIB] * 120])
        chart.show(
            [layer, Layer("free", "free", [70 * GIB] * 121)],
            [n / 2 for n in range(121)],
            60,
            140 * GIB,
        )
        await pilot.pause()  # type: ignore[attr-defined]
        shown = text(pilot.app)  # type: ignore[attr-defined]
        lines = shown.splitlines()
        assert next(line for line in lines if line).startswith("140┤")
        assert lines[-2].startswith("  0└"), "zero is where the areas begin"
        assert lines[-3].startswith("   │██")
        assert lines[-1].lstrip().startswith("-60s")
        assert lines[-1].endswith("now")
        filled = sum("█" in line for line in lines)
        above = sum(not line for line in lines)
        assert abs(filled - (len(lines) - above - 2) / 2) <= 1
        assert above <= 3, "rows given up for ticks that are equally far apart"
        chart.show(
            [Layer("allocated", "", [600.0] * 121)],
            [n / 2 for n in range(121)],
            60,
            None,
            title="Timeline",
        )
        await pilot.pause()  # type: ignore[attr-defined]
        assert str(chart.border_title) == "Timeline, B"
        assert "600┤" in text(pilot.app) or "800┤" in text(pilot.app)  # type: ignore[attr-defined]
        held = [Layer("allocated", "", [6.0 * GIB] * 121)]
        chart.show(held, [n / 2 for n in range(121)], 60, 140.4 * GIB, title="VRAM of GPU 0")
        title = str(chart.border_title)
        assert title == "VRAM of GPU 0, GiB (of 140 GiB)", (
            "the axis ends below the card, so the card is named"
        )
        assert len(title) <= 80 // 2 - 6, "it stands above half of the smallest screen"

    run(One, body, 60, 20)


def test_the_axis_ends_near_the_data_while_the_card_is_nearly_empty() -> None:
    card = 140 * GIB
    assert axis_top(100 * GIB, card) == card
    assert axis_top(18.2 * GIB, card) == 20 * GIB
    assert axis_top(3 << 20, card) >= card / 32, "the driver's own megabytes are no mountain"
    assert axis_top(0, card) > 0
    assert axis_top(0, None) == 0


def test_the_axis_of_a_slow_first_step_does_not_stay_when_it_has_left_the_chart() -> None:
    before = axis_top(78e6, None, 0.0, TIMES)
    assert before == 80e6
    assert axis_top(26e6, None, before, TIMES) == 30e6


def test_the_axis_does_not_flicker_between_two_scales() -> None:
    card = 140 * GIB
    top = axis_top(18.2 * GIB, card)
    assert axis_top(8 * GIB, card, top) == top
    assert axis_top(3 * GIB, card, top) < top
    assert axis_top(21 * GIB, card, top) > top
    assert axis_top(100 * GIB, card, top) == card


@given(st.floats(0, 1e15), st.one_of(st.none(), st.floats(1, 1e13)), st.floats(0, 1e15))
def test_the_axis_holds_its_data_and_never_ends_above_the_card(
    peak: float, card: float | None, before: float
) -> None:
    before = min(before, card) if card else before
    top = axis_top(peak, card, before)
    assert top >= min(peak, card or peak) * 0.999 or peak < 1
    assert top <= (card or top)


def test_the_unit_fits_the_size() -> None:
    assert [unit_of(size)[0] for size in (0, 600, 5 << 10, 5 << 20, 5 << 30)] == [
        "B",
        "B",
        "KiB",
        "MiB",
        "GiB",
    ]


def test_events_steps_and_a_peak_are_drawn_where_there_is_room() -> None:
    found: dict[int, list[str]] = {}

    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        seconds = [n / 2 for n in range(121)]
        steps = History(tuple(seconds), tuple(100.0 + s for s in seconds))
        chart.show(
            [Layer("allocated", "allocated", [20 * GIB, *[60 * GIB] * 120])],
            seconds,
            60,
            100 * GIB,
            ticks=[Tick(30.0, "oom", "bad")],
            steps=steps,
            peak=Peak(80.0 * GIB, "peak"),
        )
        await pilot.pause()  # type: ignore[attr-defined]
        found[pilot.app.size.height] = text(pilot.app).splitlines()  # type: ignore[attr-defined]

    for height in (20, 8, 5):
        run(One, body, 60, height)
    assert "▲" in found[20][-2]
    assert found[20][-4].endswith("▀▀▀"), "no row stands between the areas and their axis"
    assert found[20][-1].startswith("step")
    assert "╵120" in found[20][-1]
    line = next(row for row, text_ in enumerate(found[20]) if "▔▔▔" in text_ or "▁▁▁" in text_)
    assert abs(line - (16 - 80 / 100 * 16)) <= 1, "at 80 of 100 GiB of 16 rows"
    assert not any("step" in row for row in found[8])
    assert any("▲" in row for row in found[8])
    assert not any("▲" in row for row in found[5])


@pytest.mark.parametrize("height", [24, 9, 7])
def test_an_event_is_in_the_legend_where_it_is_drawn(height: int) -> None:
    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(TimeChart), [n / 2 for n in range(121)]
        values = [float(n % 9) * 1e6 for n in range(121)]
        ticks = [Tick(30.0, "stall", "bad")]
        chart.show([Layer("allocated", "a part", values)], seconds, 60, None, ticks=ticks)
        await pilot.pause()  # type: ignore[attr-defined]
        lines = text(app).splitlines()
        drawn = any(UNICODE.stall in line for line in lines[:-1])
        assert drawn is (height > 8)
        assert (f"{UNICODE.stall} stall" in lines[-1]) is drawn

    run(FramedTimes, body, 60, height)


def test_a_chart_ends_where_the_last_sample_does_however_wide_its_columns_are() -> None:
    """Two columns of five seconds are no reason to show a process that has ended as if it ran."""
    shown = stack_columns([Layer("allocated", "", [1.0] * 100)], range(100), 120, 119.0, 24)
    assert [one is not None for one in shown] == [True] * 20 + [False] * 4


def test_the_row_of_steps_is_named_in_whole_also_where_the_margin_is_narrow() -> None:
    seconds = [n / 2 for n in range(121)]
    found: list[str] = []

    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        for later in (0.0, 1000.0):
            steps = History(tuple(seconds), tuple(later + s for s in seconds))
            chart.show(
                [Layer("allocated", "allocated", [6 * GIB] * 121)],
                seconds,
                60,
                8 * GIB,
                steps=steps,
            )
            await pilot.pause()  # type: ignore[attr-defined]
            found.append(text(pilot.app).splitlines()[-1])  # type: ignore[attr-defined]

    run(One, body, 60, 20)
    assert all(row.startswith("step ") for row in found), found


def test_a_peak_above_the_data_is_inside_the_axis() -> None:
    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        layer = Layer("allocated", "allocated", [10 * GIB] * 121)
        chart.show(
            [layer], [n / 2 for n in range(121)], 60, 140 * GIB, peak=Peak(100.0 * GIB, "peak")
        )
        await pilot.pause()  # type: ignore[attr-defined]
        assert any(line in text(pilot.app) for line in ("▔▔▔", "▁▁▁"))  # type: ignore[attr-defined]

    run(One, body, 60, 20)


LAYERS_BELOW = ("allocated", "cached")


def of_a_peak(high: int, glyphs: Glyphs, tops: list[int]) -> list[list[tuple[str, str]]]:
    """Columns with the line of a peak, by the tops of allocated in eighths; cached ends at 48."""
    stacks = [tuple(zip((top, max(48 - top, 0)), LAYERS_BELOW, strict=True)) for top in tops]
    drawn, _ = _draw(stacks, 10, filled(10 * 8, 10), glyphs)
    draw_line(drawn, high, glyphs)
    return drawn


@pytest.mark.parametrize("high", range(0, 80, 3))
def test_the_line_of_a_peak_runs_through_every_column_at_the_nearer_edge(high: int) -> None:
    for column in of_a_peak(high, UNICODE, [*range(40), 72]):
        assert column[high // 8][0] == ("▁" if high % 8 < 4 else "▔")


@pytest.mark.parametrize("high", range(80))
def test_no_layer_stands_above_the_line_of_its_peak(high: int) -> None:
    for top in range(high + 2):
        (column,) = of_a_peak(high, UNICODE, [top])
        line, row = column[high // 8], high // 8
        assert all(spec.split(" ")[0] != "allocated" for _, spec in column[row + 1 :])
        if line[0] == "▁":
            assert line[1] != "selected on allocated", (high, top)


def test_without_colour_the_line_of_a_peak_leaves_the_layers_to_be_seen() -> None:
    drawn = of_a_peak(20, MONOCHROME, [40] * 10)
    assert "".join(column[2][0] for column in drawn) == "━███━███━█"
    (only,) = of_a_peak(44, MONOCHROME, [40])
    assert only[5] == (MONOCHROME.fill("cached"), "cached"), "the only cell of a layer"
    free = of_a_peak(70, MONOCHROME, [40] * 10)
    assert {column[8][0] for column in free} == {"━"}


def test_the_line_of_a_peak_begins_where_its_process_does() -> None:
    """What another one held before was more: it is no part of that peak."""

    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        layer = Layer("allocated", "allocated", [*[90 * GIB] * 61, *[10 * GIB] * 60])
        peak = Peak(40.0 * GIB, "peak", since=30.0)
        chart.show([layer], [n / 2 for n in range(121)], 60, 140 * GIB, peak=peak)
        await pilot.pause()  # type: ignore[attr-defined]
        rows = text(pilot.app).splitlines()  # type: ignore[attr-defined]
        (line,) = (row for row in rows if "▔▔▔" in row or "▁▁▁" in row)
        tall = next(row for row in rows if "███" in row).rstrip(" │").rindex("█")
        assert 0 <= min(map(line.index, set(line) & set("▔▁"))) - tall <= 2

    run(One, body, 60, 20)


def test_the_line_of_a_peak_says_nothing_of_the_time_for_which_nothing_is_known() -> None:
    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        layer = Layer("allocated", "allocated", [*[10 * GIB] * 60, *[None] * 61])
        chart.show(
            [layer], [n / 2 for n in range(121)], 60, 140 * GIB, peak=Peak(100.0 * GIB, "peak")
        )
        await pilot.pause()  # type: ignore[attr-defined]
        rows = text(pilot.app).splitlines()  # type: ignore[attr-defined]
        (line,) = (row for row in rows if "▔▔▔" in row or "▁▁▁" in row)
        (unknown,) = (row for row in rows if "┄┄┄" in row)
        assert len(line.rstrip(" │")) <= unknown.index("┄")

    run(One, body, 60, 20)


def test_a_full_card_is_a_warning_beyond_95_percent() -> None:
    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        for held in (94, 98):
            layer = Layer("allocated", "allocated", [held * GIB] * 121)
            chart.show([layer], [n / 2 for n in range(121)], 60, 100 * GIB)
            await pilot.pause()  # type: ignore[attr-defined]
            lines = grid(pilot.app)  # type: ignore[attr-defined]
            warn = Tokens.of(pilot.app).colour("warn")  # type: ignore[attr-defined]
            top = next(at for at, line in enumerate(lines) if line[2][0] == "0")
            assert (lines[top][30][1].color == warn) == (held == 98)
            assert lines[top + 2][30][1].color != warn, "only what is beyond"

    run(One, body, 60, 20)


def test_layers_that_do_not_move_are_filled_as_all_others_are() -> None:
    """Lines at the tops of a stack would read as the amounts of its layers."""

    async def body(pilot: object) -> None:
        chart, tokens = pilot.app.query_one(TimeChart), Tokens.of(pilot.app)  # type: ignore[attr-defined]
        sizes = {"allocated": 36e6, "cached": 4e6}
        layers = [Layer(token, token, [size] * 60) for token, size in sizes.items()]
        chart.show(layers, [float(n) for n in range(60)], 60, None)
        strips = chart.paint(60, 40, tokens)
        last = [next(iter(strip.crop(58, 59))) for strip in strips]
        assert "steady" in "".join(strip.text for strip in strips)
        filled = [cell for cell in last if set(cell.text) & set(UP[1:])]
        allocated = [cell for cell in filled if cell.style.color == tokens.colour("allocated")]
        assert len(allocated) > 5 * (len(filled) - len(allocated)) > 0

    run(OneOfTimes, body, 60, 40)


@pytest.mark.parametrize("capacity", [9, 100, 1000])
def test_a_chart_has_all_its_rows_while_an_event_leaves_at_its_left(capacity: int) -> None:
    """Whether there is a row of events is decided before the cells of the axis are known."""

    async def body(pilot: object) -> None:
        chart = pilot.app.query_one(StackedChart)  # type: ignore[attr-defined]
        tokens, seconds = Tokens.of(pilot.app), [n / 2 for n in range(121)]  # type: ignore[attr-defined]
        layer = Layer("allocated", "allocated", [capacity * 0.9 * GIB] * 121)
        for n in range(80):
            ticks = [Tick(n / 20, "oom", "bad")]
            chart.show([layer], seconds, 60, capacity * GIB, 61.0, ticks=ticks)
            rows = [strip.text for strip in chart.paint(30, 14, tokens)]
            assert len(rows) == 14
            assert sum("└" in row for row in rows) == 1
            assert sum("now" in row for row in rows) == 1

    run(One, body, 60, 20)


def test_a_low_chart_shows_the_largest_layer_and_the_rest() -> None:
    """Which one is the largest does not change with every reading."""

    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(StackedChart), [n / 2 for n in range(121)]
        tokens = Tokens.of(app)
        sizes = {"allocated": 25.0, "cached": 20.0, "outside": 10.0}

        def shown(height: int) -> tuple[set[str], str]:
            layers = [Layer(token, token, [size * GIB] * 121) for token, size in sizes.items()]
            chart.show(layers, seconds, 60, 110 * GIB)
            colours = {tokens.colour(token): token for token in (*LAYERS, "idle")}
            cells = [part for strip in chart.paint(60, height, tokens) for part in strip]
            styles = [part.style for part in cells if set(part.text) & set(UP[1:])]
            inks = {ink for style in styles for ink in (style.color, style.bgcolor)}
            above, border = chart._legend_lines(60, height)
            legend = "".join(piece for piece, _ in [*above, *border])
            return {colours[ink] for ink in inks if ink in colours}, legend

        drawn, legend = shown(5)
        assert drawn == {"allocated", "idle"}, "the grey of a driver stands in tables beside it"
        assert "allocated" in legend
        assert "cached + outside" in legend
        assert shown(12)[0] == {"allocated", "cached", "outside"}
        sizes["cached"] = 26.0
        assert shown(5)[0] == {"allocated", "idle"}
        sizes["cached"] = 30.0
        assert shown(5)[0] == {"cached", "idle"}
        sizes |= {"allocated": 50.0, "cached": 50.0}
        assert shown(6)[0] == {"allocated", "cached", "outside"}, "what fills rows is no rest"
        del sizes["outside"]
        assert shown(5)[0] == {"allocated", "cached"}, "two have room"

    run(One, body, 60, 20)


def drawn_in(chart: StackedChart, tokens: Tokens) -> set[str]:
    """The tokens in whose colours a chart is painted."""
    cells = [
        part for strip in chart._strips for part in strip if {*part.text} & {*UP[1:], UNICODE.upper}
    ]
    inks = {ink for part in cells if part.style for ink in (part.style.color, part.style.bgcolor)}
    return {token for token in (*LAYERS, "series3", "idle") if tokens.colour(token) in inks}


@pytest.mark.parametrize("large", [["allocated"], ["allocated", "cached", "outside"]], ids=len)
def test_layers_that_are_drawn_as_one_are_grey_and_named_as_the_rest(large: list[str]) -> None:
    """Never in the colour of one of them, which a table beside it gives to that one alone."""

    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(TimeChart), [n / 2 for n in range(121)]
        sizes = dict.fromkeys(large, 60e6 / len(large)) | {"series3": 15e5, "driver": 12e5}
        layers = [
            Layer(token, f"the part of a step {token}", [size] * 121)
            for token, size in sizes.items()
        ]
        chart.show(layers, seconds, 60, None)
        chart.legend_elsewhere = "legend as in the table"
        due = (
            "█ the part of a step allocated  █ rest"
            if len(large) == 1
            else "█ rest, others as in the table"
        )
        for _ in range(100):  # it is painted first, and named then
            await pilot.pause(0.01)  # type: ignore[attr-defined]
            if due in text(app):
                break
        assert due in text(app)
        # the usual grey is that of one of them
        assert drawn_in(chart, Tokens.of(app)) == {*large, "idle"}

    run(FramedTimes, body, 44, 14)


def test_a_legend_that_has_no_room_for_all_names_leaves_the_smallest_to_the_rest() -> None:
    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(TimeChart), [n / 2 for n in range(121)]
        sizes = {"allocated": 85e6, "cached": 5e6, "outside": 6e6, "series3": 4e6}
        layers = [
            Layer(token, f"a long name of {token}", [size] * 121) for token, size in sizes.items()
        ]
        chart.show(layers, seconds, 60, None)
        for _ in range(100):
            await pilot.pause(0.01)  # type: ignore[attr-defined]
            if "others" in text(app):
                break
        above, border = text(app).splitlines()[-2:]
        assert "█ a long name of allocated" in above
        assert "█ a long name of cached + 2 others" in border, "the rest has a name too"
        assert drawn_in(chart, Tokens.of(app)) == {"allocated", "driver"}

    run(FramedTimes, body, 52, 14)


def test_a_large_layer_is_never_part_of_the_rest_and_its_legend_is_cut() -> None:
    """The peak and events give way first: a table beside the chart does not tell the colours."""

    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(StackedChart), [n / 2 for n in range(121)]
        names = {"allocated": "allocated", "cached": "cached", "outside": "outside torch"}
        names |= {UNREAD: "not read", "other": "other"}
        layers = [Layer(token, label, [16.0 * GIB] * 121) for token, label in names.items()]
        ticks = [Tick(30.0, "stall", "bad"), Tick(40.0, "oom", "bad")]
        peak = Peak(70 * GIB, "peak since the start")
        for width, due in ((46, ["stall", "peak"]), (36, [])):
            chart.show(layers, seconds, 60, 100 * GIB, ticks=ticks, peak=peak)
            await pilot.resize_terminal(width + 2, 18)  # type: ignore[attr-defined]
            wanted = [label[:7] for label in (*names.values(), *due)]
            for _ in range(100):
                await pilot.pause(0.01)  # type: ignore[attr-defined]
                shown = text(app)
                if chart.size.width == width and all(label in shown for label in wanted):
                    break
            assert [label for label in wanted if label not in shown] == [], width
            assert "rest" not in shown
            assert drawn_in(chart, Tokens.of(app)) >= {"allocated", "cached", "outside", "other"}

    run(Framed, body, 60, 18)


def test_what_is_nowhere_large_enough_to_be_seen_is_not_in_the_legend() -> None:
    async def body(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        chart, seconds = app.query_one(TimeChart), [n / 2 for n in range(121)]
        sizes = {"allocated": 63e6, "cached": 2e5, "outside": 1e5}
        layers = [Layer(token, f"the {token}", [size] * 121) for token, size in sizes.items()]
        chart.show(layers, seconds, 60, None)
        for _ in range(100):
            await pilot.pause(0.01)  # type: ignore[attr-defined]
            if "cached" not in text(app):
                break
        assert text(app).splitlines()[-1].strip("╭╮╰╯─ ") == "█ the allocated"

    run(FramedTimes, body, 60, 14)
