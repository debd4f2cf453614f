"""One source that hangs, dies, floods or refuses is nobody else's trouble.

Several sources run at once with real processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuscope.store import remote
from gpuscope.store import source as sources
from gpuscope.store.remote import Gate, Launch, RemoteSource
from gpuscope.store.source import AgentSource, Source
from gpuscope.store.store import Store
from gpuscope.store.view import Link
from gpuscope.tui.background.sources import Hosts
from gpuscope.wire import frames as f
from gpuscope.wire.codec import encode
from tests.fakes import fleet
from tests.fakes.waiting import until_true

PATIENCE = 20.0
HZ = 10.0
FLOOD = """
import sys
head, *samples = open(sys.argv[1], "rb").read().split(b"\\n", 1)
out = sys.stdout.buffer
out.write(head + b"\\n")
number = 0
while True:
    out.write(b'{"k":"s","q":%d,"m":%d,"g":[]}\\n' % (number, 9940000000000 + number))
    number += 1
"""


class Watched:
    """Sources that run together, and what came of each."""

    def __init__(self, running: Sequence[Source]) -> None:
        self.store = Store()
        self.samples: Counter[str] = Counter()
        self.links: dict[str, list[Link]] = {one.key: [] for one in running}
        self.hosts = Hosts(running)

    def hear(self, key: str, frame: f.Frame, received: float) -> None:
        self.samples[key] += isinstance(frame, f.Sample)
        self.store.apply(key, frame, received)

    def linked(self, key: str, link: Link) -> None:
        self.links[key].append(link)
        self.store.set_link(key, link)

    async def until(self, ask: Callable[[], object]) -> None:
        await until_true(ask, PATIENCE, lambda: (self.samples, self.links))

    def state(self, key: str) -> str:
        return self.store.link(key).state if key in self.store.sources else ""

    async def more_of(self, *keys: str, count: int = 5) -> None:
        """So many more samples of each of these."""
        wanted = {key: self.samples[key] + count for key in keys}
        await self.until(lambda: all(self.samples[key] >= n for key, n in wanted.items()))


def run(running: Sequence[Source], look: Callable[[Watched], object]) -> Watched:
    """Watches all of them while ``look`` looks."""

    async def both() -> Watched:
        watched = Watched(running)
        task = asyncio.create_task(watched.hosts.run(watched.store, watched.hear, watched.linked))
        try:
            await look(watched)  # type: ignore[misc]
        finally:
            for one in running:
                await one.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return watched

    return asyncio.run(both())


def agents(folder: Path, *names: str) -> list[AgentSource]:
    out = []
    for number, name in enumerate(names):
        path = fleet.write(folder / f"{name}.lines", fleet.node(number, seconds=30.0, hz=HZ))
        out.append(fleet.agent(path, name, HZ))
    return out


def pid_of(one: AgentSource) -> int:
    assert one._child is not None
    return one._child.pid


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(sources, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(sources, "BACK_OFF_SECONDS", (0.3, 1.0))


def test_a_hung_host_goes_stale_by_itself_and_comes_back(quick, tmp_path):
    running = agents(tmp_path, "well", "hung", "also-well")

    async def look(watched: Watched) -> None:
        await watched.more_of("well", "hung", "also-well")
        os.kill(pid_of(running[1]), signal.SIGSTOP)
        await watched.until(lambda: watched.state("hung") == "stale")
        held = watched.samples["hung"]
        await watched.more_of("well", "also-well")
        assert watched.samples["hung"] == held
        assert watched.store.link("hung").text.startswith("no data for")
        host = watched.store.host("hung")
        assert host is not None
        assert len(host.devices) == 8, "the last picture is kept"
        assert [watched.state(key) for key in ("well", "also-well")] == ["live", "live"]
        os.kill(pid_of(running[1]), signal.SIGCONT)
        await watched.until(lambda: watched.state("hung") == "live")

    watched = run(running, look)
    assert all(link.state != "stale" for link in watched.links["well"])


def test_a_killed_agent_is_started_again_and_the_others_go_on(quick, tmp_path):
    running = agents(tmp_path, "well", "killed")

    async def look(watched: Watched) -> None:
        await watched.more_of("well", "killed")
        first = pid_of(running[1])
        os.killpg(first, signal.SIGKILL)
        await watched.until(lambda: "trying again" in watched.store.link("killed").text)
        assert "signal SIGKILL" in watched.store.link("killed").text
        await watched.more_of("well", "killed")
        assert pid_of(running[1]) != first
        assert watched.state("killed") == "live"

    watched = run(running, look)
    assert {link.state for link in watched.links["well"][2:]} <= {"live", "ended"}


@pytest.mark.slow
def test_one_that_floods_is_held_back_and_the_others_are_heard(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BURST", 2000.0)
    (well,) = agents(tmp_path, "well")
    head = tmp_path / "head"
    head.write_bytes(encode(fleet.node(0)[0]))
    mad = AgentSource([sys.executable, "-I", "-S", "-c", FLOOD, str(head)], "mad", "mad")

    async def look(watched: Watched) -> None:
        await watched.until(lambda: watched.samples["mad"] > 3000 and watched.samples["well"] > 3)
        before, began = watched.samples.copy(), time.monotonic()
        await watched.more_of("well", count=15)
        seconds = time.monotonic() - began
        assert (
            watched.samples["mad"] - before["mad"] <= 2 * sources.FRAMES_PER_SECOND * seconds + 200
        )
        assert watched.state("well") == "live"

    watched = run([well, mad], look)
    assert all(link.state != "stale" for link in watched.links["well"])


class Sent:
    data = b"hello\n"
    marker = b""


class Said:
    """What is made of the end of a command: not tried again after a refusal."""

    def __init__(self, text: str, again: bool) -> None:
        self.text, self.again = text, again


def remote_source(code: str, key: str, gate: Gate) -> RemoteSource:
    argv = [sys.executable, "-I", "-S", "-c", code]
    launch = Launch(
        argv,
        argv,
        lambda hz: Sent(),
        lambda exit_code, stderr: Said("permission denied", False),
    )
    return RemoteSource(launch, key, key, 1.0, gate)


def test_a_host_that_lets_nobody_in_is_tried_once(quick, tmp_path):
    (well,) = agents(tmp_path, "well")
    counter = tmp_path / "tries"
    shut = remote_source(
        f"open({str(counter)!r}, 'a').write('x'); import sys; sys.exit(255)", "shut", Gate()
    )

    async def look(watched: Watched) -> None:
        await watched.until(lambda: watched.state("shut") == "ended")
        assert "permission denied" in watched.store.link("shut").text
        await watched.more_of("well", count=15)  # five of the shortest pauses
        assert counter.read_text() == "x"
        assert watched.state("shut") == "ended"

    run([well, shut], look)


@pytest.mark.slow
def test_no_more_than_eight_connect_at_once_and_all_get_their_turn(quick, tmp_path):
    folder = tmp_path / "connecting"
    folder.mkdir()
    code = (
        f"import os, time; p = {str(folder)!r} + '/' + str(os.getpid()); open(p, 'w').close(); "
        f"open({str(tmp_path / 'most')!r}, 'a').write('%d\\n' % len(os.listdir({str(folder)!r}))); "
        "time.sleep(0.3); os.unlink(p); raise SystemExit(255)"
    )
    gate = Gate()
    running = [remote_source(code, f"host-{number:02d}", gate) for number in range(20)]

    async def look(watched: Watched) -> None:
        await watched.until(lambda: all(watched.state(one.key) == "ended" for one in running))
        assert any(
            "is queued to connect" in link.text
            for links in watched.links.values()
            for link in links
        )

    run(running, look)
    counts = [int(line) for line in (tmp_path / "most").read_text().split()]
    assert len(counts) == 20
    assert 1 < max(counts) <= remote.CONNECTS


def test_one_host_is_drawn_without_the_others(tmp_path):
    store, _ = fleet.store_of(
        {f"n{number}": (fleet.node(number, seconds=2.0), Link("live")) for number in range(3)}
    )
    assert store.sources == ("n0", "n1", "n2")
    drawn = []
    pictures = store._pictures
    for key in pictures:
        before = pictures[key].draw
        pictures[key].draw = lambda stream, key=key, before=before: (
            drawn.append(key) or before(stream)
        )  # type: ignore
    first = store.host("n1")
    assert drawn == ["n1"]
    assert store.host("n1") is first
    assert store.view().hosts[1] is first
    assert sorted(drawn) == ["n0", "n1", "n2"]
    assert store.host("nobody") is None
