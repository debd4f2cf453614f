"""What the fake answers about one GPU by itself: identity, readings, inventory, health.

As in nvml.h, by the fake's own layout.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

from .nvml_state import (
    HANDLE,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    MIG,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    VERSION_MISMATCH,
    FakeGpu,
    address,
    write,
    write_bits,
    write_text,
)


class GpuAnswers:
    """Beneath ``FakeNvml``, which has the GPUs."""

    gpus: list[FakeGpu]

    def _at(self, handle: Any) -> FakeGpu:
        return self.gpus[address(handle) - HANDLE]

    # identity

    def _nvmlDeviceGetIndex(self, handle: Any, out: Any) -> int:
        return write(out, "I", address(handle) - HANDLE)

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        if address(handle) >= MIG:
            index, slot = divmod(address(handle) - MIG, 16)
            return write_text(buffer, self.gpus[index].mig_names[slot])
        return write_text(buffer, self._at(handle).name)

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        if address(handle) >= MIG:
            return write_text(buffer, f"MIG-{address(handle):08x}-0000-4000-8000-000000000000")
        return write_text(buffer, self._at(handle).uuid)

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:
        bus = self._at(handle).pci
        domain, number, rest = bus.split(":")
        values = (int(domain, 16), int(number, 16), int(rest[:2], 16), 0x233510DE, 0x18BE10DE)
        return write(out, "16sIIIII32s", bus[4:].encode(), *values, bus.encode())

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        write(major, "i", self._at(handle).capability[0])
        return write(minor, "i", self._at(handle).capability[1])

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        gpu = self._at(handle)
        return write(out, "I", gpu.memory_clock if kind.value == 2 else gpu.max_sm_clock)

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, out: Any) -> int:
        return write(out, "I", 5)

    def _nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, out: Any) -> int:
        return write(out, "I", 16)

    # readings

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        used = gpu.used + gpu.reserved
        return write(out, "QQQ", gpu.total, gpu.total - used, used)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        if out._obj.version != 0x02000028:
            return VERSION_MISMATCH
        free = gpu.total - gpu.used - gpu.reserved
        return write(out, "IxxxxQQQQ", 0x02000028, gpu.total, gpu.reserved, free, gpu.used)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:
        gpu = self._at(handle)
        return write(out, "II", gpu.utilisation, gpu.memory_utilisation)

    def _nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).power)

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).power_limit)

    _nvmlDeviceGetPowerManagementLimit = _nvmlDeviceGetEnforcedPowerLimit

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> int:
        if out._obj.version != 0x100000C:
            return VERSION_MISMATCH
        return write(out, "IIi", 0x100000C, 0, self._at(handle).temperature)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).temperature)

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> int:
        gpu = self._at(handle)
        return write(out, "I", gpu.memory_clock if kind.value == 2 else gpu.sm_clock)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> int:
        return write(out, "Q", self._at(handle).event_reasons)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetPerformanceState(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).performance_state)

    def _nvmlDeviceGetFanSpeed(self, handle: Any, out: Any) -> int:
        fan = self._at(handle).fan
        return NOT_SUPPORTED if fan is None else write(out, "I", fan)

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, out: Any) -> int:
        gpu = self._at(handle)
        corrected, lifetime = (
            getattr(kind, "value", kind) == 0,
            getattr(counter, "value", counter) == 1,
        )
        value = (
            gpu.ecc_lifetime[0 if corrected else 1]
            if lifetime
            else gpu.ecc_corrected
            if corrected
            else gpu.ecc
        )
        return write(out, "Q", value)

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).pcie_generation)

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).pcie_width)

    # inventory

    def _nvmlDeviceGetArchitecture(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).architecture)

    def _nvmlDeviceGetMemoryBusWidth(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).bus_bits)

    def _nvmlDeviceGetVbiosVersion(self, handle: Any, buffer: Any, length: Any) -> int:
        return write_text(buffer, self._at(handle).vbios)

    def _nvmlDeviceGetMinorNumber(self, handle: Any, out: Any) -> int:
        return write(out, "I", address(handle) - HANDLE)

    def _nvmlDeviceGetEccMode(self, handle: Any, now: Any, pending: Any) -> int:
        write(now, "I", self._at(handle).ecc_modes[0])
        return write(pending, "I", self._at(handle).ecc_modes[1])

    def _nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> int:
        modes = self._at(handle).mig_modes
        if modes is None:
            return NOT_SUPPORTED
        write(now, "I", modes[0])
        return write(pending, "I", modes[1])

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> int:
        return write(out, "I", 7)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, out: Any) -> int:
        index = address(handle) - HANDLE
        if slot.value >= len(self.gpus[index].mig_names):
            return NOT_FOUND
        return write(out, "Q", MIG + 16 * index + slot.value)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).default_power)

    def _nvmlDeviceGetPowerManagementLimitConstraints(
        self, handle: Any, low: Any, high: Any
    ) -> int:
        write(low, "I", self._at(handle).power_range[0])
        return write(high, "I", self._at(handle).power_range[1])

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, which: Any, out: Any) -> int:
        gpu = self._at(handle)
        kind = getattr(which, "value", which)
        return (
            write(out, "I", gpu.shutdown if kind == 0 else gpu.slowdown)
            if kind in (0, 1)
            else INVALID_ARGUMENT
        )

    def _nvmlDeviceGetPersistenceMode(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).persistence)

    def _nvmlDeviceGetComputeMode(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).compute_mode)

    def _nvmlDeviceGetCpuAffinity(self, handle: Any, words: int, out: Any) -> int:
        return write_bits(out, words, self._at(handle).cores)

    def _nvmlDeviceGetMemoryAffinity(self, handle: Any, words: int, out: Any, scope: Any) -> int:
        return write_bits(out, words, self._at(handle).nodes)

    # health

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: int, out: Any) -> int:
        """As a driver does, it writes fields of 40 bytes.

        Knows the temperature of the memory only.
        """
        raw = ctypes.string_at(out, 4)
        heat = self._at(handle).memory_temperature
        known = struct.unpack("I", raw)[0] == 82 and heat is not None
        return write(
            out,
            "IIqqIII",
            *struct.unpack("I", raw),
            0,
            1,
            1,
            1,
            0 if known else NOT_SUPPORTED,
            heat or 0,
        )

    def _nvmlDeviceGetSamples(
        self, handle: Any, kind: int, since: Any, value: Any, count: Any, rows: Any
    ) -> int:
        gpu = self._at(handle)
        samples = gpu.samples if kind == 1 else gpu.more_samples.get(kind)
        if samples is None:
            return NOT_SUPPORTED
        room, count._obj.value = count._obj.value, len(samples)
        write(value, "I", 1)
        if not samples:
            return NOT_FOUND
        if room < len(samples):
            return INSUFFICIENT_SIZE
        packed = b"".join(
            struct.pack("QII", int((time.time() - ago) * 1e6), load, 0) for ago, load in samples
        )
        ctypes.memmove(rows, packed, len(packed))
        return SUCCESS

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> int:
        if out._obj.version != 0x01000008:
            return VERSION_MISMATCH
        return write(out, "Ii", 0x01000008, self._at(handle).margin)

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, out: Any) -> int:
        return write(out, "Q", self._at(handle).energy)

    def _nvmlDeviceGetRemappedRows(
        self, handle: Any, one: Any, two: Any, pending: Any, failed: Any
    ) -> int:
        for out, value in zip((one, two, pending, failed), self._at(handle).remapped, strict=True):
            write(out, "I", value)
        return SUCCESS

    def _nvmlDeviceGetRetiredPages(self, handle: Any, cause: Any, count: Any, out: Any) -> int:
        retired = self._at(handle).retired
        if retired is None:
            return NOT_SUPPORTED
        wanted, room = retired[getattr(cause, "value", cause)], count._obj.value
        count._obj.value = wanted
        if out is None or room < wanted:
            return INSUFFICIENT_SIZE if wanted else SUCCESS
        return write(out, f"{wanted}Q", *range(wanted)) if wanted else SUCCESS

    def _nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, out: Any) -> int:
        return NOT_SUPPORTED if self._at(handle).retired is None else write(out, "I", 0)

    def _nvmlDeviceGetPcieReplayCounter(self, handle: Any, out: Any) -> int:
        return write(out, "I", self._at(handle).replays)
