"""Run an agent behind ssh, srun, kubectl or any other command.

The agent's code is sent through the pipe, and its frames are separated from what a login prints.

``attach`` decides what is started and sent, and what an exit code means. This module decides when:
how many connections are made at once, how long somebody may take to type a password, and when
another try is pointless.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..process.async_child import Child
from ..wire.clean import clean
from .source import AgentSource, OnLink, Sink
from .view import Link

CONNECTS = 8
"""Limit of connections that are being made at the same time, over all hosts and also through one
jump host: by default (MaxStartups) sshd may drop connections from the eleventh on.
"""
SLOW_SECONDS = 2.0
"""A host that has not answered after this time lets another one connect: the two then no longer
belong to one burst of connections.
"""
REFUSED_SECONDS = 1.0
"""After somebody has refused to answer a question, ssh gets this long to end by itself."""
NOT_ANSWERED = "ssh's question was not answered: not retried. Next, in the TUI: F5 asks again"
CONNECT_SECONDS = 40.0
"""Limit for the whole connection, of which ssh may take ten seconds for each hop. Time in which a
question waits for its answer does not count.
"""


class Sent(Protocol):
    """What is sent to a new agent's standard input first.

    ``marker`` is the line after which the agent's frames begin.
    """

    @property
    def data(self) -> bytes: ...

    @property
    def marker(self) -> bytes: ...


class CommandEnd(Protocol):
    """The meaning of the end of a command."""

    @property
    def text(self) -> str: ...

    @property
    def again(self) -> bool: ...


class SshQuestions(Protocol):
    """The questions of ssh on the way to a host. Other threads change it."""

    @property
    def pending(self) -> int: ...

    @property
    def refused_seconds(self) -> float | None: ...

    def begin(self) -> None: ...


@dataclass(frozen=True)
class Launch:
    """How an agent is started elsewhere.

    ``argv`` is used first, and ``again_argv`` (which asks nobody) after the agent has been there
    once. ``preamble`` is called for each try with a rate in Hz. ``judge`` gets the exit code and
    the end of standard error. ``questions`` holds those that wait for an answer; it is None if
    nobody can be asked. ``jump`` returns the jump host, or ""; it is called once, not on the event
    loop.
    """

    argv: Sequence[str]
    again_argv: Sequence[str]
    preamble: Callable[[float], Sent]
    judge: Callable[[int, str], CommandEnd]
    env: Mapping[str, str] | None = None
    questions: SshQuestions | None = None
    jump: Callable[[], str] = lambda: ""


class Gate:
    """Limits how many sources of a viewer connect at once.

    All sources share it. It also limits how many connect through the same jump host.
    """

    def __init__(self, turns: int = CONNECTS, turns_through: int = CONNECTS) -> None:
        self._turns = asyncio.Semaphore(turns)
        self._turns_through = turns_through
        self._through: dict[str, asyncio.Semaphore] = {}

    @property
    def is_full(self) -> bool:
        return self._turns.locked()

    def is_full_through(self, jump: str) -> bool:
        """Whether a connection through this jump host would have to wait."""
        return jump in self._through and self._through[jump].locked()

    async def enter(self) -> Turn:
        """Wait for a turn. A slow host gives its turn back early."""
        await self._turns.acquire()
        return Turn(self._turns)

    async def enter_through(self, jump: str) -> Turn:
        """Wait for a turn through a jump host; "" for none.

        The turn is kept until the connection is established or has failed, because sshd there
        counts it until then.
        """
        if not jump:
            return Turn(None)
        turns = self._through.setdefault(jump, asyncio.Semaphore(self._turns_through))
        await turns.acquire()
        return Turn(turns)


class Turn:
    """A turn to connect. Releasing it more than once has no effect."""

    def __init__(self, turns: asyncio.Semaphore | None) -> None:
        self._turns = turns

    def give_back(self) -> None:
        if self._turns is not None:
            self._turns.release()
            self._turns = None


class RemoteSource(AgentSource):
    """An agent that is sent to another host, and is sent again when the connection was lost."""

    def __init__(
        self, launch: Launch, key: str, label: str, hz: float, gate: Gate | None = None
    ) -> None:
        super().__init__(launch.argv, key, label)
        self.connect_seconds: float | None = None
        """Seconds from the start of the command to the marker, for the last connection; None before
        the first.
        """
        self._launch = launch
        self._wanted_hz = hz
        self._gate = gate or Gate()
        self._turn: Turn | None = None
        self._turn_through: Turn | None = None
        self._jump: str | None = None
        self._began = 0.0
        self._questions_seconds = 0.0
        self._looked = 0.0
        self._was_there = False

    async def _live(self, sink: Sink, on_link: OnLink) -> str:
        entering = asyncio.create_task(self._enter(on_link))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({entering, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not entering.done():
                return "closed"
            self._turn, self._turn_through = entering.result()
            return await super()._live(sink, on_link)
        finally:
            closing.cancel()
            if not entering.done():
                entering.cancel()
            elif not entering.cancelled() and entering.exception() is None:
                for turn in entering.result():
                    turn.give_back()

    async def _enter(self, on_link: OnLink) -> tuple[Turn, Turn]:
        if self._jump is None:
            self._jump = await asyncio.to_thread(self._launch.jump)
        if self._last_frame is None and (
            self._gate.is_full or self._gate.is_full_through(self._jump)
        ):
            self._say(on_link, Link("connecting", f"{self.label} is queued to connect"))
        through = await self._gate.enter_through(self._jump)
        try:
            return await self._gate.enter(), through
        except BaseException:
            through.give_back()
            raise

    def hurry(self) -> None:
        """Connect at once instead of waiting. After the end :meth:`run` may be called again.

        The user who asks for this sits in front of the screen, so ssh may ask questions again.
        """
        self._was_there = self._hopeless = False
        self._hurried.set()

    async def _spawn(self) -> Child:
        argv = self._launch.again_argv if self._was_there else self._launch.argv
        self._began = self._looked = time.monotonic()
        self._questions_seconds = 0.0
        self._hurried.clear()
        if self._launch.questions is not None:
            self._launch.questions.begin()
        child = await Child.spawn(argv, self._launch.env)
        try:  # what is to be sent is prepared while the connection is being made
            sent = await asyncio.to_thread(self._launch.preamble, self._hz or self._wanted_hz)
        except BaseException:
            child.kill()
            raise
        self._marker = sent.marker
        child.write(sent.data)
        return child

    def _arrived(self) -> None:
        self._was_there = True
        self.connect_seconds = time.monotonic() - self._began
        for turn in (self._turn, self._turn_through):
            if turn is not None:
                turn.give_back()

    def _overdue(self, began: float, now: float) -> str:
        if not self._marker:
            return super()._overdue(self._began + (self.connect_seconds or 0.0), now)
        questions = self._launch.questions
        if questions is not None and questions.pending:
            self._questions_seconds += now - self._looked
        self._looked = now
        if self._refused and now - (questions.refused_seconds or now) > REFUSED_SECONDS:  # type: ignore[union-attr]
            return f"{self.label}: {NOT_ANSWERED}"
        waited = now - self._began - self._questions_seconds
        if waited > SLOW_SECONDS and self._turn is not None:
            self._turn.give_back()
        return (
            f"{self.label} did not answer within {CONNECT_SECONDS:.0f} s"
            if waited > CONNECT_SECONDS
            else ""
        )

    @property
    def _refused(self) -> bool:
        return (
            self._launch.questions is not None
            and self._launch.questions.refused_seconds is not None
        )

    def _how_it_ended(self, child: Child, reason: str) -> tuple[str, bool]:
        text, again = self._ended(child, reason)
        return text, again and not (self._refused and bool(self._marker))

    def _ended(self, child: Child, reason: str) -> tuple[str, bool]:
        code = child.exit_code
        if code is None:
            return super()._how_it_ended(child, reason)
        verdict = self._launch.judge(code, child.stderr_text)
        last_words = child.last_words
        if not verdict.text:
            text, again = super()._how_it_ended(child, reason)
            return text, again and verdict.again
        words = verdict.text + (f" (it said: {clean(last_words, 200)})" if last_words else "")
        return f"{self.label}: {words}", verdict.again

    def _pause(self, seconds: float) -> float:
        # a random delay, so that hosts that were lost together do not all come back at once
        return seconds * random.uniform(0.6, 1.0)
