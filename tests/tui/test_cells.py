"""Widths in terminal cells, and that nothing a terminal obeys gets through."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuscope.text.width import cells as text_cells
from gpuscope.tui.cells import fit, fit_job, unknown_text, visible
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
    assert (fit("ab", 5, "right"), fit("ab", 5, "centre"), fit("ab", 5)) == (
        "   ab",
        " ab  ",
        "ab   ",
    )
    assert fit("abcdef", 4, ellipsis="~") == "abc~"
    assert text_cells("深a") == 3


def test_unknown_says_why_where_there_is_room() -> None:
    reason = Unknown("no_permission", "the driver said so")
    assert unknown_text(reason) == "– no permission"
    assert unknown_text(reason, 6) == "–"


@pytest.mark.parametrize(
    ("name", "cells", "shown"),
    [
        ("train.py  pid 18003", 24, "train.py  pid 18003     "),
        ("train.py  pid 18003", 17, "train…  pid 18003"),
        ("straggler.py ×2 (4978)", 17, "straggler… (4978)"),
        ("train.py  pid 18003", 12, "train.py  p…"),
        ("train_large_model.py", 12, "train_large…"),
    ],
)
def test_a_job_s_name_is_cut_before_the_pid_that_tells_it_from_another(name, cells, shown):
    assert fit_job(name, cells) == shown
