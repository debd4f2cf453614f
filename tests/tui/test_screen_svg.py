"""Screens as pictures: shapes for bars and lines, text in its cells, scenes that take turns."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from rich.style import Style

from tests.tui.screen_svg import WIDE, Cell, Scene, grid_of_text, shapes_of, svg

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def row(text: str, style: str = "") -> list[Cell]:
    return [(char, Style.parse(style)) for char in text]


def texts(picture: str) -> list[str]:
    found = ElementTree.fromstring(picture).findall(".//s:g/s:g/s:g/s:text", NAMESPACE)
    return [one.text or "" for one in found]


def test_text_is_escaped_and_fitted_to_its_cells():
    picture = svg([Scene("a & b", [row("x < 1  right")])], 20)
    assert texts(picture) == ["x < 1", "right"]
    assert f'textLength="{5 * WIDE:g}"' in picture
    assert "a &amp; b" in picture


def test_bars_are_shapes_that_join_into_one():
    picture = svg([Scene("", [row("███▌", "#56b4e9"), row("███▌", "#56b4e9")])], 20)
    assert texts(picture) == []
    (path,) = re.findall(r'fill="#56b4e9" d="([^"]+)"', picture)
    assert path.count("M") == 1
    assert f"h{3.5 * WIDE:g}v36" in path


@pytest.mark.parametrize(
    ("char", "area"),
    [("█", 1.0), ("▄", 0.5), ("▏", 0.125), ("▐", 0.5), (" ", 0.0), ("\u2801", 0.0264)],
)
def test_a_shape_covers_as_much_of_its_cell_as_the_character(char, area):
    shapes = shapes_of(char)
    assert shapes is not None
    assert sum(wide * high for _, _, wide, high in shapes) == pytest.approx(area)


def test_letters_are_no_shapes():
    assert shapes_of("a") is None


def test_each_scene_has_its_turn_and_who_wants_no_motion_sees_the_first():
    scenes = [Scene("one", [row("1")], 2), Scene("two", [row("2")], 3), Scene("three", [], 5)]
    picture = svg(scenes, 10)
    turns = dict(re.findall(r"@keyframes (k\d)\{(.*?\})\}", picture))
    assert turns == {
        "k0": "0%{visibility:visible}20%{visibility:hidden}",
        "k1": "0%{visibility:hidden}20%{visibility:visible}50%{visibility:hidden}",
        "k2": "0%{visibility:hidden}50%{visibility:visible}",
    }
    assert ".s0{visibility:visible}" in picture
    assert "keyframes" not in svg(scenes[:1], 10)


def test_the_mark_is_drawn_around_its_words_or_said_to_be_missing():
    grid = [row("all is well"), row("rank 1 stands")]
    assert 'stroke-width="2"' in svg([Scene("", grid, mark=r"rank \d")], 20)
    with pytest.raises(ValueError, match="rank 2"):
        svg([Scene("", grid, mark="rank 2")], 20)


def test_printed_lines_are_broken_where_the_terminal_ends():
    lines = ["".join(char for char, _ in line) for line in grid_of_text("$ a\n\n123456789", 4)]
    assert lines == ["$ a", "", "1234", "5678", "9"]
