"""What a training holds while its allocator is not read is in none of torch's layers."""

from __future__ import annotations

import pytest

from gpuscope.model.memory_layers import layers
from gpuscope.text.units import GIB
from gpuscope.tui.charts.chart_series import device_layers
from gpuscope.tui.shared.device_bar import named_layers
from gpuscope.wire import frames as f
from tests.fakes import views

ALLOCATOR, USE = 413, 213  # of rank 0 on GPU 0
USED, OWN, RESERVED = 69.7, 69.68, 67.7


def silent(*stretches: tuple[float, float], use: bool = True) -> list[f.Frame]:
    """A training whose rank 0 has no reading of its allocator in these seconds of its 20."""
    frames = views.training()
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    for number, sample in enumerate(samples):
        if any(first <= number / 2 < last for first, last in stretches):
            sample.a = [one for one in sample.a if one[0] != ALLOCATOR]
        if not use:
            sample.u = [one for one in sample.u if one[0] != USE]
    return frames


def over_time(frames: list[f.Frame]) -> dict[str, list[float | None]]:
    """The layers of GPU 0 every half a second, in GiB."""
    host, history = views.seen(frames)
    found, _ = device_layers(history, host, host.devices[0], 60.0)
    sums = [sum(values) for values in zip(*(one.values for one in found), strict=True)]
    used = history(host.devices[0].id, "used_bytes", 60.0).values
    assert sums == pytest.approx(list(used))
    return {one.label: [v if v is None else v / GIB for v in one.values] for one in found}


def test_before_the_first_reading_and_in_a_gap_the_process_is_not_read():
    seen = over_time(silent((0, 5), (8, 17)))
    for moment in (1.0, 4.5, 14.5, 16.5):  # a reading counts for 6 s, until 13.5
        at = int(moment * 2)
        assert seen["not read"][at] == pytest.approx(OWN, abs=0.01)
        assert (seen["outside torch"][at], seen["allocated"][at]) == (0, 0)
    for moment in (5.5, 10.0, 18.0):
        at = int(moment * 2)
        assert seen["not read"][at] == 0
        assert seen["outside torch"][at] == pytest.approx(OWN - RESERVED, abs=0.01)


def test_where_the_driver_names_no_process_a_gap_is_not_read_and_the_time_before_is_other():
    seen = over_time(silent((0, 5), (8, 17), use=False))
    assert (seen["not read"][2], seen["other"][2]) == (0, pytest.approx(USED))
    assert (seen["not read"][30], seen["other"][30]) == (pytest.approx(USED), 0)
    assert seen["other"][36] == pytest.approx(USED - RESERVED)


def test_what_was_taken_since_the_driver_named_processes_is_not_read_and_no_others():
    """Processes are read every second and the sum every half: rank 0 grows by 60 GiB at 10 s."""
    frames = views.training()
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    column = 1 + f.USE_COLUMNS.index("used_bytes")
    for number, sample in enumerate(samples):
        if number < 20:
            for device in sample.g:
                index = 1 + f.DEVICE_COLUMNS.index("used_bytes")
                device[index] -= 60 * GIB if device[0] == samples[0].g[0][0] else 0
        sample.a = sample.a if number >= 21 else []
        for use in sample.u:
            if use[0] == USE:
                use[column] -= 60 * GIB if number < 21 else 0
        if number % 2 == 0:
            sample.u = [use for use in sample.u if use[0] != USE]
    host, history = views.seen(frames)
    found, _ = device_layers(history, host, host.devices[0], 60.0)
    seen = {one.label: one.values for one in found}
    assert max(v or 0.0 for v in seen["other"][2:]) < GIB, "nobody else took it"
    assert seen["not read"][20] == pytest.approx(OWN * GIB, rel=0.01), "60 GiB, and what it had"
    assert seen["not read"][-1] == 0


def test_what_a_process_takes_just_before_the_driver_first_names_it_is_not_read_and_no_others():
    """Rank 0 takes its memory at 9.5 s, and the driver names it at 10 s."""
    frames = views.training()
    samples = [frame for frame in frames if isinstance(frame, f.Sample)]
    used = 1 + f.DEVICE_COLUMNS.index("used_bytes")
    for number, sample in enumerate(samples[:20]):
        sample.a = [one for one in sample.a if one[0] != ALLOCATOR]
        sample.u = [one for one in sample.u if one[0] != USE]
        if number < 19:
            sample.g[0][used] -= int(OWN * GIB)
    seen = over_time(frames)
    assert seen["other"][18] == pytest.approx(USED - OWN, abs=0.01)
    assert seen["not read"][18] == 0
    assert seen["not read"][19] == pytest.approx(OWN, abs=0.01)
    assert seen["other"][19] == pytest.approx(USED - OWN, abs=0.01)


def test_a_training_that_was_always_read_has_no_such_layer():
    assert "not read" not in over_time(views.training())


@pytest.mark.parametrize("first", [0, 5])
def test_the_bar_has_what_was_not_read_yet_or_not_for_long_as_such(first: float):
    host, _ = views.seen(silent((first, 60)))
    split = layers(host, host.devices[0])
    assert (split["outside"], split["allocated"]) == (0, 0)
    assert split["unread"] == pytest.approx(OWN * GIB, rel=1e-3)
    assert split["unread"] + split["other"] == pytest.approx(USED * GIB)
    assert "unread" in named_layers(host)


def test_the_bar_of_a_process_that_the_driver_does_not_name():
    host, _ = views.seen(silent((0, 60), use=False))
    assert layers(host, host.devices[0])["other"] == pytest.approx(USED * GIB)
    host, _ = views.seen(silent((5, 60), use=False))
    assert layers(host, host.devices[0])["unread"] == pytest.approx(USED * GIB)


def test_a_legend_names_what_was_not_read_only_where_it_is():
    host, _ = views.seen(views.training())
    assert "unread" not in named_layers(host)
