"""The account of a card's bytes loses nothing.

Every row has a value and its unit, one zero, and one scale.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from textual.app import App, ComposeResult

from gpuscope.text.units import GIB
from gpuscope.tui import theme
from gpuscope.tui.memory.waterfall import Part, WaterfallChart, _fold
from gpuscope.wire.frames import Unknown
from tests.tui.snapshots import run, text

PARTS = [
    Part("cached", 40 * GIB, "cached"),
    Part("parameters", 20 * GIB, "allocated"),
    Part("activations", 10 * GIB, "allocated"),
    Part("mlp.py:41", 8 * GIB, "allocated", indent=1),
    Part("outside torch", 5 * GIB, "outside"),
    Part("other processes", Unknown("hidden_by_container", "…"), "other"),
]
TOTAL = Part("in use", 100 * GIB, "text")
FOOT = "71 % of 140 GiB · free 40.0 GiB"


class One(App[None]):
    def __init__(self) -> None:
        super().__init__()
        theme.register(self)
        self.theme = theme.DARK

    def compose(self) -> ComposeResult:
        yield WaterfallChart()


def lines_at(width: int, height: int, parts: list[Part] = PARTS, total: Part = TOTAL) -> list[str]:
    found: list[str] = []

    async def body(pilot: Any) -> None:
        pilot.app.query_one(WaterfallChart).show(parts, total, FOOT)
        await pilot.pause()
        found.extend(text(pilot.app).splitlines())

    run(One, body, width, height)
    return [line for line in found if line]


def test_what_the_total_leaves_out_stands_below_it_or_in_words() -> None:
    found: dict[int, list[str]] = {}

    async def body(pilot: Any) -> None:
        about = [Part("workspaces", 64 << 20, "allocated", about=True), *PARTS]
        pilot.app.query_one(WaterfallChart).show(
            about, TOTAL, FOOT, [Part("driver reserve", GIB, "driver")]
        )
        await pilot.pause()
        found[pilot.app.size.height] = [line for line in text(pilot.app).splitlines() if line]

    run(One, body, 90, 14)
    run(One, body, 90, 9)
    assert "≈64.0 MiB" in found[14][0]
    below = [line.split("  ")[0] for line in found[14]]
    assert below.index("in use") < below.index("driver reserve")
    assert "driver reserve 1.00 GiB" in found[9][-1]
    assert found[9][-1].startswith("71 % of 140")


def test_every_row_has_its_value_with_a_unit_and_bars_from_one_zero() -> None:
    lines = lines_at(90, 14)
    assert len(lines) == 9
    assert all(" GiB" in line or "–" in line for line in lines if "─" not in line)
    zeros = {line.index("━") for line in lines if "━" in line}
    assert len(zeros) == 1
    counts = {line.split()[0]: line.count("━") for line in lines}
    assert abs(counts["cached"] - 2 * counts["parameters"]) <= 1
    assert "40 %" in lines[0]


def test_what_a_part_is_now_is_marked_on_the_bar_of_what_it_was_at_most() -> None:
    parts = [
        Part("rises and falls", 80 * GIB, "allocated", now=40 * GIB),
        Part("stands", 80 * GIB, "allocated", now=80 * GIB),
        Part("has grown", 20 * GIB, "cached", now=40 * GIB),
        Part("was there", 20 * GIB, "cached", now=0.0),
    ]
    marked, whole, beyond, gone = lines_at(90, 14, parts)[:4]
    assert "│" not in whole
    assert marked.index("│") == beyond.index("│") == (whole.index("━") + len(whole)) // 2
    assert gone.index("│") == whole.index("━")


def test_the_largest_bar_can_be_read_on_a_card_that_is_nearly_empty() -> None:
    small = [
        Part("cached", 700 << 20, "cached"),
        Part("allocated", 250 << 20, "allocated"),
        Part("rest", 0, "other"),
    ]
    lines = lines_at(90, 14, small, Part("used", 950 << 20, "text"))
    total = next(line for line in lines if line.startswith("used"))
    room = total.count("━")
    assert "100 %" in total
    assert "█" not in total
    for line, share in zip(lines, (700 / 950, 250 / 950, 0), strict=False):
        assert abs(line.count("━") - share * room) <= 1
    shares = [int(re.search(r"(\d+) %", line)[1]) for line in lines[:3]]  # type: ignore[index]
    assert sum(shares) == 100


def test_where_the_total_is_unknown_no_share_is_named() -> None:
    lines = lines_at(90, 14, PARTS, Part("used", Unknown("lost", "…"), "text"))
    assert not any("%" in line for line in lines[:-1])
    assert "┄┄┄" in lines[-2]


def test_the_total_is_the_last_line_and_its_bar_is_made_of_the_parts() -> None:
    lines = lines_at(90, 14)
    assert lines[-1] == FOOT
    assert lines[-2].startswith("in use")
    assert "100 GiB" in lines[-2]
    assert set(lines[-3]) == {"─"}
    assert "┄" in lines[-2], "a part of the total is unknown"


def test_unknown_is_neither_zero_nor_empty() -> None:
    (line,) = (line for line in lines_at(90, 14) if line.startswith("other processes"))
    assert "0.0" not in line
    assert "–" in line
    assert "┄┄┄" in line


@pytest.mark.parametrize("height", range(2, 9))
def test_in_a_low_pane_small_parts_are_folded_and_their_sum_stays(height: int) -> None:
    lines = lines_at(70, height)
    assert len(lines) <= height
    foot = height >= 4
    assert lines[-1 - foot].startswith("in use")
    folded = _fold(PARTS, height - 1 - foot)
    known = sum(
        part.amount for part in folded if not part.indent and not isinstance(part.amount, Unknown)
    )
    assert known == 75 * GIB


def test_details_are_folded_before_parts_and_unknown_last() -> None:
    assert "mlp.py:41" not in [part.label for part in _fold(PARTS, 5)]
    assert [part.label for part in _fold(PARTS, 3)] == ["cached", "other processes", "3 smaller"]
    assert _fold(PARTS, 1)[0].label == "5 smaller, 1 unknown"


@pytest.mark.parametrize("width", [20, 30, 44, 60, 120, 200])
def test_no_line_is_wider_than_the_pane_and_labels_stay(width: int) -> None:
    lines = lines_at(width, 14)
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("cached")
    assert "40.0 GiB" in lines[0]
