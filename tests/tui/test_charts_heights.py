"""A value equal to a tick is drawn in the row of that tick, in every chart that has an axis."""

from __future__ import annotations

import random
import re

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from gpuscope.text.units import GIB
from gpuscope.tui.charts.axes import Heights
from gpuscope.tui.charts.line import AXIS_HEIGHT, LineChart, Series
from gpuscope.tui.charts.moments import Band, MomentChart
from gpuscope.tui.charts.stack_columns import Layer
from gpuscope.tui.charts.stacked import StackedChart, TimeChart
from gpuscope.tui.theme import MONOCHROME, THEMES, UNICODE, Tokens
from tests.tui.snapshots import run

SECONDS = [n / 2 for n in range(121)]
CASES = 50


class Both(App[None]):
    def compose(self) -> ComposeResult:
        yield LineChart()
        yield StackedChart(id="memory")
        yield TimeChart(id="time")
        yield MomentChart()


def rows_of_ticks(strips: list[Strip]) -> list[int]:
    """The rows with a tick, that of the smallest value first."""
    marked = [at for at, strip in enumerate(strips) if re.match(r" *[\d.e-]+[┤└]", strip.text)]
    return marked[::-1]


def row_of_the_newest(strips: list[Strip], inks: str) -> int:
    """The highest row that has anything in the last columns."""
    return next(at for at, strip in enumerate(strips) if set(strip.text[-2:]) & set(inks))


def test_a_line_at_the_value_of_a_tick_is_in_the_row_of_the_tick() -> None:
    dice = random.Random(7)
    braille = "".join(map(chr, range(0x2801, 0x2900)))

    async def body(pilot: Pilot[None]) -> None:
        chart = pilot.app.query_one(LineChart)
        for _ in range(CASES):
            low = dice.choice([0.0, 0.0, dice.uniform(1, 50)])
            high = low + dice.choice([100.0, 700.0, dice.uniform(0.01, 5000)])
            height, tokens = dice.randrange(4, 40), Tokens.of(pilot.app)
            chart.show([Series("", "accent", SECONDS, [low] * 121)], 60, low, high)
            ticks = rows_of_ticks(chart.paint(60, height, tokens))
            for number, row in enumerate(ticks):
                value = low + (high - low) * number / max(len(ticks) - 1, 1)
                chart.show([Series("", "accent", SECONDS, [value] * 121)], 60, low, high)
                strips = chart.paint(60, height, tokens)
                assert row_of_the_newest(strips, braille) == row, (low, high, height, value)
            plot = [at for at, strip in enumerate(strips) if re.search("[┤│└]", strip.text)]
            assert (ticks[0], ticks[-1]) == (plot[-1], plot[0]), "the ends are at the edges"
            assert ("└" in strips[ticks[0]].text) == (height >= AXIS_HEIGHT), "0 is the axis"

    run(Both, body, 80, 60)


def test_a_stack_at_the_value_of_a_tick_ends_in_the_row_of_the_tick() -> None:
    dice = random.Random(7)
    looks = [(Tokens(THEMES[0]), UNICODE), (Tokens(THEMES[0], monochrome=True), MONOCHROME)]

    async def body(pilot: Pilot[None]) -> None:
        for _ in range(CASES):
            memory = dice.random() < 0.5
            chart = pilot.app.query_one("#memory" if memory else "#time", StackedChart)
            most = dice.uniform(0.3, 200) * (GIB if memory else 10**6)
            height, (tokens, glyphs) = dice.randrange(4, 40), dice.choice(looks)
            capacity = most if memory else None

            def painted(
                value: float,
                chart: StackedChart = chart,
                most: float = most,
                capacity: float | None = capacity,
                height: int = height,
                tokens: Tokens = tokens,
            ) -> list[Strip]:
                values = [*[most] * 30, *[most / 4] * 30, *[value] * 61]
                chart.show([Layer("allocated", "one", values)], SECONDS, 60, capacity)
                return chart.paint(60, height, tokens)

            ticks = rows_of_ticks(painted(most))
            inks = glyphs.up[1:] + "".join(glyphs.patterns.values())
            for number, row in enumerate(ticks[1:], 1):
                value = chart._end * number / (len(ticks) - 1)
                found = row_of_the_newest(painted(value), inks)
                assert found == row, (most, height, value, tokens.key)
            foot = painted(most)[ticks[0]].text
            assert "└" in foot
            if glyphs is UNICODE:
                assert foot.rstrip().endswith(glyphs.upper), "the stack stands on its axis"

    run(Both, body, 80, 60)


def test_a_moment_of_a_snapshot_at_the_value_of_a_tick_ends_in_the_row_of_the_tick() -> None:
    dice = random.Random(7)

    async def body(pilot: Pilot[None]) -> None:
        chart, tokens = pilot.app.query_one(MomentChart), Tokens.of(pilot.app)
        for _ in range(CASES):
            most, height = dice.randrange(GIB), dice.randrange(4, 30)
            for number in (0, 1):
                rows = height - 1
                row = (rows, rows - rows // 2)[number]
                value = most * row // rows
                chart.show(Band((value,) * 8, (most, *[value] * 7)), 0)
                strips = chart.paint(60, height, tokens)
                ticks = [at for at, strip in enumerate(strips) if "┤" in strip.text]
                assert row_of_the_newest(strips, UNICODE.up[1:]) == ticks[number]
                assert strips[-1].text.endswith(UNICODE.upper)

    run(Both, body, 80, 60)


def test_the_ends_of_an_axis_are_its_lowest_and_its_highest_row() -> None:
    dice = random.Random(7)
    for _ in range(2000):
        low = dice.uniform(-100, 100)
        heights = Heights(low, low + dice.uniform(1e-3, 1e6), dice.randrange(1, 60))
        assert heights.row(heights.low) == 0
        assert heights.row(heights.high) == heights.rows - 1
