"""Replay and recording: what was seen live is seen again, forwards and backwards in time."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuscope.store.decode import decode
from gpuscope.store.recorder import Recorder, record
from gpuscope.store.replay import ReplaySource
from gpuscope.store.source import AgentSource, SourceError
from gpuscope.store.store import Store
from gpuscope.store.view import HostView, Link
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Frame
from gpuscope.wire.recording import RecordingError, RecordingReader, RecordingWriter
from tests.fakes import wire
from tests.fakes.waiting import until_true
from tests.fakes.wire import heard
from tests.recordings import SHIPPED

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 15.0


session = partial(wire.session, key_every=10, ends=True)


def written(path: Path, *sessions: list[tuple[float, Frame]]) -> Path:
    with RecordingWriter(path) as writer:
        said = sorted(
            ((rx, n, frame) for n, one in enumerate(sessions) for rx, frame in one),
            key=lambda s: s[0],
        )
        for rx, number, frame in said:
            writer.write(f"source {number}", rx, encode(frame))
    return path


class Playing:
    def __init__(self, source: ReplaySource) -> None:
        self.source = source
        self.store = Store()
        self.store.add_source(source.key, source.label, source.badge)
        self.links: list[Link] = []
        self.count = 0

    def take(self, frame: Frame, received: float) -> None:
        self.store.apply(self.source.key, frame, received)
        self.count += 1

    @property
    def host(self) -> HostView:
        return self.store.view().host

    @property
    def step(self) -> object:
        """The step of the first rank: half seconds since the beginning."""
        trainers = [t for t in self.host.trainers if t.definition.rank == 0]
        return trainers[0].number("step") if trainers else None

    async def until(self, ask: Callable[[], object]) -> None:
        await until_true(
            ask, PATIENCE, lambda: (self.links, self.step, self.source.position_seconds)
        )


@asynccontextmanager
async def playing(source: ReplaySource) -> AsyncIterator[Playing]:
    played = Playing(source)
    task = asyncio.create_task(source.run(played.take, played.links.append))
    try:
        yield played
    finally:
        await source.close()
        await asyncio.wait_for(task, PATIENCE)


def test_a_recording_plays_to_its_end_at_its_pace(tmp_path):
    path = written(tmp_path / "a.gsr", session(20))

    async def check() -> None:
        source = ReplaySource(path)
        assert (source.badge, source.duration_seconds, source.problem) == ("REPLAY", 19.5, "")
        source.set_speed(20)
        began = time.monotonic()
        async with playing(source) as played:
            await played.until(lambda: source.ended)
            assert time.monotonic() - began > 0.9
            assert played.host.badge == "REPLAY"
            assert played.step == 39
            assert source.position_seconds == 19.5
            assert len(played.store.history(source.key, 1, "used_bytes")) == 39
            gone = [t for t in played.host.trainers if t.gone]
            assert [(t.id, t.gone.reason) for t in gone] == [(7, "ended")]
            assert played.links[-1] == Link("replay", "end of the recording")

    asyncio.run(check())


def test_pause_speed_and_seek(tmp_path):
    path = written(tmp_path / "a.gsr", session(60))

    async def check() -> None:
        source = ReplaySource(path)
        source.pause()
        async with playing(source) as played:
            await played.until(lambda: played.count >= 12)
            assert played.step is None
            await asyncio.sleep(0.1)
            assert source.position_seconds == 0.0
            # Forward: what charts show of the place sought is read too.
            source.seek(45.2)
            await played.until(lambda: played.step == 90)
            assert len(played.store.history(source.key, 1, "used_bytes")) == 90
            assert [t.id for t in played.host.trainers if t.gone is None] == [8]
            # Backward: the trainer that ended later lives again, and the history is that of before.
            source.seek(12.2)
            await played.until(lambda: played.step == 24)
            assert all(t.gone is None for t in played.host.trainers)
            assert len(played.host.trainers) == 2
            history = played.store.history(source.key, 1, "used_bytes")
            assert (history.seconds[0], history.seconds[-1]) == (100.5, 112.0)
            assert source.position_seconds == 12.2
            source.set_speed(50)
            source.toggle_pause()
            # 100 steps a second: 60 itself may be missed
            await played.until(lambda: (played.step or 0) >= 60)
            source.toggle_pause()
            assert source.paused
            stopped = source.position_seconds
            await asyncio.sleep(0.1)
            assert source.position_seconds == stopped
            source.seek(1e9)
            await played.until(lambda: source.ended)
            assert played.step == 119
            source.seek(-5)
            await played.until(lambda: played.step is None and not source.ended)
            assert source.position_seconds == 0.0

    asyncio.run(check())


def test_a_step_forward_goes_to_the_first_trainer_and_from_there_on_as_far_as_it_says(tmp_path):
    async def check() -> None:
        source = ReplaySource(SHIPPED / "h200-lab.gsr")
        source.pause()
        async with playing(source) as played:
            await played.until(lambda: source.first_trainer_seconds)
            first = source.first_trainer_seconds
            assert first == pytest.approx(13.0, abs=0.1)
            source.seek_by(10.0)
            assert source.position_seconds == first
            await played.until(lambda: played.store.host(source.key).trainers)
            source.seek_by(10.0)
            assert source.position_seconds == first + 10.0
            source.seek(3.0)
            source.seek_by(-1.0)
            assert source.position_seconds == 2.0
            source.seek_by(30.0)
            assert source.position_seconds == 32.0

    asyncio.run(check())


def test_speed_is_bounded(tmp_path):
    source = ReplaySource(written(tmp_path / "a.gsr", session(2)))
    source.set_speed(1e9)
    assert source.speed == 100.0
    source.set_speed(0)
    assert source.speed == 0.1


def test_nothing_can_be_asked_of_a_recording(tmp_path):
    source = ReplaySource(written(tmp_path / "a.gsr", session(2)))
    assert "recording" in source.capabilities.why_not("snapshot")
    with pytest.raises(SourceError, match="recording") as refused:
        asyncio.run(source.request("snapshot", {}))
    assert refused.value.code == "unsupported"


def test_a_damaged_recording_plays_up_to_the_damage_and_says_so(tmp_path):
    path = written(tmp_path / "a.gsr", session(20))
    path.write_bytes(path.read_bytes()[:-300])

    async def check() -> None:
        source = ReplaySource(path)
        source.set_speed(100)
        async with playing(source) as played:
            await played.until(lambda: source.ended)
            assert "truncated" in source.problem
            assert played.links[-1] == Link("replay", source.problem)
            assert played.step > 20

    asyncio.run(check())


def test_what_is_no_recording_ends_with_the_reason(tmp_path):
    path = tmp_path / "a\x1b.gsr"
    path.write_text("no")

    async def check() -> None:
        source = ReplaySource(path)
        links: list[Link] = []
        await source.run(lambda *_: None, links.append)
        assert links[-1].state == "ended"
        assert "not a gpuscope recording" in links[-1].text
        assert "\x1b" not in links[-1].text + source.label
        assert source.duration_seconds == 0.0

    asyncio.run(check())


# ── recording ─────────────────────────────────────────────────────────────────────────────────────

AGENT = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import *
def say(*frames):
    os.write(1, b"".join(encode(frame) for frame in frames))
cols = {{"g": ["used_bytes"]}}
say(Hello(host="h", pid=os.getpid(), boot="b", hz=50.0, t=1.0, m=1, cols=cols, requests=["snapshot"]))
say(Def(1, gpu=GpuDef("GPU-a", 0)))
for q in range(1, 100000):
    say(Sample(q, time.monotonic_ns(), g=[[1, q]]), Pong(1.0), Result(1, {{"private": 1}}))
    time.sleep(0.02)
"""  # noqa: E501


