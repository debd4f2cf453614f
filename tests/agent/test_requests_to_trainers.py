"""Requests go all the way from a viewer's source to a real trainer, through a real agent.

What is asked for arrives, or why not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import sys
from contextlib import asynccontextmanager

import pytest

from gpuscope.attach import bundle
from gpuscope.probe import rendezvous
from gpuscope.store.decode import decode
from gpuscope.store.recorder import Recorder
from gpuscope.store.source import SourceError
from gpuscope.wire.frames import Event, Progress, Sample
from gpuscope.wire.recording import RecordingReader
from tests.fakes import allocator
from tests.fakes.asking import KEYBOARD, tell
from tests.fakes.child_agent import watching
from tests.fakes.probe_client import APART, PLACE_APART, TRAINING, sockets, trainer, wait_for

pytest.importorskip("torch")

PLACE = os.path.join(APART, os.path.basename(rendezvous.directory()))
CODE = (
    TRAINING + PLACE_APART + "from tests.fakes import allocator\nmade = allocator.install(2000)\n"
    "import gpuscope, random\ngpuscope.watch(model=model, optimizer=optimizer)\n"
    + KEYBOARD
    + "train(300, 0.02)"
)
NOISE = """
noise = random.Random(3).randbytes(20 << 20)
torch.cuda.memory._snapshot = lambda: {"segments": [], "device_traces": [[]], "noise": noise}
"""
"""20 MB that do not compress: what a snapshot of a million entries weighs on the wire."""


@pytest.fixture(scope="module")
def training():
    with trainer(CODE, fork=True) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        yield process


@asynccontextmanager
async def viewer(process):
    """A viewer that sees the trainer: what it is watching, and the trainer's wire id."""
    argv = [sys.executable, "-I", bundle.local_agent_zip(), "--sockets", PLACE, "--hz", "2"]
    async with watching("", argv) as watched:

        def found():
            defs = [
                f
                for f in watched.frames
                if getattr(f, "trainer", None) and f.trainer.pid == process.pid
            ]
            rows = {row[0] for f in watched.frames if isinstance(f, Sample) for row in f.t}
            return next((f.id for f in defs if f.id in rows), None)

        await watched.until(found)
        yield watched, found()


async def failure(asking):
    with pytest.raises(SourceError) as caught:
        await asking
    return caught.value.code, caught.value.what


async def refusal(asking):
    """The code of the error, "" when there is none."""
    try:
        await asking
    except SourceError as error:
        return error.code
    return ""


def test_answers_files_and_refusals(training, tmp_path):
    async def check():
        async with viewer(training) as (watched, number):
            ask = watched.source.request
            stacks = await ask("stacks", {"trainer": number})
            assert stacks.value["threads"][0]["training"]
            modules = await ask("modules", {"trainer": number})
            assert modules.value["rows"][0][2] == "Sequential"
            statistics = await ask("statistics", {"trainer": number, "device": 0})
            assert statistics.value["statistics"]["num_ooms"] == 2

            told: list[Progress] = []
            trace = tmp_path / "trace.json"
            profile = await ask(
                "profile", {"trainer": number, "steps": 4}, 60.0, told.append, trace
            )
            assert profile.value["bytes"] == trace.stat().st_size
            events = json.loads(trace.read_bytes())["traceEvents"]
            assert {e["tid"] for e in events if e["name"] == "aten::addmm"} == {training.pid}
            assert any("steps recorded" in progress.text for progress in told)

            file = tmp_path / "snapshot.pickle"
            snapshot = await ask("snapshot", {"trainer": number}, 60.0, None, file)
            assert pickle.loads(file.read_bytes()) == allocator.snapshot(2000)
            assert snapshot.value["entries"] == 2000

            assert await failure(ask("history", {"trainer": number, "entries": -1})) == (
                "refused",
                "entries must be a whole number from 0 to 5000000",
            )
            code, reason = await failure(ask("statistics", {"trainer": number, "device": 5}))
            assert (code, "uses no cuda:5" in reason) == ("refused", True)
            assert (await failure(ask("stacks", {})))[0] == "refused"
            assert (await failure(ask("stacks", {"trainer": 9999})))[0] == "gone"

    asyncio.run(check())


