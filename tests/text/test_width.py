"""Cells on a terminal: as Textual counts them, and text that fits into so many."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuscope.text import width

TEXTS = st.text(st.sampled_from("ab  é中한😀e\u0301\u1160"), max_size=40)


@pytest.mark.slow
def test_one_character_is_as_wide_as_textual_takes_it():
    """One character is as wide as Textual takes it.

    Apart from symbols that became wide in newer Unicode tables, and characters that are cleaned
    away before.
    """
    newer = {
        chr(code)
        for span in ((0x2630, 0x2638), (0x268A, 0x2690), (0x4DC0, 0x4E00), (0x1D300, 0x1D377))
        for code in range(*span)
    }
    shown = [
        char
        for code in range(0x20, 0x110000)
        if unicodedata.category(char := chr(code)) not in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
        and char not in newer
        and char not in "\u3164\uffa0"
    ]
    assert [
        (hex(ord(char)), width.cells(char), cell_len(char))
        for char in shown
        if width.cells(char) != cell_len(char)
    ] == []


def test_cells():
    assert [width.cells(text) for text in ("abc", "中文", "e\u0301", "한국", "a\u200bb")] == [
        3,
        4,
        1,
        4,
        2,
    ]


@given(TEXTS, st.integers(0, 45))
def test_what_is_cut_or_padded_fits(text, room):
    for short in (width.cut(text, room), width.cut_start(text, room)):
        assert width.cells(short) <= room
        assert (
            short == text
            if width.cells(text) <= room
            else short in ("", short.strip("…") + "…", "…" + short.strip("…"))
        )
    for align in ("left", "right", "centre"):
        assert width.cells(width.pad(text, room, align)) == max(room, width.cells(text))


def test_what_is_cut():
    assert width.cut("allocator", 5) == "allo…"
    assert width.cut("中文字", 4) == "中…"
    assert width.cut_start("/data/run/train.py", 10) == "…/train.py"
    assert width.pad("中", 4, "right") == "  中"


def test_a_percentage_is_not_torn_apart():
    assert width.wrap("it takes 99.5 % of it", 13) == ["it takes", "99.5 % of it"]
    assert width.wrap("(88 %, 90 %)", 8) == ["(88 %,", "90 %)"]
    assert width.wrap("a % b", 3) == ["a %", "b"], "which is no percentage"


@given(TEXTS, st.integers(2, 20))
def test_wrapped_lines_fit_and_nothing_is_lost(text, room):
    lines = width.wrap(text, room)
    assert all(len(line) > 0 and width.cells(line) <= room for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
