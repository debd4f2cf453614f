"""Real child processes that stand in for agents.

Each is a few lines of script, watched through an AgentSource.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.store.source import AgentSource
from gpuscope.store.view import Link
from gpuscope.wire.frames import Frame
from tests.fakes.waiting import until_true

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 15.0

START = f"""
import os, signal, subprocess, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import *

def say(*frames):
    for frame in frames:
        os.write(1, encode(frame))

def asked():
    for line in sys.stdin.buffer:
        yield decode(line)

def hello(**more):
    offered = ["rate", "snapshot", "cancel"]
    say(Hello(pid=os.getpid(), boot="b", hz=2.0, t=1.0, m=1, cols={{"g": ["used_bytes"]}}, requests=offered, **more))

def scene():
    hello()
    say(Def(1, gpu=GpuDef("GPU-a", 0)), Sample(1, 2, g=[[1, 5]]))
"""  # noqa: E501


@dataclass
class Watching:
    source: AgentSource
    task: asyncio.Task[None]
    frames: list[Frame] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    async def until(self, ask: Callable[[], object]) -> None:
        await until_true(ask, PATIENCE, lambda: (self.links, self.frames))

    async def link(self, state: str, text: str = "") -> Link:
        await self.until(
            lambda: any(link.state == state and text in link.text for link in self.links)
        )
        return next(link for link in self.links if link.state == state and text in link.text)


@asynccontextmanager
async def watching(script: str, argv: list[str] | None = None) -> AsyncIterator[Watching]:
    source = AgentSource(argv or [sys.executable, "-c", START + script], "k", "here")
    watched = Watching(source, None)  # type: ignore[arg-type]
    watched.task = asyncio.create_task(
        source.run(lambda frame, received: watched.frames.append(frame), watched.links.append)
    )
    try:
        yield watched
    finally:
        await source.close()
        await asyncio.wait_for(watched.task, PATIENCE)