def read(path: Path) -> HostView:
    reader = RecordingReader(path)
    host = heard(*(decode(one.line) for one in reader)).view().host
    assert reader.problem is None
    return host


def test_record_without_a_screen(tmp_path):
    path = tmp_path / "a.gsr"
    source = AgentSource([sys.executable, "-c", AGENT], "k", "secret-label")
    summary = asyncio.run(record(source, path, seconds=1.5, redact=True))
    assert summary.error == ""
    assert summary.lines > 10
    assert summary.size_bytes == path.stat().st_size
    host = read(path)
    assert (host.name, host.devices[0].key) == ("host-1", "GPU-a")
    assert host.devices[0].number("used_bytes") > 5
    assert not any(
        b"private" in line.line or b"pong" in line.line for line in RecordingReader(path)
    )
    with pytest.raises(RecordingError, match="exists already"):
        asyncio.run(record(source, path, seconds=1))


def test_a_recorder_that_comes_late_begins_with_all_definitions(tmp_path):
    async def check() -> None:
        source = AgentSource([sys.executable, "-c", AGENT], "k", "l")
        count = 0

        def sink(frame: Frame, received: float) -> None:
            nonlocal count
            count += 1

        task = asyncio.create_task(source.run(sink, lambda link: None))
        await until_true(lambda: count >= 10, PATIENCE)
        recorder = Recorder(tmp_path / "a.gsr")
        recorder.attach(source)
        await until_true(lambda: recorder.lines >= 20, PATIENCE)
        recorder.close()
        assert source.taps == []
        await source.close()
        await task

    asyncio.run(check())
    host = read(tmp_path / "a.gsr")
    assert host.devices[0].number("used_bytes") > 5
    first = next(iter(RecordingReader(tmp_path / "a.gsr")))
    assert first.line.startswith(b'{"k":"hello"')


def test_a_full_disk_ends_the_recording_not_the_session(tmp_path, monkeypatch):
    async def check() -> None:
        recorder = Recorder(tmp_path / "a.gsr")
        source = ReplaySource(written(tmp_path / "b.gsr", session(5)))
        recorder.attach(source)

        def full(*_: object) -> None:
            raise RecordingError("cannot write: No space left on device")

        monkeypatch.setattr(recorder._writer, "write", full)
        source.set_speed(100)
        async with playing(source) as played:
            await played.until(lambda: source.ended)
            assert played.step == 9
        assert "No space left" in recorder.error
        recorder.close()

    asyncio.run(check())
