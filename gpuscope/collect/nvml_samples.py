"""Read what the driver itself sampled on a device before gpuscope started.

On an H200 it has five samples of utilisation per second for about the last twenty seconds. A call
takes 2 ms there, so it is made once per viewer and not in a loop.
"""

from __future__ import annotations

import ctypes
from math import floor
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ..wire.frames import DRIVER_ERROR, Reading, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import NvmlCallRefused

CALL = "nvmlDeviceGetSamples"
_UNSIGNED = 1  # nvmlValueType_t
_NOT_FOUND = 6
_ROOM = 1024
LONGEST_SECONDS = 600.0
"""Samples that are older come from another clock or are invalid."""
PAST_SECONDS = 60
"""The age in seconds up to which samples are used; no driver was seen to keep more."""


class NvmlSample(ctypes.Structure):
    """nvmlSample_t; ``value`` is the first four bytes of the union."""

    _fields_ = (
        ("microseconds", ctypes.c_ulonglong),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    )


class _Kind(NamedTuple):
    column: str
    sampling: int  # nvmlSamplingType_t
    most: float
    scale: float


_GPU_UTILIZATION = _Kind("utilization_percent", 1, 100, 1.0)
KINDS = (
    _GPU_UTILIZATION,
    _Kind("memory_utilization_percent", 2, 100, 1.0),
    _Kind("power_watts", 0, 1e8, 1e-3),
)
"""The samples that are read, without clocks: nvml.h does not say when they are sampled."""


def idle_seconds(
    function: Callable[[str], Any], calls: DeviceCalls, handle: Any, wall: Callable[[], float]
) -> Reading:
    """Return for how many seconds at least no kernel has run; 0.0 while one runs.

    It is unknown where the driver keeps no such samples.
    """
    samples = _samples(function, calls, handle, _GPU_UTILIZATION, wall)
    if isinstance(samples, Unknown):
        return samples
    now = began = wall()
    for seconds, value in reversed(samples):
        if value:
            break
        began = seconds
    return round(now - began, 1)


def recent(
    function: Callable[[str], Any],
    calls: DeviceCalls,
    handle: Any,
    wall: Callable[[], float],
    monotonic: Callable[[], float],
) -> Dict[str, List[Any]]:
    """Return what the driver sampled recently, as means per second; {} where it has nothing.

    ``m`` has the moments on this host's monotonic clock in nanoseconds. Each column has as many
    values, None for a second without a sample.
    """
    seconds: Dict[int, Dict[str, List[float]]] = {}
    newest: Dict[int, float] = {}
    columns = []
    for kind in KINDS:
        samples = _samples(function, calls, handle, kind, wall)
        if isinstance(samples, Unknown):
            continue
        since = wall() - PAST_SECONDS
        for moment, value in samples:
            if moment > since and value <= kind.most:
                second = floor(moment)
                values = seconds.setdefault(second, {}).setdefault(kind.column, [])
                values.append(value * kind.scale)
                newest[second] = max(moment, newest.get(second, moment))
        if any(kind.column in means for means in seconds.values()):
            columns.append(kind.column)
    if not seconds:
        return {}
    shift = monotonic() - wall()
    series: Dict[str, List[Any]] = {"m": [int((newest[s] + shift) * 1e9) for s in sorted(seconds)]}
    for column in columns:
        series[column] = [_mean(seconds[second].get(column)) for second in sorted(seconds)]
    return series


def _mean(values: Optional[List[float]]) -> Optional[float]:
    return round(sum(values) / len(values), 2) if values else None


def _samples(
    function: Callable[[str], Any],
    calls: DeviceCalls,
    handle: Any,
    kind: _Kind,
    wall: Callable[[], float],
) -> Union[List[Tuple[float, int]], Unknown]:
    """Return the driver's samples of a kind as (wall time, value), the oldest first."""

    def ask() -> Union[List[Tuple[float, int]], Unknown]:
        room, value_type, count = (NvmlSample * _ROOM)(), ctypes.c_uint(), ctypes.c_uint(_ROOM)
        code = function(CALL)(
            handle,
            kind.sampling,
            ctypes.c_ulonglong(0),
            ctypes.byref(value_type),
            ctypes.byref(count),
            room,
        )
        if code and code != _NOT_FOUND:
            raise NvmlCallRefused(code)
        if code == 0 and value_type.value != _UNSIGNED:
            return Unknown(
                DRIVER_ERROR, f"{CALL}: the driver answered with a type that was not asked for"
            )
        now = wall()
        rows = [] if code else room[: min(count.value, _ROOM)]
        return sorted(
            (one.microseconds / 1e6, one.value)
            for one in rows
            if 0 <= now - one.microseconds / 1e6 < LONGEST_SECONDS
        )

    return calls.attempt(CALL, ask, (CALL, kind.sampling))
