"""Start child processes that answer requests line by line, and run single commands.

A child may hang, crash, write without end, or start other processes that hold its pipes open. None
of this makes the caller wait longer, use more memory, or leave more processes behind than the
limits allow. Each child leads its own process group and has no terminal.
:mod:`gpuscope.process.async_child` does the same inside an event loop.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, List, Mapping, Optional, Sequence

from ..wire.clean import clean

if TYPE_CHECKING:
    import asyncio

LAST_WORDS_BYTES = 4096
"""How many bytes of a child's standard error are kept for messages; the newest are kept."""
MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_LOOK_SECONDS = 0.5
"""Seconds between checks whether a silent child still runs.

The end of its pipe does not tell this, because a process that the child started may hold it open.
"""
_REAP_SECONDS = 2.0


class ChildError(Exception):
    """A child did not answer. The text says why, for people."""


class Ended(ChildError):
    """The child ended before it answered."""


class Late(ChildError):
    """The time was up before the child answered."""


class TooMuch(ChildError):
    """The child said more than it may."""


def how_it_ended(code: Optional[int]) -> str:
    """Describe an exit code: ``exit code 1``, ``signal SIGSEGV``.

    The result is "" for None, which means that the exit code is not known.
    """
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def last_line(output: bytes, limit: int = 300) -> str:
    """Return the last line that a child wrote, safe to show; "" where it wrote none."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return clean(lines[-1].strip(), limit) if lines else ""


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Say whether a child has ended, without reaping it.

    While the child is a zombie, its process group's number cannot be reused, so the group may still
    be killed safely.
    """
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


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
        words, given = list(argv), ()  # type: List[str], Sequence[int]
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
        data, parts, size = self._rest, [], 0  # type: bytes, List[bytes], int
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
        deadline = time.monotonic() + _REAP_SECONDS
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
        _reap(self._process)

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


@dataclass
class CommandOutput:
    """What a command wrote until it ended, or until it was ended."""

    output: bytes
    errors: bytes
    """The last bytes of its standard error."""
    code: Optional[int]
    """The exit code; None when the command was given up before it ended."""
    failure: str
    """Why the command failed, as text for people; "" for a command that ended with exit code 0."""

    @property
    def last_words(self) -> str:
        """The last line on its standard error, safe to show."""
        return last_line(self.errors, 200)


def ask(
    argv: Sequence[str],
    seconds: float,
    env: Optional[Mapping[str, str]] = None,
    max_bytes: int = MAX_LINE_BYTES,
    *,
    input: bytes = b"",  # noqa: A002
    folder: Optional[str] = None,
    keep_terminal: bool = False,
) -> CommandOutput:
    """Run a command once, without a shell, and return what it wrote.

    The command is killed with its process group after ``seconds``, or after ``max_bytes`` of
    output. The call also returns in time when the command never ends, or when a process that it
    started holds its pipes open.

    ``input`` is everything that the command can read on its standard input, and ``folder`` is its
    working directory. With ``keep_terminal`` the command may ask its user for a password; it then
    shares this process's group, so only the command itself is killed. Raises OSError when it cannot
    be started.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE if input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=folder,
        start_new_session=not keep_terminal,
    )
    if process.stdin is not None:  # in a thread, because a command may write much before it reads
        threading.Thread(
            target=_feed, args=(process.stdin, input), name="input", daemon=True
        ).start()
    assert process.stdout is not None
    assert process.stderr is not None
    output = CommandOutput(b"", b"", None, "")
    parts: List[bytes] = []
    with process.stdout, process.stderr:
        try:
            _read_all(process, parts, output, time.monotonic() + seconds, max_bytes)
        finally:
            if keep_terminal:
                process.kill()
            else:
                kill_group(process)
            _reap(process)
    output.output = b"".join(parts)
    if output.failure == _LATE:
        output.failure = f"did not end within {seconds:g} s"
    elif output.failure:
        output.failure = f"answered more than {max_bytes} bytes"
    else:
        output.code = process.returncode
        output.failure = f"ended with {how_it_ended(output.code)}" if output.code else ""
    return output


_LATE, _LONG = "late", "long"


def _feed(stdin: IO[bytes], data: bytes) -> None:
    """Write a command's whole input, as far as the command reads it, and close the pipe."""
    try:
        with stdin:
            stdin.write(data)
    except OSError:
        # The command ended before it had read all of its input; its exit code and output say why.
        pass


def _read_all(
    process: subprocess.Popen[bytes],
    parts: List[bytes],
    output: CommandOutput,
    deadline: float,
    max_bytes: int,
) -> None:
    """Read both pipes until the command has ended and nothing more is there."""
    assert process.stdout is not None
    assert process.stderr is not None
    out = process.stdout.fileno()
    open_pipes = {out, process.stderr.fileno()}
    ready = select.poll()
    for pipe in open_pipes:
        ready.register(pipe, select.POLLIN)
    size = 0
    while open_pipes or not has_exited(process):
        # Checked before reading, so that its last output is read as well.
        ended = has_exited(process)
        left = deadline - time.monotonic()
        if left <= 0:
            output.failure = _LATE
            return
        events = ready.poll(1000 * min(left, 0.02 if not open_pipes else 0.1))
        for descriptor, _ in events:
            data = os.read(descriptor, 1 << 16)
            if not data:
                ready.unregister(descriptor)
                open_pipes.discard(descriptor)
            elif descriptor == out:
                parts.append(data)
                size += len(data)
            else:
                output.errors = (output.errors + data)[-LAST_WORDS_BYTES:]
        if size > max_bytes:
            output.failure = _LONG
            return
        if ended and not events:
            return  # another process holds its pipes open


def kill_group(process: subprocess.Popen[bytes] | asyncio.subprocess.Process) -> None:
    """Kill a child's whole process group, unless the child has been reaped.

    After the child was reaped, the group's number may belong to another process.
    """
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Reap a child without ever waiting long for it.

    A driver call that hangs may keep a killed child in the kernel; a thread waits for it then.
    """
    try:
        process.wait(_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="reaper", daemon=True).start()
