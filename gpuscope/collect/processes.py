"""Read from /proc who the processes of this host are and what they use.

A process is identified by pid and start time (kernel clock ticks since boot), because a reused pid
has another start time. Names and arguments are chosen by the process's owner, so nothing here
trusts their form.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import Dict, FrozenSet, NamedTuple, Optional, Tuple

from ..process.procfs import Stat, read, stat_of, status_values, why_process
from ..wire.clean import limited
from ..wire.frames import (
    LOST,
    MAX_STRING_CHARS,
    NO_PERMISSION,
    NOT_INITIALISED,
    ProcDef,
    Reading,
    Unknown,
)
from .container import container, own_pid_namespace, pid_namespace_note
from .process_context import owners_of

__all__ = [
    "ProcessSampler", "container", "describe", "holds_gpu", "invisible", "namespace_pids",
    "own_pid_namespace", "owners", "pid_namespace_note", "visible",
]  # fmt: skip

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SHORTEST_SECONDS = 0.2
"""Seconds for which the last CPU percentage is kept.

CPU time has steps of 10 ms, so a percentage over a shorter interval is noise.
"""
FIRST = Unknown(NOT_INITIALISED, "CPU use needs two samples; wait for the next one")
_FORGET_SECONDS = 60.0


def command_line(content: bytes) -> str:
    """Return /proc/PID/cmdline as one would type it, "" if it is empty.

    It is cut to ``MAX_STRING_CHARS`` characters.
    """
    arguments = [part.decode("utf-8", "replace") for part in content.rstrip(b"\0").split(b"\0")]
    if len(arguments) == 1:  # a title that the process set itself, or a program without arguments
        line = arguments[0]
    else:
        line = " ".join(shlex.quote(argument) for argument in arguments)
    return limited(line, MAX_STRING_CHARS)


_users: Dict[int, str] = {}


def user_name(uid: int) -> str:
    """The user's name, or the uid as text where it has none."""
    name = _users.get(uid)
    if name is None:
        try:
            import pwd

            name = pwd.getpwuid(uid).pw_name
        except (ImportError, KeyError, OverflowError):
            name = str(uid)
        _users[uid] = name
    return name


def describe(
    pid: int, redact: bool = True, root: str = "/", boot_time: Optional[float] = None
) -> Optional[Tuple[ProcDef, Dict[str, Unknown]]]:
    """Return who the process is, and why a field is None; None when it cannot be seen.

    See :func:`invisible` for the reason. With ``redact``, the command of another user's process is
    only the name of its program. ``boot_time`` is the time of the host's boot in seconds since the
    epoch, for recorded trees.
    """
    unknown: Dict[str, Unknown] = {}
    definition = ProcDef(pid)
    try:
        stat = stat_of(pid, root)
    except PermissionError as error:
        return definition, {
            field: why_process(error, pid, "stat") for field in ("start", "user", "command", "name")
        }
    except (OSError, ValueError):
        return None
    definition.start, definition.name, definition.ppid = stat.start_ticks, stat.name, stat.ppid
    if boot_time is None:
        boot_time = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    definition.start_time = round(boot_time + stat.start_ticks / TICKS_PER_SECOND, 2)
    definition.container, definition.pod, definition.slurm_job = owners_of(pid, root)
    try:
        # The owner of the directory is not used, because it is root for a process that may not be
        # dumped.
        uid = status_values(read(_path(root, pid, "status")), b"Uid")[0]
        definition.user, definition.mine = user_name(uid), uid == os.getuid()
    except (OSError, ValueError, IndexError) as error:
        unknown["user"] = why_process(error, pid, "status")
    if redact and not definition.mine:
        definition.command = stat.name
        return definition, unknown
    try:
        # It is empty for kernel threads and zombies, which are shown like in ps.
        definition.command = command_line(read(_path(root, pid, "cmdline"))) or f"[{stat.name}]"
    except OSError as error:
        unknown["command"] = why_process(error, pid, "cmdline")
    return definition, unknown


