"""Widths in terminal cells, numbers with units, and that nothing a terminal obeys gets through."""

from __future__ import annotations

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuscope.text.width import cells as text_cells
from gpuscope.tui.cells import (
    GIB,
    MIB,
    age_text,
    bytes_text,
    fit,
    gib,
    percent,
    seconds_text,
    unknown_text,
    visible,
)
from gpuscope.wire.frames import Unknown

anything = st.text(st.characters(), max_size=60)


@given(anything, st.integers(0, 40), st.sampled_from(["left", "right", "centre"]))
def test_fit_takes_exactly_the_cells_it_was_given(text: str, cells: int, align: str) -> None:
    assert cell_len(fit(text, cells, align)) == cells  # type: ignore[arg-type]


@given(anything)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    safe = visible(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in safe)
    turns = ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")
    assert not any(unicodedata.bidirectional(char) in turns for char in safe)
    assert visible(safe) == safe


def test_controls_are_shown_not_dropped() -> None:
    assert visible("a\x1b]52;c;QQ\x07b\x9bc\x7f") == "a␛]52;c;QQ␇b\ufffdc␡"
    assert visible("safe\u202egnp.exe") == "safe\ufffdgnp.exe"
    assert visible("tab\there") == "tab here"


def test_a_pile_of_combining_marks_is_cut() -> None:
    assert len(visible("e" + "\u0301" * 200)) == 4


@pytest.mark.parametrize(
    ("text", "cells", "expected"),
    [
        ("python train.py", 10, "python tr…"),
        ("深層学習", 8, "深層学習"),
        ("深層学習", 7, "深層学…"),
        ("深層学習", 6, "深層… "),
        ("🙂🙂", 3, "🙂…"),
        ("e\u0301tude", 5, "e\u0301tude"),
        ("long", 1, "…"),
        ("long", 0, ""),
    ],
)
def test_cut_never_splits_a_wide_character(text: str, cells: int, expected: str) -> None:
    assert fit(text, cells) == expected


def test_what_textual_takes_for_wider_than_we_do_is_replaced() -> None:
    safe = visible("".join(map(chr, range(0x2600, 0x2700))))
    assert len(safe) == 256
    assert cell_len(safe) == text_cells(safe)
    assert visible("日本 é ━ ✔") == "日本 é ━ ✔"


def test_alignment() -> None:
    assert (fit("ab", 5, "right"), fit("ab", 5, "centre"), fit("ab", 5)) == ("   ab", " ab  ", "ab   ")
    assert fit("abcdef", 4, ellipsis="~") == "abc~"
    assert text_cells("深a") == 3


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (20 * 1024, "20 KiB"),
        (512 * 1024, "0.5 MiB"),
        (50 * MIB, "50 MiB"),
        (0.1 * GIB, "0.1 GiB"),
        (69.7 * GIB, "69.7 GiB"),
        (1536 * GIB, "1.50 TiB"),
        (-2 * GIB, "-2.0 GiB"),
        (math.nan, "–"),
    ],
)
def test_bytes_carry_their_unit(count: float, expected: str) -> None:
    assert bytes_text(count) == expected


def test_gib_for_columns() -> None:
    assert [gib(x * GIB) for x in (0, 0.04, 0.6, 69.71, 139.8, 1024)] == ["0.0", "0.04", "0.6", "69.7", "139.8", "1024"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (3.12e-4, "312 µs"), (0.0526, "52.6 ms"), (0.9999, "1000 ms"), (1.836, "1.84 s"), (125, "2 min 05 s")],
)
def test_durations(seconds: float, expected: str) -> None:
    assert seconds_text(seconds) == expected


def test_ages() -> None:
    assert [age_text(s) for s in (0.2, 8, 125, 12000, 439200, -90)] == [
        "now", "8 s", "2 min 05 s", "3 h 20 min", "5 d 2 h", "-1 min 30 s",
    ]  # fmt: skip


def test_percent_does_not_round_to_all_or_nothing() -> None:
    assert [percent(v) for v in (0, 0.2, 49.6, 99.9, 100)] == ["0%", "<1%", "50%", "99%", "100%"]
    assert percent(99.97, 1) == "99.9%"


@given(st.floats())
def test_no_number_breaks_the_texts(value: float) -> None:
    for text in (gib(value), bytes_text(value), seconds_text(value), age_text(value), percent(value)):
        assert text
        assert "nan" not in text
        assert "inf" not in text


def test_unknown_says_why_where_there_is_room() -> None:
    reason = Unknown("no_permission", "the driver said so")
    assert unknown_text(reason) == "– no permission"
    assert unknown_text(reason, 6) == "–"
