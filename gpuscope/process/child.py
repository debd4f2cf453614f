"""Run single commands in child processes.

A child may hang, crash, write without end, or start other processes that hold its pipes open. None
of this makes the caller wait longer, use more memory, or leave more processes behind than the
limits allow. Each child leads its own process group and has no terminal.
:mod:`gpuscope.process.line_child` has children that answer line by line, and
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
REAP_SECONDS = 2.0


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
            reap(process)
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


def reap(process: subprocess.Popen[bytes]) -> None:
    """Reap a child without ever waiting long for it.

    A driver call that hangs may keep a killed child in the kernel; a thread waits for it then.
    """
    try:
        process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="reaper", daemon=True).start()
