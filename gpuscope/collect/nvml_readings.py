"""Lists what is read of a device, by which NVML call, and which answers are no answers.

Figures on an H200 under load (driver 580), all of it CPU time: the fast tier with GPM takes 0.5 ms,
the slow tier 4 ms (2 of them for nine GPM metrics, 1 for the margin to slowdown), and 3 ms more
where it asks for energy. PCIe throughput would take 21 ms and tells nothing that GPM does not: it
is not used.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple, Tuple

from ..wire.frames import DEVICE_COLUMNS, DRIVER_ERROR, NOT_SUPPORTED, Reading, Unknown
from .nvml_errors import NvmlCallRefused, from_return

CLOCK_SM, CLOCK_MEMORY = 1, 2  # nvmlClockType_t
SENSOR_GPU = 0  # nvmlTemperatureSensors_t
ECC_CORRECTED, ECC_UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
ECC_VOLATILE, ECC_AGGREGATE = 0, 1  # nvmlEccCounterType_t
_FIELD_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
_RETIRED_FOR = (0, 1)  # nvmlPageRetirementCause_t: several corrected errors, one that could not be
_NOT_AVAILABLE = ((1 << 32) - 1, (1 << 64) - 1)
"""NVML_VALUE_NOT_AVAILABLE as it looks in an unsigned int and an unsigned long long."""
_MEMORY_LIMIT = 1 << 50
"""1 PiB: more is a driver's garbage (seen as 0xFFFF… under WSL2)."""

Extract = Callable[[Any, Any], Tuple[Reading, ...]]


class Spec(NamedTuple):
    """A reading, or a few that come together: their columns, and the ways to get them.

    The best way is first. A way is the call's name in nvml.h and a function of the binding and
    the device's handle that returns one Reading per column.
    """

    columns: Tuple[str, ...]
    ways: Tuple[Tuple[str, Extract], ...]


def plausible(call: str, value: Any, limit: int, scale: float = 0.0, floor: int = 0) -> Reading:
    """Return ``value``, or Unknown where the driver's number says that it has none.

    It is multiplied by ``scale``, if that is given.
    """
    if value in _NOT_AVAILABLE:
        return Unknown(NOT_SUPPORTED, f"{call}: the driver has no value for it")
    if not floor <= value <= limit:
        return Unknown(DRIVER_ERROR, f"{call}: the driver answered {value}, which is impossible")
    return round(value * scale, 3) if scale else int(value)


def simple(column: str, call: str, limit: int, scale: float = 0.0, *arguments: int) -> Spec:
    """One column got by one call whose wrapper has the same name and returns a number."""
    return Spec(
        (column,),
        ((call, lambda n, h: (plausible(call, getattr(n, call)(h, *arguments), limit, scale),)),),
    )


# ── memory ────────────────────────────────────────────────────────────────────────────────────────

MEMORY_V2 = "nvmlDeviceGetMemoryInfo_v2"
MEMORY_V1 = "nvmlDeviceGetMemoryInfo"


def memory_sizes(call: str, *sizes: int) -> Tuple[Reading, ...]:
    """Return the total memory first, then the parts of it.

    A total of 0 is an integrated GPU, which uses the host's memory: what it has is unknown, and
    the host's memory does not stand in for it.
    """
    if sizes[0] == 0:
        return (
            Unknown(NOT_SUPPORTED, f"{call}: the driver reports no memory of the device's own"),
        ) * len(sizes)
    return tuple(plausible(call, size, _MEMORY_LIMIT) for size in sizes)


def memory_v2(n: Any, h: Any) -> Tuple[Reading, ...]:
    """Return total, used, free and driver-reserved bytes.

    The version word must be pynvml's constant: a literal 2 is refused.
    """
    info = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    return memory_sizes(MEMORY_V2, info.total, info.used, info.free, info.reserved)


def memory_v1(n: Any, h: Any) -> Tuple[Reading, ...]:
    """Return the same as :func:`memory_v2`, but ``used`` includes the driver's reserve.

    The reserve is unknown by itself.
    """
    info = n.nvmlDeviceGetMemoryInfo(h)
    total, used, free = memory_sizes(MEMORY_V1, info.total, info.used, info.free)
    return (
        total,
        used,
        free,
        Unknown(
            NOT_SUPPORTED,
            f"{MEMORY_V2} is not available here, and its older version counts the driver reserve "
            f"as used",
        ),
    )


# ── tiers ─────────────────────────────────────────────────────────────────────────────────────────


