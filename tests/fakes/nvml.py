"""A fake NVML library for this process.

    fake = FakeNvml(gpus=2, processes=[FakeProcess(pid, used=1 << 30)])
    with fake.install():
        nvml = Nvml.open()
        fake.set(1, utilisation=80, used=10 << 30)
        fake.fail("nvmlDeviceGetPowerUsage", 0, "GpuIsLost")
        with fake.hang("nvmlDeviceGetUtilizationRates", 1) as hang: ...

Calls are named as in nvml.h, errors as the number or the end of pynvml's class name ("GpuIsLost").
Structs are written by the fake's own layout, as a driver does: a wrapper with another layout reads
garbage. ``fake.calls`` records every call.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pynvml

from gpuscope.collect.nvml import Nvml

from .nvml_host_answers import HostAnswers
from .nvml_library import NvmlLibrary
from .nvml_state import (
    GIB,
    HANDLE,
    INVALID_ARGUMENT,
    KINDS,
    MIG,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    FakeGpu,
    FakeProcess,
    Hang,
    address,
    error_code,
    write,
    write_text,
)

__all__ = [
    "GIB",
    "NOT_SUPPORTED",
    "SUCCESS",
    "Clock",
    "FakeGpu",
    "FakeNvml",
    "FakeProcess",
    "Hang",
    "started",
]


class FakeNvml(HostAnswers, NvmlLibrary):
    """A fake NVML library.

    ``driver`` decides which symbols and structs there are (memory v2 from 510, process lists v3
    from 510, their longer struct in 535.43–535.97, none of it in 535.98). ``delay`` is seconds per
    call, or by call name.
    """

    def __init__(
        self,
        gpus: int = 2,
        processes: list[FakeProcess] | None = None,
        driver: str = "580.159.03",
        cuda: int = 13000,
        delay: float | dict[str, float] = 0.0,
    ) -> None:
        NvmlLibrary.__init__(self)
        self.gpus = [
            FakeGpu(
                "GPU-%08x-0000-4000-8000-000000000000" % (index + 1),
                "00000000:%02X:00.0" % (0x18 + index),
            )
            for index in range(gpus)
        ]
        self.processes = list(processes or [])
        self.driver = driver
        self.cuda = cuda
        self.delay = delay
        self.calls: list[tuple[str, int | None]] = []
        self.live_samples: set[int] = set()
        self.initialised = 0
        self.event_sets = 0
        self.metrics_asked: set[int] = set()
        self.registered: dict[int, int] = {}
        """Device → the kinds of events that somebody registered for."""
        self._xids: queue.Queue[tuple[int, int]] = queue.Queue()
        self._missing: set[str] = set()
        self._failures: dict[tuple[str, int | None], tuple[int, int]] = {}
        self._hangs: dict[tuple[str, int | None], Hang] = {}
        self._samples: dict[int, int] = {}
        self._lock = threading.Lock()
        major, minor = (int(part) for part in driver.split(".")[:2])
        if major < 510:
            self.missing("nvmlDeviceGetMemoryInfo_v2")
        if major < 510 or (major == 535 and 98 <= minor < 104):
            self.missing(*(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in KINDS))
        if (major, minor) < (450, 66):
            self.missing(*(f"nvmlDeviceGet{kind}RunningProcesses_v2" for kind in KINDS))
        if major < 535:
            self.missing("nvmlDeviceGetCurrentClocksEventReasons")
        if major < 545:
            self.missing("nvmlDeviceGetGpuFabricInfoV")
        if major < 565:
            self.missing("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature")
        self.p2p: dict[tuple[int, int, int], int] = {}
        """(a GPU, another, nvmlGpuP2PCapsIndex_t) → nvmlGpuP2PStatus_t where it is not 0."""
        self._row_v3 = "IxxxxQIIQ" if major == 535 and minor < 98 else "IxxxxQII"

    # ── what a test says ──────────────────────────────────────────────────────────────────────────

    def set(self, gpu: int, **values: Any) -> None:
        """Changes fields of :class:`FakeGpu`."""
        self.gpus[gpu] = replace(self.gpus[gpu], **values)

    def fail(self, call: str, gpu: int | None, error: int | str, after: int = 0) -> None:
        """Let ``call`` answer ``error`` on ``gpu``, after ``after`` good answers.

        None as ``gpu``: on all, and for calls without a device.
        """
        self._failures[call, gpu] = (error_code(error), after)

    def lose(self, gpu: int) -> None:
        """Every call on ``gpu`` answers GpuIsLost."""
        self._failures["*", gpu] = (error_code("GpuIsLost"), 0)

    def heal(self) -> None:
        """Takes back every :meth:`fail`, :meth:`lose` and :meth:`hang`."""
        self._failures.clear()
        for hang in self._hangs.values():
            hang.release()
        self._hangs.clear()

    def hang(self, call: str, gpu: int | None) -> Hang:
        hang = self._hangs[call, gpu] = Hang()
        return hang

    def missing(self, *symbols: str) -> None:
        """The library has no such symbols."""
        self._missing.update(symbols)

    def count(self, call: str, gpu: int | None = None) -> int:
        with self._lock:
            return sum(
                1 for name, index in self.calls if name == call and (gpu is None or index == gpu)
            )

    # ── what pynvml sees ──────────────────────────────────────────────────────────────────────────

    def _has(self, symbol: str) -> bool:
        return symbol not in self._missing

    def _answer(self, symbol: str, arguments: tuple[Any, ...]) -> Any:
        gpu = self._gpu_of(symbol, arguments)
        with self._lock:
            self.calls.append((symbol, gpu))
        pause = self.delay.get(symbol, 0.0) if isinstance(self.delay, dict) else self.delay
        if pause:
            time.sleep(pause)
        for key in ((symbol, gpu), (symbol, None)):
            if key in self._hangs:
                self._hangs[key].wait()
        for key in ((symbol, gpu), (symbol, None), ("*", gpu)):
            if key in self._failures and key != ("*", None):
                code, after = self._failures[key]
                if after <= 0:
                    return code
                self._failures[key] = (code, after - 1)
        for kind in KINDS:
            prefix = f"nvmlDeviceGet{kind}RunningProcesses"
            if symbol.startswith(prefix):
                return self._process_list(kind, symbol[len(prefix) :], gpu, *arguments[1:])
        handler = getattr(type(self), "_" + symbol, None)
        if handler is None:
            return NOT_SUPPORTED
        if gpu is not None and gpu >= len(self.gpus):
            return INVALID_ARGUMENT
        return handler(self, *arguments)

    def _gpu_of(self, symbol: str, arguments: tuple[Any, ...]) -> int | None:
        if not arguments:
            return None
        if symbol.startswith("nvmlDeviceGetHandleByIndex"):
            return int(arguments[0].value)
        if symbol == "nvmlGpmMetricsGet":
            return self._samples.get(address(arguments[0]._obj.sample2))
        if symbol.startswith("nvmlDevice") or symbol in (
            "nvmlGpmSampleGet",
            "nvmlGpmQueryDeviceSupport",
        ):
            first = arguments[0]
            if isinstance(first, pynvml.c_nvmlDevice_t) and address(first) >= MIG:
                return (address(first) - MIG) // 16
            return address(first) - HANDLE if isinstance(first, pynvml.c_nvmlDevice_t) else None
        return None

    # library

    def _nvmlInitWithFlags(self, flags: int) -> int:
        self.initialised += 1
        return SUCCESS

    def _nvmlInit_v2(self) -> int:
        return self._nvmlInitWithFlags(0)

    def _nvmlShutdown(self) -> int:
        self.initialised -= 1
        return SUCCESS

    def _nvmlErrorString(self, code: int) -> bytes:
        return b"error %d" % code

    def _nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:
        return write_text(buffer, self.driver)

    def _nvmlSystemGetNVMLVersion(self, buffer: Any, length: Any) -> int:
        return write_text(buffer, "13." + self.driver)

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> int:
        return write(out, "i", self.cuda)

    _nvmlSystemGetCudaDriverVersion_v2 = _nvmlSystemGetCudaDriverVersion

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:
        return write(out, "I", len(self.gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        return write(out, "Q", HANDLE + index.value)

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:
        wanted = getattr(uuid, "value", uuid)
        for index, gpu in enumerate(self.gpus):
            if gpu.uuid.encode() == wanted:
                return write(out, "Q", HANDLE + index)
        return NOT_FOUND


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def started(clock: Clock) -> Nvml:
    """The collector on an installed fake, with a clock of the test's."""
    nvml = Nvml(clock)
    nvml.start()
    return nvml
