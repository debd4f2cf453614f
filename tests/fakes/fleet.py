"""Many hosts for tests, some of them broken.

Their agents are real processes, each sending lines that were made before.

The numbers are made up. Such an agent costs next to nothing, so that a machine with two cores can
run 64 of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuscope.store.source import AgentSource
from gpuscope.store.store import Store
from gpuscope.store.view import Capabilities, Link
from gpuscope.tui.background.sources import Hosts
from gpuscope.wire import frames as f
from gpuscope.wire.codec import encode
from tests.fakes import views

AGENT = """
import sys, time
path, hz, phase = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
out = sys.stdout.buffer
head, samples = [], []
for line in open(path, "rb"):
    (samples if line.startswith((b'{"k":"s"', b'{"k": "s"')) else head).append(line)
out.write(b"".join(head) + samples[0])
out.flush()
time.sleep(phase)
began = time.monotonic()
for number, line in enumerate(samples[1:], 1):
    time.sleep(max(0.0, began + number / hz - time.monotonic()))
    out.write(line)
    out.flush()
time.sleep(600)
"""


def node(
    number: int,
    kind: str = "busy",
    seconds: float = 30.0,
    hz: float = 1.0,
    processes: int = 0,
    name: str = "",
) -> list[f.Frame]:
    """Return the frames of a host with eight devices.

    ``kind``: busy, idle, free, stalled, lost, tight or across (ranks of a job that has others on
    the previous host). ``processes`` is the number of further processes without a probe.
    """
    host = name or f"node-{number:02d}"
    ranks = {"busy": 8, "stalled": 8, "lost": 6, "tight": 8, "across": 8}.get(kind, 0)
    job = f"job-{number // 2}" if kind == "across" else f"job-{number}"
    first = 8 * (number % 2) if kind == "across" else 0
    world = 16 if kind == "across" else ranks
    out: list[f.Frame] = [views.hello(host), views.host_def(), *(views.gpu(i) for i in range(8))]
    for rank in range(ranks):
        definitions = views.trainer(48200 + rank, rank, world, "ada", True, job)
        trainer = definitions[2].trainer
        assert trainer is not None
        trainer.rank = first + rank
        out += definitions
    if kind == "idle":
        out += [
            f.Def(
                150,
                proc=f.ProcDef(51120, 9, views.WALL - 90000, "lin", "jupyter", "jupyter", 1, False),
            ),
            *(f.Def(250 + i, use=f.UseDef(150, 10 + i)) for i in range(3)),
        ]
    for extra in range(processes):
        out.append(
            f.Def(
                1000 + extra,
                proc=f.ProcDef(60000 + extra, 7, views.WALL, "lin", "python w.py", "python"),
            )
        )
        out.append(f.Def(2000 + extra, use=f.UseDef(1000 + extra, 10 + extra % 8)))
    out += list(_samples(number, kind, ranks, int(seconds * hz), hz, processes))
    return out


def _samples(
    number: int, kind: str, ranks: int, count: int, hz: float, processes: int
) -> Iterator[f.Sample]:
    start = views.END - 50
    for q in range(count):
        at = start + q / hz
        sample = f.Sample(q, int(at * 1e9), h=[views.host_row()])
        for i in range(8):
            load = 0.0 if i >= ranks or kind == "stalled" else 88 + 8 * math.sin(q / 3 + i + number)
            used = (
                30.0
                if kind == "idle" and i < 3
                else 0.01
                if i >= ranks
                else 137.5
                if kind == "tight"
                else 70.0 + i
            )
            if kind == "lost" and i == 5:
                sample.g.append(views.row("g", 10 + i))
                if q == 0:
                    for column in f.DEVICE_COLUMNS:
                        sample.why.append([15, column, f.LOST, "the device has fallen off the bus"])
            else:
                sample.g.append(views.device_row(i, used, load))
        for i in range(ranks):
            behind = kind == "stalled" and i == 3
            more: dict[str, f.Scalar] = (
                {
                    "step_age_seconds": 40.0 + q,
                    "collectives": 900 - behind,
                    "stall_at": "data.py:88 __getitem__" if behind else "train.py:60 all_reduce",
                }
                if kind == "stalled"
                else {}
            )
            n, step = i, 4000 + (0 if kind == "stalled" else q)
            sample.p.append(views.row("p", 100 + n, cpu_percent=104.0, rss_bytes=9 * views.GIB))
            sample.u.append(views.row("u", 200 + n, used_bytes=int((69.9 + i) * views.GIB)))
            sample.t.append(
                views.trainer_row(n, step, 0.901 + 0.004 * math.sin(q + number), **more)
            )
            reserved = 136.0 if kind == "tight" else 66.0
            sample.a.append(
                views.allocator_row(n, reserved - 0.3 if kind == "tight" else 48.0, reserved, 6.0)
            )
        if kind == "idle":
            sample.p.append(views.row("p", 150, cpu_percent=0.0, rss_bytes=2 * views.GIB))
            sample.u += [
                views.row("u", 250 + i, used_bytes=int(29.9 * views.GIB)) for i in range(3)
            ]
        for extra in range(processes):
            sample.p.append(
                views.row("p", 1000 + extra, cpu_percent=40.0 + q % 7, rss_bytes=views.GIB + q)
            )
            sample.u.append(views.row("u", 2000 + extra, used_bytes=512 << 20))
        yield sample


def write(path: Path, frames: Sequence[f.Frame]) -> Path:
    """Write the lines that an :func:`agent` sends."""
    path.write_bytes(b"".join(encode(frame) for frame in frames))
    return path


def agent(path: Path, key: str, hz: float = 1.0, phase: float = 0.0) -> AgentSource:
    """Return a source whose agent is a real process that sends these lines."""
    return AgentSource(
        [sys.executable, "-I", "-S", "-c", AGENT, str(path), str(hz), str(phase)], key, key
    )


def script(code: str, key: str) -> AgentSource:
    return AgentSource([sys.executable, "-I", "-S", "-c", code], key, key)


class Still:
    """A source without an agent: the store already has its host."""

    badge = ""

    def __init__(self, key: str) -> None:
        self.key = self.label = key
        self.taps: list[object] = []
        self.capabilities = Capabilities()

    async def run(self, sink: object, on_link: object) -> None:
        """Send nothing more."""
        await asyncio.Event().wait()


def store_of(hosts: dict[str, tuple[Sequence[f.Frame], Link]]) -> tuple[Store, Hosts]:
    store = Store()
    for key, (frames, link) in hosts.items():
        store.add_source(key, key)
        received = time.monotonic() - (link.age_seconds or 0.0)
        for frame in frames:
            store.apply(key, frame, received)
        store.set_link(key, link)
    return store, Hosts([Still(key) for key in hosts])  # type: ignore[misc]


def cpu_seconds(pid: int) -> float:
    """Return user and system time of one process, without its children."""
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def figures(path: Path) -> dict[str, float]:
    """Return what a measured viewer wrote when it ended."""
    found: dict[str, float] = json.loads(path.read_text())
    return found