def owners(root: str = "/") -> FrozenSet[int]:
    """The uids that have a process now, as far as /proc shows them."""
    found = set()
    try:
        for name in os.listdir(os.path.join(root, "proc")):
            if name.isdigit():
                try:
                    found.add(os.stat(os.path.join(root, "proc", name)).st_uid)
                except OSError:
                    continue  # it has just ended
    except OSError:
        pass
    return frozenset(found)


def visible(pid: int, root: str = "/") -> bool:
    """Whether this process sees process ``pid`` at all."""
    return os.path.exists(_path(root, pid, "stat"))


def holds_gpu(pid: int, root: str = "/") -> bool:
    """Say whether a process of this user is seen to have an NVIDIA device file open.

    The result is False also where its descriptors cannot be read.
    """
    folder = _path(root, pid, "fd")
    try:
        return any(
            os.readlink(os.path.join(folder, number)).startswith("/dev/nvidia")
            for number in os.listdir(folder)
        )
    except OSError:
        return False


def invisible(pid: int, root: str = "/", foreign: bool = True) -> Unknown:
    """Return why a pid that the driver names cannot be seen here.

    ``foreign`` says that this process is in a pid namespace of its own, where the driver's pids may
    belong to another namespace.
    """
    hidden = pid_namespace_note(root) if foreign else None
    if hidden is not None:
        return Unknown(hidden.code, f"pid {pid} is the host's number: {hidden.text}")
    try:
        os.kill(pid, 0)
    except PermissionError:
        return Unknown(
            NO_PERMISSION,
            f"process {pid} belongs to another user, and /proc hides those (hidepid)",
        )
    except (OSError, OverflowError):
        pass
    return Unknown(LOST, f"process {pid} is gone, but the driver still lists it")


def namespace_pids(pid: int, root: str = "/") -> Tuple[int, ...]:
    """Return the pids of the process, from this namespace inward.

    (48216, 7) is pid 7 in its container. It is ``(pid,)`` where the kernel does not report more or
    permission is missing.
    """
    try:
        return tuple(status_values(read(_path(root, pid, "status")), b"NSpid")) or (pid,)
    except (OSError, ValueError):
        return (pid,)


class _Seen(NamedTuple):
    start: int
    cpu_ticks: int
    seconds: float
    percent: Reading


class ProcessSampler:
    """Reads ``PROCESS_COLUMNS`` of any number of processes.

    CPU use is measured between two samples of the same process.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._seen: Dict[int, _Seen] = {}
        self.start: Optional[int] = None
        """When the process sampled last was started, in clock ticks; None where that is unknown."""

    def sample(self, pid: int, now: Optional[float] = None) -> Dict[str, Reading]:
        """``cpu_percent`` of one core and ``rss_bytes``. ``now`` is monotonic seconds."""
        now = time.monotonic() if now is None else now
        try:
            stat = stat_of(pid, self._root)
        except (OSError, ValueError) as error:
            self._seen.pop(pid, None)
            self.start = None
            reason = why_process(error, pid, "stat")
            return {"cpu_percent": reason, "rss_bytes": reason}
        self.start = stat.start_ticks
        return {"cpu_percent": self._cpu(pid, stat, now), "rss_bytes": stat.rss_pages * PAGE_BYTES}

    def _cpu(self, pid: int, stat: Stat, now: float) -> Reading:
        seen = self._seen.get(pid)
        percent: Reading = FIRST
        if seen and seen.start == stat.start_ticks:
            elapsed = now - seen.seconds
            if elapsed < SHORTEST_SECONDS:
                return seen.percent
            percent = round(
                max(0, stat.cpu_ticks - seen.cpu_ticks) / TICKS_PER_SECOND / elapsed * 100, 1
            )
        elif len(self._seen) >= 4096:
            self._seen = {
                old: was for old, was in self._seen.items() if now - was.seconds < _FORGET_SECONDS
            }
        self._seen[pid] = _Seen(stat.start_ticks, stat.cpu_ticks, now, percent)
        return percent


def _path(root: str, pid: int, name: str) -> str:
    return os.path.join(root, "proc", str(pid), name)
