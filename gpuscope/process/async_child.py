"""Run a child process that writes lines, inside an event loop.

Reading is bounded, and ending the child never takes long. ``asyncio.subprocess`` is not used,
because its ``wait()`` also waits for the pipes, which a grandchild may hold open for ever.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from typing import List, Mapping, Optional, Sequence

from .child import MAX_LINE_BYTES, has_exited, how_it_ended, kill_group, last_line

STDERR_BYTES = 4096
GRACE_SECONDS = 0.1
_REAP_SECONDS = 0.05
_LAST_WORDS_SECONDS = 0.03
_POLL_SECONDS = 0.005


class Child:
    """A running child. Make one with :meth:`spawn`, and end it with :meth:`stop`.

    :meth:`kill` ends it without waiting.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stderr = b""
        self._ended = False
        self._reaped = False
        self._exited_by_itself = False
        self._tail: Optional[asyncio.Task[None]] = None
        self._transports: List[asyncio.BaseTransport] = []
        self._stdin: Optional[asyncio.WriteTransport] = None
        self.lines: asyncio.StreamReader

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        env: Optional[Mapping[str, str]] = None,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> Child:
        """Start ``argv`` without a shell and return the running child.

        ``lines.readline()`` raises ``ValueError`` for a line of more than ``max_line_bytes``.
        Raises ``OSError`` when the program cannot be started.
        """
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
            await child._connect(max_line_bytes)
        except BaseException:
            child.kill()
            raise
        return child

    async def _connect(self, max_line_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.lines = asyncio.StreamReader(limit=max_line_bytes)
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
            await asyncio.sleep(0.01)  # let other tasks run although this child never stops writing

    def write(self, line: bytes) -> None:
        """Send bytes to the child's standard input without waiting.

        Nothing happens if the child has ended: its end is noticed where its output is read.
        """
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether the process itself has ended, even if others still hold its pipes."""
        return has_exited(self._process)

    @property
    def last_words(self) -> str:
        """The last line on its standard error, cleaned."""
        return last_line(self._stderr, 200)

    @property
    def stderr_text(self) -> str:
        """The end of its standard error, not cleaned: it may be searched but not shown."""
        return self._stderr.decode("utf-8", "replace")

    @property
    def exit_code(self) -> Optional[int]:
        """Negative for a signal; None while it runs, or when we ended it."""
        return self._process.returncode if self._exited_by_itself else None

    @property
    def how_it_ended(self) -> str:
        """Return how the child ended, such as ``exit code 1``; "" while that is not known.

        It is "" too when this process ended the child.
        """
        return how_it_ended(self.exit_code)

    async def stop(self) -> None:
        """Close the child's standard input, wait ``GRACE_SECONDS``, then kill its process group.

        All of this takes 0.2 s at most.
        """
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
            kill_group(self._process)
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
        # The child was killed but is still in the kernel: a driver call that hangs may keep it
        # there.
        if self._process.poll() is None:
            threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()
