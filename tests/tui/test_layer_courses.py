"""A stack that hardly moves is low, and each of its layers has a line of its own."""

from __future__ import annotations

from textual.app import App, ComposeResult

from gpuscope.text import styled
from gpuscope.text.units import GIB
from gpuscope.tui.charts.layer_courses import (
    STACK_ROWS,
    axis_of,
    between_text,
    line_through,
    rows_of_layers,
    wanted_rows,
)
from gpuscope.tui.charts.stack_columns import Layer
from gpuscope.tui.charts.stacked import StackedChart
from gpuscope.tui.theme import UNICODE
from tests.tui.snapshots import run, text

SECONDS = [float(at) for at in range(60)]


class One(App[None]):
    """A chart over the whole screen."""

    def compose(self) -> ComposeResult:
        yield StackedChart(classes="panel")


def draw(moved: float, height: int = 40) -> str:
    """Return a chart of 50 GiB that grow by ``moved`` GiB below 20 GiB that never change."""
    grows = [(50 + moved * at / 59) * GIB for at in SECONDS]
    still = [20.0 * GIB] * 60

    found: list[str] = []

    async def show(pilot) -> None:
        chart = pilot.app.query_one(StackedChart)
        layers = [Layer("allocated", "live", grows), Layer("cached", "kept", still)]
        chart.show(layers, SECONDS, 60.0, 100.0 * GIB, now=59.0)
        await pilot.pause()
        found.append(text(pilot.app))

    run(One, show, 100, height)
    return found[0]


def test_a_flat_stack_says_how_much_each_layer_is_and_draws_what_changes():
    screen = draw(3.0)
    row = next(line for line in screen.splitlines() if " live " in line)
    assert "53.0 GiB" in row
    assert "50.0 – 53.0 GiB" in row
    assert "steady" in next(line for line in screen.splitlines() if " kept " in line)
    course = screen.splitlines()[screen.splitlines().index(row) + 1 :][:3]
    assert any("\u2800" < cell <= "\u28ff" for cell in "".join(course)), "it is drawn as a line"
    assert "█" not in "".join(course), "an area on a cut scale would look like all of it"


def test_courses_have_one_scale_and_little_is_no_drama():
    """Four percent of a layer do not fall from the top of its course to the bottom."""
    found: dict[str, int] = {}

    async def show(pilot) -> None:
        chart, ended = pilot.app.query_one(StackedChart), 50
        half = ended // 2
        moved = [
            Layer("series1", "input", [81e6] * half + [78e6] * half),
            Layer("series3", "copy", [1e6] * half + [2e6] * half),
            Layer("series5", "forward", [3e5] * half + [0.0] * half),
        ]
        chart.show(moved, SECONDS[:ended], 60.0, 100e6, now=SECONDS[ended - 1] + 0.5)
        await pilot.pause()
        rows = text(pilot.app).splitlines()
        names = {
            one.label: next(y for y, row in enumerate(rows) if one.label in row) for one in moved
        }
        for label, y in names.items():
            below = range(y + 1, min([at for at in names.values() if at > y], default=y + 1))
            dots = [at * 4 + dot for at in below for dot in range(4) if drawn_at(rows[at], dot)]
            found[label] = max(dots) - min(dots) if dots else 0
            ends = [rows[at].rstrip(" │") for at in below]
            assert not dots or max(map(len, ends)) >= 95, "it goes on to now"

    run(One, show, 100, 44)
    assert found["forward"] == 0, "it says so in words"
    assert 2 * found["copy"] < found["input"] < 16


def drawn_at(row: str, dot: int) -> bool:
    """Tell whether any braille in a row has a dot in this row of dots, from the top."""
    bits = (0x09, 0x12, 0x24, 0xC0)[dot]
    return any(0x2800 < ord(char) <= 0x28FF and ord(char) & bits for char in row)


def test_a_course_does_not_run_into_the_name_and_figures_of_the_next_layer():
    rows = draw(3.0).splitlines()
    (name,) = (at for at, line in enumerate(rows) if " kept " in line)
    assert not rows[name - 1].strip(" │")
    assert any("\u2800" < cell <= "\u28ff" for cell in rows[name - 2])


def test_a_line_has_gaps_where_nothing_is_known():
    glyphs = UNICODE._replace(lines=(("*", "*"),))
    drawn = line_through([0.0, 0.0, None, 2.0, 2.0], 3, 2.0, "allocated", glyphs)
    assert [styled.plain(line) for line in drawn] == ["   **", "     ", "**   "]


def test_a_narrow_timeline_says_between_what_a_course_moves_without_the_unit():
    assert between_text("83.4 GiB", "89.4 GiB") == "83.4 – 89.4 GiB"
    assert between_text("83.4 GiB", "89.4 GiB", brief=True) == "83.4–89.4"
    assert between_text("900 MiB", "1.2 GiB", brief=True) == "900 MiB – 1.2 GiB"


def test_a_course_has_an_axis_of_its_own_that_tells_its_ends():
    assert axis_of(327.2, 307.0, 3, 5) == [" 327┤", "    │", " 307┤"]
    assert axis_of(5.83, 5.52, 2, 5) == [" 5.8┤", " 5.5┤"]
    assert axis_of(5.83, 5.81, 2, 5) == ["5.83┤", "5.81┤"]
    assert axis_of(1005.2, 1005.1, 2, 4) == ["   │", "   │"], "there is no room to tell them apart"
    assert axis_of(5.83, 5.52, 1, 5) == ["    │"]


def test_a_stack_that_moves_has_the_whole_chart():
    screen = draw(40.0)
    assert "steady" not in screen
    assert " GiB" not in screen


def test_a_low_chart_keeps_its_rows_for_the_stack():
    assert "steady" not in draw(3.0, height=11)


def test_no_course_is_drawn_above_a_stack_of_a_few_rows():
    """In the rows of a page of a job, four of which are the axis, an event and step numbers."""
    for height in range(12, 21):
        rows = rows_of_layers([False, True, True, False], height)
        assert max(rows, default=1) == 1
        assert not rows or height - sum(rows) - 1 - 4 >= 10


def test_rows_go_to_the_stack_first_and_then_to_what_moves():
    assert rows_of_layers([True, False], STACK_ROWS + 2) == []
    assert rows_of_layers([True, False], STACK_ROWS + 3) == [1, 1]
    assert rows_of_layers([True, False], STACK_ROWS + 5) == [3, 1]
    assert rows_of_layers([False, False], 40) == [1, 1]
    wanted = wanted_rows([True, False])
    assert wanted - sum(rows_of_layers([True, False], wanted)) >= STACK_ROWS
