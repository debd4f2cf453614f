"""Read how busy each process keeps a device, from the driver's own samples.

This is the SM column of ``nvidia-smi pmon``. One call takes 2 ms of CPU time on an H200, so it is
made seldom.

The driver samples by itself, five times a second on that GPU, and returns for each process the mean
since a moment that the caller names. The shares of all processes add up to the device's utilisation
in that time. The moment is always ``WINDOW_SECONDS`` ago, because over a shorter time a single
sample would attribute everything to one process. By nvml.h there is a row for each process "that
had some non-zero utilization", so a process of the device without a row did not run a kernel.
pynvml's wrapper is bypassed, because it asks the driver twice for each answer.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable, Dict, List, NamedTuple, Union

from ..wire.frames import NOT_INITIALISED, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import INSUFFICIENT_SIZE, NvmlCallRefused

CALL, NEWER_CALL = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
MAX_ROWS = 65536
WINDOW_SECONDS = 5.0
"""The driver's timestamps are wall-clock times."""
NO_SAMPLE = Unknown(
    NOT_INITIALISED,
    f"{CALL}: the driver has no recent sample of any process here: no kernel ran, or it has not "
    "sampled yet",
)
_FIRST_ROOM = 128
_NOT_FOUND = 6
_INFO_V1 = 0x01000018
"""sizeof(nvmlProcessesUtilizationInfo_v1_t) | 1 << 24."""


class ProcessSample(ctypes.Structure):
    """The struct nvmlProcessUtilizationSample_t.

    Shares are percentages of the sample period; the time is in microseconds.
    """

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("microseconds", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class NewerSample(ctypes.Structure):
    """nvmlProcessUtilizationInfo_v1_t."""

    _fields_ = (
        ("microseconds", ctypes.c_ulonglong),
        ("pid", ctypes.c_uint),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
        ("jpeg", ctypes.c_uint),
        ("optical_flow", ctypes.c_uint),
    )


class NewerRequest(ctypes.Structure):
    """nvmlProcessesUtilizationInfo_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("microseconds", ctypes.c_ulonglong),
        ("rows", ctypes.c_void_p),
    )


class _Row(NamedTuple):
    pid: int
    microseconds: int
    sm: int


class ProcessLoad:
    """Reads the samples of one device, those that are new since the last time."""

    def __init__(
        self,
        function: Callable[[str], Any],
        calls: DeviceCalls,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._function = function
        self._calls = calls
        self._wall = wall
        self._rooms: Dict[str, Any] = {}

    def read(self, handle: Any) -> Union[Dict[int, float], Unknown]:
        """Return SM percent by pid in the window, or ``NO_SAMPLE`` where no kernel ran.

        The pids are those of the driver's pid namespace.
        """
        since = max(0, int((self._wall() - WINDOW_SECONDS) * 1e6))
        rows = self._calls.first(
            (
                (CALL, lambda: self._ask(handle, since)),
                (NEWER_CALL, lambda: self._ask_newer(handle, since)),
            ),
            CALL,
        )
        if isinstance(rows, Unknown):
            return rows
        found: Dict[int, _Row] = {}
        for row in rows:
            before = found.get(row.pid)
            # Rows older than the window, or with a share above 100 %, are remains of an earlier
            # answer.
            whole = row.pid > 0 and row.sm <= 100 and row.microseconds > since
            if whole and (before is None or before.microseconds < row.microseconds):
                found[row.pid] = row
        return {pid: float(row.sm) for pid, row in found.items()} if found else NO_SAMPLE

    def _ask(self, handle: Any, since: int) -> List[_Row]:
        function = self._function(CALL)
        room = self._rooms.setdefault(CALL, (ProcessSample * _FIRST_ROOM)())
        while True:
            count = ctypes.c_uint(len(room))
            code = function(handle, room, ctypes.byref(count), ctypes.c_ulonglong(since))
            if code in (0, _NOT_FOUND):
                return _rows(room, count.value) if code == 0 else []
            if code != INSUFFICIENT_SIZE or len(room) >= MAX_ROWS:
                raise NvmlCallRefused(code)
            room = self._rooms[CALL] = (ProcessSample * _larger(len(room), count.value))()

    def _ask_newer(self, handle: Any, since: int) -> List[_Row]:
        function = self._function(NEWER_CALL)
        room = self._rooms.setdefault(NEWER_CALL, (NewerSample * _FIRST_ROOM)())
        while True:
            request = NewerRequest(_INFO_V1, len(room), since, ctypes.addressof(room))
            code = function(handle, ctypes.byref(request))
            if code in (0, _NOT_FOUND):
                return _rows(room, request.count) if code == 0 else []
            if code != INSUFFICIENT_SIZE or len(room) >= MAX_ROWS:
                raise NvmlCallRefused(code)
            room = self._rooms[NEWER_CALL] = (NewerSample * _larger(len(room), request.count))()


def _rows(room: Any, count: int) -> List[_Row]:
    return [_Row(one.pid, one.microseconds, one.sm) for one in room[: min(count, len(room))]]


def _larger(before: int, wanted: int) -> int:
    return min(MAX_ROWS, max(before, wanted) * 2)
