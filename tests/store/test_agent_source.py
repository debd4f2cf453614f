"""The live source, with real child processes standing in for agents."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from gpuscope.store import source as source_module
from gpuscope.store.source import AgentSource, SourceError
from gpuscope.store.view import View
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Progress, Sample
from tests.fakes.child_agent import PATIENCE, watching
from tests.fakes.waiting import alive, own_seconds, until
from tests.fakes.wire import definitions, heard, hello, sample


def test_frames_arrive_and_the_link_lives():
    async def check() -> None:
        async with watching("scene()\nfor _ in asked(): pass") as watched:
            assert watched.source.capabilities.why_not("rate") == "not connected"
            await watched.until(lambda: any(isinstance(f, Sample) for f in watched.frames))
            assert [link.state for link in watched.links] == ["connecting", "live"]
            assert watched.source.capabilities.why_not("rate") == ""
            assert "does not support" in watched.source.capabilities.why_not("inject")
        assert watched.links[-1].state == "ended"

    asyncio.run(check())


def test_noise_before_the_hello_is_skipped():
    async def check() -> None:
        script = (
            "os.write(1, b'Welcome to \\x1b[31mnode\\n' + b'x' * 30000 + b'\\n')\nscene()\n"
            "for _ in asked(): pass"
        )
        async with watching(script) as watched:
            await watched.until(lambda: len(watched.frames) == 3)

    asyncio.run(check())


def test_endless_noise_ends_the_attempt():
    async def check() -> None:
        async with watching("while True: os.write(1, b'noise\\n' * 1000)") as watched:
            await watched.link("connecting", "is not an agent")

    asyncio.run(check())


def test_an_endless_line_is_cut_not_buffered():
    async def check() -> None:
        script = "scene()\nwhile True: os.write(1, b'x' * 65536)"
        async with watching(script) as watched:
            link = await watched.link("stale", "a line that is too long")
            assert "trying again in 1 s" in link.text

    asyncio.run(check())


def test_it_starts_again_and_says_why(monkeypatch):
    monkeypatch.setattr(source_module, "BACK_OFF_SECONDS", (0.05, 0.2))

    async def check() -> None:
        script = "scene()\nsys.stderr.write('\\x1b[31mno driver\\n')\nsys.exit(3)"
        async with watching(script) as watched:
            await watched.until(
                lambda: sum("trying again" in link.text for link in watched.links) >= 4
            )
            text = (await watched.link("stale", "trying again")).text
            assert "the agent ended (exit code 3, " in text
            assert "\\x1b[31mno driver" in text
            assert "\x1b" not in text
            assert sum(type(f).__name__ == "Hello" for f in watched.frames) >= 3

    asyncio.run(check())


def test_the_pause_doubles_up_to_its_limit(monkeypatch):
    monkeypatch.setattr(source_module, "BACK_OFF_SECONDS", (1.0, 5.0))
    waited: list[float] = []

    async def fake_wait(
        early: list[asyncio.Task], timeout: float, return_when: str
    ) -> tuple[set, set]:
        waited.append(timeout)
        if len(waited) == 5:
            source._closing.set()
            return {early[0]}, {early[1]}
        return set(), set(early)

    async def short_life(*_: object) -> str:
        return "ended"

    async def check() -> None:
        monkeypatch.setattr(source, "_live", short_life)
        monkeypatch.setattr(source_module.asyncio, "wait", fake_wait)
        await source.run(lambda *_: None, lambda _: None)

    source = AgentSource(["x"], "k", "here")
    asyncio.run(check())
    assert waited == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_program_that_is_not_there_is_said_once():
    async def check() -> None:
        async with watching("", ["/nonexistent/agent"]) as watched:
            await watched.link("ended", "cannot start /nonexistent/agent: No such file")
            await asyncio.wait_for(watched.task, PATIENCE)

    asyncio.run(check())


def test_another_protocol_is_said_once():
    async def check() -> None:
        async with watching("hello(v=2)\nfor _ in asked(): pass") as watched:
            link = await watched.link("ended", "there speaks protocol 2, this one 1")
            assert "bring both to the same version" in link.text

    asyncio.run(check())


def test_silence_is_stale_and_then_live_again(monkeypatch, tmp_path):
    go_on = tmp_path / "go on"
    monkeypatch.setattr(source_module, "STALE_SECONDS", 0.3)

    async def check() -> None:
        quiet = f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        async with watching(
            f"scene()\n{quiet}say(Sample(2, 3))\nfor _ in asked(): pass"
        ) as watched:
            link = await watched.link("stale", "no data for")
            assert link.age_seconds > 0.3
            go_on.touch()
            await watched.until(
                lambda: watched.links[-1].state == "live" and len(watched.links) > 3
            )

    asyncio.run(check())


def test_an_agent_that_ends_while_its_child_holds_the_pipe_is_noticed():
    async def check() -> None:
        script = "scene()\nsubprocess.Popen(['sleep', '600'])\nos._exit(4)"
        async with watching(script) as watched:
            link = await watched.link("stale", "the agent ended (exit code 4")
            assert "trying again" in link.text

    asyncio.run(check())


STUBBORN = """
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
scene()
say(Event(1, "note", 1, str(child.pid)))
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_the_end_is_quick_and_leaves_nothing(how):
    async def check() -> tuple[float, list[int]]:
        async with watching(STUBBORN) as watched:
            await watched.until(lambda: any(type(f).__name__ == "Event" for f in watched.frames))
            pids = [f.pid for f in watched.frames if type(f).__name__ == "Hello"]
            pids += [int(f.text) for f in watched.frames if type(f).__name__ == "Event"]
            began = own_seconds()
            if how == "close":
                await watched.source.close()
            else:
                watched.task.cancel()
                await asyncio.wait({watched.task})
                watched.task = asyncio.create_task(asyncio.sleep(0))
            return own_seconds() - began, pids

    took, pids = asyncio.run(check())
    assert took < 0.3  # 0.2 promised, and a little for our own work
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)), PATIENCE)


