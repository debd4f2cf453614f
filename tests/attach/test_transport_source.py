"""The source of a remote agent stands noise, cuts and throttling.

It tries again when it should, and not when it must not.
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gpuscope.attach.askpass import Askpass, Questions, SshQuestion
from gpuscope.attach.bootstrap import Preamble
from gpuscope.attach.transport_failures import judge
from gpuscope.store import remote as remote_module
from gpuscope.store import source as source_module
from gpuscope.store.remote import Gate, Launch, RemoteSource
from gpuscope.store.source import Source
from gpuscope.store.store import Store
from gpuscope.wire.codec import encode
from gpuscope.wire.frames import Sample
from tests.fakes.child_agent import START, Watching
from tests.fakes.wire import definitions, hello, sample

MARKER = b"\x1egpuscope 0123\n"
MARK = "os.write(1, b'\\n\\x1egpuscope 0123\\n')\n"


def launch(script: str, again: str | None = None, **more: Any) -> Launch:
    def words(text: str) -> list[str]:
        return [sys.executable, "-c", START + text]

    return Launch(
        words(script),
        words(script if again is None else again),
        lambda hz: Preamble(b"", MARKER),
        lambda code, said: judge("ssh", code, said),
        **more,
    )


@asynccontextmanager
async def watching(what: Launch, gate: Gate | None = None) -> AsyncIterator[Watching]:
    source = RemoteSource(what, "there", "there", 2.0, gate)
    watched = Watching(source, None)  # type: ignore[arg-type]
    watched.task = asyncio.create_task(
        source.run(lambda frame, _: watched.frames.append(frame), watched.links.append)
    )
    try:
        yield watched
    finally:
        await source.close()
        await asyncio.wait_for(watched.task, 15)


def test_what_a_login_prints_is_skipped_and_is_no_hello():
    async def check() -> None:
        noise = (
            "hello(nonce='evil')\nos.write(1, b'\\x1b]0;title\\x07' + b'motd\\n' * 2000 + "
            "b'no newline')\n"
        )
        async with watching(launch(noise + MARK + "scene()\nfor _ in asked(): pass")) as watched:
            await watched.until(lambda: len(watched.frames) == 3)
            assert watched.frames[0].nonce == ""
            assert watched.source.connect_seconds > 0
        async with watching(launch("while True: os.write(1, b'noise\\n' * 1000)")) as watched:
            await watched.link("connecting", "is not an agent")
        async with watching(
            launch("os.write(1, b'\\n\\x1egpuscope 0123\\r\\n')\ntime.sleep(60)")
        ) as watched:
            await watched.link("connecting", "a terminal in between")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Permission denied (publickey,password).", "permission denied. Next: ssh"),
        ("Host key verification failed.", "its host key is unknown here"),
        ("ssh: Could not resolve hostname nowhere", "no host has this name"),
    ],
)
def test_what_will_not_go_better_is_not_tried_again(said, text):
    async def check() -> None:
        script = f"sys.stderr.write('\\x1b[31m{said}\\n')\nsys.exit(255)"
        async with watching(launch(script)) as watched:
            link = await watched.link("ended", text)
            assert "\x1b" not in link.text
            await asyncio.wait_for(watched.task, 15)
            watched.task = asyncio.create_task(asyncio.sleep(0))

    asyncio.run(check())


def test_a_lost_connection_comes_back_without_asking_anybody(monkeypatch):
    monkeypatch.setattr(source_module, "BACK_OFF_SECONDS", (0.05, 0.1))

    async def check() -> None:
        first = (
            MARK
            + "scene()\nsys.stderr.write('Timeout, server there not responding.\\n')\nsys.exit(255)"
        )
        again = MARK + "scene()\nsay(Event(1, 'note', 1, 'again'))\nfor _ in asked(): pass"
        async with watching(launch(first, again)) as watched:
            link = await watched.link("stale", "trying again in")
            assert "there: it does not answer" in link.text
            assert "not responding" in link.text
            await watched.until(
                lambda: any(getattr(frame, "text", "") == "again" for frame in watched.frames)
            )

    asyncio.run(check())


def test_pauses_differ_between_hosts():
    source = RemoteSource(launch(""), "there", "there", 2.0)
    pauses = {source._pause(10.0) for _ in range(50)}
    assert len(pauses) > 40
    assert min(pauses) >= 6.0
    assert max(pauses) <= 10.0


def test_so_many_connect_at_once_and_a_slow_one_gives_its_turn_away(monkeypatch):
    monkeypatch.setattr(remote_module, "SLOW_SECONDS", 1.5)

    async def check() -> None:
        gate, began = Gate(1), time.monotonic()
        async with watching(launch("time.sleep(60)"), gate) as slow:
            await slow.until(lambda: gate.is_full)
            async with watching(launch(MARK + "scene()\nfor _ in asked(): pass"), gate) as other:
                await other.link("connecting", "is queued to connect")
                await other.link("live")
                assert time.monotonic() - began > 1.5
            assert not slow.frames
            # what waits can be left at once
            async with watching(launch("time.sleep(60)"), gate):
                await asyncio.sleep(0.1)

    asyncio.run(check())


@pytest.mark.slow
def test_somebody_who_types_a_password_is_not_hurried(monkeypatch, tmp_path):
    monkeypatch.setattr(remote_module, "CONNECT_SECONDS", 1.5)
    begun, typed = tmp_path / "begun", tmp_path / "typed"

    async def check() -> None:
        asked = Questions({}, "there")
        asked.begin = lambda: None  # type: ignore[method-assign]
        asked.pending = 1
        slow = (
            f"open({str(begun)!r}, 'w').close()\nwhile not os.path.exists({str(typed)!r}): "
            "time.sleep(0.01)\n"
        )
        async with watching(
            launch(slow + MARK + "scene()\nfor _ in asked(): pass", questions=asked)
        ) as watched:
            await watched.until(begun.exists)
            await asyncio.sleep(2.5)
            asked.pending = 0
            typed.touch()
            await watched.link("live")
        async with watching(launch("time.sleep(60)")) as watched:
            await watched.link("connecting", "did not answer within")

    asyncio.run(check())


# ── a connection that is cut ──────────────────────────────────────────────────────────────────────


@dataclass
class Pipe:
    """Stands in for a child: what it said is known beforehand."""

    lines: asyncio.StreamReader
    has_exited: bool = False
    exit_code: int | None = None
    stderr_text: str = ""
    last_words: str = ""
    how_it_ended: str = ""

    def write(self, line: bytes) -> None: ...

    async def stop(self) -> None: ...

    def kill(self) -> None: ...


@pytest.mark.slow
def test_a_cut_at_every_byte_leaves_what_came_whole(monkeypatch):
    # The state is that of the frames among hello, definitions and two samples that came whole,
    # wherever it was cut.
    frames = [hello(), *definitions(), sample(1), sample(2)]
    lines = [encode(frame) for frame in frames]
    whole = b"motd\n" + MARKER + b"".join(lines)

    async def told(data: bytes) -> tuple[list[Any], Any]:
        reader = asyncio.StreamReader(limit=1 << 20)
        reader.feed_data(data)
        reader.feed_eof()
        seen: list[Any] = []
        store = Store()
        store.add_source("there", "there")
        source: Source = RemoteSource(launch(""), "there", "there", 2.0)

        async def spawn(*_: Any) -> Any:
            return Pipe(reader)

        monkeypatch.setattr(remote_module.Child, "spawn", spawn)

        def sink(frame: Any, at: float) -> None:
            seen.append(frame)
            store.apply("there", frame, at)

        await source._live(sink, lambda link: None)  # type: ignore[attr-defined]
        return seen, store.view().hosts[0]

    async def check() -> None:
        start = len(whole) - len(b"".join(lines))
        ends = [start]
        for line in lines:
            ends.append(ends[-1] + len(line))
        clean = {}
        for count, end in enumerate(ends):
            clean[count] = await told(whole[:end])
            assert len(clean[count][0]) == count
        for at in range(len(whole) + 1):
            seen, host = await told(whole[:at])
            count = sum(end <= at for end in ends[1:])
            assert len(seen) == count, at
            same = clean[count][1]
            assert (host.devices, host.processes, host.trainers) == (
                same.devices,
                same.processes,
                same.trainers,
            ), at

    asyncio.run(check())
    assert isinstance(frames[-1], Sample)


# ── what ssh asks ─────────────────────────────────────────────────────────────────────────────────


def ask(environment, prompt, kind=""):
    env = {**os.environ, **environment, "SSH_ASKPASS_PROMPT": kind}
    return subprocess.run(
        [environment["SSH_ASKPASS"], prompt], env=env, capture_output=True, text=True, timeout=30
    )


def test_a_question_reaches_whoever_answers_and_no_file_has_the_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    asked: list[SshQuestion] = []

    def answer(question: SshQuestion) -> str | None:
        asked.append(question)
        return None if "refuse" in question.prompt else "s3cret'\"$x"

    with Askpass(answer) as askpass:
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        way = askpass.place("ada@h")
        told = ask(way.environment, "ada@h's password: ")
        assert (told.returncode, told.stdout) == (0, "s3cret'\"$x\n")
        assert ask(way.environment, "refuse").returncode == 1
        assert ask(way.environment, "and again?").returncode == 1  # nobody is asked after that
        way.begin()
        ask(
            way.environment,
            "\x1b]52;c;x\x07The authenticity of h\ncan't be established (yes/no/[fingerprint])? ",
        )
        ask(way.environment, "Touch your key", "none")
        content = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
        assert b"s3cret" not in content
    assert list(tmp_path.iterdir()) == []
    assert [(q.secret, q.confirm, q.notice) for q in asked] == [
        (True, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert "\x1b" not in asked[2].prompt
    assert asked[2].prompt.count("\n") == 1
