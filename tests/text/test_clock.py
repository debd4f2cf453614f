"""Moments on the clock of whoever reads."""

from __future__ import annotations

import time

import pytest

from gpuscope.text.clock import DATE_AND_SECOND, MINUTE, clock_text


def test_a_moment_is_written_in_local_time():
    wall = time.mktime((2026, 3, 9, 14, 2, 5, 0, 0, -1))
    assert clock_text(wall) == "14:02:05"
    assert clock_text(wall, MINUTE) == "14:02"
    assert clock_text(wall, DATE_AND_SECOND) == "2026-03-09 14:02:05"


@pytest.mark.parametrize("wall", [1e300, -1e300, float("nan"), float("inf")])
def test_a_moment_that_no_calendar_has_is_a_dash(wall):
    assert clock_text(wall) == "–"
