"""What the fake answers about more than one GPU, about processes, and in several calls.

That is topology, events, and GPM.
"""

from __future__ import annotations

import ctypes
import queue
import struct
import threading
import time
from typing import Any

from .nvml_gpu_answers import GpuAnswers
from .nvml_state import (
    EVENTS,
    HANDLE,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    KINDS,
    NOT_AVAILABLE,
    NOT_FOUND,
    NOT_SUPPORTED,
    SAMPLE,
    SUCCESS,
    VERSION_MISMATCH,
    FakeProcess,
    address,
    write,
)


class HostAnswers(GpuAnswers):
    """Beneath ``FakeNvml``."""

    processes: list[FakeProcess]
    p2p: dict[tuple[int, int, int], int]
    live_samples: set[int]
    metrics_asked: set[int]
    registered: dict[int, int]
    event_sets: int
    _row_v3: str
    _lock: threading.Lock
    _samples: dict[int, int]
    _xids: queue.Queue[tuple[int, int]]

    # processes

    def _process_list(self, kind: str, suffix: str, gpu: int | None, count: Any, rows: Any) -> int:
        layout = {"_v3": self._row_v3, "_v2": "IxxxxQII", "": "IxxxxQ"}[suffix]
        wanted = [p for p in self.processes if p.gpu == gpu and p.kind == KINDS[kind]]
        room = count._obj.value
        count._obj.value = len(wanted)
        if room < len(wanted):
            return INSUFFICIENT_SIZE
        packed = b""
        for process in wanted:
            used = NOT_AVAILABLE if process.used is None else process.used
            values = (process.pid, used, process.instance, 0xFFFFFFFF, 0)
            packed += struct.pack(
                layout, *values[: 2 if not suffix else 5 if layout.endswith("IIQ") else 4]
            )
        if packed:  # a real driver would run over the end of a wrong array; this one stops there
            ctypes.memmove(rows, packed, min(len(packed), ctypes.sizeof(rows)))
        return SUCCESS

    def _samples_since(self, handle: Any, since: int) -> list[tuple[FakeProcess, int]]:
        """Who ran kernels in the sample of now, newer than ``since``; its time in microseconds."""
        at = int(time.time() * 1e6)
        gpu = address(handle) - HANDLE
        return [
            (one, at)
            for one in self.processes
            if one.gpu == gpu and one.sm is not None and at > since
        ]

    def _nvmlDeviceGetProcessUtilization(
        self, handle: Any, rows: Any, count: Any, since: Any
    ) -> int:
        found = self._samples_since(handle, since.value)
        room, count._obj.value = count._obj.value, len(found)
        if not found:
            return NOT_FOUND
        if rows is None or room < len(found):
            return INSUFFICIENT_SIZE
        packed = b"".join(struct.pack("IxxxxQIIII", p.pid, at, p.sm, 3, 0, 0) for p, at in found)
        ctypes.memmove(rows, packed, len(packed))
        return SUCCESS

    def _nvmlDeviceGetProcessesUtilizationInfo(self, handle: Any, request: Any) -> int:
        asked = request._obj
        if asked.version != 0x01000018:
            return VERSION_MISMATCH
        found = self._samples_since(handle, asked.microseconds)
        room, asked.count = asked.count, len(found)
        if not found:
            return NOT_FOUND
        if not asked.rows or room < len(found):
            return INSUFFICIENT_SIZE
        packed = b"".join(
            struct.pack("QIIIIIIIxxxx", at, p.pid, p.sm, 3, 0, 0, 0, 0) for p, at in found
        )
        ctypes.memmove(asked.rows, packed, len(packed))
        return SUCCESS

    # topology

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, out: Any) -> int:
        a, b = self._at(one), self._at(other)
        return write(out, "I", 0 if a is b else 50 if a.socket != b.socket else 40)

    def _nvmlDeviceGetP2PStatus(self, one: Any, other: Any, way: int, out: Any) -> int:
        a, b = sorted((address(one) - HANDLE, address(other) - HANDLE))
        linked = any(self.gpus[a].links) and any(self.gpus[b].links)
        return write(out, "I", self.p2p.get((a, b, way), 5 if way == 2 and not linked else 0))

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, out: Any) -> int:
        links = self._at(handle).links
        if link >= len(links):
            return INVALID_ARGUMENT if links else NOT_SUPPORTED
        return write(out, "I", links[link])

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, out: Any) -> int:
        return write(
            out, "16sIIB", b"c" * 16, self._at(handle).fabric_status, 0, self._at(handle).fabric
        )

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        if out._obj.version != 0x02000024:
            return VERSION_MISMATCH
        return write(out, "I16sIIBxxxI", 0x02000024, b"c" * 16, gpu.fabric_status, 0, gpu.fabric, 0)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, out: Any) -> int:
        gpu = self._at(handle)
        if link >= len(gpu.links):
            return INVALID_ARGUMENT
        bus = self.gpus[gpu.direct[link]].pci if link in gpu.direct else "00000000:C0:00.0"
        domain, number, rest = bus.split(":")
        values = (int(domain, 16), int(number, 16), int(rest[:2], 16), 0, 0)
        return write(out, "16sIIIII32s", bus[4:].encode(), *values, bus.encode())

    # events

    def xid(self, gpu: int, code: int) -> None:
        """The driver reports a critical error of ``gpu``."""
        self._xids.put((gpu, code))

    def _nvmlEventSetCreate(self, out: Any) -> int:
        self.event_sets += 1
        return write(out, "Q", EVENTS)

    def _nvmlEventSetFree(self, events: Any) -> int:
        self.event_sets -= 1
        return SUCCESS

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        if address(events) != EVENTS:
            return INVALID_ARGUMENT
        self.registered[address(handle) - HANDLE] = kinds.value
        return SUCCESS

    def _nvmlEventSetWait_v2(self, events: Any, out: Any, milliseconds: Any) -> int:
        try:
            gpu, code = self._xids.get(timeout=min(milliseconds.value / 1000, 0.05))
        except queue.Empty:
            return 10
        return write(out, "QQQII", HANDLE + gpu, 8, code, 0xFFFFFFFF, 0xFFFFFFFF)

    # GPM

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, out: Any) -> int:
        return write(out, "II", 1, int(self._at(handle).gpm_supported))

    def _nvmlGpmSampleAlloc(self, out: Any) -> int:
        with self._lock:
            address = SAMPLE + 16 * len(self._samples)
            self._samples[address] = -1
            self.live_samples.add(address)
        return write(out, "Q", address)

    def _nvmlGpmSampleFree(self, sample: Any) -> int:
        self.live_samples.discard(address(sample))
        return SUCCESS

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        if address(sample) not in self.live_samples:
            return INVALID_ARGUMENT
        self._samples[address(sample)] = address(handle) - HANDLE
        return SUCCESS

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        get = request._obj
        one, two = address(get.sample1), address(get.sample2)
        if get.version != 1 or one == two or not {one, two} <= self.live_samples:
            return INVALID_ARGUMENT
        self.metrics_asked.add(get.numMetrics)
        values = self.gpus[self._samples[two]].gpm
        for metric in get.metrics[: get.numMetrics]:
            metric.nvmlReturn = SUCCESS if metric.metricId in values else NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return SUCCESS
