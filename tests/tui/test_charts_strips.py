"""The diff behind every widget: what is repainted is enough, and no more than needed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widgets import TabbedContent, TabPane

from gpuscope.text.units import GIB
from gpuscope.tui import theme
from gpuscope.tui.cells import fit
from gpuscope.tui.charts.legend import legend_of
from gpuscope.tui.charts.line import LineChart, Series
from gpuscope.tui.charts.stack_columns import Layer
from gpuscope.tui.charts.stacked import StackedChart
from gpuscope.tui.charts.strips import Painted, strip_of
from gpuscope.tui.memory.waterfall import Part, WaterfallChart
from gpuscope.tui.terminal.minimal_updates import LeanApp
from gpuscope.tui.terminal.strip_cells import _cells, changed_spans
from gpuscope.tui.theme import Tokens
from gpuscope.tui.widgets.bars import Bar
from gpuscope.tui.widgets.table import Column, LiveTable, TableRow
from gpuscope.tui.widgets.text import Lines
from tests.tui.snapshots import run, text
from tests.tui.terminal import Mirrored, Terminal


@pytest.fixture
def no_frames_for_nobody():
    """What goes to the terminal is looked at here."""


TOKENS = Tokens(theme.THEMES[0])
STYLES = [Style(bold=True), Style(color="red"), Style()]
alphabet = st.text(st.sampled_from("ab ▂⠿深🙂é\u0301"), max_size=30)
lines = st.lists(st.tuples(alphabet, st.sampled_from(STYLES)), max_size=6)


def strip(pieces: list[tuple[str, Style]], cells: int) -> Strip:
    return Strip([Segment(text, style) for text, style in pieces if text]).adjust_cell_length(
        cells, Style()
    )


@given(lines, lines, st.integers(1, 60))
def test_sending_the_changed_spans_makes_the_old_line_the_new_one(one, other, cells) -> None:  # type: ignore[no-untyped-def]
    old, new = strip(one, cells), strip(other, cells)
    terminal, after = _cells(old), _cells(new)
    for first, count in changed_spans(old, new):
        assert first >= 0
        assert after[first][0], "begins inside a wide character"
        assert first + count == len(after) or after[first + count][0], (
            "ends inside a wide character"
        )
        terminal[first : first + count] = after[first : first + count]
    assert terminal == after


def test_spans_are_small_and_far_ones_apart() -> None:
    old = strip([("util 95%   power 652 W" + " " * 20 + "ok", Style())], 60)
    new = strip([("util 94%   power 652 W" + " " * 20 + "no", Style())], 60)
    assert changed_spans(old, new) == [(6, 1), (42, 2)]
    assert changed_spans(old, old) == []


def test_a_mark_in_a_piece_of_its_own_belongs_to_the_letter_before() -> None:
    old, new = (
        strip([("ae", STYLES[0]), (f"{mark}b", STYLES[1])], 3) for mark in ("\u0301", "\u0300")
    )
    assert changed_spans(old, new) == [(1, 1)]


specs = st.sampled_from(["text", "muted", "bold ok", "allocated on cached"])


@given(st.lists(st.tuples(alphabet, specs), max_size=6), st.integers(0, 40))
def test_a_strip_has_exactly_the_cells_asked_for(pieces, cells) -> None:  # type: ignore[no-untyped-def]
    assert strip_of(pieces, cells, TOKENS).cell_length == cells
    assert strip_of(pieces, cells, TOKENS, "selected").cell_length == cells


def test_a_legend_says_how_many_it_left_out() -> None:
    entries = [
        ("█", "allocated", "allocated"),
        ("█", "cached", "cached"),
        ("█", "other", "other processes"),
    ]
    texts = [
        "".join(text for text, _ in legend_of(entries, cells)) for cells in (60, 38, 37, 24, 3)
    ]
    assert texts == [
        "█ allocated  █ cached  █ other processes",
        "█ allocated █ cached █ other processes",
        "█ allocated █ cached █ other process…",
        "█ allocated █ cached +1",
        "",
    ]


COLUMNS = (
    Column("a", "NAME", 10, flex=1),
    Column("b", "BAR", 10, flex=2),
    Column("c", "N", 5, align="right"),
)


class Board(LeanApp[Any], Mirrored):
    """Widgets of every kind beside each other, with borders and padding, as on a real screen."""

    draws = True

    CSS = """
    LiveTable, LineChart, StackedChart, WaterfallChart, Lines
    { border: round $gs-border; padding: 0 1; }
    Lines { height: 4; }
    """

    def __init__(self) -> None:
        super().__init__()
        theme.register(self)
        self.theme = theme.DARK

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.css_variables(self.current_theme)

    def compose(self) -> ComposeResult:
        yield Lines()
        with Horizontal():
            yield LiveTable(COLUMNS)
            yield WaterfallChart()
        with Horizontal():
            yield LineChart()
            yield StackedChart()


def fill(app: Board, rng: random.Random, moment: int) -> None:
    names = ["train.py", "深層学習.py", "🙂 demo", "e\u0301tude", "evil \x1b[2J"]
    rows = [
        TableRow(
            f"row{n}",
            {
                "a": rng.choice(names),
                "b": Bar(((rng.random() * 90, "allocated"), (rng.random() * 40, "cached")), 140),
                "c": [(str(rng.randrange(1000)), rng.choice(["ok", "warn"]))],
            },
        )
        for n in rng.sample(range(30), rng.randrange(0, 28))
    ]
    app.query_one(LiveTable).show(rows)
    seconds = [n / 2 for n in range(121 + moment)]
    values = [None if n % 17 == 3 else 50 + 45 * rng.random() for n in range(121 + moment)]
    app.query_one(LineChart).show([Series("x", "series1", seconds, values)], 60, 0, 100)
    layer = Layer("allocated", "allocated", [None if v is None else v * GIB for v in values])
    app.query_one(StackedChart).show([layer], seconds, 60, 140 * GIB)
    parts = [
        Part(fit(rng.choice(names), 12), rng.random() * 50 * GIB, "cached")
        for _ in range(rng.randrange(1, 9))
    ]
    app.query_one(WaterfallChart).show(parts)
    app.query_one(Lines).show(
        [[(rng.choice(names), "text"), (f" {moment}", "muted")], [("steady", "ok")]]
    )


@pytest.mark.slow
def test_partial_repaints_leave_the_same_screen_as_a_full_one() -> None:
    async def body(pilot: Any) -> None:
        app, rng = pilot.app, random.Random(7)
        for moment in range(12):
            fill(app, rng, moment)
            if moment % 3 == 1:
                await pilot.press("down", "down")
            if moment % 4 == 2:
                app.query_one(LiveTable).focus()
            await pilot.pause()
            assert app.terminal.rows == app.redrawn().rows, f"after {moment} updates"

    run(Board, body, 100, 34)


def test_one_changed_number_costs_a_few_bytes() -> None:
    async def body(pilot: Any) -> None:
        app = pilot.app
        table = app.query_one(LiveTable)
        rows = [TableRow(str(n), {"a": f"gpu {n}", "c": "100"}) for n in range(8)]
        table.show(rows)
        await pilot.pause()
        before = app.terminal.bytes
        table.show([*rows[:3], TableRow("3", {"a": "gpu 3", "c": "101"}), *rows[4:]])
        await pilot.pause()
        assert 0 < app.terminal.bytes - before < 120
        before = app.terminal.bytes
        table.show(list(table.rows))
        await pilot.pause()
        assert app.terminal.bytes == before

    run(Board, body, 100, 34)


class Tabs(Board):
    def compose(self) -> ComposeResult:
        with TabbedContent():
            with TabPane("one", id="one"):
                yield Lines(id="first")
            with TabPane("two", id="two"):
                yield Lines([[("old", "text")]], id="second")


def test_what_is_hidden_is_not_painted_and_is_right_when_it_is_shown() -> None:
    async def body(pilot: Any) -> None:
        app = pilot.app
        # Textual's own line below the tabs moves between one look and the next
        app.animation_level = "none"
        hidden: Painted = app.query_one("#second")
        await pilot.pause()
        for n in range(5):
            app.query_one("#second", Lines).show([[(f"new {n}", "text")]])
            await pilot.pause()
        assert hidden.paints == 0
        app.query_one(TabbedContent).active = "two"
        await pilot.pause()
        assert "new 4" in text(app)
        assert app.terminal.text() == app.redrawn().text()
        app.query_one(TabbedContent).active = "one"
        await pilot.pause()
        paints = hidden.paints
        app.query_one("#second", Lines).show([[("newest", "text")]])
        await pilot.pause()
        assert hidden.paints == paints
        app.query_one(TabbedContent).active = "two"
        await pilot.pause()
        assert "newest" in text(app)

    run(Tabs, body, 60, 12)


def test_the_test_terminal_reads_positions_styles_and_wide_characters() -> None:
    terminal = Terminal(8, 2)
    terminal.feed("\x1b[2;3H\x1b[1m深\x1b[0mx\x1b[1;1Hab")
    assert terminal.text() == "ab\n  深x"
    assert terminal.rows[1][2] == ("深", ("39", "49", frozenset("1")))
    terminal.feed("\x1b[1;1H\x1b[4;38;2;1;2;3;48;5;9mx\x1b[39my")
    assert terminal.rows[0][:2] == [
        ("x", ("38;2;1;2;3", "48;5;9", frozenset("4"))),
        ("y", ("39", "48;5;9", frozenset("4"))),
    ]


class OneText(Board):
    CSS = "Lines { border: none; height: auto; }"

    def compose(self) -> ComposeResult:
        yield Lines()


def test_text_that_grows_shorter_while_a_layout_waits_has_no_blank_rows() -> None:
    async def body(pilot: Any) -> None:
        screen, shown = pilot.app.screen, pilot.app.query_one(Lines)
        await pilot.pause()
        shown.show([[(f"line {n}", "text")] for n in range(5)])
        screen._clear_arrangement_cache()
        screen._refresh_layout()  # another widget's layout comes before the text's own turn
        shown.show([[(f"line {n}", "text")] for n in range(4)])
        await pilot.pause()
        assert shown.size.height == 4

    run(OneText, body)
