"""Finds since when a device is idle, from the driver's own samples of its utilisation.

It has five a second on an H200, for some twenty seconds back. This is for somebody who has just
come: it takes 2 ms there, so it is asked once and not in a loop.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from ..wire.frames import DRIVER_ERROR, Reading, Unknown
from .nvml_calls import Calls
from .nvml_errors import NvmlCallRefused

CALL = "nvmlDeviceGetSamples"
_GPU_UTILIZATION = 1  # nvmlSamplingType_t
_UNSIGNED = 1  # nvmlValueType_t
_NOT_FOUND = 6
_ROOM = 1024
LONGEST_SECONDS = 600.0
"""Older samples are another clock's, or no samples."""


class Sample(ctypes.Structure):
    """nvmlSample_t; ``value`` is the first four bytes of the union."""

    _fields_ = (
        ("microseconds", ctypes.c_ulonglong),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    )


def idle_seconds(
    function: Callable[[str], Any], calls: Calls, handle: Any, wall: Callable[[], float]
) -> Reading:
    """Return for how long at least no kernel ran, 0.0 where one runs.

    It is unknown where the driver keeps no such samples.
    """

    def ask() -> Reading:
        room, kind, count = (Sample * _ROOM)(), ctypes.c_uint(), ctypes.c_uint(_ROOM)
        asked = function(CALL)
        code = asked(
            handle,
            _GPU_UTILIZATION,
            ctypes.c_ulonglong(0),
            ctypes.byref(kind),
            ctypes.byref(count),
            room,
        )
        if code and code != _NOT_FOUND:
            raise NvmlCallRefused(code)
        if code == 0 and kind.value != _UNSIGNED:
            return Unknown(
                DRIVER_ERROR, f"{CALL}: the driver answered with a type that was not asked for"
            )
        now = wall()
        rows = [] if code else room[: min(count.value, _ROOM)]
        recent = sorted(
            (one.microseconds / 1e6, one.value)
            for one in rows
            if 0 <= now - one.microseconds / 1e6 < LONGEST_SECONDS
        )
        began = now
        for seconds, value in reversed(recent):
            if value:
                break
            began = seconds
        return round(now - began, 1)

    return calls.attempt(CALL, ask)
