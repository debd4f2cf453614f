"""A fake NVML library for this process: an object at ``pynvml.nvmlLib`` under the real pynvml wrappers.

    fake = FakeNvml(gpus=2, processes=[FakeProcess(pid, used=1 << 30)])
    with fake.install():
        nvml = Nvml.open()
        fake.set(1, utilisation=80, used=10 << 30)
        fake.fail("nvmlDeviceGetPowerUsage", 0, "GpuIsLost")
        with fake.hang("nvmlDeviceGetUtilizationRates", 1) as hang: ...

Calls are named as in nvml.h, errors as the number or the end of pynvml's class name ("GpuIsLost"). Structs are written
by the fake's own layout, as a driver does: a wrapper with another layout reads garbage. ``fake.calls`` records every
call.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from gpuscope.collect.nvml import Nvml

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, VERSION_MISMATCH = 0, 2, 3, 6, 7, 25
GIB = 1 << 30
NOT_AVAILABLE = (1 << 64) - 1
_HANDLE, _SAMPLE, _MIG, _EVENTS = 0x1000, 0x9000, 0x5000, 0x7000
_KINDS = {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}


def error_code(error: int | str) -> int:
    """The nvmlReturn_t of 15, "GpuIsLost" or "NVMLError_GpuIsLost"."""
    if isinstance(error, int):
        return error
    return int(getattr(pynvml, "NVMLError_" + error.replace("NVMLError_", ""))().value)


@dataclass
class FakeProcess:
    """``used`` None is the driver's "not available". ``kind``: compute, graphics or mps."""

    pid: int
    used: int | None = GIB
    kind: str = "compute"
    gpu: int = 0
    instance: int = 0xFFFFFFFF


@dataclass
class FakeGpu:
    """An H200 at work, in the driver's units (milliwatts, bytes, percent, MHz)."""

    uuid: str
    pci: str
    name: str | bytes = "NVIDIA H200"
    total: int = 150_754_820_096
    reserved: int = 700_000_000
    used: int = 20 * GIB
    utilisation: int = 55
    memory_utilisation: int = 21
    power: int = 412_345
    power_limit: int = 700_000
    temperature: int = 61
    sm_clock: int = 1755
    memory_clock: int = 3201
    max_sm_clock: int = 1980
    event_reasons: int = 0x4
    performance_state: int = 0
    fan: int | None = None
    ecc: int = 0
    pcie_generation: int = 5
    pcie_width: int = 16
    capability: tuple[int, int] = (9, 0)
    gpm: dict[int, float] = field(
        default_factory=lambda: {
            2: 88.0, 3: 42.0, 5: 27.0, 10: 42.0, 4: 24.0, 11: 0.0, 12: 2.8, 13: 1.5,
            20: 12.0, 21: 70.0, 61: 9346.0, 60: 9340.0,
        }
    )  # fmt: skip
    memory_temperature: int | None = 66
    margin: int = 26
    slowdown: int = 87
    shutdown: int = 92
    energy: int = 912_345_678
    ecc_modes: tuple[int, int] = (1, 1)
    ecc_corrected: int = 3
    ecc_lifetime: tuple[int, int] = (17, 0)
    remapped: tuple[int, int, int, int] = (1, 0, 0, 0)
    retired: tuple[int, int] | None = None
    replays: int = 2
    architecture: int = 9
    bus_bits: int = 6144
    vbios: str = "96.00.A5.00.01"
    mig_modes: tuple[int, int] | None = (0, 0)
    mig_names: tuple[str, ...] = ()
    default_power: int = 700_000
    power_range: tuple[int, int] = (200_000, 700_000)
    persistence: int = 1
    compute_mode: int = 0
    cores: tuple[int, ...] = tuple(range(24)) + tuple(range(48, 72))
    nodes: tuple[int, ...] = (0,)
    direct: dict[int, int] = field(default_factory=dict)
    """Link → the device at its other end; without an entry it is a switch."""
    gpm_supported: bool = True
    links: tuple[int, ...] = (1,) * 18
    fabric: int = 3
    fabric_status: int = 0
    socket: int = 0


