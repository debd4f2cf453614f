"""List the processes that use a device, without pynvml's wrappers.

The wrappers use the struct of the installed nvidia-ml-py and not that of the driver: drivers 535.43
to 535.86 and nvidia-ml-py 12.535.77 have eight more bytes per row, and each gives scrambled pids
with another version of the other. They also ask twice per list, and give up when processes start
faster than the array was allocated.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

from ..wire.frames import HIDDEN_BY_CONTAINER, NOT_SUPPORTED, Reading, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import INSUFFICIENT_SIZE, NvmlCallRefused

MAX_PROCESSES = 65536
_FIRST_ROOM = 64  # rows that are allocated at first, nearly always enough for one call per list
_MEMORY_LIMIT = 1 << 50


class ProcessInfoV1(ctypes.Structure):
    """nvmlProcessInfo_v1_t: before R450.66."""

    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, also that of the _v3 calls."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


class ProcessInfo535(ctypes.Structure):
    """What the _v3 calls of 535.43 to 535.86 filled in."""

    _fields_ = (*ProcessInfo._fields_, ("usedGpuCcProtectedMemory", ctypes.c_ulonglong))


def row_struct(driver_version: str) -> Type[ctypes.Structure]:
    """The struct of the _v3 calls in the driver of this version ("535.54.03")."""
    parts = driver_version.split(".")
    try:
        major, minor = int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return ProcessInfo
    return ProcessInfo535 if major == 535 and minor < 98 else ProcessInfo


NO_SIZE = Unknown(
    NOT_SUPPORTED,
    "the driver does not report this process's memory (WSL2, a Windows-style driver model, or MIG)",
)
HIDDEN_OWNERS = Unknown(
    HIDDEN_BY_CONTAINER,
    "the driver lists processes here whose pids this container cannot see; start it with "
    "--pid=host to see them",
)


class ProcessLists:
    """Reads the compute, graphics and MPS process lists of one device."""

    def __init__(
        self, function: Callable[[str], Any], calls: DeviceCalls, driver_version: str
    ) -> None:
        self._function = function
        self._calls = calls
        self._versions = (
            ("_v3", row_struct(driver_version)),
            ("_v2", ProcessInfo),
            ("", ProcessInfoV1),
        )
        self._rooms: Dict[str, Any] = {}
        self.gap: Optional[Unknown] = None
        """The part that the last result of :meth:`read` lacks, if any.

        This may be a secondary list that failed, or processes without a pid.
        """

    def read(self, handle: Any) -> Union[List[Tuple[int, Reading]], Unknown]:
        """Return ``(pid, used bytes)`` once per pid, by pid, or Unknown without a compute list.

        If the graphics or MPS list fails, the compute list is still returned; see ``gap``. The pids
        are those of the driver's pid namespace.
        """
        self.gap = None
        compute = self._list(handle, "Compute")
        if isinstance(compute, Unknown):
            return compute
        found = _by_pid(compute)
        for kind in ("Graphics", "MPSCompute"):
            rows = self._list(handle, kind)
            if isinstance(rows, Unknown):
                if rows.code != NOT_SUPPORTED:
                    self.gap = rows
                continue
            # A process of type C+G is in both lists, with the same bytes.
            for pid, used in _by_pid(rows).items():
                found[pid] = _larger(found.get(pid, used), used)
        if found.pop(0, None) is not None:
            self.gap = HIDDEN_OWNERS
        return sorted(found.items())

    def _list(self, handle: Any, kind: str) -> Union[List[Tuple[int, int, int]], Unknown]:
        ways = []
        for suffix, struct in self._versions:
            name = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
            ways.append((name, self._asker(handle, name, struct)))
        return self._calls.first(ways)

    def _asker(
        self, handle: Any, name: str, struct: Type[ctypes.Structure]
    ) -> Callable[[], List[Tuple[int, int, int]]]:
        def ask() -> List[Tuple[int, int, int]]:
            function = self._function(name)
            room = self._rooms.get(name)
            if room is None:
                room = self._rooms[name] = (struct * _FIRST_ROOM)()
            while True:
                count = ctypes.c_uint(len(room))
                code = function(handle, ctypes.byref(count), room)
                if code == 0:
                    break
                if code != INSUFFICIENT_SIZE or len(room) >= MAX_PROCESSES:
                    raise NvmlCallRefused(code)
                # Many processes may be starting between the two calls.
                wanted = max(count.value * 2, len(room) * 2)
                room = self._rooms[name] = (struct * min(MAX_PROCESSES, wanted))()
            rows = room[: min(count.value, len(room))]
            return [(row.pid, row.usedGpuMemory, getattr(row, "gpuInstanceId", 0)) for row in rows]

        return ask


def _by_pid(rows: List[Tuple[int, int, int]]) -> Dict[int, Reading]:
    """Return bytes by pid.

    The rows of a process in several MIG instances are added up; repeated rows are not.
    """
    parts: Dict[int, Dict[int, Reading]] = {}
    for pid, used, instance in rows:
        size: Reading = used if used <= _MEMORY_LIMIT else NO_SIZE
        by_instance = parts.setdefault(pid, {})
        by_instance[instance] = _larger(by_instance.get(instance, size), size)
    totals: Dict[int, Reading] = {}
    for pid, by_instance in parts.items():
        known = [size for size in by_instance.values() if isinstance(size, int)]
        totals[pid] = sum(known) if len(known) == len(by_instance) else NO_SIZE
    return totals


def _larger(left: Reading, right: Reading) -> Reading:
    """Return the value that is known, or the larger one if both are."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return left if isinstance(left, int) else right
