"""Drawing with plotext never raises, never hangs, and stays within its size.

That holds whatever the numbers are.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuscope.tui.charts.axes import Heights
from gpuscope.tui.charts.canvas import BRAILLE, Canvas
from gpuscope.tui.charts.plotext_adapter import MAX_RUNS, Axes, PlottedLine, draw, parse, runs_of
from gpuscope.tui.theme import ASCII, MONOCHROME, UNICODE, Glyphs

FRAME = Axes(0.0, 60.0, 0.0, 100.0, [(0.0, "-60s"), (59.9, "now")], [(0.0, "0"), (100.0, "100")])
HOSTILE = [None, math.nan, math.inf, -math.inf, 1e308, -1e308, 1e10, 5e-324, 0, 50, 100, -0.0]

numbers = st.one_of(
    st.none(), st.floats(), st.integers(-(10**30), 10**30), st.sampled_from(HOSTILE)
)


def line(ys: list[object], xs: list[float] | None = None) -> PlottedLine:
    return PlottedLine(
        "series1", "braille", [n / 2 for n in range(len(ys))] if xs is None else xs, ys
    )  # type: ignore[arg-type]


@given(st.lists(numbers, max_size=130), st.integers(12, 100), st.integers(2, 20))
def test_no_numbers_can_break_a_chart(ys: list[object], width: int, height: int) -> None:
    lines = draw([line(ys)], FRAME, width, height)
    assert len(lines) == height
    assert all(sum(cell_len(text) for text, _ in pieces) == width for pieces in lines)


@given(
    st.lists(numbers, max_size=300),
    st.lists(st.floats(allow_nan=False), max_size=300).map(sorted),
    st.integers(1, 120),
)
def test_what_plotext_sees_is_clean(ys: list[object], xs: list[float], columns: int) -> None:
    runs = runs_of(line(ys, xs), FRAME, columns)
    assert len(runs) <= MAX_RUNS
    for run_xs, run_ys in runs:
        assert len(run_xs) == len(run_ys) <= 2 * columns
        assert run_xs == sorted(run_xs)
        assert all(FRAME.x_low <= x <= FRAME.x_high for x in run_xs)
        assert all(FRAME.y_low <= y <= FRAME.y_high for y in run_ys)


@pytest.mark.parametrize("value", [1e4, 1e6, 1e8, 1e308, -1e308, math.inf])
def test_a_spike_costs_no_more_than_any_point(value: float) -> None:
    """Unclipped, plotext takes 18.8 s for a point at a million on an axis of 0 to 100."""

    def work(point: float) -> float:
        took = []
        for _ in range(3):
            begun = time.process_time()
            draw([line([50.0] * 60 + [point] + [50.0] * 60)], FRAME, 98, 20)
            took.append(time.process_time() - begun)
        return min(took)

    assert work(value) < 10 * work(100.0)


def test_a_gap_splits_the_line() -> None:
    ys: list[object] = [10.0] * 20 + [None] * 10 + [20.0] * 20
    runs = runs_of(line(ys), FRAME, 60)
    assert [set(run_ys) for _, run_ys in runs] == [{10.0}, {20.0}]


def test_one_unknown_sample_is_enough_for_a_gap() -> None:
    ys: list[object] = [10.0] * 20 + [None] + [20.0] * 20
    assert len(runs_of(line(ys), FRAME, 60)) == 2


def test_a_pause_in_the_samples_splits_the_line() -> None:
    xs = [n / 2 for n in range(20)] + [40 + n / 2 for n in range(20)]
    assert len(runs_of(line([10.0] * 40, xs), FRAME, 60)) == 2


def test_thinning_keeps_the_extremes_of_a_column() -> None:
    ys: list[object] = [50.0] * 1000
    ys[503], ys[507] = 99.0, 1.0
    xs = [n * 60 / 1000 for n in range(1000)]
    (run,) = runs_of(line(ys, xs), FRAME, 40)
    assert {99.0, 1.0} <= set(run[1])
    assert len(run[0]) <= 80


def test_every_piece_has_a_token_and_no_escape_is_left() -> None:
    pieces = [
        piece
        for row in draw([line([50.0] * 100), line([20.0] * 100)], FRAME, 60, 12)
        for piece in row
    ]
    assert {token for _, token in pieces} == {"series1", "faint"}
    assert "\x1b" not in "".join(text for text, _ in pieces)
    assert parse("\x1b[38;5;17mx\x1b[0my\nz") == ["xy", "z"]


def test_axes_stay_where_they_are_while_the_window_moves() -> None:
    """The frame is drawn once: only what is inside moves on."""
    seen = set()
    for moved in range(50):
        start = 1000.0 + moved * 0.27
        frame = Axes(
            start,
            start + 60,
            0,
            100,
            [(start, "-60s"), (start + 60, "now")],
            [(0.0, "0"), (100.0, "100")],
        )
        seen.add(tuple("".join(text for text, _ in row) for row in draw([], frame, 60, 12)))
    assert len(seen) == 1


@pytest.mark.parametrize("marker", [BRAILLE, "+"])
@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 100)), min_size=1, max_size=40),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_a_line_touches_every_column_between_its_ends(
    marker: str, points: list[tuple[float, float]], columns: int, rows: int
) -> None:
    points.sort()
    canvas = Canvas(columns, rows)
    canvas.begin("series1", marker)
    places = canvas.placed(
        [x for x, _ in points], [y for _, y in points], 0, 60, Heights(0, 100, rows)
    )
    canvas.add(*places)
    drawn = ["".join(text for text, _ in row) for row in canvas.pieces("faint")]
    assert [len(row) for row in drawn] == [columns] * rows
    touched = {x for row in drawn for x, char in enumerate(row) if char != " "}
    assert touched == set(range(min(places[0]) // 2, max(places[0]) // 2 + 1))


@pytest.mark.parametrize("marker", ["*", "○"])
@pytest.mark.parametrize("rows", [2, 4, 7])
def test_every_kind_of_line_has_one_value_in_one_row(marker: str, rows: int) -> None:
    for value in range(0, 701, 14):
        found = []
        for kind in (BRAILLE, marker):
            canvas = Canvas(20, rows)
            canvas.begin("series1", kind)
            canvas.add(*canvas.placed([0.0, 60.0], [value, value], 0, 60, Heights(0, 700, rows)))
            drawn = ["".join(text for text, _ in row) for row in canvas.pieces("faint")]
            found.append([at for at, row in enumerate(drawn) if row.strip()])
        assert found[0] == found[1]
        assert len(found[0]) == 1


def tokens_in(drawn: list[list[tuple[str, str]]]) -> Counter[str]:
    """How many cells each token has that are no blanks."""
    found: Counter[str] = Counter()
    for row in drawn:
        for text, token in row:
            found[token] += sum(char not in " \u2800" for char in text)
    return found


@pytest.mark.parametrize("look", [UNICODE, MONOCHROME, ASCII], ids=["colour", "mono", "ascii"])
@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=6), st.integers(20, 120), st.integers(4, 30)
)
@example([100.0, 93.0, 19.0, 1.8], 50, 7)
@example([630.0 / 7, 652.0 / 7], 52, 5)
@example([50.0] * 6, 24, 4)
def test_no_line_hides_another_one(
    look: Glyphs, levels: list[float], width: int, height: int
) -> None:
    xs = [float(n) for n in range(61)]
    lines = [
        PlottedLine(f"line{number}", look.line(number)[0], xs, [level] * 61)
        for number, level in enumerate(levels)
    ]
    seen = tokens_in(draw(lines, FRAME, width, height))
    assert all(seen[line.token] for line in lines), seen


def test_lines_at_the_same_height_have_equal_shares_of_it() -> None:
    lines = [PlottedLine(token, BRAILLE, [0, 60], [50, 50]) for token in ("one", "other")]
    seen = tokens_in(draw(lines, FRAME, 60, 12))
    assert abs(seen["one"] - seen["other"]) <= 4


def test_lines_side_by_side_in_a_row_both_go_on_and_do_not_jump() -> None:
    canvas = Canvas(20, 1)
    for token, y in (("low", 0), ("high", 3)):
        canvas.begin(token, BRAILLE)
        canvas.add([0, 39], [y, y])
    (row,) = canvas.pieces("blank")
    assert {char for text, _ in row for char in text} == {"⣉"}
    assert {token for _, token in row} == {"low", "high"}


def test_a_point_is_seen_that_a_longer_line_runs_through() -> None:
    for place in range(20):
        canvas = Canvas(20, 1)
        for token, xs in (("long", [0, 39]), ("point", [2 * place, 2 * place])):
            canvas.begin(token, BRAILLE)
            canvas.add(xs, [1, 1])
        assert tokens_in([canvas.pieces("blank")[0]])["point"] == 1


def test_without_colour_both_of_two_equal_lines_are_seen() -> None:
    canvas = Canvas(40, 1)
    for number in (0, 1):
        canvas.begin(f"line{number}", MONOCHROME.line(number)[0])
        canvas.add([0, 79], [1, 1])
    assert "".join(text for text, _ in canvas.pieces("blank")[0])[:12] == "⠤⠤⠤⠤○○○○⠤⠤⠤⠤"


def test_labels_that_do_not_all_fit_are_the_same_in_every_process() -> None:
    code = (
        "from gpuscope.tui.charts.plotext_adapter import Axes, draw\n"
        "ticks = [(i / 8, f'-{10 * (8 - i)} m 30 s') for i in range(9)]\n"
        "for width in range(20, 90):\n"
        "    print(draw([], Axes(0, 1, 0, 1, ticks, [(0, '0'), (1, '1')]), width, 6))\n"
    )
    drawn = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            timeout=60,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(drawn) == 1
    for row in drawn.pop().decode().splitlines():
        assert "-80 m 30 s" in row or "-0 m 30 s" in row, "one end at least is named"


@pytest.mark.slow
def test_plotext_is_loaded_by_the_first_draw_only() -> None:
    code = (
        "import sys; import gpuscope.tui.charts.line, gpuscope.tui.charts.stacked;"
        "assert 'plotext' not in sys.modules; from gpuscope.tui.charts import plotext_adapter as p;"
        "p.draw([], p.Axes(0, 1, 0, 1, [], []), 20, 5); assert 'plotext' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
