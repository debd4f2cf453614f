"""The time axis: wall clocks step, machines sleep and start again, and the axis only grows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from gpuscope.store.view import HostView
from gpuscope.wire.frames import Event, Frame, Hello, Key, Sample
from tests.fakes.wire import SECOND, definitions, heard, hello, sample


class Told:
    def __init__(self) -> None:
        self.store = heard(hello(), *definitions(), sample(1))

    def say(self, *said: Frame) -> HostView:
        for frame in said:
            self.store.apply("k", frame, 1.0)
            history = self.axis
            assert all(earlier < later for earlier, later in pairwise(history)), frame
        return self.host

    @property
    def host(self) -> HostView:
        host = self.store.view().host
        assert host is not None
        return host

    @property
    def axis(self) -> tuple[float, ...]:
        return self.store.history("k", 1, "used_bytes").seconds


def at(q: int) -> int:
    return 100 * SECOND + q * SECOND // 2


@pytest.mark.parametrize("repeat_hello", [False, True], ids=["live", "as in a recording"])
def test_a_wall_clock_that_jumps_by_hours_both_ways_bends_nothing(repeat_hello):
    told = Told()
    wall = 1_000_000.5
    for q in range(2, 40):
        if q % 5 == 0:
            wall += (-1) ** (q // 5) * 7 * 3600.0
            if repeat_hello:
                told.say(hello(m=at(q), t=wall))
            told.say(Key(q, at(q), wall, len(definitions())), *definitions())
        host = told.say(sample(q))
    assert len(told.axis) == 39
    assert told.axis[-1] - told.axis[0] == 19.0
    assert all(device.gone is None for device in host.devices)
    assert host.wall_seconds == wall + 2.0


def test_after_a_suspend_the_axis_has_a_gap_and_nothing_ended():
    told = Told()
    told.say(sample(2))
    # The monotonic clock stood still while the machine slept: only the wall clock went on.
    told.say(Key(3, at(3), 1_000_000.0 + 8 * 3600, len(definitions())), *definitions(), sample(3))
    assert told.axis == (100.5, 101.0, 101.5)
    # Or it went on (a clock that counts sleep, or an agent that was stopped).
    host = told.say(
        Sample(4, at(3) + 8 * 3600 * SECOND, g=[[1, 5]]),
        Sample(5, at(5) + 8 * 3600 * SECOND, g=[[1, 6]]),
    )
    assert told.axis[-2:] == (101.5 + 8 * 3600, 102.5 + 8 * 3600)
    assert all(e.gone is None for e in (*host.devices, *host.processes, *host.trainers))


@pytest.mark.parametrize(
    ("wall_after", "passed"),
    [(1_000_061.5, 61.0), (999_999.8, 0.0), (1e308, 0.0), (4e9, 0.0)],
    ids=["as it was", "a little back", "absurd", "a century later"],
)
def test_after_a_reboot_the_axis_goes_on_whatever_the_wall_clock_says(wall_after, passed):
    told = Told()
    told.say(
        hello(boot="boot-2", m=5 * SECOND, t=wall_after),
        *definitions(),
        Sample(1, 6 * SECOND, g=[[1, 7]]),
    )
    assert told.axis == (100.5, 100.5 + passed + 1.0)
    assert told.host.wall_seconds in (wall_after + 1.0, None)


def test_a_reboot_with_a_clock_far_back_begins_anew():
    """It cannot be told from a replay that was sought backwards."""
    told = Told()
    told.say(
        hello(boot="boot-2", m=5 * SECOND, t=0.0), *definitions(), Sample(1, 6 * SECOND, g=[[1, 7]])
    )
    assert told.axis == (6.0,)


@pytest.mark.parametrize("wall", [-1e5, 1e12, 1e308, -1e308])
def test_a_wall_clock_that_no_clock_shows_is_unknown(wall):
    told = Told()
    assert told.say(Hello(boot="b", t=wall, m=1), Sample(9, at(9), g=[])).wall_seconds is None


def test_a_clock_that_runs_backwards_within_a_stream_is_ignored_until_it_is_past():
    told = Told()
    told.say(sample(10), sample(4), sample(5), sample(11))
    assert told.axis == (100.5, 105.0, 105.5)
    assert told.host.devices[0].number("used_bytes") == 111


def test_ticks_with_the_same_number_or_time_are_no_two_points():
    told = Told()
    told.say(sample(2), sample(2), Sample(2, at(3), g=[[1, 9]]))
    assert told.axis == (100.5, 101.0, 101.5)


def test_an_end_at_a_time_that_no_clock_can_show_has_no_wall_time():
    told = Told()
    told.say(Event(3, "gone", at(2), "killed"))
    (known,) = [process.gone for process in told.host.processes if process.gone is not None]
    assert known.wall_seconds == pytest.approx(told.host.wall_seconds or 0.0, abs=60)
    killed = Event(3, "gone", at(2), "killed")
    host = heard(replace(hello(), t=-1e12), *definitions(), sample(1), killed).view().host
    assert host is not None
    (gone,) = [process.gone for process in host.processes if process.gone is not None]
    assert gone.wall_seconds is None
    assert gone.reason == "killed"
