"""Numbers are written as ranges, for machines as for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.text.ranges import compact_ranges, interval_text, named_ranges, ranges_text, spans


@pytest.mark.parametrize(
    ("numbers", "compact", "text"),
    [
        ([], "", ""),
        ([3], "3", "3"),
        ([1, 0], "0-1", "0, 1"),
        ([0, 1, 2, 5], "0-2,5", "0-2, 5"),
        ([64, 0, 1, 2, 65, 66], "0-2,64-66", "0-2, 64-66"),
    ],
)
def test_numbers_are_written_as_ranges(numbers, compact, text):
    assert compact_ranges(numbers) == compact
    assert ranges_text(numbers) == text


def test_only_so_many_ranges_are_written():
    assert compact_ranges([0, 2, 4, 6], 2) == "0,2"


@given(st.sets(st.integers(0, 300)))
def test_the_ranges_have_each_number_once(numbers):
    found = [n for first, last in spans(numbers) for n in range(first, last + 1)]
    assert found == sorted(numbers)


def test_an_interval_whose_ends_read_the_same_is_one_number():
    assert interval_text("37", "37") == "37"
    assert interval_text("3 %", "4 %") == "3 %–4 %"
    assert interval_text("3 %", "4 %", " to ") == "3 % to 4 %"


def test_numbered_things_are_named_as_one_or_several():
    assert named_ranges("rank", [3]) == "rank 3"
    assert named_ranges("rank", [5, 0, 1, 2, 2]) == "ranks 0-2, 5"