class Hang:
    """A call that does not return until :meth:`release`. ``entered`` is set once a thread is in it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def wait(self) -> None:
        self.entered.set()
        self._released.wait(60)

    def __enter__(self) -> Hang:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FakeNvml:
    """``driver`` decides which symbols and structs there are (memory v2 from 510, process lists v3 from 510, their
    longer struct in 535.43–535.97, none of it in 535.98). ``delay`` is seconds per call, or by call name."""

    def __init__(
        self,
        gpus: int = 2,
        processes: list[FakeProcess] | None = None,
        driver: str = "580.159.03",
        cuda: int = 13000,
        delay: float | dict[str, float] = 0.0,
    ) -> None:
        self.gpus = [
            FakeGpu("GPU-%08x-0000-4000-8000-000000000000" % (index + 1), "00000000:%02X:00.0" % (0x18 + index))
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
        self._functions: dict[str, Callable[..., Any]] = {}
        self._samples: dict[int, int] = {}
        self._lock = threading.Lock()
        major, minor = (int(part) for part in driver.split(".")[:2])
        if major < 510:
            self.missing("nvmlDeviceGetMemoryInfo_v2")
        if major < 510 or (major == 535 and 98 <= minor < 104):
            self.missing(*(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in _KINDS))
        if (major, minor) < (450, 66):
            self.missing(*(f"nvmlDeviceGet{kind}RunningProcesses_v2" for kind in _KINDS))
        if major < 535:
            self.missing("nvmlDeviceGetCurrentClocksEventReasons")
        if major < 545:
            self.missing("nvmlDeviceGetGpuFabricInfoV")
        if major < 565:
            self.missing("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature")
        self.p2p: dict[tuple[int, int, int], int] = {}
        """(a GPU, another, nvmlGpuP2PCapsIndex_t) → nvmlGpuP2PStatus_t where it is not 0."""
        self._row_v3 = "IxxxxQIIQ" if major == 535 and minor < 98 else "IxxxxQII"

    # ── what a test says ──────────────────────────────────────────────────────────────────────────────────────────────

    def set(self, gpu: int, **values: Any) -> None:
        """Changes fields of :class:`FakeGpu`."""
        self.gpus[gpu] = replace(self.gpus[gpu], **values)

    def fail(self, call: str, gpu: int | None, error: int | str, after: int = 0) -> None:
        """``call`` answers ``error`` on ``gpu`` (None: all, and calls without a device), after ``after`` good ones."""
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
            return sum(1 for name, index in self.calls if name == call and (gpu is None or index == gpu))

    @contextlib.contextmanager
    def install(self) -> Iterator[FakeNvml]:
        """Stands in for libnvidia-ml.so.1 inside the block; hung calls are released at its end."""
        saved = pynvml.nvmlLib, pynvml._nvmlLib_refcount, dict(pynvml._nvmlGetFunctionPointer_cache)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = self, 0
        try:
            yield self
        finally:
            self.heal()
            pynvml.nvmlLib, pynvml._nvmlLib_refcount = saved[:2]
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml._nvmlGetFunctionPointer_cache.update(saved[2])

    # ── what pynvml sees ──────────────────────────────────────────────────────────────────────────────────────────────

    def __getattr__(self, symbol: str) -> Any:
        if not symbol.startswith("nvml") or symbol in self.__dict__.get("_missing", ()):
            raise AttributeError(symbol)
        function = self._functions.get(symbol)
        if function is None:
            # A plain function, because pynvml sets .restype on it.
            def function(*arguments: Any) -> Any:
                return self._answer(symbol, arguments)

            self._functions[symbol] = function
        return function

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
        for kind in _KINDS:
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
            return self._samples.get(_address(arguments[0]._obj.sample2))
        if symbol.startswith("nvmlDevice") or symbol in ("nvmlGpmSampleGet", "nvmlGpmQueryDeviceSupport"):
            first = arguments[0]
            if isinstance(first, pynvml.c_nvmlDevice_t) and _address(first) >= _MIG:
                return (_address(first) - _MIG) // 16
            return _address(first) - _HANDLE if isinstance(first, pynvml.c_nvmlDevice_t) else None
        return None

    def _at(self, handle: Any) -> FakeGpu:
        return self.gpus[_address(handle) - _HANDLE]

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
        return _write_text(buffer, self.driver)

    def _nvmlSystemGetNVMLVersion(self, buffer: Any, length: Any) -> int:
        return _write_text(buffer, "13." + self.driver)

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> int:
        return _write(out, "i", self.cuda)

    _nvmlSystemGetCudaDriverVersion_v2 = _nvmlSystemGetCudaDriverVersion

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:
        return _write(out, "I", len(self.gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        return _write(out, "Q", _HANDLE + index.value)

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:
        wanted = getattr(uuid, "value", uuid)
        for index, gpu in enumerate(self.gpus):
            if gpu.uuid.encode() == wanted:
                return _write(out, "Q", _HANDLE + index)
        return NOT_FOUND

    # static

    def _nvmlDeviceGetIndex(self, handle: Any, out: Any) -> int:
        return _write(out, "I", _address(handle) - _HANDLE)

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        if _address(handle) >= _MIG:
            index, slot = divmod(_address(handle) - _MIG, 16)
            return _write_text(buffer, self.gpus[index].mig_names[slot])
        return _write_text(buffer, self._at(handle).name)

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        if _address(handle) >= _MIG:
            return _write_text(buffer, f"MIG-{_address(handle):08x}-0000-4000-8000-000000000000")
        return _write_text(buffer, self._at(handle).uuid)

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        bus = self._at(handle).pci
        domain, number, rest = bus.split(":")
        values = (int(domain, 16), int(number, 16), int(rest[:2], 16), 0x233510DE, 0x18BE10DE)
        return _write(out, "16sIIIII32s", bus[4:].encode(), *values, bus.encode())

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        _write(major, "i", self._at(handle).capability[0])
        return _write(minor, "i", self._at(handle).capability[1])

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        gpu = self._at(handle)
        return _write(out, "I", gpu.memory_clock if kind.value == 2 else gpu.max_sm_clock)

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, out: Any) -> int:
        return _write(out, "I", 5)

    def _nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, out: Any) -> int:
        return _write(out, "I", 16)

    # readings

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        used = gpu.used + gpu.reserved
        return _write(out, "QQQ", gpu.total, gpu.total - used, used)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        if out._obj.version != 0x02000028:
            return VERSION_MISMATCH
        free = gpu.total - gpu.used - gpu.reserved
        return _write(out, "IxxxxQQQQ", 0x02000028, gpu.total, gpu.reserved, free, gpu.used)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        return _write(out, "II", gpu.utilisation, gpu.memory_utilisation)

    def _nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).power)

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).power_limit)

    _nvmlDeviceGetPowerManagementLimit = _nvmlDeviceGetEnforcedPowerLimit

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> int:
        if out._obj.version != 0x100000C:
            return VERSION_MISMATCH
        return _write(out, "IIi", 0x100000C, 0, self._at(handle).temperature)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).temperature)

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        gpu = self._at(handle)
        return _write(out, "I", gpu.memory_clock if kind.value == 2 else gpu.sm_clock)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> int:
        return _write(out, "Q", self._at(handle).event_reasons)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetPerformanceState(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).performance_state)

    def _nvmlDeviceGetFanSpeed(self, handle: Any, out: Any) -> int:
        fan = self._at(handle).fan
        return NOT_SUPPORTED if fan is None else _write(out, "I", fan)

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> int:
        gpu = self._at(handle)
        corrected, lifetime = getattr(kind, "value", kind) == 0, getattr(counter, "value", counter) == 1
        value = gpu.ecc_lifetime[0 if corrected else 1] if lifetime else gpu.ecc_corrected if corrected else gpu.ecc
        return _write(out, "Q", value)

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).pcie_generation)

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).pcie_width)

    # processes

    def _process_list(self, kind: str, suffix: str, gpu: int | None, count: Any, rows: Any) -> int:
        layout = {"_v3": self._row_v3, "_v2": "IxxxxQII", "": "IxxxxQ"}[suffix]
        wanted = [p for p in self.processes if p.gpu == gpu and p.kind == _KINDS[kind]]
        room = count._obj.value
        count._obj.value = len(wanted)
        if room < len(wanted):
            return INSUFFICIENT_SIZE
        packed = b""
        for process in wanted:
            used = NOT_AVAILABLE if process.used is None else process.used
            values = (process.pid, used, process.instance, 0xFFFFFFFF, 0)
            packed += struct.pack(layout, *values[: 2 if not suffix else 5 if layout.endswith("IIQ") else 4])
        if packed:  # a real driver would run over the end of a wrong array; this one stops there
            ctypes.memmove(rows, packed, min(len(packed), ctypes.sizeof(rows)))
        return SUCCESS

    # topology

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, out: Any) -> int:
        a, b = self._at(one), self._at(other)
        return _write(out, "I", 0 if a is b else 50 if a.socket != b.socket else 40)

    def _nvmlDeviceGetP2PStatus(self, one: Any, other: Any, way: int, out: Any) -> int:
        a, b = sorted((_address(one) - _HANDLE, _address(other) - _HANDLE))
        linked = any(self.gpus[a].links) and any(self.gpus[b].links)
        return _write(out, "I", self.p2p.get((a, b, way), 5 if way == 2 and not linked else 0))

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, out: Any) -> int:
        links = self._at(handle).links
        if link >= len(links):
            return INVALID_ARGUMENT if links else NOT_SUPPORTED
        return _write(out, "I", links[link])

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, out: Any) -> int:
        return _write(out, "16sIIB", b"c" * 16, self._at(handle).fabric_status, 0, self._at(handle).fabric)

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        if out._obj.version != 0x02000024:
            return VERSION_MISMATCH
        return _write(out, "I16sIIBxxxI", 0x02000024, b"c" * 16, gpu.fabric_status, 0, gpu.fabric, 0)

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, out: Any) -> int:
        gpu = self._at(handle)
        if link >= len(gpu.links):
            return INVALID_ARGUMENT
        bus = self.gpus[gpu.direct[link]].pci if link in gpu.direct else "00000000:C0:00.0"
        domain, number, rest = bus.split(":")
        values = (int(domain, 16), int(number, 16), int(rest[:2], 16), 0, 0)
        return _write(out, "16sIIIII32s", bus[4:].encode(), *values, bus.encode())

    # inventory

    def _nvmlDeviceGetArchitecture(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).architecture)

    def _nvmlDeviceGetMemoryBusWidth(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).bus_bits)

    def _nvmlDeviceGetVbiosVersion(self, handle: Any, buffer: Any, length: Any) -> int:
        return _write_text(buffer, self._at(handle).vbios)

    def _nvmlDeviceGetMinorNumber(self, handle: Any, out: Any) -> int:
        return _write(out, "I", _address(handle) - _HANDLE)

    def _nvmlDeviceGetEccMode(self, handle: Any, now: Any, pending: Any) -> int:
        _write(now, "I", self._at(handle).ecc_modes[0])
        return _write(pending, "I", self._at(handle).ecc_modes[1])

    def _nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> int:
        modes = self._at(handle).mig_modes
        if modes is None:
            return NOT_SUPPORTED
        _write(now, "I", modes[0])
        return _write(pending, "I", modes[1])

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:
        return _write(out, "I", 7)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, out: Any) -> int:
        index = _address(handle) - _HANDLE
        if slot.value >= len(self.gpus[index].mig_names):
            return NOT_FOUND
        return _write(out, "Q", _MIG + 16 * index + slot.value)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).default_power)

    def _nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any, low: Any, high: Any) -> int:
        _write(low, "I", self._at(handle).power_range[0])
        return _write(high, "I", self._at(handle).power_range[1])

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, which: Any, out: Any) -> int:
        gpu = self._at(handle)
        kind = getattr(which, "value", which)
        return _write(out, "I", gpu.shutdown if kind == 0 else gpu.slowdown) if kind in (0, 1) else INVALID_ARGUMENT

    def _nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).persistence)

    def _nvmlDeviceGetComputeMode(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).compute_mode)

    def _nvmlDeviceGetCpuAffinity(self, handle: Any, words: int, out: Any) -> int:
        return _write_bits(out, words, self._at(handle).cores)

    def _nvmlDeviceGetMemoryAffinity(self, handle: Any, words: int, out: Any, scope: Any) -> int:
        return _write_bits(out, words, self._at(handle).nodes)

    # health

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: int, out: Any) -> int:
        """As a driver does, it writes fields of 40 bytes. Knows the temperature of the memory only."""
        raw = ctypes.string_at(out, 4)
        heat = self._at(handle).memory_temperature
        known = struct.unpack("I", raw)[0] == 82 and heat is not None
        return _write(out, "IIqqIII", *struct.unpack("I", raw), 0, 1, 1, 1, 0 if known else NOT_SUPPORTED, heat or 0)

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> int:
        if out._obj.version != 0x01000008:
            return VERSION_MISMATCH
        return _write(out, "Ii", 0x01000008, self._at(handle).margin)

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> int:
        return _write(out, "Q", self._at(handle).energy)

    def _nvmlDeviceGetRemappedRows(self, handle: Any, one: Any, two: Any, pending: Any, failed: Any) -> int:
        for out, value in zip((one, two, pending, failed), self._at(handle).remapped, strict=True):
            _write(out, "I", value)
        return SUCCESS

    def _nvmlDeviceGetRetiredPages(self, handle: Any, cause: Any, count: Any, out: Any) -> int:
        retired = self._at(handle).retired
        if retired is None:
            return NOT_SUPPORTED
        wanted, room = retired[getattr(cause, "value", cause)], count._obj.value
        count._obj.value = wanted
        if out is None or room < wanted:
            return INSUFFICIENT_SIZE if wanted else SUCCESS
        return _write(out, f"{wanted}Q", *range(wanted)) if wanted else SUCCESS

    def _nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, out: Any) -> int:
        return NOT_SUPPORTED if self._at(handle).retired is None else _write(out, "I", 0)

    def _nvmlDeviceGetPcieReplayCounter(self, handle: Any, out: Any) -> int:
        return _write(out, "I", self._at(handle).replays)

    # events

    def xid(self, gpu: int, code: int) -> None:
        """The driver reports a critical error of ``gpu``."""
        self._xids.put((gpu, code))

    def _nvmlEventSetCreate(self, out: Any) -> int:
        self.event_sets += 1
        return _write(out, "Q", _EVENTS)

    def _nvmlEventSetFree(self, events: Any) -> int:
        self.event_sets -= 1
        return SUCCESS

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, events: Any) -> int:
        if _address(events) != _EVENTS:
            return INVALID_ARGUMENT
        self.registered[_address(handle) - _HANDLE] = kinds.value
        return SUCCESS

    def _nvmlEventSetWait_v2(self, events: Any, out: Any, milliseconds: Any) -> int:
        try:
            gpu, code = self._xids.get(timeout=min(milliseconds.value / 1000, 0.05))
        except queue.Empty:
            return 10
        return _write(out, "QQQII", _HANDLE + gpu, 8, code, 0xFFFFFFFF, 0xFFFFFFFF)

    # GPM

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, out: Any) -> int:
        return _write(out, "II", 1, int(self._at(handle).gpm_supported))

    def _nvmlGpmSampleAlloc(self, out: Any) -> int:
        with self._lock:
            address = _SAMPLE + 16 * len(self._samples)
            self._samples[address] = -1
            self.live_samples.add(address)
        return _write(out, "Q", address)

    def _nvmlGpmSampleFree(self, sample: Any) -> int:
        self.live_samples.discard(_address(sample))
        return SUCCESS

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        if _address(sample) not in self.live_samples:
            return INVALID_ARGUMENT
        self._samples[_address(sample)] = _address(handle) - _HANDLE
        return SUCCESS

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        get = request._obj
        one, two = _address(get.sample1), _address(get.sample2)
        if get.version != 1 or one == two or not {one, two} <= self.live_samples:
            return INVALID_ARGUMENT
        self.metrics_asked.add(get.numMetrics)
        values = self.gpus[self._samples[two]].gpm
        for metric in get.metrics[: get.numMetrics]:
            metric.nvmlReturn = SUCCESS if metric.metricId in values else NOT_SUPPORTED
            metric.value = values.get(metric.metricId, 0.0)
        return SUCCESS


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


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _write(out: Any, layout: str, *values: Any) -> int:
    packed = struct.pack(layout, *values)
    ctypes.memmove(out, packed, len(packed))
    return SUCCESS


def _write_bits(out: Any, words: int, bits: tuple[int, ...]) -> int:
    found = [sum(1 << bit % 64 for bit in bits if bit // 64 == word) for word in range(words)]
    return _write(out, f"{words}Q", *found)


def _write_text(buffer: Any, text: str | bytes) -> int:
    raw = text.encode() if isinstance(text, str) else text
    buffer.value = raw[: len(buffer) - 1]
    return SUCCESS
