"""The store: frames in, pictures and history out."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.store.store import Store
from gpuscope.store.stream import NO_REASON
from gpuscope.store.view import NOT_SENT, HostView, Link
from gpuscope.wire import frames
from gpuscope.wire.frames import COLUMNS, Def, Event, Frame, Key, ProcDef, Unknown
from tests.fakes import wire
from tests.fakes.wire import SECOND, definitions, heard, hello, row, sample


class Watched:
    """A store with one source, fed frame by frame."""

    def __init__(self, *said: Frame) -> None:
        self.store = heard(*said)

    def say(self, *said: Frame) -> HostView:
        for frame in said:
            self.store.apply("k", frame, 1.0)
        return self.host

    @property
    def host(self) -> HostView:
        host = self.store.view().host
        assert host is not None
        return host

    def history(
        self, entity_id: int, column: str, window: float | None = None
    ) -> list[tuple[float, float | None]]:
        history = self.store.history("k", entity_id, column, window)
        return list(zip(history.seconds, history.values, strict=True))


def scene(*more: Frame) -> Watched:
    return Watched(hello(), *definitions(), sample(1), *more)


def test_rows_read_at_different_moments_keep_them():
    late = sample(2)
    late.ago = [[1, 120], [9, 400], [2, -5], [3]]
    host = scene(late).host
    assert [d.sampled_seconds for d in host.devices] == [pytest.approx(100.88), 101.0]
    assert host.sampled_seconds == 101.0
    watched = Watched(hello(), *definitions(), sample(1), late)
    assert watched.history(1, "used_bytes")[-1][0] == 101.0, "one axis for all"


def test_before_anything_came_the_host_is_there_and_connecting():
    host = Watched().host
    assert (host.name, host.link.state, host.devices, host.rate_hz) == (
        "label",
        "connecting",
        (),
        None,
    )


def test_hosts_that_call_themselves_alike_are_named_with_the_keys_of_their_sources():
    store = Store()
    for key in ("a", "b", "vm"):
        store.add_source(key, key)
    store.apply("a", hello(host="vm"), 1.0)
    assert [host.name for host in store.view().hosts] == ["vm", "b", "vm"], "the last by its label"
    store.apply("b", hello(host="vm"), 1.0)
    store.apply("vm", hello(host="vm"), 1.0)
    assert [host.name for host in store.view().hosts] == ["a (vm)", "b (vm)", "vm"]


def test_the_picture_of_a_host():
    host = scene().host
    assert (host.key, host.name, host.definition.cpu_count) == ("k", "node-1", 8)
    assert [d.key for d in host.devices] == ["GPU-a", "GPU-b"]
    assert host.number("cpu_percent") == 11.0
    assert host.wall_seconds == 1_000_000.5
    device = host.devices[0]
    assert device.number("used_bytes") == 101
    assert device.sampled_seconds == 100.5
    assert [(u.process, u.gpu, u.number("used_bytes")) for u in device.uses] == [(3, 1, 91)]
    assert [a.number("allocated_bytes") for a in device.allocators] == [61]
    process = host.processes[0]
    assert (process.key, process.trainer, process.uses) == ("30:300", 8, device.uses)
    trainer = next(t for t in host.trainers if t.id == 7)
    # No gpu in the definition of this allocator: it was found by its UUID.
    assert (trainer.process, trainer.allocators[0].gpu) == (4, 2)
    assert host.devices[1].allocators == trainer.allocators
    (job,) = host.jobs
    assert (job.key, job.title, job.user, job.mine) == ("run-1", "train.py", "ann", True)
    assert [t.definition.rank for t in job.trainers] == [0, 1]
    assert [p.id for p in job.processes] == [3, 4]


def test_a_view_is_immutable_and_the_same_until_something_changes():
    watched = scene()
    view = watched.store.view()
    assert watched.store.view() is view
    host, device = view.host, view.host.devices[0]
    watched.say(frames.Pong(1.0), frames.Result(1))
    assert watched.store.view() is view
    watched.say(sample(2))
    newer = watched.store.view()
    assert newer.version > view.version
    assert (host.devices[0].number("used_bytes"), newer.host.devices[0].number("used_bytes")) == (
        101,
        102,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.key = "x"
    with pytest.raises(TypeError):
        device.readings["used_bytes"] = 0


def test_only_what_changed_is_drawn_anew():
    watched = scene()
    before = watched.host
    after = watched.say(sample(2, g=[row(1, "g", used_bytes=5)], p=[], u=[], t=[], a=[], h=[]))
    assert after.devices[0] is not before.devices[0]
    assert after.devices[1] is before.devices[1]
    assert after.processes[0] is before.processes[0]
    assert after.trainers[0] is before.trainers[0]


def test_a_part_that_changed_is_seen_in_all_that_holds_it():
    watched = scene()
    host = watched.say(
        sample(2, g=[], p=[], u=[row(5, "u", used_bytes=7)], t=[], a=[row(9, "a", ooms=1)], h=[])
    )
    assert host.devices[0].uses[0].number("used_bytes") == 7
    assert host.processes[0].uses[0].number("used_bytes") == 7
    assert host.devices[0].allocators[0].number("ooms") == 1
    assert next(t for t in host.trainers if t.id == 8).allocators[0].number("ooms") == 1
    assert host.jobs[0].trainers[0].allocators[0].number("ooms") == 1


def test_a_link_and_a_badge_are_the_viewers():
    watched = scene()
    watched.store.set_link("k", Link("stale", "no data for 4 s", 4.0))
    assert watched.host.link.age_seconds == 4.0
    watched.store.add_source("replay", "file", "REPLAY")
    assert [h.badge for h in watched.store.view().hosts] == ["", "REPLAY"]


# ── unknown is never zero ─────────────────────────────────────────────────────────────────────────


def test_unknown_readings_have_their_reasons():
    watched = scene()
    device = watched.host.devices[0]
    assert device.reading("power_watts") == NO_REASON
    assert device.number("power_watts") is None
    why = [
        [1, "power_watts", "no_permission", "not for you"],
        [0, "nvml", "driver_error", "mismatch"],
    ]
    host = watched.say(sample(2, why=why))
    assert host.devices[0].reading("power_watts") == Unknown("no_permission", "not for you")
    assert host.nvml == Unknown("driver_error", "mismatch")
    # Reasons hold until they change: they are sent once.
    host = watched.say(sample(3))
    assert host.devices[0].reading("power_watts").code == "no_permission"
    # A value is stronger than a reason; without it the reason is back.
    host = watched.say(sample(4, g=[row(1, "g", power_watts=7.0)]))
    assert host.devices[0].reading("power_watts") == 7.0
    host = watched.say(sample(5, why=[[1, "power_watts", "", ""], [0, "nvml", "", ""]]))
    assert host.devices[0].reading("power_watts") == NO_REASON
    assert host.nvml is None


def test_a_reason_for_a_static_fact_is_read_like_a_column():
    host = scene(sample(2, why=[[1, "name", "lost", "the device is lost"]])).host
    assert host.devices[0].reading("name") == Unknown("lost", "the device is lost")
    assert host.devices[1].reading("name") == NOT_SENT


def test_columns_are_found_by_name():
    cols = {"g": ["new_column", "power_watts", "used_bytes", "another"]}
    watched = Watched(
        hello(cols=cols), *definitions()[:3], sample(1, g=[[1, 9, 300.0, 5, 9], [2, 9, 1.0]])
    )
    first, second = watched.host.devices
    assert dict(first.readings) == {"power_watts": 300.0, "used_bytes": 5}
    assert dict(second.readings) == {"power_watts": 1.0}
    assert first.reading("temperature_celsius") == NOT_SENT
    assert watched.history(1, "used_bytes") == [(100.5, 5.0)]
    assert watched.history(2, "used_bytes") == [(100.5, None)]
    assert watched.history(1, "new_column") == []


def test_an_entity_without_a_row_keeps_its_last_reading_and_its_time():
    host = scene(sample(2, g=[row(2, "g", used_bytes=1)])).host
    assert (host.devices[0].sampled_seconds, host.devices[0].number("used_bytes")) == (100.5, 101)
    assert host.devices[1].sampled_seconds == 101.0


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_trainer_that_died_keeps_its_last_state_with_reason_and_time():
    watched = scene()
    host = watched.say(Event(3, "gone", 101 * SECOND, "killed by SIGKILL"), sample(2))
    process, trainer = host.processes[0], next(t for t in host.trainers if t.id == 8)
    assert process.gone is not None
    assert (process.gone.monotonic_seconds, process.gone.wall_seconds) == (101.0, 1_000_001.0)
    assert trainer.gone == process.gone
    assert process.gone.reason == "killed by SIGKILL"
    # Rows that come later do not bring it back, and its last readings stay.
    assert trainer.number("step") == 1
    assert trainer.allocators[0].number("allocated_bytes") == 61
    assert process.uses[0].number("used_bytes") == 91
    assert host.devices[0].uses == ()
    assert host.devices[0].allocators == ()
    assert [t.gone is None for t in host.jobs[0].trainers] == [False, True]
    assert host.events[-1].text == "killed by SIGKILL"
    host = watched.say(Event(4, "gone", 102 * SECOND, ""))
    assert [t.gone.reason for t in host.trainers if t.id == 7] == ["ended"]
    assert len(host.jobs) == 1


def test_a_trainer_that_has_another_pid_inside_its_container_ends_with_its_process():
    watched = Watched(
        hello(), *definitions()[:7], Def(8, trainer=frames.TrainerDef(1, 17, proc=3)), sample(1)
    )
    process, trainer = watched.host.processes[0], watched.host.trainers[0]
    assert (process.trainer, trainer.process, trainer.key) == (8, 3, "1:17")
    host = watched.say(Event(3, "gone", 101 * SECOND, "killed by SIGKILL"))
    assert host.trainers[0].gone == host.processes[0].gone is not None


def test_a_definition_brings_an_ended_entity_back():
    watched = scene(Event(8, "gone", 101 * SECOND, "probe removed"))
    assert next(t for t in watched.host.trainers if t.id == 8).gone
    host = watched.say(next(d for d in definitions() if d.id == 8), sample(2))
    assert next(t for t in host.trainers if t.id == 8).number("step") == 2


def test_old_ended_processes_are_dropped_and_trainers_kept_longer():
    watched = Watched(hello())
    for i in range(1, 201):
        watched.say(Def(i, proc=ProcDef(i, 1)), Event(i, "gone", 101 * SECOND, "x"))
    assert len(watched.host.processes) == 64
    assert watched.host.processes[-1].definition.pid == 200
    for i in range(1000, 1030):
        watched.say(
            Def(i, proc=ProcDef(i, 1)), Def(i + 100, trainer=frames.TrainerDef(i, 1, proc=i))
        )
        watched.say(sample(1, t=[row(i + 100, "t", step=i)]), Event(i, "gone", 101 * SECOND, "x"))
    for i in range(2000, 2200):
        watched.say(Def(i, proc=ProcDef(i, 1)), Event(i, "gone", 101 * SECOND, "x"))
    trainers = watched.host.trainers
    assert [t.number("step") for t in trainers] == list(range(1014, 1030))
    # The process of a trainer that is kept is kept with it.
    by_id = {p.id: p for p in watched.host.processes}
    assert all(t.process in by_id for t in trainers)


@pytest.mark.slow
def test_numbers_are_bounded():
    watched = Watched(hello())
    watched.say(*(Def(i, gpu=frames.GpuDef(f"GPU-{i}", i)) for i in range(1, 100)))
    watched.say(*(Def(i, proc=ProcDef(i, 1)) for i in range(1000, 5200)))
    host = watched.host
    assert (len(host.devices), len(host.processes)) == (64, 4096)
    assert [e.e for e in host.events] == ["problem"]
    # One that ended makes place.
    host = watched.say(Event(1000, "gone", 101 * SECOND, "x"), Def(9000, proc=ProcDef(9000, 1)))
    assert host.processes[-1].definition.pid == 9000
    watched.say(*(Event(1, "note", 101 * SECOND, str(i)) for i in range(1000)))
    assert len(watched.host.events) == 256
    assert watched.host.events[-1].text == "999"


def test_definitions_that_refer_to_nothing_are_refused():
    host = Watched(
        hello(), Def(1, use=frames.UseDef(5, 6)), Def(2, alloc=frames.AllocDef(7, 0)), sample(1)
    ).host
    assert (host.processes, host.trainers) == ((), ())


def test_an_id_that_is_defined_anew_ends_what_it_was():
    watched = scene(Def(3, proc=ProcDef(31, 301)))
    old, new = watched.host.processes[0], watched.host.processes[-1]
    assert (old.key, old.gone.reason) == ("30:300", "its id was reused")
    assert (new.key, new.gone) == ("31:301", None)


# ── joins, restarts, time ─────────────────────────────────────────────────────────────────────────


def key(q: int, n: int) -> Key:
    return Key(q, 100 * SECOND + q * SECOND // 2, 1_000_000.0 + q / 2, n)


def test_what_a_key_frame_does_not_name_is_no_more():
    watched = scene(key(2, 10), *(d for d in definitions() if d.id != 2), sample(2))
    gone = watched.host.devices[1].gone
    assert gone is not None
    assert "no longer reports" in gone.reason
    assert watched.host.devices[0].gone is None


def test_a_key_frame_that_was_cut_ends_nothing():
    watched = scene(key(2, 11), *definitions()[:4], sample(2))
    assert all(d.gone is None for d in (*watched.host.devices, *watched.host.processes))


def test_after_a_restart_of_the_agent_the_history_goes_on():
    watched = scene(sample(2))
    watched.say(hello(pid=78, m=102 * SECOND, t=1_000_002.0))
    assert watched.host.devices[0].number("used_bytes") == 102
    # Ids start anew with every agent: 1 is the other device now.
    watched.say(Def(1, gpu=frames.GpuDef("GPU-b", 1)), Def(2, gpu=frames.GpuDef("GPU-a", 0)))
    rows = [wire.row(1, "g", used_bytes=1111), wire.row(2, "g", used_bytes=2222, power_watts=8.0)]
    host = watched.say(sample(5, g=rows, p=[], u=[], t=[], a=[]))
    first, second = host.devices
    assert [(d.key, d.id, d.number("used_bytes")) for d in (first, second)] == [
        ("GPU-a", 1, 2222),
        ("GPU-b", 2, 1111),
    ]
    assert watched.history(1, "used_bytes") == [(100.5, 101.0), (101.0, 102.0), (102.5, 2222.0)]
    assert watched.history(1, "power_watts") == [(100.5, None), (101.0, None), (102.5, 8.0)]
    assert watched.store.wire_id("k", 1) == 2
    # What was not named again is still shown for a while, then it has ended.
    assert host.processes[0].gone is None
    host = watched.say(sample(30, g=[], p=[], u=[], t=[], a=[]))
    assert host.processes[0].gone is not None
    assert watched.store.wire_id("k", 3) is None


def test_going_back_in_time_starts_over():
    watched = scene(*(sample(q) for q in range(2, 20)))
    watched.say(hello(m=102 * SECOND, t=1_000_002.0), key(4, 11), *definitions(), sample(5))
    assert watched.history(1, "used_bytes") == [(102.5, 105.0)]
    assert watched.host.wall_seconds == 1_000_002.5


def test_the_hello_of_a_key_frame_changes_nothing():
    watched = scene(sample(2), sample(3))
    before = watched.history(1, "used_bytes")
    watched.say(hello(m=102 * SECOND, t=1_000_002.0), key(4, 11), *definitions())
    assert watched.history(1, "used_bytes") == before
    assert all(p.gone is None for p in watched.host.processes)


def test_the_rate_is_measured():
    watched = scene()
    assert watched.host.rate_hz == 2.0
    watched.say(*(frames.Sample(q, 105 * SECOND + q * SECOND // 5) for q in range(8)))
    assert watched.host.rate_hz == 5.0


def test_the_first_samples_that_follow_each_other_fast_make_no_rate():
    """An agent begins with several at once; the rate that it announced holds until then."""
    at = [100 * SECOND + n * SECOND // 20 for n in range(12)]
    watched = Watched(hello(), *definitions(), *(frames.Sample(n, m) for n, m in enumerate(at)))
    assert watched.host.rate_hz == 2.0
    watched.say(*(frames.Sample(12 + n, at[-1] + (n + 1) * SECOND) for n in range(8)))
    assert watched.host.rate_hz == 1.0


# ── history ───────────────────────────────────────────────────────────────────────────────────────


def test_history_keeps_the_newest_as_it_came_and_has_windows():
    watched = scene(*(sample(q) for q in range(2, 4001)))
    everything = watched.history(1, "used_bytes")
    assert everything[-1] == (100 + 2000.0, 4100.0)
    assert everything[-3600:] == [(100 + q / 2, 100.0 + q) for q in range(401, 4001)]
    assert len(everything) < 3600 + 3600 // 64 + 30
    assert watched.history(1, "used_bytes", 1.0) == everything[-3:]
    assert watched.history(1, "power_watts", 1.0)[0][1] is None
    assert watched.history(99, "used_bytes") == []
    assert len(watched.store.history("nobody", 1, "used_bytes")) == 0


def test_history_has_a_budget(monkeypatch):
    monkeypatch.setattr("gpuscope.store.store.MAX_HISTORY_CELLS", 20_000)
    monkeypatch.setattr("gpuscope.store.stream._RECOUNT_CELLS", 1_000)
    watched = scene(*(sample(q) for q in range(2, 1000)))
    kept = watched.history(1, "used_bytes")
    assert 50 < len(kept) < 500
    assert kept[-1][1] == 1099.0


def test_cells_of_strings_and_booleans_are_read_and_leave_no_number():
    watched = scene(sample(2, g=[row(1, "g", performance_state="P0", fan_percent=True)]))
    assert watched.host.devices[0].reading("performance_state") == "P0"
    assert watched.history(1, "performance_state")[-1] == (101.0, None)


# ── whatever comes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(wire.FRAMES, st.sampled_from([hello(), *definitions(), sample(1), sample(2)])),
        max_size=12,
    )
)
def test_no_frame_breaks_the_store(said):
    watched = Watched(hello(), *definitions())
    for frame in said:
        watched.say(frame)
        for device in watched.host.devices:
            watched.history(device.id, "used_bytes")


@given(st.lists(st.lists(wire.SCALARS, max_size=4), max_size=6), st.sampled_from(list(COLUMNS)))
def test_no_row_breaks_the_store(rows, table):
    watched = scene()
    watched.say(
        sample(2, **{table: rows}), sample(3, why=[cells for cells in rows if None not in cells])
    )
