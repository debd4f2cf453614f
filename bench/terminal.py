"""Run a program under a pseudo-terminal and measure it from outside.

It measures the bytes that are drawn, and processor time and memory of the process tree.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path
from typing import TypeVar

Self = TypeVar("Self", bound="Terminal")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Terminal:
    """``argv`` in a pty of ``columns`` × ``rows``.

    Output is read only inside :meth:`pump` and :meth:`wait_for`.
    """

    def __init__(
        self, argv: list[str], columns: int, rows: int, env: dict[str, str] | None = None
    ) -> None:
        self.started = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                os.execvpe(
                    argv[0],
                    argv,
                    {
                        **os.environ,
                        "TERM": "xterm-256color",
                        "COLORTERM": "truecolor",
                        **(env or {}),
                    },
                )
            finally:
                os._exit(127)
        self.bytes_read = 0
        self.tail = b""
        self.ended = False

    def pump(self, seconds: float) -> None:
        """Read for ``seconds``, or until the program ends."""
        deadline = time.perf_counter() + seconds
        while not self.ended and (left := deadline - time.perf_counter()) > 0:
            self._read(left)

    def wait_for(self, pattern: str, timeout: float = 20.0) -> float:
        """Return the seconds since the start until ``pattern`` appeared in the output.

        Raises TimeoutError with the output so far.
        """
        regex = re.compile(pattern.encode())
        deadline = time.perf_counter() + timeout
        while not regex.search(self.tail):
            left = deadline - time.perf_counter()
            if self.ended or left <= 0:
                raise TimeoutError(f"{pattern!r} did not appear in: {self.tail[-2000:]!r}")
            self._read(left)
        return time.perf_counter() - self.started

    def _read(self, timeout: float) -> None:
        if not select.select([self.fd], [], [], timeout)[0]:
            return
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            data = b""
        if not data:
            self.ended = True
        self.bytes_read += len(data)
        self.tail = (self.tail + data)[-(1 << 18) :]

    def send(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def wait_exit(self, timeout: float = 10.0) -> float:
        """Return the seconds from now until the program has exited."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < timeout:
            self.pump(0.01) if not self.ended else time.sleep(0.002)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
                return time.perf_counter() - begin
        raise TimeoutError("the program did not exit")

    def processes(self) -> list[int]:
        """Return the program and all its descendants."""
        return descendants(self.pid)

    def cpu_by_process(self) -> dict[int, float]:
        """Return user and system time of each process of the tree so far.

        Children that were waited for are included.
        """
        return {
            pid: spent for pid in self.processes() if (spent := cpu_seconds_of(pid)) is not None
        }

    def cpu_seconds(self) -> float:
        """Return user and system time of the tree so far."""
        return sum(self.cpu_by_process().values())

    def rss_bytes(self) -> dict[int, int]:
        """Return the resident bytes of each process of the tree."""
        return {pid: held for pid in self.processes() if (held := rss_bytes_of(pid))}

    def close(self) -> None:
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.fd)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def descendants(root: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def cpu_seconds_of(pid: int) -> float | None:
    """Return user and system time of a process and of the children it has waited for.

    None if it has ended.
    """
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return sum(int(part) for part in parts[11:15]) / TICKS


def rss_bytes_of(pid: int) -> int:
    """Return the resident bytes of a process, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0
