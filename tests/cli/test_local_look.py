"""One look at this machine gives a verb what an agent here would have sent.

Nothing is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpuscope.agent import oneshot, oneshot_frames, stream
from gpuscope.agent.oneshot import OneShot, collect_once
from gpuscope.agent.oneshot_frames import frames
from gpuscope.agent.picture import NOT_ASKED_YET, Picture
from gpuscope.cli.local_look import KEY, look
from gpuscope.collect import processes
from gpuscope.collect.trainers import TrainerReport
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.view import HostView, Link
from gpuscope.wire import codec
from gpuscope.wire.frames import Event, HostDef, TrainerDef, Unknown
from tests.fakes.nvml import FakeNvml, FakeProcess

HIDDEN = Unknown("hidden_by_container", "this container cannot see them")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": None)
    return FakeNvml(gpus=2, processes=[FakeProcess(os.getpid(), used=5 << 30, gpu=1)])


def through_the_wire(shot: OneShot) -> HostView:
    store = Store()
    store.add_source(KEY, "")
    for frame in frames(shot.picture):
        store.apply(KEY, decode(codec.encode(frame).rstrip(b"\n")), time.monotonic())
    store.set_link(KEY, Link("live"))
    host = store.host(KEY)
    assert host is not None
    return host


def well(fake: FakeNvml) -> None:
    pass


def lost(fake: FakeNvml) -> None:
    fake.lose(1)


def no_driver(fake: FakeNvml) -> None:
    fake.fail("nvmlInitWithFlags", None, "DriverNotLoaded")


@pytest.mark.parametrize("state", [well, lost, no_driver])
def test_it_is_what_comes_through_the_wire(
    fake: FakeNvml, state: Callable[[FakeNvml], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    state(fake)
    with fake.install():
        shot = collect_once(10.0, want_trainers=False, directories=())
    monkeypatch.setattr(oneshot, "collect_once", lambda *_: shot)
    host, sent = look().host, through_the_wire(shot)
    assert host.name == os.uname().nodename
    unlike = {"wall_seconds": None, "began_wall_seconds": None}
    assert replace(host, **unlike) == replace(sent, **unlike)


def test_a_device_that_has_not_even_said_who_it_is_stands_there_with_the_reason(
    fake: FakeNvml,
) -> None:
    with fake.install(), fake.hang("nvmlDeviceGetUUID", 1):
        host = look(1.0, want_trainers=False, directories=()).host
    well, hung = host.devices
    assert well.number("used_bytes")
    reasons = {
        hung.reading(column)
        for column in ("used_bytes", "name", "uuid", "processes", "mig_instances")
    }
    assert len(reasons) == 1, "no column is without it, however many there are"
    assert "nvmlDeviceGetUUID has not returned" in str(next(iter(reasons)).text)  # type: ignore[union-attr]


def test_what_probes_told_while_others_were_waited_for_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minutes = [Event(1, "time", m, "", {"m": m}) for m in (1, 2)]

    def picture(_: object) -> Picture:
        report = TrainerReport(7, 40, 1, TrainerDef(pid=40, start=1), {}, {}, 1)
        report.events = [(None, minutes.pop(0))] if minutes else []
        return Picture(1.0, HostDef("h"), {}, {}, 1.0, None, trainers=[report])

    def until(self: object, timeout: float, take: Any, enough: object) -> tuple[Picture, bool]:
        return [take() for _ in range(3)][-1], True

    monkeypatch.setattr(oneshot.Collector, "picture", picture)
    monkeypatch.setattr(oneshot.Look, "until", until)
    (report,) = collect_once(1.0, directories=()).picture.trainers
    assert [event.m for _, event in report.events] == [1, 2]


def test_a_process_that_nobody_has_looked_at_is_still_on_its_device(fake: FakeNvml) -> None:
    with fake.install():
        shot = collect_once(10.0, want_trainers=False, directories=())
    shot.picture.processes.clear()
    host = through_the_wire(shot)
    (process,) = host.processes
    assert [use.process for use in host.devices[1].uses] == [process.id]
    assert process.definition.pid == os.getpid()
    assert process.reading("command") == NOT_ASKED_YET


def test_pids_that_mean_nothing_here_say_why(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": HIDDEN)
    with fake.install():
        assert look(10.0, want_trainers=False, directories=()).host.hidden == HIDDEN


def test_more_reasons_than_one_sample_carries_are_all_there(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_REASONS_PER_SAMPLE", 10)
    monkeypatch.setattr(oneshot_frames, "MAX_REASONS_PER_SAMPLE", 10)
    fake.lose(0)
    fake.lose(1)
    with fake.install():
        host = look(10.0, want_trainers=False, directories=()).host
    for device in host.devices:
        for column in ("used_bytes", "power_watts", "tensor_active_percent"):
            reason = device.reading(column)
            assert isinstance(reason, Unknown)
            assert reason.code == "lost"