def test_a_flood_does_not_keep_others_from_their_turn():
    async def check() -> float:
        async with watching(
            "hello()\nline = encode(Pong()) * 2000\nwhile True: os.write(1, line)"
        ) as watched:
            await watched.link("live")
            worst, deadline = 0.0, time.monotonic() + 1.5
            while time.monotonic() < deadline:
                began = own_seconds()
                await asyncio.sleep(0.01)
                worst = max(worst, own_seconds() - began)
            return worst

    assert asyncio.run(check()) < 0.5


# ── requests ──────────────────────────────────────────────────────────────────────────────────────

ANSWERS = """
scene()
for frame in asked():
    if isinstance(frame, Request):
        if frame.args.get("do") == "work":
            say(Ack(frame.id), Progress(frame.id, 0.5, "half"), Result(frame.id, {"x": 1}))
        elif frame.args.get("do") == "fail":
            say(Error(frame.id, "busy", "busy by pid 7"))
        elif frame.r == "cancel":
            say(Event(0, "note", 1, "cancelled %s" % frame.args["id"]))
        elif frame.args.get("do") == "die":
            os._exit(9)
"""


def test_requests_are_answered_fail_and_expire(monkeypatch):
    monkeypatch.setattr("gpuscope.store.pending_requests.GRACE_SECONDS", 0.05)

    async def check() -> None:
        async with watching(ANSWERS) as watched:
            source = watched.source
            with pytest.raises(SourceError) as early:
                await source.request("rate", {})
            assert early.value.code == "gone"
            await watched.link("live")
            progress: list[Progress] = []
            result = await source.request("snapshot", {"do": "work"}, on_progress=progress.append)
            assert result.value == {"x": 1}
            assert [(p.fraction, p.text) for p in progress] == [(0.5, "half")]
            with pytest.raises(SourceError, match="busy by pid 7") as busy:
                await source.request("snapshot", {"do": "fail"})
            assert busy.value.code == "busy"
            with pytest.raises(SourceError, match="does not support") as foreign:
                await source.request("inject", {})
            assert foreign.value.code == "unsupported"
            with pytest.raises(SourceError) as late:
                await source.request("snapshot", {"do": "nothing"}, deadline=0.05)
            assert late.value.code == "timeout"
            await watched.until(
                lambda: any(getattr(f, "text", "") == "cancelled 3" for f in watched.frames)
            )
            waiting = asyncio.create_task(source.request("snapshot", {"do": "nothing"}))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await watched.until(
                lambda: any(getattr(f, "text", "") == "cancelled 5" for f in watched.frames)
            )
            with pytest.raises(SourceError, match="exit code 9") as dead:
                await source.request("snapshot", {"do": "die"})
            assert dead.value.code == "gone"

    asyncio.run(check())


