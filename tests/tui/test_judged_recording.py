"""What a replay tells of a moment does not depend on how one came there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.store.replay import MAX_SPEED, ReplaySource
from gpuscope.tui.background import judged_recording
from gpuscope.tui.doctor.case_times import duration_of_case
from gpuscope.tui.shell.session import Session
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Hello, Key
from gpuscope.wire.recording import RecordingWriter
from tests.fakes.waiting import until_true
from tests.recordings import REDACTED
from tests.tui.pilot import WAIT_SECONDS, in_loop

STALL, DDP = REDACTED / "h200x2-stall.gsr", REDACTED / "h200x2-ddp.gsr"
Way = Callable[[Session], Awaitable[None]]


async def play(session: Session) -> None:
    replay = replay_of(session)
    replay.set_speed(MAX_SPEED)
    replay.resume()
    await until_true(lambda: replay.ended, WAIT_SECONDS)


async def step(session: Session, seconds: float = 10.0) -> None:
    replay = replay_of(session)
    while replay.position_seconds < replay.duration_seconds:
        session.seek(seconds)
        await asyncio.sleep(0.05)


async def jump(session: Session) -> None:
    session.seek(replay_of(session).duration_seconds)


async def back_and_on(session: Session) -> None:
    await jump(session)
    await asyncio.sleep(0.3)
    session.seek(-60.0)
    await asyncio.sleep(0.3)
    await step(session, 7.0)


def replay_of(session: Session) -> ReplaySource:
    assert session.replay is not None
    return session.replay


def told(session: Session) -> list[tuple[float, str, str]]:
    """The Log: recorded time, word and text of each entry."""
    entries = session.happened.on(session.host).entries.values()
    return sorted((one.wall_seconds, one.word, one.text) for one in entries)


def found(session: Session) -> list[tuple[str, str, bool]]:
    """The findings, and since when each of them holds."""
    assert session.host is not None
    return [
        (case.finding.title, duration_of_case(case, session.host), case.past)
        for case in session.doctor.cases
    ]


async def after(path: Path, way: Way, at: float | None = None) -> tuple[Any, Any]:
    """Come to the end in one of the ways, then to the place ``at``; return log and findings."""
    session = Session(replay=ReplaySource(path))
    replay = replay_of(session)
    replay.pause()
    session.doctor.prepare()
    session.start(lambda: session.judge() and None)
    try:
        await until_true(
            lambda: session.host is not None and session.doctor.told is not None, WAIT_SECONDS
        )
        await way(session)
        if at is not None:
            replay.pause()
            session.seek(at - replay.position_seconds)
        place = replay.position_seconds
        every = session.doctor._recording.every_seconds  # type: ignore[union-attr]

        def is_there() -> bool:
            moment, host = session.doctor._moment, session.host
            recorded = moment is not None and 0 <= place - moment.seconds < every
            return recorded and host is not None and session.doctor._looked is host

        await until_true(is_there, WAIT_SECONDS)
        await asyncio.sleep(0.3)  # for the picture of the moment, which is read aside
        session.judge()
        return told(session), found(session)
    finally:
        session.close()
        await asyncio.sleep(0)


def rebooted(path: Path) -> Path:
    """A recording of a host that trains, is rebooted, and trains again with a clock from zero."""
    first = [(at, frame) for at, frame in ReplaySource(DDP).frames() if at < 25.0]
    ((_, began), *_), (_, again) = first, next(ReplaySource(STALL).frames())
    assert isinstance(began, Hello)
    assert isinstance(again, Hello)
    later = began.t + 90.0 - again.t
    with RecordingWriter(path) as writer:
        for at, frame in first:
            writer.write("", at, encode(frame))
        for at, frame in ReplaySource(STALL).frames():
            if isinstance(frame, Hello):
                frame = replace(frame, boot="boot-2", t=frame.t + later)
            elif isinstance(frame, Key):
                frame = replace(frame, t=frame.t + later)
            writer.write("", 90.0 + at, encode(frame))
    return path


@in_loop
async def test_after_a_reboot_of_the_host_the_times_are_the_same_however_one_came_there(tmp_path):
    """The clock of a host begins anew with it; a seek may read only what was after the reboot."""
    path = rebooted(tmp_path / "rebooted.gsr")
    log, findings = await after(path, play)
    since = {title.split()[0]: since for title, since, _ in findings}
    assert since["Tensor"] < since["The"], "what ended before the reboot, and what after it"
    assert since["Hang:"].endswith(" s")
    for way in (step, jump, back_and_on):
        assert await after(path, way) == (log, findings), way.__name__
    assert await after(path, jump, 150.0) == await after(path, step, 150.0)


@pytest.mark.parametrize("path", [STALL, DDP], ids=lambda path: path.stem)
@in_loop
async def test_played_in_steps_and_in_one_jump_the_log_and_the_findings_are_the_same(path):
    played = await after(path, play)
    assert any(word in ("problem found", "warning") for _, word, _ in played[0])
    for way in (step, jump, back_and_on):
        assert await after(path, way) == played, way.__name__


@pytest.mark.parametrize(("path", "at"), [(STALL, 45.0), (DDP, 8.0)])
@in_loop
async def test_a_seek_back_takes_away_what_had_not_happened_yet(path, at):
    async def nothing(session: Session) -> None:
        return

    forward, back = await after(path, nothing, at), await after(path, jump, at)
    assert back == forward
    whole, _ = await after(path, jump)
    assert len(forward[0]) < len(whole)


@in_loop
async def test_the_log_has_the_recorded_times_of_what_was_found():
    stall, _ = await after(STALL, jump)
    (hang,) = [at for at, word, text in stall if (word, text[:4]) == ("problem found", "Hang")]
    assert time.strftime("%H:%M:%S", time.gmtime(hang)) in ("16:00:39", "16:00:40", "16:00:41")
    small = [word for _, word, text in stall if "work is too small" in text]
    assert small == ["noticed"], "that nothing steps any more is no end of it"
    ddp, findings = await after(DDP, jump)
    assert [word for _, word, _ in ddp].count("warning") == 1
    assert all("≥" not in since for _, since, _ in findings)


@in_loop
async def test_a_seek_that_takes_long_says_how_far_it_has_come(monkeypatch):
    quick = judged_recording.examined

    def slow(*picture: Any) -> Any:
        time.sleep(0.02)
        return quick(*picture)

    monkeypatch.setattr(judged_recording, "examined", slow)
    monkeypatch.setattr(judged_recording, "LATE_SECONDS", 0.1)
    seen: list[str] = []

    async def watched(session: Session) -> None:
        await jump(session)
        await until_true(
            lambda: seen.append(session.replay_text()) or "findings to" in seen[-1], WAIT_SECONDS
        )
        await until_true(lambda: "findings to" not in session.replay_text(), WAIT_SECONDS)

    _, findings = await after(STALL, watched)
    assert any(title.startswith("Hang") for title, _, _ in findings)


def test_of_a_long_recording_only_so_many_moments_are_judged():
    replay = ReplaySource(STALL)
    replay.clock.duration = 12 * 3600.0
    long = judged_recording.JudgedRecording(replay, {}, lambda: None)
    assert long.every_seconds * judged_recording.MOST_MOMENTS == pytest.approx(12 * 3600.0)


@in_loop
async def test_a_recording_that_cannot_be_judged_any_further_says_so(monkeypatch):
    quick = judged_recording.ended_badly

    def fails(host: Any, stopped: Any) -> Any:
        if host.trainers and any(one.gone is not None for one in host.trainers):
            raise ValueError("made up")
        return quick(host, stopped)

    monkeypatch.setattr(judged_recording, "ended_badly", fails)

    async def watched(session: Session) -> None:
        await jump(session)
        await until_true(lambda: bool(session.doctor.problem), WAIT_SECONDS)
        assert "(ValueError)" in session.doctor.report.problems[-1]
        assert session.replay_text().endswith("×1")
        session.seek(-60.0)

    assert (await after(STALL, watched))[0], "what was judged before is still told"
