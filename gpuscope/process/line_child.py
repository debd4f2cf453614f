"""A child process that answers requests line by line.

It may hang, crash, write without end, or start other processes that hold its pipes open, like the
commands of :mod:`gpuscope.process.child`; the same limits hold.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import IO, Mapping, Optional, Sequence

from .child import (
    LAST_WORDS_BYTES,
    MAX_LINE_BYTES,
    REAP_SECONDS,
    has_exited,
    how_it_ended,
    kill_group,
    last_line,
    reap,
)

_READ_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
"""Seconds between checks whether a silent child still runs.

The end of its pipe does not tell this, because a process that the child started may hold it open.
"""


class ChildError(Exception):
    """A child did not answer. The text says why, for people."""


class Ended(ChildError):
    """The child ended before it answered."""


class Late(ChildError):
    """The time was up before the child answered."""


class TooMuch(ChildError):
    """The child said more than it may."""


class LineChild:
    """A running child that reads requests on its standard input and answers each with one line.

    With ``own_pipe`` the answers come on a separate pipe, whose descriptor is appended to ``argv``;
    this is for a child that runs code which may print. Otherwise the answers come on its standard
    output. :meth:`kill` may be called from any thread; the other methods may be called by one
    thread at a time.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Optional[Mapping[str, str]] = None,
        own_pipe: bool = False,
        max_line_bytes: int = MAX_LINE_BYTES,
        folder: Optional[str] = None,
    ) -> None:
        """Start the child, in ``folder`` if one is given.

        Raises OSError where it cannot be started.
        """
        self._max_line_bytes = max_line_bytes
        self._rest = b""
        self._last_output = b""
        self._answers = -1
        words, given = list(argv), ()  # type: list[str], Sequence[int]
        write = -1
        if own_pipe:
            self._answers, write = os.pipe()
            words, given = [*words, str(write)], (write,)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if own_pipe else subprocess.PIPE,
                env=env,
                cwd=folder,
                pass_fds=given,
                start_new_session=True,
            )
        except BaseException:
            if own_pipe:
                os.close(self._answers)
            raise
        finally:
            if own_pipe:
                os.close(write)
        self._other: Optional[IO[bytes]] = (
            self._process.stdout if own_pipe else self._process.stderr
        )
        if not own_pipe:
            assert self._process.stdout is not None
            self._answers = self._process.stdout.fileno()
        self._own_pipe = own_pipe

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the child has not ended yet."""
        return not has_exited(self._process)

    @property
    def last_words(self) -> str:
        """The last line of the child's other output, safe to show."""
        return last_line(self._last_output)

    def write(self, line: bytes) -> None:
        """Send a question. Raises :class:`Ended` where nobody reads it any more."""
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            raise Ended("it was closed")
        try:
            stdin.write(line)
            stdin.flush()
        except OSError:
            raise self._ended() from None

    def read_line(self, deadline: float) -> bytes:
        """Return the next answer without its line end.

        ``deadline`` is a moment of ``time.monotonic()``. Raises :class:`Ended`, :class:`Late` or
        :class:`TooMuch`.
        """
        # Not select(), which fails for descriptors above 1023: a viewer may have more open.
        ready = select.poll()
        ready.register(self._answers, select.POLLIN)
        if self._other is not None:
            ready.register(self._other, select.POLLIN)
        data, parts, size = self._rest, [], 0  # type: bytes, list[bytes], int
        while True:
            head, end, self._rest = data.partition(b"\n")
            parts.append(head)
            size += len(head)
            if size > self._max_line_bytes:
                raise TooMuch(f"it wrote more than {self._max_line_bytes} bytes in one answer")
            if end:
                return b"".join(parts)
            data = self._more(ready, deadline)

    def _more(self, ready: select.poll, deadline: float) -> bytes:
        """Return the next part of an answer, and keep the child's other output."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late("it did not answer in time")
            events = ready.poll(1000 * min(left, _LOOK_SECONDS))
            answered = False
            for descriptor, _ in events:
                if descriptor == self._answers:
                    answered = True
                elif not self._listen(descriptor):
                    ready.unregister(descriptor)
                    self._other = None
            if answered:
                data = os.read(self._answers, _READ_BYTES)
                if not data:
                    raise self._ended()
                return data
            if not events and not self.running and not ready.poll(0):
                raise self._ended()

    def _listen(self, descriptor: int) -> bool:
        data = os.read(descriptor, 1 << 16)
        self._last_output = (self._last_output + data)[-LAST_WORDS_BYTES:]
        return bool(data)

    def _ended(self) -> Ended:
        """Return how the child ended, after what it still said has been kept."""
        deadline = time.monotonic() + REAP_SECONDS
        while self.running and time.monotonic() < deadline:
            time.sleep(0.005)
        code = None
        if not self.running:
            kill_group(self._process)  # kills the processes that the child has started, too
            code = self._process.wait()
        if self._other is not None:
            os.set_blocking(self._other.fileno(), False)
            try:
                while self._listen(self._other.fileno()):
                    pass
            except OSError:
                pass  # another process still holds the pipe open, but nothing is in it now
        return Ended(
            f"it ended: {how_it_ended(code)}" if code is not None else "it closed its output"
        )

    def kill(self) -> None:
        """Kill the child and every process that it has started, from any thread.

        The pipes stay open, because another thread may be reading them.
        """
        kill_group(self._process)
        reap(self._process)

    def close(self) -> None:
        """Kill the child and every process that it has started, and close the pipes.

        It may be called more than once.
        """
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    pass  # bytes that were still to be written, which nobody will read
        if self._own_pipe:
            self._own_pipe = False
            os.close(self._answers)
        self._other = None
