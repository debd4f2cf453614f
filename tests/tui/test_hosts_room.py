"""Rows below a list of hosts go to what says most, and none of them stays empty."""

from __future__ import annotations

import pytest

from gpuscope.tui.hosts.room import CHART_ROWS, FRAME, LEAST_JOB_ROWS, Room, room_below


@pytest.mark.parametrize(
    ("free", "sizes", "jobs", "wide", "room"),
    [
        (40, [8, 8], 2, True, Room(19, True, 5, 16)),
        (25, [8, 8], 2, True, Room(19, True, 5, 0)),
        (25, [8, 8, 8], 3, True, Room(19, True, 6, 0)),
        (27, [8, 8, 8], 1, True, Room(11, False, 4, 12)),
        (60, [8] * 24, 30, True, Room(11, False, 33, 16)),
        (12, [8, 8], 2, False, Room(11, False, 0, 0)),
        (14, [8, 8], 2, False, Room(11, False, 0, 0)),
        (15, [8, 8], 2, False, Room(15, True, 0, 0)),
        (6, [8, 8], 2, True, Room()),
        (30, [0, 0], 5, True, Room(0, False, 8, 22)),
        (10, [1, 0, 2], 0, True, Room(6, True, 0, 0)),
    ],
)
def test_rows_go_to_gpus_then_to_jobs_then_to_charts(free, sizes, jobs, wide, room):
    assert room_below(free, sizes, jobs, wide) == room


@pytest.mark.parametrize("sizes", [[], [0], [1], [1, 1], [8, 8], [8] * 5, [0, 4, 16]])
@pytest.mark.parametrize("jobs", [0, 1, 4, 40])
def test_no_table_is_larger_than_its_rows_or_too_small_to_be_read(sizes, jobs):
    for free in range(70):
        room = room_below(free, sizes, jobs, True)
        assert room.devices + room.jobs + room.charts <= max(free, 0)
        assert room.devices <= sum(sizes) + FRAME
        assert room.jobs <= jobs + FRAME
        assert room.devices == 0 or room.devices > FRAME
        assert room.jobs == 0 or room.jobs > FRAME
        if room.charts:
            assert room.charts >= CHART_ROWS
            assert room.jobs == 0 or room.jobs >= min(jobs + FRAME, LEAST_JOB_ROWS)