@pytest.mark.slow
def test_20_mb_arrive_whole_and_the_samples_on_time(training, tmp_path):
    tell(training, "usual = torch.cuda.memory._snapshot" + NOISE)

    async def check():
        async with viewer(training) as (watched, number):
            arrived: list[float] = []
            loop = asyncio.get_running_loop()

            def tap(line, frame, now):
                if isinstance(frame, Sample) and any(row[0] == number for row in frame.t):
                    arrived.append(loop.time())

            watched.source.taps.append(tap)
            file = tmp_path / "large.pickle"
            begin = loop.time()
            for _ in range(2):
                result = await watched.source.request(
                    "snapshot", {"trainer": number}, 60.0, None, file
                )
                assert result.value["bytes"] == file.stat().st_size > 20 << 20
            seconds = loop.time() - begin
            noise = pickle.loads(file.read_bytes())["noise"]
            # Two a second; blobs that went first would hold them back until their end. A busy
            # machine costs some.
            assert len(arrived) >= 2 * seconds * 0.6 - 2
            assert not [f for f in watched.frames if isinstance(f, Event) and f.e == "dropped"]
            return hashlib.sha256(noise).hexdigest()

    try:
        import random

        assert (
            asyncio.run(check()) == hashlib.sha256(random.Random(3).randbytes(20 << 20)).hexdigest()
        )
    finally:
        tell(training, "torch.cuda.memory._snapshot = usual")


def test_two_viewers_and_one_that_thinks_better_of_it(training, tmp_path):
    tell(
        training,
        "import threading\nusual_train, over = step, threading.Event()\ndef step(): over.wait(2)",
    )

    async def check():
        async with viewer(training) as (first, number), viewer(training) as (second, same):
            begun = asyncio.Event()
            asking = asyncio.create_task(
                first.source.request(
                    "profile",
                    {"trainer": number, "steps": 50},
                    60.0,
                    lambda _: begun.set(),
                    tmp_path / "a.json",
                )
            )
            await asyncio.wait_for(begun.wait(), 20)
            agent = next(f.pid for f in first.frames if hasattr(f, "nonce"))
            code, reason = await failure(second.source.request("snapshot", {"trainer": same}, 10.0))
            assert (code, reason) == ("busy", f"busy with profile for pid {agent}")
            assert (await failure(first.source.request("stacks", {"trainer": number})))[0] == "busy"
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            for _ in range(200):  # the profiler is being stopped
                if not await refusal(second.source.request("stacks", {"trainer": same}, 10.0)):
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the trainer stays busy")
            assert not (tmp_path / "a.json").exists()
            late = await failure(
                second.source.request("history", {"trainer": same, "trial_steps": 20}, 1.0)
            )
            assert late[0] == "unfinished"
            assert "of 20 steps measured without history" in late[1], (
                "the probe says it, not who waited for it"
            )

    try:
        asyncio.run(check())
    finally:
        tell(training, "step = usual_train\nover.set()")


def test_events_of_a_trainer_reach_viewer_and_recording_under_its_ids(training, tmp_path):
    async def check():
        async with viewer(training) as (watched, number):
            recorder = Recorder(tmp_path / "a.gsr")
            recorder.attach(watched.source)
            alloc = lambda: next(  # noqa: E731
                (
                    f.id
                    for f in watched.frames
                    if getattr(f, "alloc", None) and f.alloc.trainer == number
                ),
                None,
            )
            await watched.until(alloc)
            tell(
                training,
                "probe = sys._gpuscope_probe\n"
                "probe.announce('oom', 'tried to allocate 2 GiB', {'requested_bytes': 2 << 30, "
                "'state': 'seen'}, 0)\n"
                "probe.announce('stall', 'no step for 9 s', {'seconds': 9.0})\n"
                "probe.announce('gone', 'it says')",
            )
            await watched.until(lambda: any(getattr(f, "e", "") == "stall" for f in watched.frames))
            recorder.close()
            seen = {f.e: f for f in watched.frames if isinstance(f, Event)}
            assert (seen["oom"].id, seen["oom"].text) == (alloc(), "tried to allocate 2 GiB")
            assert seen["oom"].data == {"requested_bytes": 2 << 30, "state": "seen"}
            assert (seen["stall"].id, seen["stall"].data) == (number, {"seconds": 9.0})
            assert "gone" not in seen, "that a process has ended is not for it to say"
            kept = [decode(line.line) for line in RecordingReader(tmp_path / "a.gsr")]
            assert {(f.e, f.id) for f in kept if isinstance(f, Event)} >= {
                ("oom", alloc()),
                ("stall", number),
            }

    asyncio.run(check())


def test_a_trainer_that_dies_in_the_middle_leaves_an_error_and_no_file(tmp_path):
    async def check(process):
        async with viewer(process) as (watched, number):
            file = tmp_path / "never.pickle"

            def kill(progress):
                if progress.text == "receiving":
                    process.kill()

            asking = watched.source.request("snapshot", {"trainer": number}, 60.0, kill, file)
            code, reason = await failure(asking)
            assert code == "gone"
            assert "socket was closed" in reason or "it disconnected" in reason
            assert list(tmp_path.iterdir()) == []

    with trainer(CODE, fork=True) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        tell(process, NOISE)
        asyncio.run(check(process))
