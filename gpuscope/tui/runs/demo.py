"""Runs a command as a child process, such as a demonstration script.

It keeps what the command says, and how it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

STOP_SECONDS = 3.0
"""From SIGTERM to SIGKILL."""
KEPT_LINES = 200
MAX_LINE_CHARS = 500

State = Literal["starting", "running", "stopping", "ended", "failed"]


class RunningCommand:
    """One command under way, in a session of its own so that all it starts can be ended.

    ``output`` are its last lines, ``problem`` says why it could not be started, and ``code`` is
    its exit status, negative for a signal.
    """

    longest_line = MAX_LINE_CHARS
    """Longer lines are cut off."""
    stop_seconds = STOP_SECONDS

    def __init__(self, command: Sequence[str], changed: Callable[[], None]) -> None:
        self.command = list(command)
        self.state: State = "starting"
        self.problem = ""
        self.code: int | None = None
        self.output: deque[str] = deque(maxlen=KEPT_LINES)
        self.lines_printed = 0
        """How many lines it has written so far."""
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The child's pid while there is one."""
        return (
            self._process.pid
            if self._process is not None and self._process.returncode is None
            else None
        )

    @property
    def over(self) -> bool:
        return self.state in ("ended", "failed")

    def start(self) -> None:
        """Start it; ``state`` then says how it goes."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """SIGTERM to it and all it started, SIGKILL after ``stop_seconds``."""
        if self.state in ("starting", "running"):
            begun, self.state = self.state == "running", "stopping"
            if begun:  # else as soon as it has
                self._ending = asyncio.get_running_loop().create_task(self._end())
            self._changed()

    def let_go(self) -> None:
        """Ask everything to end, because the program leaves, and wait for nothing."""
        self._signal(signal.SIGTERM)

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C is for us
                # its end is seen here
                env={**os.environ, "PYTHONUNBUFFERED": "1", "GPUSCOPE_BLACKBOX": "0"},
            )
        except OSError as error:
            self.state, self.problem = (
                "failed",
                f"{self.command[0]} cannot be started: {error.strerror}",
            )
            self._changed()
            return
        if self.state == "stopping":
            self._ending = asyncio.get_running_loop().create_task(self._end())
        else:
            self.state = "running"
        self._changed()
        assert self._process.stdout is not None
        await self._read(self._process.stdout)
        self.code = await self._process.wait()
        self.state = "ended"
        self._changed()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Lines as they come; a bar that is drawn over itself counts as its newest state."""
        rest = ""
        while data := await stream.read(1 << 16):
            rest += data.decode("utf-8", "replace")
            *lines, rest = rest.split("\n")
            for line in lines:
                self.take(line.rstrip("\r").rsplit("\r", 1)[-1][: self.longest_line])
            rest = rest[-4 * self.longest_line :]
            if lines:
                self._changed()
        if rest.strip():
            self.take(rest.rsplit("\r", 1)[-1][: self.longest_line])

    def take(self, line: str) -> None:
        """Keep a line that the command has written."""
        self.lines_printed += 1
        self.output.append(line)

    async def _end(self) -> None:
        assert self._task is not None
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=self.stop_seconds)
        if not done:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # the first of them may be gone, and others go on
        if self._process is not None and not self.over:
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass


class Demo(RunningCommand):
    """A demonstration script, which is a trainer like any other."""

    def __init__(
        self, name: str, cured: bool, command: Sequence[str], changed: Callable[[], None]
    ) -> None:
        super().__init__(command, changed)
        self.name, self.cured = name, cured


def state_text(demo: Demo) -> str:
    """Return a script's state, as ``slow-input, cured · running · pid 4711``."""
    parts = [
        demo.name + (", cured" if demo.cured else ""),
        demo.state,
        f"pid {demo.pid}" if demo.pid else "",
    ]
    if demo.code is not None:
        parts[1] = (
            f"ended, exit code {demo.code}" if demo.code >= 0 else f"ended by signal {-demo.code}"
        )
    return " · ".join(part for part in parts if part)
