"""Agents that misbehave on the pipe do no harm.

They are real children behind a real source, and the store still shows what was good before.
"""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import pytest

from gpuscope.store import source as source_module
from gpuscope.store.decode import decode
from gpuscope.store.recorder import Recorder
from gpuscope.wire.frames import Def, Event, Hello, Sample
from gpuscope.wire.recording import RecordingReader
from tests.fakes.child_agent import watching
from tests.fakes.wire import heard


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_a_hello_that_never_comes(monkeypatch):
    monkeypatch.setattr(source_module, "HELLO_SECONDS", 0.2)

    async def check() -> None:
        for silence in ("time.sleep(600)", "say(Sample(1, 2))\nfor _ in asked(): pass"):
            async with watching(silence) as watched:
                await watched.link("connecting", "did not answer within")
                assert watched.frames == []

    asyncio.run(check())


def test_a_hello_that_comes_again_changes_nothing_that_is_shown():
    async def check() -> None:
        again = (
            "scene()\nhello()\nsay(Def(1, gpu=GpuDef('GPU-a', 0)), Sample(2, 3, g=[[1, 6]]))\n"
            "for _ in asked(): pass"
        )
        async with watching(again) as watched:
            await watched.until(lambda: sum(isinstance(f, Sample) for f in watched.frames) == 2)
            assert [link.state for link in watched.links] == ["connecting", "live"]
        store = heard(*watched.frames)
        (device,) = store.view().host.devices
        assert store.history("k", device.id, "used_bytes").values == (5.0, 6.0)

    asyncio.run(check())


def test_bytes_that_drip_are_put_together():
    async def check() -> None:
        drip = """
whole = b"".join(encode(f) for f in (Hello(boot="b", m=1, cols={"g": ["used_bytes"]}), Def(1, gpu=GpuDef("GPU-a", 0)),
    Sample(1, 2, g=[[1, 5]])))
for i in range(len(whole)):
    os.write(1, whole[i:i + 1])
    time.sleep(0.0005)
os.write(1, b'{"k":"s","q":2')
for _ in asked(): pass
"""  # noqa: E501
        async with watching(drip) as watched:
            await watched.until(lambda: any(isinstance(f, Sample) for f in watched.frames))
            assert watched.links[-1].state == "live"
        assert heard(*watched.frames).view().host.devices[0].number("used_bytes") == 5

    asyncio.run(check())


def test_an_output_that_is_closed_while_the_agent_lives_is_said_so():
    async def check() -> None:
        async with watching(
            "scene()\nos.close(1)\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"
        ) as watched:
            link = await watched.link("stale", "closed its output")
            assert "trying again" in link.text

    asyncio.run(check())


def test_a_flood_on_standard_error_neither_stops_nor_fills_us():
    async def check() -> None:
        flood = """
scene()
def shout():
    while True: os.write(2, b"\\x1b[2Jpanic " * 6000)
threading.Thread(target=shout, daemon=True).start()
for q in range(2, 10000):
    say(Sample(q, q, g=[[1, q]]))
    time.sleep(0.01)
"""
        async with watching(flood) as watched:
            await watched.link("live")
            before = resident_mib()
            await watched.until(lambda: sum(isinstance(f, Sample) for f in watched.frames) > 60)
            assert resident_mib() - before < 20
            assert len(watched.source._child._stderr) <= 4096

    asyncio.run(check())


