"""Read the host: CPU cores, memory, /dev/shm, cgroup, container, and the agent's own cost.

Only Linux is supported; elsewhere every reading is Unknown and says so. ``root`` is the directory
that contains proc, sys and dev.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Callable, Dict, List, Optional, Tuple

from ..process.cgroup import NO_CGROUP, binding_level
from ..process.procfs import key_values, parse_stat, read, why
from ..wire.frames import HOST_COLUMNS, HostDef, Reading, Unknown
from .container import container
from .processes import FIRST, PAGE_BYTES

SELDOM_SECONDS = 1.0
"""Seconds between two readings of memory and of the load average."""
SHORTEST_SECONDS = 0.05
"""Seconds for which the last CPU percentage is kept.

The kernel counts CPU time in steps of 10 ms, so a shorter interval gives no useful percentage.
"""

_Question = Tuple[Tuple[str, ...], str, Callable[[], List[Reading]]]
"""The columns, the file of each, and the function that reads it."""


def host_definition(root: str = "/") -> Tuple[HostDef, Dict[str, Unknown]]:
    """Return the host's static facts, except the driver's, and why a field is None.

    Two fields may be None without a reason: ``container`` outside of a container, and
    ``cgroup_memory_limit_bytes`` where no limit is set.
    """
    unknown: Dict[str, Unknown] = {}

    def fact(field: str, ask: Callable[[], int]) -> Optional[int]:
        try:
            return ask()
        except (OSError, ValueError, KeyError, IndexError) as error:
            unknown[field] = why(error, _SOURCES[field])
            return None

    definition = HostDef(
        cpu_count=fact("cpu_count", lambda: _cpu_count(root)),
        memory_total_bytes=fact("memory_total_bytes", lambda: _meminfo(root)[b"MemTotal"] * 1024),
        shm_total_bytes=fact("shm_total_bytes", lambda: _shm(root)[0]),
        kernel=platform.release() or None,
        container=container(root),
    )
    binding = binding_level(root, definition.memory_total_bytes)
    definition.cgroup_memory_limit_bytes = binding.limit
    if binding.unknown is not None:
        unknown["cgroup_memory_limit_bytes"] = binding.unknown
    return definition, unknown


_SOURCES = {
    "cpu_count": "/proc/stat",
    "memory_total_bytes": "/proc/meminfo",
    "shm_total_bytes": "/dev/shm",
}


class HostSampler:
    """Read ``HOST_COLUMNS``. CPU percentages are averages since the previous sample.

    ``own`` is this process's CPU time in seconds, from a clock that counts nanoseconds: the steps
    of 10 ms in /proc would make 2 % or nothing of it at 2 Hz.
    """

    def __init__(
        self,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self._root = root
        self._clock = clock
        self._own_seconds = own
        # Busy ticks and all ticks at the last sample.
        self._cpu: Optional[Tuple[float, float]] = None
        self._own: Optional[Tuple[float, float]] = None  # own CPU seconds, and when they were read
        self._percent: Reading = FIRST
        self._own_percent: Reading = FIRST
        try:
            total: Optional[int] = _meminfo(root)[b"MemTotal"] * 1024
        except (OSError, KeyError):
            total = None
        self._level = binding_level(root, total).level
        self._seldom: Dict[str, Reading] = {}
        self._looked = float("-inf")

    def sample(self) -> Dict[str, Reading]:
        """Return every column of ``HOST_COLUMNS``; what is read seldom is up to a second old."""
        readings = self._ask((("cpu_percent",), "/proc/stat", self._cpu_percent))
        if (now := self._clock()) - self._looked >= 0.9 * SELDOM_SECONDS:
            self._looked = now
            self._seldom = self._ask(
                (("load_1m",), "/proc/loadavg", self._load),
                (("memory_available_bytes", "swap_used_bytes"), "/proc/meminfo", self._memory),
                (("shm_used_bytes",), "/dev/shm", self._shm_used),
                (("cgroup_memory_used_bytes",), "the memory cgroup", self._cgroup_used),
                (("agent_rss_bytes",), "/proc/self/stat", self._own_memory),
            )
        readings.update(self._seldom)
        readings["agent_cpu_percent"] = self._own_load()
        return {column: readings[column] for column in HOST_COLUMNS}

    @staticmethod
    def _ask(*wanted: _Question) -> Dict[str, Reading]:
        readings: Dict[str, Reading] = {}
        for columns, what, ask in wanted:
            try:
                values = ask()
            except (OSError, ValueError, KeyError, IndexError) as error:
                values = [why(error, what)] * len(columns)
            readings.update(zip(columns, values))
        return readings

    def _cpu_percent(self) -> List[Reading]:
        line = read(os.path.join(self._root, "proc/stat"), 1024).split(b"\n", 1)[0].split()
        if line[0] != b"cpu":
            raise ValueError("not a stat file")
        ticks = [int(part) for part in line[1:9]]  # user nice system idle iowait irq softirq steal
        total, busy = float(sum(ticks)), float(sum(ticks) - sum(ticks[3:5]))
        if self._cpu is None:
            self._cpu = (busy, total)
        elif total - self._cpu[1] >= 1:
            share = (busy - self._cpu[0]) / (total - self._cpu[1]) * 100
            self._percent = round(min(100.0, max(0.0, share)), 1)  # iowait may decrease
            self._cpu = (busy, total)
        return [self._percent]

    def _load(self) -> List[Reading]:
        return [float(read(os.path.join(self._root, "proc/loadavg"), 256).split()[0])]

    def _memory(self) -> List[Reading]:
        info = _meminfo(self._root)
        return [info[b"MemAvailable"] * 1024, (info[b"SwapTotal"] - info[b"SwapFree"]) * 1024]

    def _shm_used(self) -> List[Reading]:
        return [_shm(self._root)[1]]

    def _cgroup_used(self) -> List[Reading]:
        return [self._level.used_bytes() if self._level else NO_CGROUP]

    def _own_memory(self) -> List[Reading]:
        stat = parse_stat(read(os.path.join(self._root, "proc/self/stat")))
        return [stat.rss_pages * PAGE_BYTES]

    def _own_load(self) -> Reading:
        now, used = self._clock(), self._own_seconds()
        if self._own is None:
            self._own = (used, now)
        elif now - self._own[1] >= SHORTEST_SECONDS:
            self._own_percent = round(max(0.0, used - self._own[0]) / (now - self._own[1]) * 100, 1)
            self._own = (used, now)
        return self._own_percent


def _meminfo(root: str) -> Dict[bytes, int]:
    return key_values(os.path.join(root, "proc/meminfo"), b":")


def _cpu_count(root: str) -> int:
    """Return the number of processors that are online."""
    lines = read(os.path.join(root, "proc/stat")).split(b"\n")
    count = sum(1 for line in lines if line.startswith(b"cpu") and line[3:4].isdigit())
    if not count:
        raise ValueError("no processors listed")
    return count


def _shm(root: str) -> Tuple[int, int]:
    """Return the size and the use of /dev/shm in bytes."""
    status = os.statvfs(os.path.join(root, "dev/shm"))
    return status.f_blocks * status.f_frsize, (status.f_blocks - status.f_bfree) * status.f_frsize
