"""Read small files of /proc and /sys with size limits, and say why one could not be read.

Every function takes the root of the tree, so that recorded trees of other hosts can be read too.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Dict, List, NamedTuple, Optional

from ..wire.frames import DRIVER_ERROR, LOST, NO_PERMISSION, NOT_SUPPORTED, Unknown

READ_LIMIT = 1 << 16
_MAX_GENERATIONS = 64
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_GONE = (errno.ESRCH, errno.ENOENT)


def read(path: str, limit: int = READ_LIMIT) -> bytes:
    """Return the first ``limit`` bytes of a file. Raises OSError.

    The file is opened without blocking, so a pipe or a device in its place cannot hold up the
    caller.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        parts = []
        left = limit
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def words_of(
    pid: int, name: str = "cmdline", root: str = "/", limit: int = READ_LIMIT
) -> List[str]:
    """Return the arguments of a process, or the lines of its ``environ``. Raises OSError."""
    content = read(os.path.join(root, "proc", str(pid), name), limit)
    return content.decode("utf-8", "replace").rstrip("\0").split("\0")


def key_values(path: str, separator: bytes = b" ") -> Dict[bytes, int]:
    """Return the numbers of the lines ``key<separator>number …`` of a file, by key.

    Lines of any other form are skipped. Raises OSError.
    """
    found: Dict[bytes, int] = {}
    for line in read(path).splitlines():
        key, _, rest = line.partition(separator)
        first = rest.split(None, 1)[:1]
        if first and first[0].isdigit():
            found[key] = int(first[0])
    return found


def available_bytes() -> Optional[int]:
    """Return the memory that the kernel says is available, None if it does not say."""
    try:
        known = key_values("/proc/meminfo", b":").get(b"MemAvailable")
    except OSError:
        return None
    return None if known is None else known * 1024


def boot_id() -> str:
    """Return the id of this boot of the machine, "" if it is unknown."""
    try:
        return read("/proc/sys/kernel/random/boot_id", 64).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Stat(NamedTuple):
    """What gpuscope uses of /proc/PID/stat. Times are clock ticks."""

    name: str
    state: str
    """The state as one letter of proc(5): R, S, D, T, t, Z or X."""
    ppid: int
    cpu_ticks: int
    start_ticks: int
    """When the process started, in clock ticks since boot.

    Together with the pid it tells a process from a later one that has the same pid.
    """
    rss_pages: int
    flags: int
    """The kernel's flags of the process (``PF_…``)."""
    exit_status: int = 0
    """Of a zombie, as ``os.waitpid`` gives it; 0 also where we may not know it."""

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie: it has ended, and its parent has not reaped it."""
        return self.state in ("Z", "X")


def parse_stat(content: bytes) -> Stat:
    """Parse the content of /proc/PID/stat. Raises ValueError for any other text.

    The process's name is in parentheses and may hold any character, parentheses and line ends
    included, so the fields begin after the last closing parenthesis.
    """
    opened, closed = content.find(b"("), content.rfind(b")")
    rest = content[closed + 1 :].split()
    if opened < 0 or closed < opened or len(rest) < 22:
        raise ValueError("not a stat file")
    return Stat(
        name=content[opened + 1 : closed].decode("utf-8", "replace"),
        state=rest[0].decode("ascii", "replace"),
        ppid=int(rest[1]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        start_ticks=int(rest[19]),
        rss_pages=int(rest[21]),
        flags=int(rest[6]),
        exit_status=int(rest[49]) if len(rest) > 49 else 0,
    )


def stat_of(pid: int, root: str = "/") -> Stat:
    """Return what /proc says of a process. Raises OSError or ValueError without it."""
    return parse_stat(read(os.path.join(root, "proc", str(pid), "stat")))


def start_ticks(pid: int, root: str = "/") -> Optional[int]:
    """Return when a process started, in clock ticks since boot; None when it is not there."""
    try:
        return stat_of(pid, root).start_ticks
    except (OSError, ValueError):
        return None


def still_runs(pid: int, start: Optional[int], root: str = "/") -> bool:
    """Return whether the process that started at ``start`` has not ended.

    One that /proc hides from us (hidepid) is there, but it is another if we have seen the start.
    """
    try:
        stat = stat_of(pid, root)
    except PermissionError:
        return start is None
    except (OSError, ValueError):
        return False
    return stat.start_ticks == start and not stat.has_ended


def status_values(status: bytes, key: bytes) -> List[int]:
    """Return the numbers of one line of /proc/PID/status; [] when there is no such line.

    The last such line counts: the process's name, which its owner chose and which may imitate a
    line, stands above all of them. Raises ValueError where a value is not a number.
    """
    at = status.rfind(b"\n" + key + b":")
    return (
        [int(part) for part in status[at + 1 :].split(b"\n", 1)[0].split()[1:]] if at >= 0 else []
    )


def why(error: Exception, what: str) -> Unknown:
    """Why reading the host's file ``what`` failed."""
    if isinstance(error, PermissionError):
        return Unknown(NO_PERMISSION, f"{what}: no permission")
    if not sys.platform.startswith("linux"):
        return Unknown(NOT_SUPPORTED, f"{what}: only on Linux")
    if isinstance(error, OSError):
        if error.errno in _GONE:
            return Unknown(NOT_SUPPORTED, f"{what}: not on this host")
        return Unknown(DRIVER_ERROR, f"{what}: {os.strerror(error.errno or 0)}")
    return Unknown(DRIVER_ERROR, f"{what}: in an unknown format")


def why_process(error: Exception, pid: int, what: Optional[str] = None) -> Unknown:
    """Why a file of process ``pid`` could not be read."""
    if isinstance(error, OSError) and error.errno in _GONE and sys.platform.startswith("linux"):
        return Unknown(LOST, f"process {pid} is gone")
    return why(error, f"/proc/{pid}/{what}" if what else f"/proc/{pid}")


def descends(pid: int, ancestor: int) -> bool:
    """Say whether a process is a descendant of another one, or that process itself.

    There may be any number of processes between them, such as torchrun or a shell.
    """
    for _ in range(_MAX_GENERATIONS):
        if pid == ancestor:
            return True
        try:
            pid = parse_stat(read(f"/proc/{pid}/stat")).ppid
        except (OSError, ValueError):
            return False
        if pid <= 1:
            return False
    return False