@pytest.mark.parametrize(
    "nonsense",
    [
        r"""b'{"k":"result","id":1,"value":{"a":' + b'[' * 100000 + b'\n'""",
        r"""b'{"k":"s","q":1,"m":' + b'9' * 5000 + b'}\n'""",
        r"""b'{"k":"def","id":1,"gpu":{"uuid":7,"index":0}}\n'""",
        r"""b'\xff\xfe\x00' * 300 + b'\n'""",
    ],
    ids=["deep", "wide number", "wrong type", "no text"],
)
def test_damaged_lines_are_skipped_and_too_many_end_the_connection(nonsense):
    async def check() -> None:
        some = (
            f"scene()\nos.write(1, {nonsense})\nsay(Sample(2, 3, g=[[1, 6]]))\n"
            "for _ in asked(): pass"
        )
        async with watching(some) as watched:
            await watched.until(lambda: sum(isinstance(f, Sample) for f in watched.frames) == 2)
            assert watched.source.bad_lines == 1
        async with watching(f"scene()\nwhile True: os.write(1, {nonsense})") as watched:
            await watched.link("stale", "sends damaged frames")
        assert heard(*watched.frames).view().host.devices[0].number("used_bytes") == 5

    asyncio.run(check())


@pytest.mark.slow
def test_definitions_kept_for_a_recorder_are_bounded_and_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr(source_module, "MAX_DEFINITION_BYTES", 2_000_000)

    async def check() -> None:
        many = """
scene()
say(Def(2, proc=ProcDef(7, 1)), Def(3, use=UseDef(2, 1)), Def(2, proc=ProcDef(7, 1, command="found out later")))
wide = b'{"k":"def","id":%d,"proc":{"pid":%d},"future":"' + b"x" * 500000 + b'"}\\n'
for i in range(10, 40):
    os.write(1, wide % (i, i))
emoji = chr(0x1F600) * 4096
for i in range(50):
    say(Sample(1, 2, why=[[2, "f%d" % (20 * i + j), "lost", emoji] for j in range(20)]))
say(Sample(2, 3, why=[[2, "f0", "", ""], [2, "f1", "lost", "gone " + emoji[:10]]]))
say(Event(1, "note", 3, "all"))
for q in range(10000):
    say(Sample(q, 100 + q, u=[[3, 9]]))
    time.sleep(0.02)
"""  # noqa: E501
        async with watching(many) as watched:
            await watched.until(lambda: any(isinstance(f, Event) for f in watched.frames))
            prelude = watched.source.prelude()
            assert sum(map(len, prelude)) < 2_100_000 + 12 * (4 << 20)
            recorder = Recorder(tmp_path / "a.gsr")
            recorder.attach(watched.source)
            until = len(watched.frames) + 5
            await watched.until(lambda: len(watched.frames) > until)
            recorder.close()
        assert isinstance(decode(prelude[0]), Hello)
        assert [f.id for f in map(decode, prelude[2:6]) if isinstance(f, Def)] == [1, 2, 3, 10]
        reasons = [row for f in map(decode, prelude) if isinstance(f, Sample) for row in f.why]
        assert [2, "f1", "lost", "gone " + chr(0x1F600) * 10] in reasons
        assert "f0" not in [row[1] for row in reasons]
        assert 1000 < len(reasons) * 4096 / 1000 < 4300

    asyncio.run(check())
    store = heard(*(decode(one.line) for one in RecordingReader(tmp_path / "a.gsr")))
    process = next(p for p in store.view().host.processes if p.definition.pid == 7)
    assert process.definition.command == "found out later"
    assert len(process.uses) == 1


@pytest.mark.slow
def test_an_agent_gone_mad_is_held_back_and_memory_stays(monkeypatch):
    monkeypatch.setattr(source_module, "_BURST", 3000.0)
    monkeypatch.setattr(source_module, "FRAMES_PER_SECOND", 2000.0)

    async def check() -> float:
        async with watching(
            "scene()\nlines = encode(Sample(2, 3, g=[[1, 6]])) * 500\n"
            "while True: os.write(1, lines)"
        ) as watched:
            await watched.link("live")
            await watched.until(lambda: len(watched.frames) > 2500)
            before, began, count = resident_mib(), time.monotonic(), len(watched.frames)
            await asyncio.sleep(1.5)
            came = len(watched.frames) - count
            watched.frames.clear()
            assert came / (time.monotonic() - began) < 4000
            return resident_mib() - before

    assert asyncio.run(check()) < 20