def _utilisation(n: Any, h: Any) -> Tuple[Reading, ...]:
    call = "nvmlDeviceGetUtilizationRates"
    rates = n.nvmlDeviceGetUtilizationRates(h)
    return plausible(call, rates.gpu, 100), plausible(call, rates.memory, 100)


def _reasons(name: str) -> Tuple[str, Extract]:
    return name, lambda n, h: (plausible(name, getattr(n, name)(h), (1 << 63) - 1),)


def _temperature(name: str) -> Tuple[str, Extract]:
    return name, lambda n, h: (plausible(name, getattr(n, name)(h, SENSOR_GPU), 250, floor=-100),)


FAST: Tuple[Spec, ...] = (
    Spec(
        ("utilization_percent", "memory_utilization_percent"),
        (("nvmlDeviceGetUtilizationRates", _utilisation),),
    ),
    Spec(
        ("used_bytes", "free_bytes", "driver_reserved_bytes"),
        (
            (MEMORY_V2, lambda n, h: memory_v2(n, h)[1:]),
            (MEMORY_V1, lambda n, h: memory_v1(n, h)[1:]),
        ),
    ),
    simple("power_watts", "nvmlDeviceGetPowerUsage", 10**8, 1e-3),
    Spec(
        ("temperature_celsius",),
        (_temperature("nvmlDeviceGetTemperatureV"), _temperature("nvmlDeviceGetTemperature")),
    ),
    simple("sm_clock_mhz", "nvmlDeviceGetClockInfo", 10**5, 0.0, CLOCK_SM),
    simple("memory_clock_mhz", "nvmlDeviceGetClockInfo", 10**5, 0.0, CLOCK_MEMORY),
    Spec(
        ("clock_event_reasons",),
        (
            _reasons("nvmlDeviceGetCurrentClocksEventReasons"),
            _reasons("nvmlDeviceGetCurrentClocksThrottleReasons"),
        ),
    ),
)
"""Every tick. GPM (nvml_gpm.py) belongs to this tier too."""


def _retired(n: Any, h: Any) -> Tuple[Reading, ...]:
    return (sum(len(n.nvmlDeviceGetRetiredPages(h, cause)) for cause in _RETIRED_FOR),)


def _remapped_rows(n: Any, h: Any) -> Tuple[Reading, ...]:
    return tuple(int(value) for value in n.nvmlDeviceGetRemappedRows(h))


def _margin(n: Any, h: Any) -> Tuple[Reading, ...]:
    call = "nvmlDeviceGetMarginTemperature"
    return (plausible(call, n.nvmlDeviceGetMarginTemperature(h), 250, floor=-100),)


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; ``value`` is the first four bytes of the union."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("answer", ctypes.c_uint),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    ]


_KIND_UNSIGNED = 1  # nvmlValueType_t


def _memory_temperature(n: Any, h: Any) -> Tuple[Reading, ...]:
    """By field value. Room for two: some drivers write one entry past the end."""
    call = "nvmlDeviceGetFieldValues"
    values = (FieldValue * 2)()
    values[0].field = _FIELD_MEMORY_TEMPERATURE
    refused = n.function(call)(h, 1, ctypes.byref(values)) or values[0].answer
    if refused:
        raise NvmlCallRefused(refused)
    if values[0].kind != _KIND_UNSIGNED:
        return (
            Unknown(
                DRIVER_ERROR, f"{call}: the driver answered with a type that was not asked for"
            ),
        )
    heat = plausible(call, int(values[0].value), 250)
    # 0 °C is what a GPU without such a sensor says
    return (heat if heat else from_return(call, 3),)


SLOW: Tuple[Spec, ...] = (
    simple("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", 10**8, 1e-3),
    simple("performance_state", "nvmlDeviceGetPerformanceState", 15),
    simple("fan_percent", "nvmlDeviceGetFanSpeed", 200),
    simple(
        "ecc_uncorrected_count",
        "nvmlDeviceGetTotalEccErrors",
        1 << 62,
        0.0,
        ECC_UNCORRECTED,
        ECC_VOLATILE,
    ),
    simple("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", 32),
    simple("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", 64),
    Spec(("memory_temperature_celsius",), (("nvmlDeviceGetFieldValues", _memory_temperature),)),
    Spec(("slowdown_margin_celsius",), (("nvmlDeviceGetMarginTemperature", _margin),)),
    simple(
        "ecc_corrected_count",
        "nvmlDeviceGetTotalEccErrors",
        1 << 62,
        0.0,
        ECC_CORRECTED,
        ECC_VOLATILE,
    ),
    simple("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", 1),
)
"""About every 5 s. The costly GPM metrics (nvml_gpm.py) belong to this tier too."""

