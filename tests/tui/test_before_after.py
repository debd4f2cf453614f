"""The readings before and after an event do not deny the load that followed it."""

from __future__ import annotations

import pytest

from gpuscope.tui.log.before_after import before_after_lines
from gpuscope.wire import frames as f
from tests.fakes import jobs, views

LOADS, ENDS = 12.0, 30.0
"""Readings come every half second: the first one with a step is as much later."""


def started(loads: float) -> dict[str, list[str]]:
    """Return the rows about a training that has loaded for so long since it was first seen."""
    frames = jobs.ranks(1, ENDS)
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    for sample in samples[: int(2 * loads)]:
        for values in sample.t:
            values[1 + f.TRAINER_COLUMNS.index("step")] = 0
        for values in sample.g:
            values[1 + f.DEVICE_COLUMNS.index("utilization_percent")] = 0.0
    host, history = views.seen(frames)
    assert host.wall_seconds is not None
    began = host.wall_seconds - ENDS
    lines = before_after_lines(host, began, host.jobs[0].trainers, host.devices, history, 80)
    rows = [views.flat([line]) for line in lines]
    return {row[:26].strip(): [row[26:40].strip(), row[40:].strip()] for row in rows}


def test_a_training_that_loaded_is_compared_from_its_first_step_on():
    rows = started(LOADS)
    assert rows["Median"][1] == "17 s of steps"
    assert rows["GPU 0 utilisation"][1].startswith("95 %")


@pytest.mark.parametrize("loads", [0.0, ENDS])
def test_one_that_stepped_all_along_or_not_at_all_has_the_whole_time_after(loads):
    rows = started(loads)
    assert rows["Median"][1].endswith("s after")
    assert rows["GPU 0 utilisation"][1].startswith("0 %" if loads else "95 %")
