"""History over hours in bounded memory, and a host as it was at an earlier moment."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.store.history import MEAN_SECONDS, Ring
from gpuscope.store.text_history import Words
from gpuscope.wire import frames
from gpuscope.wire.frames import Def, Event, Sample, Unknown
from tests.fakes import wire
from tests.fakes.wire import heard, hello

SECOND = 1_000_000_000


def test_what_is_older_than_the_newest_ticks_is_kept_as_means_of_ten_seconds():
    ring = Ring(["load", "heat"], points=1280)
    for tick in range(4000):
        ring.append(float(tick), [float(tick), None if tick % 20 < 10 else 7.0])
    history = ring.history("load")
    assert list(history.seconds) == sorted(history.seconds)
    assert history.seconds[-1280:] == tuple(float(tick) for tick in range(2720, 4000))
    means = [(s, v) for s, v in zip(history.seconds, history.values, strict=True) if s < 2700]
    assert len(means) == 270
    assert all(v == s == 10 * number + 4.5 for number, (s, v) in enumerate(means))
    assert ring.history("heat").values[:4] == (None, 7.0, None, 7.0)
    assert ring.first_seconds == 4.5


def test_a_window_takes_no_more_than_it_asks_for():
    ring = Ring(["load"], points=1280)
    for tick in range(4000):
        ring.append(float(tick), [1.0])
    assert len(ring.history("load", 50.0)) == 51
    assert len(ring.history("load", 2000.0)) == pytest.approx(1280 + 72, abs=21)
    assert len(ring.history("nothing")) == 0


@pytest.mark.slow
def test_hours_take_a_bounded_number_of_bytes():
    """40 columns, as a device has, sampled twice a second."""
    ring = Ring([f"c{number}" for number in range(40)])
    row = [1.0] * 40
    held = []
    for tick in range(14 * 7200):
        ring.append(tick / 2, row)
        if tick % 7200 == 7199:
            held.append(ring.cells * 8)
    assert held[0] < 1.35e6
    assert held[5] - held[4] == pytest.approx(41 * 8 * 3600 / MEAN_SECONDS, rel=0.02)
    assert held[13] == pytest.approx(held[12], rel=0.02)
    assert held[13] < 2.7e6
    history = ring.history("c3")
    assert history.seconds[-1] - history.seconds[0] > 12 * 3600


@given(
    st.lists(
        st.tuples(st.floats(0.01, 30), st.one_of(st.none(), st.floats(-1e9, 1e9))),
        min_size=1,
        max_size=400,
    ),
    st.integers(1, 50),
    st.floats(0.05, 1.0),
)
def test_no_course_of_readings_breaks_it(
    steps: list[tuple[float, float | None]], points: int, share: float
):
    ring, now = Ring(["x"], points=points, means=20), 0.0
    for gap, value in steps:
        now += gap
        ring.append(now, [value])
    before = ring.cells
    ring.shrink(share)
    assert ring.cells <= max(before * share + 2, 2)
    history = ring.history("x")
    assert list(history.seconds) == sorted(history.seconds)
    assert history.values[-1] == steps[-1][1]
    assert history.seconds[-1] == now
    assert all(value is None or math.isfinite(value) for value in history.values)
    assert len(ring) <= points + 1 + points // 64 + 20
    found = ring.at(now)
    assert found == (now, {"x": steps[-1][1]})
    assert ring.at(ring.first_seconds - 0.001) is None


# ── a host as it was ──


@pytest.fixture
def store():
    """Return a store with a device whose load is its second.

    Process 2 is there from 120 s on, process 3 ends at 130 s.
    """
    store = heard()

    def say(*said):
        for frame in said:
            store.apply("k", frame, 1.0)

    say(
        hello(),
        Def(1, gpu=frames.GpuDef("GPU-a", 0)),
        Def(3, proc=frames.ProcDef(33, 7, command="sleep")),
    )
    for second in range(101, 161):
        if second == 120:
            say(
                Def(2, proc=frames.ProcDef(22, 5, command="python")),
                Def(4, use=frames.UseDef(2, 1)),
            )
        rows = {
            "g": [
                wire.row(
                    1, "g", utilization_percent=second, used_bytes=second, performance_state="P0"
                )
            ]
        }
        rows["p"] = [wire.row(3, "p", cpu_percent=second)] if second < 130 else []
        if second >= 120:
            rows["p"].append(wire.row(2, "p", cpu_percent=1))
            rows["u"] = [wire.row(4, "u", used_bytes=second)]
        say(Sample(second, second * SECOND, **rows))
        if second == 130:
            say(Event(3, "gone", second * SECOND, "exited"))
    return store


def test_numbers_and_events_are_those_of_that_moment(store):
    then = store.host_at("k", 110.4)
    (device,) = then.devices
    assert device.number("utilization_percent") == 110
    assert device.sampled_seconds == 110
    state = device.reading("performance_state")
    assert isinstance(state, Unknown), "a word in a column of numbers"
    assert then.sampled_seconds == 110.4
    assert [e.e for e in store.host("k").events].count("gone") == 1
    assert [e.e for e in store.host_at("k", 129.0).events].count("gone") == 0
    assert [e.e for e in store.host_at("k", 131.0).events].count("gone") == 1


def test_words_are_those_of_that_moment(store):
    def say(second: int, **said: object) -> None:
        store.apply(
            "k", Sample(second, second * SECOND, t=[wire.row(9, "t", step=second, **said)]), 1.0
        )

    store.apply("k", Def(9, trainer=frames.TrainerDef(22)), 1.0)
    for second in range(161, 200):
        stalled = {"stall_at": f"data.py:{second}"} if 170 <= second < 180 else {}
        say(second, phase="warmup" if second < 165 else "train", **stalled)
    told = {s: store.host_at("k", float(s)).trainers[0].readings for s in (161, 168, 175, 181)}
    assert [told[s]["phase"] for s in told] == ["warmup", "train", "train", "train"]
    assert told[175]["stall_at"] == "data.py:175"
    assert all(isinstance(told[s]["stall_at"], Unknown) for s in (161, 168, 181))


def test_words_that_change_all_the_time_take_bounded_room():
    words = Words(kept=3)
    for second in range(100):
        words.note(float(second), "phase", f"p{second}")
        words.note(float(second), "phase", f"p{second}")
    assert [dict(words.at(s)) for s in (99.0, 97.5, 96.0)] == [
        {"phase": "p99"},
        {"phase": "p97"},
        {},
    ]


def test_who_came_later_is_not_there_and_who_has_ended_is_alive(store):
    assert {p.definition.pid for p in store.host_at("k", 110.0).processes} == {33}
    then = store.host_at("k", 125.0)
    assert {p.definition.pid: p.gone for p in then.processes} == {33: None, 22: None}
    assert [use.number("used_bytes") for use in then.devices[0].uses] == [125]
    later = store.host_at("k", 140.0)
    assert {p.definition.pid: p.gone is None for p in later.processes} == {33: False, 22: True}
    assert later.devices[0].uses[0].number("used_bytes") == 140


def test_before_the_first_reading_there_is_nothing(store):
    assert store.host_at("k", 99.0) is None
    assert store.host_at("nobody", 120.0) is None
    assert store.oldest_seconds("k") == 101


def test_readings_of_a_device_that_was_silent_do_not_stay(store):
    store.apply("k", Sample(200, 400 * SECOND, p=[wire.row(2, "p", cpu_percent=1)]), 1.0)
    then = store.host_at("k", 300.0)
    reading = then.devices[0].reading("utilization_percent")
    assert isinstance(reading, Unknown)
    assert "2 min 20 s" in reading.text


def test_the_oldest_moment_is_one_at_which_the_probes_had_answered():
    store = heard(hello(), Def(3, proc=frames.ProcDef(33)), Def(9, trainer=frames.TrainerDef(22)))
    for second in range(100, 120):
        rows = [wire.row(9, "t", step=second)] if second >= 102 else []
        sample = Sample(second, second * SECOND, p=[wire.row(3, "p", cpu_percent=1)], t=rows)
        store.apply("k", sample, 1.0)
    assert store.oldest_seconds("k") == 102


def test_a_process_that_was_there_before_its_first_reading_is_there():
    """Of one that began at 105 nothing is read before 110."""
    wall = 1.7e9
    late = frames.ProcDef(22, start_time=wall + 5)
    store = heard(hello(t=wall), Def(3, proc=frames.ProcDef(33)), Def(2, proc=late))
    for second in range(101, 120):
        rows = [wire.row(3, "p", cpu_percent=1)]
        rows += [wire.row(2, "p", cpu_percent=1)] if second >= 110 else []
        store.apply(
            "k", Sample(second, second * SECOND, h=[wire.row(0, "h", load_1m=1)], p=rows), 1.0
        )
    then = {one.definition.pid: one for one in store.host_at("k", 107.0).processes}
    assert isinstance(then[22].reading("cpu_percent"), Unknown)
    assert [one.definition.pid for one in store.host_at("k", 104.0).processes] == [33]