BLOBS = """
import threading
from gpuscope.agent.outbox import Outbox
from gpuscope.wire.blobs import BlobSender
outbox = Outbox(1)
scene()
threading.Thread(target=outbox.run, daemon=True).start()
senders = {}
for frame in asked():
    if isinstance(frame, Credit):
        if frame.id in senders:
            senders[frame.id].allow(frame.n)
    elif isinstance(frame, Request) and frame.r == "cancel":
        senders.pop(frame.args["id"], None)
        outbox.put(encode(Event(0, "note", 1, "cancelled")))
    elif isinstance(frame, Request):
        senders[frame.id] = BlobSender(frame.id, os.urandom(frame.args["size"]))
    for number, sender in list(senders.items()):
        while sender.wants_turn:
            outbox.put(sender.next_line() or b"")
        if sender.done:
            outbox.put(encode(Result(number, {"bytes": sender._read})))
            del senders[number]
"""


def test_a_blob_ends_up_in_a_file(tmp_path):
    async def check() -> None:
        async with watching(BLOBS) as watched:
            await watched.link("live")
            seen: list[Progress] = []
            result = await watched.source.request(
                "snapshot", {"size": 3_000_000}, on_progress=seen.append, blob_to=tmp_path / "blob"
            )
            assert result.value == {"bytes": 3_000_000}
            assert (tmp_path / "blob").stat().st_size == 3_000_000
            fractions = [p.fraction for p in seen]
            assert fractions == sorted(fractions)
            assert fractions[-1] == 1.0
            with pytest.raises(SourceError, match="more than the 1000"):
                await watched.source.request(
                    "snapshot", {"size": 50_000}, blob_to=tmp_path / "large", max_bytes=1000
                )
            await watched.until(
                lambda: any(getattr(f, "text", "") == "cancelled" for f in watched.frames)
            )
            with pytest.raises(SourceError, match="unrequested"):
                await watched.source.request("snapshot", {"size": 10})
        assert os.listdir(tmp_path) == ["blob"]

    asyncio.run(check())


# ── cuts ──────────────────────────────────────────────────────────────────────────────────────────


class CutChild:
    """In place of a process: what had arrived when the connection was cut."""

    how_it_ended = last_words = ""
    has_exited = False
    pid = 0

    def __init__(self, data: bytes) -> None:
        self.lines = asyncio.StreamReader(limit=1 << 20)
        self.lines.feed_data(data)
        self.lines.feed_eof()

    def write(self, line: bytes) -> None:
        pass

    async def stop(self) -> None:
        pass

    def kill(self, reap: bool = True) -> None:
        pass


@pytest.mark.slow
def test_cut_at_every_byte_the_state_is_that_of_a_clean_cut(monkeypatch):
    head = b"".join(encode(frame) for frame in (hello(), *definitions()))
    ticks = [encode(sample(q)) for q in (1, 2, 3)]

    async def state(data: bytes) -> View:
        store = heard()

        async def spawn(*_: object) -> CutChild:
            return CutChild(data)

        monkeypatch.setattr(source_module.Child, "spawn", spawn)
        source = AgentSource(["x"], "k", "here")
        await source._live(lambda frame, received: store.apply("k", frame, 1.0), lambda link: None)
        return store.view()

    async def check() -> None:
        clean = [await state(head + b"".join(ticks[:n])) for n in range(4)]
        assert len({view.version for view in clean}) == 4
        whole, lengths = b"".join(ticks), [len(b"".join(ticks[:n])) for n in range(4)]
        for offset in range(len(whole) + 1):
            complete = max(n for n in range(4) if lengths[n] <= offset)
            assert await state(head + whole[:offset]) == clean[complete], offset

    asyncio.run(check())
