"""Sources of frames: what a viewer can watch.

This module holds the interface of a source, and the live source: an agent that runs as a child.

The agent may be on this machine or behind ``ssh``, ``srun`` or ``kubectl exec``: any command whose
standard streams lead to one. It is restarted when it ends. A driver call that hangs or crashes
therefore only ends an agent and never the screen.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ..process.async_child import Child
from ..text.units import age_text
from ..wire.blobs import MAX_BLOB_BYTES
from ..wire.codec import WireError, encode
from ..wire.frames import (
    HOST_ID,
    REQUESTS,
    Bye,
    Def,
    Event,
    Frame,
    Hello,
    Key,
    Ping,
    Pong,
    Result,
    Sample,
    Scalar,
)
from .decode import decode
from .pending_requests import OnProgress, PendingRequests, SourceError
from .view import AGAIN, Capabilities, Link, LinkState

__all__ = ["AgentSource", "OnLink", "Sink", "Source", "SourceError", "Tap"]

Sink = Callable[[Frame, float], None]
"""A function that takes a frame and the time it came, in seconds of the viewer's monotonic clock.
"""
OnLink = Callable[[Link], None]
Tap = Callable[[bytes, Frame, float], None]
"""Like a sink, but with the raw line as well, which a recorder needs."""

PING_SECONDS = 5.0
WATCH_SECONDS = 1.0
"""Seconds between two checks whether the agent is silent or has ended."""
HELLO_SECONDS = 10.0
STALE_SECONDS = 3.0
SLOWEST_SECONDS = 60.0
"""If an agent announces a longer interval between samples, this one is used."""
BACK_OFF_SECONDS = (1.0, 30.0)
HEALTHY_SECONDS = 60.0
"""After an agent has lived this long, the delay before the next restart begins small again."""
MAX_NOISE_BYTES = 64 << 10
"""Limit of what a login may print before the agent's hello."""
MAX_BAD_LINES = 100
MAX_DEFINITIONS = 16384
MAX_DEFINITION_BYTES = 16 << 20
"""Definitions are kept unchanged, for a recorder that starts later. These are the limits of
their number and their total size.
"""
MAX_REASON_CHARS = 4 << 20
"""Limit of all current reasons, which are kept for the same recorder."""
REASONS_A_LINE = 16
"""A reason has at most 4096 characters of at most 12 bytes each; this many fit into a line."""
FRAMES_PER_SECOND = 1000.0
"""Sustained limit. Reading is slowed down beyond it, so that a faulty sender cannot block the
screen.
"""
_BURST = 20_000.0
END_OF_OUTPUT = "the agent closed its output"


class Source(Protocol):
    """The interface of a source for the viewer.

    ``key`` names it in the store. ``badge`` is shown where its numbers are not live.
    """

    key: str
    label: str
    badge: str
    taps: list[Tap]

    @property
    def capabilities(self) -> Capabilities:
        """Return which requests it serves now, and why not the others."""
        ...

    async def run(self, sink: Sink, on_link: OnLink) -> None:
        """Deliver frames until :meth:`close`, or until there are no more.

        Never raises because of what a peer does.
        """
        ...

    async def request(
        self,
        name: str,
        args: Mapping[str, Scalar],
        deadline: float = 10.0,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int = MAX_BLOB_BYTES,
    ) -> Result:
        """Send a request; a blob that belongs to the answer is written to the file ``blob_to``.

        Raises :class:`SourceError`.
        """
        ...

    def prelude(self) -> list[bytes]:
        """Return the lines that a recorder which starts now needs first."""
        ...

    async def close(self) -> None:
        """End :meth:`run`, within 0.2 s."""
        ...


