"""Read the GPU's own performance counters (GPM; Hopper and newer, without root).

"Utilisation" is the share of time with any kernel running. GPM tells how much of the GPU worked:
SMs active, warps resident, tensor pipe busy. One sample costs 95–241 µs on an H200, three metrics
of a pair of samples 5 µs, thirteen 1.9 ms.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ..wire.frames import DRIVER_ERROR, NOT_INITIALISED, NOT_SUPPORTED, TIMEOUT, Reading, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import from_return
from .nvml_readings import GPM_COLUMNS, GPM_SLOW_COLUMNS

FEW: Mapping[str, int] = dict(zip(GPM_COLUMNS, (2, 3, 5)))
"""Column → nvmlGpmMetricId_t of the metrics that are read in each tick.

They are SM activity, SM occupancy and activity of any tensor pipe.
"""
MANY: Mapping[str, int] = dict(zip(GPM_SLOW_COLUMNS, (10, 4, 11, 12, 13, 20, 21, 61, 60)))
"""The metrics that are read seldom, because they take 2 ms.

They are DRAM bandwidth, the integer, FP64, FP32 and FP16 pipes, and the PCIe and NVLink traffic
sent and received.
"""
_MOST_MIB = 1e7
"""Traffic per second above which the driver's answer is not plausible."""
SHORTEST_SECONDS = 0.09
"""Seconds between two samples, at least.

The driver's counters need about 0.1 s; if they are asked sooner, the last result is returned.
"""
FIRST = Unknown(NOT_INITIALISED, "nvmlGpmSampleGet: needs two samples; wait for the next one")

_ONE_AT_A_TIME = threading.Lock()
"""The lock for all GPM calls, which are not thread-safe even for different devices.

On two H200s with driver 580.159, the first ``nvmlGpmMetricsGet`` crashed in 5 of 18 starts without
a lock, in 10 of 60 with a lock around that call only, and in none of 180 with a lock around all GPM
calls.
"""
TURN_SECONDS = 0.05
HELD_SECONDS = 5.0
"""Seconds for which the last result is returned while another device holds the lock.

With a slow driver, many devices wait long for their turn.
"""
NO_TURN = Unknown(
    TIMEOUT, "a GPM call for another GPU has not returned, and only one is made at a time"
)

_QUERY, _ALLOC, _GET, _METRICS = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)


class GpmSampler:
    """Read GPM metrics of one device, as means over the time since the previous sample.

    It holds two of the driver's sample buffers and fills them in turn.
    """

    def __init__(self, binding: Any, calls: DeviceCalls, metrics: Mapping[str, int] = FEW) -> None:
        self._metric_ids = metrics
        self._n = binding
        self._calls = calls
        self._supported = False
        self._buffers: List[Any] = []
        self._previous: Optional[Any] = None
        self._sampled = -math.inf
        self._turnless = math.inf  # since when it has been waiting for the lock
        self._request: Any = None
        self._last: Dict[str, Reading] = self._all(FIRST)

    def read(self, handle: Any, now: float) -> Dict[str, Reading]:
        """Return the readings since the previous call. ``now`` is monotonic seconds."""
        if now - self._sampled >= SHORTEST_SECONDS:
            if not _ONE_AT_A_TIME.acquire(timeout=TURN_SECONDS):
                self._turnless = min(self._turnless, now)
                return self._last if now - self._turnless < HELD_SECONDS else self._all(NO_TURN)
            self._turnless = math.inf
            try:
                self._last = self._read(handle, now)
            finally:
                _ONE_AT_A_TIME.release()
        return self._last

    def _read(self, handle: Any, now: float) -> Dict[str, Reading]:
        if not self._supported:
            answer = self._calls.attempt(_QUERY, lambda: self._query(handle))
            if isinstance(answer, Unknown):
                return self._all(answer)
            self._supported = True
        while len(self._buffers) < 2:
            buffer = self._calls.attempt(_ALLOC, lambda: self._n.nvmlGpmSampleAlloc())
            if isinstance(buffer, Unknown):
                return self._all(buffer)
            self._buffers.append(buffer)
        previous, self._previous = self._previous, None
        fresh = self._buffers[0] if previous is not self._buffers[0] else self._buffers[1]
        failed = self._calls.attempt(_GET, lambda: self._n.nvmlGpmSampleGet(handle, fresh) and None)
        if isinstance(failed, Unknown):
            return self._all(failed)
        self._previous, self._sampled = fresh, now
        if previous is None:
            return self._all(FIRST)
        values = self._calls.attempt(_METRICS, lambda: self._metrics(previous, fresh))
        return (
            self._all(values)
            if isinstance(values, Unknown)
            else dict(zip(self._metric_ids, values))
        )

    def _query(self, handle: Any) -> Union[bool, Unknown]:
        if self._n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return True
        return Unknown(
            NOT_SUPPORTED, f"{_QUERY}: this GPU has no such counters (Hopper and newer have them)"
        )

    def _metrics(self, previous: Any, fresh: Any) -> Tuple[Reading, ...]:
        if self._request is None:  # 20 kB, so it is created once
            self._request = self._n.c_nvmlGpmMetricsGet_t()
            self._request.version = self._n.NVML_GPM_METRICS_GET_VERSION
        request = self._request
        request.sample1, request.sample2 = previous, fresh
        request.numMetrics = len(self._metric_ids)
        for slot, metric in enumerate(self._metric_ids.values()):
            request.metrics[slot].metricId = metric
            request.metrics[slot].value = math.nan
        self._n.nvmlGpmMetricsGet(request)
        return tuple(
            _read_metric(name, request.metrics[slot]) for slot, name in enumerate(self._metric_ids)
        )

    def _all(self, unknown: Unknown) -> Dict[str, Reading]:
        return dict.fromkeys(self._metric_ids, unknown)

    def close(self) -> None:
        """Give the sample buffers back to the driver, when no call is in flight any more."""
        self._previous = None
        while self._buffers:
            try:
                self._n.nvmlGpmSampleFree(self._buffers.pop())
            except Exception:
                pass  # the driver frees them when the process ends


def _read_metric(column: str, metric: Any) -> Reading:
    if metric.nvmlReturn:
        return from_return(_METRICS, metric.nvmlReturn)
    value = float(metric.value)
    share = column.endswith("_percent")
    if not math.isfinite(value) or not -0.5 <= value <= (105.0 if share else _MOST_MIB):
        return Unknown(DRIVER_ERROR, f"{_METRICS}: the driver gave no number for this interval")
    return round(min(max(value, 0.0), 100.0), 2) if share else int(max(value, 0.0) * (1 << 20))
