"""The live table: cursor, scrolling, columns, messages."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest
from textual.app import App, ComposeResult

import gpuscope.tui
from gpuscope.tui import theme
from gpuscope.tui.cells import fit
from gpuscope.tui.overview.job_list import MIN_TITLE, JobList, columns_in
from gpuscope.tui.theme import Tokens
from gpuscope.tui.widgets.table import Column, LiveTable, TableRow, gaps_of, lay_out
from tests.tui.snapshots import grid, run, text

COLUMNS = (Column("name", "NAME", 6, flex=1), Column("value", "VALUE", 5, align="right"))


def rows(*keys: str) -> list[TableRow]:
    return [TableRow(key, {"name": f"row {key}", "value": key}) for key in keys]


class One(App[None]):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        theme.register(self)
        self.theme = theme.DARK
        self.options = options
        self.seen: list[tuple[str, str | None]] = []

    def compose(self) -> ComposeResult:
        yield LiveTable(COLUMNS, **self.options)

    def on_live_table_highlighted(self, message: LiveTable.Highlighted) -> None:
        self.seen.append(("highlighted", message.key))

    def on_live_table_selected(self, message: LiveTable.Selected) -> None:
        self.seen.append(("selected", message.key))


def played(body: Any, height: int = 8, width: int = 30, **options: Any) -> None:
    async def session(pilot: Any) -> None:
        pilot.app.query_one(LiveTable).focus()
        await pilot.pause()
        await body(pilot, pilot.app.query_one(LiveTable))

    run(lambda: One(**options), session, width, height)


def test_header_rows_and_cursor() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows("1", "2"))
        await pilot.pause()
        assert text(pilot.app).splitlines()[:3] == [
            "  NAME                   VALUE",
            "▸ row 1                      1",
            "  row 2                      2",
        ]

    played(body)


def test_a_long_text_goes_on_in_a_second_line_only_where_lines_are_free() -> None:
    def long(*keys: str) -> list[TableRow]:
        words = "a text that is longer than its cells"
        return [TableRow(key, {"name": [(words, "text")], "value": key}) for key in keys]

    async def body(pilot: Any, table: LiveTable) -> None:
        table.show([*long("1"), *rows("2"), *long("3")])
        await pilot.pause()
        assert text(pilot.app).splitlines()[1:6] == [
            "▸ a text that is longer      1",
            "  than its cells",
            "  row 2                      2",
            "  a text that is longer      3",
            "  than its cells",
        ]
        await pilot.click(LiveTable, offset=(5, 5))
        assert table.cursor_key == "3", "the second line is the row's, too"
        table.show([*long("1"), *rows("2", "4", "5", "6"), *long("3")])
        await pilot.pause()
        shown = text(pilot.app).splitlines()
        assert shown[2].strip() == "than its cells"
        assert "…" in shown[7], "no line is left for the second"

    played(body, wraps="name")


def test_keys_move_and_select() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*"abcdefghijklmnop"))
        keys = ["j", "down", "k", "up", "up", "end", "j", "home", "pagedown", "pageup", "G", "g"]
        for key, expected in zip(keys, "bcbaappagapa", strict=True):
            await pilot.press(key)
            assert table.cursor_key == expected, key
        await pilot.press("j", "enter")
        await pilot.pause()
        assert pilot.app.seen[-1] == ("selected", "b")
        assert ("highlighted", "p") in pilot.app.seen

    played(body)


def test_the_cursor_stays_on_its_row_when_the_order_changes() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*"abcdef"))
        await pilot.press("j", "j")
        pilot.app.seen.clear()
        table.show(rows(*"fcabde"))
        await pilot.pause()
        assert table.cursor_key == "c"
        assert "▸ row c" in text(pilot.app)
        assert pilot.app.seen == []

    played(body)


def test_when_the_row_goes_the_cursor_takes_its_place() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*"abc"))
        await pilot.press("end")
        table.show(rows(*"ab"))
        assert table.cursor_key == "b"
        table.show(rows(*"a"))
        table.show([])
        assert table.cursor_key is None
        await pilot.press("j", "enter", "home", "pageup")
        table.show(rows(*"xy"))
        await pilot.pause()
        assert table.cursor_key == "x"
        assert pilot.app.seen[-1] == ("highlighted", "x")

    played(body)


def test_scrolling_follows_the_cursor_and_shows_a_thumb() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*(f"{n:02d}" for n in range(40))))
        await pilot.press(*["j"] * 12)
        await pilot.pause()
        shown = text(pilot.app)
        assert "▸ row 12" in shown
        assert "row 05" not in shown
        assert "┃" in shown
        await pilot.press("end")
        await pilot.pause()
        assert "▸ row 39" in text(pilot.app).splitlines()[-1]
        table.show(rows("00", "39"))
        await pilot.pause()
        assert "row 00" in text(pilot.app)
        assert "┃" not in text(pilot.app)

    played(body)


def test_shrinking_the_terminal_keeps_the_cursor_in_view() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*(f"{n:02d}" for n in range(40))))
        await pilot.press("end")
        await pilot.resize_terminal(30, 4)
        await pilot.pause()
        assert "▸ row 39" in text(pilot.app)

    played(body, height=20)


def test_the_mouse_highlights_then_selects_and_scrolls() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*(f"{n:02d}" for n in range(40))))
        await pilot.pause()
        await pilot.click(LiveTable, offset=(5, 3))
        assert table.cursor_key == "02"
        assert ("selected", "02") not in pilot.app.seen
        await pilot.click(LiveTable, offset=(5, 3))
        await pilot.pause()
        assert ("selected", "02") in pilot.app.seen
        await pilot.click(LiveTable, offset=(5, 0))
        assert table.cursor_key == "02"

    played(body)


def test_hostile_and_wide_cells_keep_the_columns_straight() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        names = [
            "\x1b]52;c;QUFB\x07",
            "深層学習の訓練スクリプト.py",
            "🙂" * 20,
            "\u202egnp",
            "e\u0301" * 40,
            "plain",
        ]
        table.show(
            [
                TableRow(str(n), {"name": [(name, "text")], "value": "9"})
                for n, name in enumerate(names)
            ]
        )
        await pilot.pause()
        cells = grid(pilot.app)
        assert all(row[29][0] == "9" for row in cells[1:7])
        assert not any(
            "\x1b" in char or "\x07" in char or "\u202e" in char for row in cells for char, _ in row
        )

    played(body)


def test_without_a_cursor_nothing_is_marked_and_keys_scroll() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows(*(f"{n:02d}" for n in range(40))))
        table.action_move(5)
        await pilot.pause()
        assert "▸" not in text(pilot.app)
        assert text(pilot.app).splitlines()[1].startswith("row 05")
        assert not table.can_focus

    async def session(pilot: Any) -> None:
        await body(pilot, pilot.app.query_one(LiveTable))

    run(lambda: One(cursor=False), session, 30, 8)


def test_an_empty_table_says_so() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        assert "no trainer here" in text(pilot.app)
        table.show_empty([[("none of mine ", "muted"), ("u shows all", "accent")]])
        await pilot.pause()
        assert "none of mine u shows all" in text(pilot.app)
        table.show(rows("a"))
        await pilot.pause()
        assert "none of mine" not in text(pilot.app)

    played(body, empty="no trainer here")


def test_the_cursor_row_has_its_own_ground_only_while_focused() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        table.show(rows("a", "b"))
        await pilot.pause()
        ground = Tokens.of(pilot.app).style("selected").bgcolor
        assert grid(pilot.app)[1][20][1].bgcolor == ground
        assert grid(pilot.app)[2][20][1].bgcolor != ground
        pilot.app.set_focus(None)
        await pilot.pause()
        assert grid(pilot.app)[1][20][1].bgcolor != ground
        assert "▸ row a" in text(pilot.app)

    played(body)


def test_two_rows_with_one_key_are_refused() -> None:
    async def body(pilot: Any, table: LiveTable) -> None:
        with pytest.raises(ValueError, match="same key"):
            table.show(rows("a", "a"))

    played(body)


WIDE = (
    Column("a", "A", 4),
    Column("b", "B", 10, flex=1, priority=1),
    Column("c", "C", 10, flex=3, most=20),
    Column("d", "D", 6, priority=2),
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (100, {"a": 4, "b": 64, "c": 20, "d": 6}),
        (36, {"a": 4, "b": 10, "c": 10, "d": 6}),
        (35, {"a": 4, "b": 11, "c": 16}),
        (20, {"a": 4, "c": 14}),
        (10, {"a": 4, "c": 4}),
    ],
)
def test_columns_share_the_width_and_the_unimportant_go_first(
    width: int, expected: dict[str, int]
) -> None:
    placed = {column.key: cells for column, cells in lay_out(WIDE, width)}
    assert placed == expected
    assert sum(placed.values()) + 2 * (len(placed) - 1) == width


def all_columns() -> list[tuple[str, tuple[Column, ...]]]:
    """The columns of every table that a module of the screens names."""
    found = []
    for info in pkgutil.walk_packages(gpuscope.tui.__path__, "gpuscope.tui."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, tuple) and value and all(type(one) is Column for one in value):
                found.append((f"{info.name}.{name}", value))
    return found


def blanks_between_headings(line: str) -> list[int]:
    return [len(gap) for gap in re.findall(r"(?<=\S)( +)(?=\S)", line)]


@pytest.mark.parametrize("gap", [1, 2])
def test_no_two_headings_run_into_each_other(gap: int) -> None:
    tables = all_columns()
    assert len(tables) > 15
    for name, columns in tables:
        # a blank inside of a heading is no end of it
        named = [one._replace(title=one.title.replace(" ", "_")) for one in columns]
        for width in (40, 60, 74, 78, 100, 116, 160, 196):
            placed = lay_out(named, width, gap)
            gaps = gaps_of([column for column, _ in placed], gap)
            line = "".join(
                " " * before + fit(column.title, cells, column.align)
                for (column, cells), before in zip(placed, gaps, strict=True)
            )
            assert min(blanks_between_headings(line), default=2) >= 2, (name, width, line)


def test_no_two_headings_of_the_jobs_run_into_each_other() -> None:
    for width in range(60, 220):
        shown = columns_in(width)
        heading = JobList._heading(
            [(name, cells, least) for name, cells, least in shown], title=MIN_TITLE
        )
        line = "".join(text for text, _ in heading)
        for words in ("STEP TIME", "STEP AGE", "PEAK EVER"):
            line = line.replace(words, words.replace(" ", "_"))
        assert min(blanks_between_headings(line)) >= 2, line