SELDOM: Tuple[Spec, ...] = (
    simple("energy_joules", "nvmlDeviceGetTotalEnergyConsumption", 1 << 62, 1e-3),
    simple(
        "ecc_corrected_lifetime_count",
        "nvmlDeviceGetTotalEccErrors",
        1 << 62,
        0.0,
        ECC_CORRECTED,
        ECC_AGGREGATE,
    ),
    simple(
        "ecc_uncorrected_lifetime_count",
        "nvmlDeviceGetTotalEccErrors",
        1 << 62,
        0.0,
        ECC_UNCORRECTED,
        ECC_AGGREGATE,
    ),
    Spec(
        (
            "remapped_correctable_count",
            "remapped_uncorrectable_count",
            "remap_pending",
            "remap_failed",
        ),
        (("nvmlDeviceGetRemappedRows", _remapped_rows),),
    ),
    Spec(("retired_pages_count",), (("nvmlDeviceGetRetiredPages", _retired),)),
    simple("pcie_replay_count", "nvmlDeviceGetPcieReplayCounter", (1 << 32) - 2),
)
"""With every sixth look of the slow tier: energy alone takes 3 ms of CPU."""


def text(value: Any) -> str:
    """A name as str; the old ``pynvml`` package answers bytes."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _capability(n: Any, h: Any) -> Tuple[Reading, ...]:
    major, minor = n.nvmlDeviceGetCudaComputeCapability(h)
    return (f"{major}.{minor}",)


STATIC: Tuple[Spec, ...] = (
    Spec(("uuid",), (("nvmlDeviceGetUUID", lambda n, h: (text(n.nvmlDeviceGetUUID(h)),)),)),
    Spec(("name",), (("nvmlDeviceGetName", lambda n, h: (text(n.nvmlDeviceGetName(h)),)),)),
    Spec(
        ("pci_bus_id",),
        (("nvmlDeviceGetPciInfo_v3", lambda n, h: (text(n.nvmlDeviceGetPciInfo(h).busId),)),),
    ),
    Spec(
        ("total_bytes",),
        (
            (MEMORY_V2, lambda n, h: memory_v2(n, h)[:1]),
            (MEMORY_V1, lambda n, h: memory_v1(n, h)[:1]),
        ),
    ),
    Spec(("compute_capability",), (("nvmlDeviceGetCudaComputeCapability", _capability),)),
    simple("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", 10**5, 0.0, CLOCK_SM),
    simple("max_pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration", 32),
    simple("max_pcie_width", "nvmlDeviceGetMaxPcieLinkWidth", 64),
)
"""Once: the fields of GpuDef but the index."""


def _remapped(n: Any, h: Any) -> Tuple[Reading, ...]:
    _, _, pending, failed = n.nvmlDeviceGetRemappedRows(h)
    return int(pending), int(failed)


HEALTH: Tuple[Spec, ...] = (
    simple("persistence", "nvmlDeviceGetPersistenceMode", 1),
    simple("default_power_watts", "nvmlDeviceGetPowerManagementDefaultLimit", 10**8, 1e-3),
    simple("pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", 1),
    Spec(("remap_pending", "remap_failed"), (("nvmlDeviceGetRemappedRows", _remapped),)),
)
"""Only when somebody asks whether the device is well; 0 and 1 for no and yes. No columns of
samples.
"""


def columns_of(specs: Tuple[Spec, ...]) -> Tuple[str, ...]:
    return tuple(column for spec in specs for column in spec.columns)


GPM_COLUMNS = ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent")
GPM_SLOW_COLUMNS = (
    "dram_active_percent", "integer_active_percent", "fp64_active_percent", "fp32_active_percent",
    "fp16_active_percent", "pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second",
)  # fmt: skip
WATCHED_COLUMNS = ("xid_count", "last_xid", "idle_since_seconds")
"""What is known by watching: from the events of the driver (nvml_events.py), and since when nothing
runs.
"""
FAST_COLUMNS = columns_of(FAST) + GPM_COLUMNS
SELDOM_COLUMNS = columns_of(SELDOM)
SLOW_COLUMNS = columns_of(SLOW) + SELDOM_COLUMNS + GPM_SLOW_COLUMNS
assert set(FAST_COLUMNS + SLOW_COLUMNS + WATCHED_COLUMNS) == set(DEVICE_COLUMNS)