class AgentSource:
    """An agent started as ``argv`` (no shell).

    Its frames come on standard output, requests go to standard input.
    """

    badge = ""

    def __init__(self, argv: Sequence[str], key: str, label: str) -> None:
        self.key = key
        self.label = label
        self.taps: list[Tap] = []
        self.bad_lines = 0
        self._argv = list(argv)
        self._closing = asyncio.Event()
        self._hurried = asyncio.Event()
        self._child: Child | None = None
        self._hello: Hello | None = None
        self._hz = 0.0
        self._last_sample: Sample | None = None
        self._definitions: dict[int, bytes] = {}
        self._definition_bytes = 0
        self._reasons: dict[tuple[int | str, int | str], list[int | str]] = {}
        self._reason_chars = 0
        self._calls = PendingRequests(self._send)
        self._last_frame: float | None = None
        self._link = Link("connecting")
        self._hopeless = False
        self._marker = b""
        """The line after which frames begin; "" if they begin with the hello itself."""

    @property
    def capabilities(self) -> Capabilities:
        if self._hello is None:
            return Capabilities(dict.fromkeys(REQUESTS, "not connected"))
        offered = set(self._hello.requests)
        return Capabilities(
            {name: "" if name in offered else "this agent does not support it" for name in REQUESTS}
        )

    # ── lives of the agent ────────────────────────────────────────────────────────────────────────

    async def run(self, sink: Sink, on_link: OnLink) -> None:
        pause, longest = BACK_OFF_SECONDS
        self._say(on_link, Link("connecting", f"starting {self.label}"))
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                reason = await self._live(sink, on_link)
            except _Hopeless as error:
                self._say(on_link, Link("ended", str(error), self._age()))
                return
            if self._closing.is_set():
                break
            if time.monotonic() - began >= HEALTHY_SECONDS:
                pause = BACK_OFF_SECONDS[0]
            if self._hopeless:
                self._say(on_link, Link("ended", reason, self._age()))
                return
            state: LinkState = "connecting" if self._last_frame is None else "stale"
            wait = self._pause(pause)
            text = f"{reason}{AGAIN} in {age_text(max(round(wait), 1))}"
            self._say(on_link, Link(state, text, self._age(), time.monotonic() + wait))
            rested = await self._rest(wait)
            pause = min(pause * 2, longest) if rested else BACK_OFF_SECONDS[0]
        self._say(on_link, Link("ended", "closed", self._age()))

    async def _rest(self, seconds: float) -> bool:
        """Wait, and tell whether the whole time has passed.

        It has not if somebody closed the source or asked it to hurry.
        """
        early = [asyncio.create_task(event.wait()) for event in (self._closing, self._hurried)]
        try:
            done, _ = await asyncio.wait(
                early, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in early:
                task.cancel()
        self._hurried.clear()
        return not done

    async def _live(self, sink: Sink, on_link: OnLink) -> str:
        """Run the agent once, and return how it ended, in words."""
        try:
            child = self._child = await self._spawn()
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise _Hopeless(f"cannot start {self._argv[0]}: {text}") from None
        self.bad_lines = 0
        reason = "the connection ended"
        reading = asyncio.create_task(self._read(child, sink, on_link))
        watching = asyncio.create_task(self._watch(child, on_link))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({reading, watching, closing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, watching):
                if task.done():
                    reason = task.result()
                    break
        finally:
            for waiting in (reading, watching, closing):
                waiting.cancel()
            self._hello = self._child = None
            self._definitions.clear()
            self._definition_bytes = 0
            self._forget_reasons()
            try:
                await child.stop()
            finally:
                child.kill()
            reason, again = self._how_it_ended(child, reason)
            self._hopeless = not again
            self._calls.fail_all("gone", reason)
        return reason

    async def _spawn(self) -> Child:
        return await Child.spawn(self._argv)

    def _arrived(self) -> None:
        """Note that the marker has come."""

    def _how_it_ended(self, child: Child, reason: str) -> tuple[str, bool]:
        """Return how the agent ended, in words, and whether another try may succeed."""
        if reason == END_OF_OUTPUT and child.how_it_ended:
            reason = "the agent ended"
        how = ", ".join(part for part in (child.how_it_ended, child.last_words) if part)
        return f"{reason} ({how})" if how else reason, True

    def _pause(self, seconds: float) -> float:
        return seconds

    async def _read(self, child: Child, sink: Sink, on_link: OnLink) -> str:
        budget, at, noise = _BURST, time.monotonic(), 0
        for count in itertools.count(1):
            try:
                line = await child.lines.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return "the agent sent a line that is too long"
            except asyncio.IncompleteReadError:
                return END_OF_OUTPUT
            except OSError as error:
                return f"reading from the agent failed: {error.strerror}"
            now = time.monotonic()
            if self._hello is not None:  # data before the marker is limited in bytes
                budget = min(_BURST, budget + (now - at) * FRAMES_PER_SECOND) - 1
            at = now
            if budget < 0:
                await asyncio.sleep(0.05)
            elif count % 64 == 0:
                # let the screen have its turn, even if many lines are ready
                await asyncio.sleep(0)
            if self._marker:
                noise += len(line)
                if line == self._marker:
                    self._marker = b""
                    self._arrived()
                elif line.rstrip() == self._marker.rstrip():
                    return "a terminal in between changes the data: leave out -t or --tty"
                elif noise > MAX_NOISE_BYTES:
                    return "the other side is not an agent"
                continue
            try:
                frame = decode(line)
            except WireError:
                if self._hello is None:
                    noise += len(line)
                    if noise > MAX_NOISE_BYTES:
                        return "the other side is not an agent"
                else:
                    self.bad_lines += 1
                    if self.bad_lines > MAX_BAD_LINES:
                        return "the agent sends damaged frames"
                continue
            if self._hello is None and not isinstance(frame, Hello):
                continue
            end = self._take(line, frame, now, sink, on_link)
            if end:
                return end
        raise AssertionError("unreachable")

    def _take(self, line: bytes, frame: Frame, now: float, sink: Sink, on_link: OnLink) -> str:
        """Pass a frame on. Return why the connection ends with it, or ""."""
        self._last_frame = now
        if self._calls.take(frame):
            return ""
        if isinstance(frame, Pong):
            return ""
        if isinstance(frame, Hello):
            if frame.refusal:
                raise _Hopeless(frame.refusal)
            self._hello, self._hz = frame, frame.hz
            self._definitions.clear()
            self._definition_bytes = 0
            self._forget_reasons()
        elif isinstance(frame, Def):
            more = len(line) - len(self._definitions.get(frame.id, b""))
            room = len(self._definitions) < MAX_DEFINITIONS or frame.id in self._definitions
            if room and self._definition_bytes + more <= MAX_DEFINITION_BYTES:
                # an entity that is defined again keeps its place, because others refer to it
                self._definitions[frame.id] = line
                self._definition_bytes += more
        elif isinstance(frame, Event) and frame.e == "gone":
            self._definition_bytes -= len(self._definitions.pop(frame.id, b""))
        elif isinstance(frame, Key):
            self._forget_reasons()  # the next sample carries all reasons that hold
        elif isinstance(frame, Sample):
            self._last_sample = frame
            self._remember(frame.why)
        if self._link.state != "live":
            self._say(on_link, Link("live", "", 0.0))
        sink(frame, now)
        for tap in self.taps:
            tap(line, frame, now)
        return (
            f"the agent ended: {frame.why or 'no reason given'}" if isinstance(frame, Bye) else ""
        )

    def _remember(self, rows: list[list[int | str]]) -> None:
        for row in rows:
            if len(row) != 4:
                continue
            before = self._reasons.pop((row[0], row[1]), None)
            if before is not None:
                self._reason_chars -= _chars(before)
            if row[2] and self._reason_chars + _chars(row) <= MAX_REASON_CHARS:
                self._reasons[row[0], row[1]] = row
                self._reason_chars += _chars(row)

    def _forget_reasons(self) -> None:
        self._reasons.clear()
        self._reason_chars = 0

    async def _watch(self, child: Child, on_link: OnLink) -> str:
        """Ping the agent, and notice when it is silent.

        Also notice when the agent has ended but a process that it started still holds its pipe
        open.
        """
        began = time.monotonic()
        pinged = -math.inf
        while True:
            now = time.monotonic()
            if now - pinged >= PING_SECONDS:
                pinged = now
                self._send(Ping(now))
            if self._hello is None:
                if late := self._overdue(began, now):
                    return late
            elif (age := self._age()) is not None and age > self._patience_seconds:
                self._say(on_link, Link("stale", f"no data for {age_text(age)}", age))
            if child.has_exited and now - max(self._last_frame or began, began) > 1.0:
                return "the agent ended"
            await asyncio.sleep(WATCH_SECONDS)

    def _overdue(self, began: float, now: float) -> str:
        """Return why the hello is no longer waited for, or "" while it is."""
        return (
            f"the agent did not answer within {HELLO_SECONDS:.0f} s"
            if now - began > HELLO_SECONDS
            else ""
        )

    @property
    def _patience_seconds(self) -> float:
        return max(STALE_SECONDS, min(3 / self._hz, SLOWEST_SECONDS) if self._hz > 0 else 0.0)

    def _age(self) -> float | None:
        return None if self._last_frame is None else time.monotonic() - self._last_frame

    def _say(self, on_link: OnLink, link: Link) -> None:
        self._link = link
        on_link(link)

    def _send(self, frame: Frame) -> None:
        if self._child is not None:
            self._child.write(encode(frame))

    # ── what a viewer asks ────────────────────────────────────────────────────────────────────────

    async def request(
        self,
        name: str,
        args: Mapping[str, Scalar],
        deadline: float = 10.0,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int = MAX_BLOB_BYTES,
    ) -> Result:
        """Send a request to the agent, or to the probe of trainer ``args["trainer"]`` (a wire id).

        A blob that belongs to the answer is written to the file ``blob_to``. Raises
        :class:`SourceError`.
        """
        why_not = self.capabilities.why_not(name)
        if why_not:
            raise SourceError(
                "gone" if self._hello is None else "unsupported", f"{name}: {why_not}"
            )
        result = await self._calls.call(name, args, deadline, on_progress, blob_to, max_bytes)
        if name == "rate" and isinstance(hz := result.value.get("hz"), (int, float)):
            self._hz = float(hz)
        return result

    def prelude(self) -> list[bytes]:
        """Return hello, key frame, all definitions and current reasons; nothing before a hello."""
        if self._hello is None:
            return []
        m = self._last_sample.m if self._last_sample is not None else self._hello.m
        t = self._hello.t + (m - self._hello.m) / 1e9
        q = self._last_sample.q if self._last_sample is not None else 0
        lines = [
            encode(replace(self._hello, t=t, m=m)),
            encode(Key(q, m, t, len(self._definitions))),
        ]
        lines += self._definitions.values()
        reasons = [
            row
            for row in self._reasons.values()
            if row[0] == HOST_ID or row[0] in self._definitions
        ]
        for some in range(0, len(reasons), REASONS_A_LINE):
            lines.append(encode(Sample(q, m, why=reasons[some : some + REASONS_A_LINE])))
        return lines

    async def close(self) -> None:
        self._closing.set()
        if self._child is not None:
            await self._child.stop()


def _chars(row: list[int | str]) -> int:
    return sum(len(str(word)) for word in row)


class _Hopeless(Exception):
    """The agent cannot be started: another try would end the same way."""
