"""A child process that speaks lines: its own process group, bounded reading, and an end that never takes long.

Not ``asyncio.subprocess``: its ``wait()`` waits for the pipes too, which a grandchild may hold for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from ..wire.clean import clean
from ..wire.frames import MAX_LINE_BYTES

STDERR_BYTES = 4096
GRACE_SECONDS = 0.1
_REAP_SECONDS = 0.05
_LAST_WORDS_SECONDS = 0.03
_POLL_SECONDS = 0.005


class Child:
    """A running child. Make one with :meth:`spawn`; end it with :meth:`stop` or, without waiting, :meth:`kill`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stderr = b""
        self._ended = False
        self._reaped = False
        self._exited_by_itself = False
        self._tail: asyncio.Task[None] | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self.lines: asyncio.StreamReader

    @classmethod
    async def spawn(cls, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """Starts ``argv`` without a shell. Raises ``OSError`` when it cannot be started."""
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        child = cls(process)
        try:
            await child._connect()
        except BaseException:
            child.kill()
            raise
        return child

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self.lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        errors = asyncio.StreamReader(limit=STDERR_BYTES)
        for reader, pipe in ((self.lines, self._process.stdout), (errors, self._process.stderr)):
            protocol = asyncio.StreamReaderProtocol(reader)
            self._transports.append((await loop.connect_read_pipe(lambda p=protocol: p, pipe))[0])  # type: ignore[misc]
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._transports.append(self._stdin)
        self._tail = asyncio.create_task(self._read_stderr(errors))

    async def _read_stderr(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(STDERR_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]
            await asyncio.sleep(0.01)  # one that floods us must not own the loop

    def write(self, line: bytes) -> None:
        """Sends without waiting. A child that is gone takes it silently: its end is noticed elsewhere."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether the process itself is over, even while something it started holds its pipes."""
        if self._process.returncode is not None:
            return True
        try:
            # Not reaped here: as long as it is a zombie, its group's number cannot become somebody else's.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def last_words(self) -> str:
        """The last line on its standard error, cleaned."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return clean(lines[-1].strip(), 200) if lines else ""

    @property
    def stderr_text(self) -> str:
        """The last of its standard error as it came: for looking into, not for showing."""
        return self._stderr.decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs, or when we ended it."""
        return self._process.returncode if self._exited_by_itself else None

    @property
    def how_it_ended(self) -> str:
        """``exit code 1``, ``signal SIGSEGV``; "" while that is not known, or when we ended it."""
        code = self._process.returncode
        if code is None or not self._exited_by_itself:
            return ""
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    async def stop(self) -> None:
        """Closes its standard input, gives it ``GRACE_SECONDS``, then kills its group. 0.2 s at most in all."""
        if self._stdin is not None:
            self._stdin.close()
        await self._until_exited(GRACE_SECONDS)
        if self._tail is not None and self.has_exited:
            await asyncio.wait({self._tail}, timeout=_LAST_WORDS_SECONDS)
        self.kill(reap=False)
        await self._until_exited(_REAP_SECONDS)
        self._reap()

    async def _until_exited(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.has_exited and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    def kill(self, reap: bool = True) -> None:
        """Kills the group at once and lets go of the pipes."""
        if not self._ended:
            self._ended = True
            self._exited_by_itself = self.has_exited
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            if self._tail is not None:
                self._tail.cancel()
            for transport in self._transports:
                transport.close()
        if reap:
            self._reap()

    def _reap(self) -> None:
        if self._reaped:
            return
        self._reaped = True
        if self._process.poll() is None:  # killed, and still in the kernel: a driver call that hangs may keep it there
            threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()
