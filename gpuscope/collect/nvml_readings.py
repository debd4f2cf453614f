"""Define what is read of a device, by which NVML call, and which results are not valid.

CPU time measured on an H200 under load (driver 580): the fast tier with GPM takes 0.5 ms. The slow
tier takes 4 ms (2 of them for nine GPM metrics, 1 for the margin to slowdown), and 3 ms more when
it reads the energy. PCIe throughput would take 21 ms and tells nothing beyond GPM, so it is not
used.
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
# NvmlPageRetirementCause_t: several correctable errors, one uncorrectable error.
_RETIRED_FOR = (0, 1)
_NOT_AVAILABLE = ((1 << 32) - 1, (1 << 64) - 1)
"""NVML_VALUE_NOT_AVAILABLE as an unsigned int and as an unsigned long long."""
_MEMORY_LIMIT = 1 << 50
"""1 PiB; a larger size is garbage from the driver (0xFFFF… was seen under WSL2)."""

Extract = Callable[[Any, Any], Tuple[Reading, ...]]


class Spec(NamedTuple):
    """One reading or a group that one call returns: its columns, and the ways to read it.

    The best way comes first. A way is the call's name in nvml.h, and a function of the binding and
    the device's handle that returns one Reading per column.
    """

    columns: Tuple[str, ...]
    ways: Tuple[Tuple[str, Extract], ...]


def plausible(call: str, value: Any, limit: int, scale: float = 0.0, floor: int = 0) -> Reading:
    """Return ``value`` times ``scale``, or Unknown where the number means "not available"."""
    if value in _NOT_AVAILABLE:
        return Unknown(NOT_SUPPORTED, f"{call}: the driver has no value for it")
    if not floor <= value <= limit:
        return Unknown(DRIVER_ERROR, f"{call}: the driver answered {value}, which is impossible")
    return round(value * scale, 3) if scale else int(value)


def way(call: str, convert: Callable[[Any], Reading], *arguments: int) -> Tuple[str, Extract]:
    """Return the way to read the one Reading that ``convert`` makes of what ``call`` returns."""
    return call, lambda n, h: (convert(getattr(n, call)(h, *arguments)),)


def simple(
    column: str, call: str, limit: int, scale: float = 0.0, *arguments: int, floor: int = 0
) -> Spec:
    return Spec(
        (column,),
        (way(call, lambda value: plausible(call, value, limit, scale, floor), *arguments),),
    )


# ── memory ────────────────────────────────────────────────────────────────────────────────────────

MEMORY_V2 = "nvmlDeviceGetMemoryInfo_v2"
MEMORY_V1 = "nvmlDeviceGetMemoryInfo"


def memory_sizes(call: str, *sizes: int) -> Tuple[Reading, ...]:
    """Return the total memory first, then its parts.

    A total of 0 is an integrated GPU, which uses the host's memory. Its readings are unknown,
    because the host's memory must not be shown as the GPU's.
    """
    if sizes[0] == 0:
        return (
            Unknown(NOT_SUPPORTED, f"{call}: the driver reports no memory of the GPU's own"),
        ) * len(sizes)
    return tuple(plausible(call, size, _MEMORY_LIMIT) for size in sizes)


def memory_v2(n: Any, h: Any) -> Tuple[Reading, ...]:
    """Return total, used, free and driver-reserved bytes.

    The version word must be pynvml's constant, because the driver refuses the number 2.
    """
    info = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
    return memory_sizes(MEMORY_V2, info.total, info.used, info.free, info.reserved)


def memory_v1(n: Any, h: Any) -> Tuple[Reading, ...]:
    """Return the same as :func:`memory_v2`, but ``used`` includes the driver's reserve.

    The reserve itself is unknown.
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
    return way(name, lambda value: plausible(name, value, (1 << 63) - 1))


def _temperature(name: str) -> Tuple[str, Extract]:
    return way(name, lambda value: plausible(name, value, 250, floor=-100), SENSOR_GPU)


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
"""Read in every tick, together with GPM (nvml_gpm.py)."""


def _retired(n: Any, h: Any) -> Tuple[Reading, ...]:
    return (sum(len(n.nvmlDeviceGetRetiredPages(h, cause)) for cause in _RETIRED_FOR),)


def _remapped_rows(n: Any, h: Any) -> Tuple[Reading, ...]:
    return tuple(int(value) for value in n.nvmlDeviceGetRemappedRows(h))


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
    """Read the memory temperature by its field value.

    There is room for two entries, because some drivers write one past the end.
    """
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
    # A GPU without such a sensor answers 0 °C.
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
    simple("slowdown_margin_celsius", "nvmlDeviceGetMarginTemperature", 250, floor=-100),
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
"""Read about every 5 s, together with the costly GPM metrics (nvml_gpm.py)."""

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
"""Read with every sixth reading of the slow tier, because energy alone takes 3 ms of CPU time."""


def text(value: Any) -> str:
    """Return a name as str; the old ``pynvml`` package answers bytes."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _capability(n: Any, h: Any) -> Tuple[Reading, ...]:
    major, minor = n.nvmlDeviceGetCudaComputeCapability(h)
    return (f"{major}.{minor}",)


STATIC: Tuple[Spec, ...] = (
    Spec(("uuid",), (way("nvmlDeviceGetUUID", text),)),
    Spec(("name",), (way("nvmlDeviceGetName", text),)),
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
"""Read once: the fields of GpuDef except the index."""


def _remapped(n: Any, h: Any) -> Tuple[Reading, ...]:
    _, _, pending, failed = n.nvmlDeviceGetRemappedRows(h)
    return int(pending), int(failed)


HEALTH: Tuple[Spec, ...] = (
    simple("persistence", "nvmlDeviceGetPersistenceMode", 1),
    simple("default_power_watts", "nvmlDeviceGetPowerManagementDefaultLimit", 10**8, 1e-3),
    simple("pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", 1),
    Spec(("remap_pending", "remap_failed"), (("nvmlDeviceGetRemappedRows", _remapped),)),
)
"""Read only when somebody asks about the device's health; 0 means no and 1 means yes.

They are not columns of samples.
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
"""Columns that come from observation over time.

They come from the driver's events (nvml_events.py), and from how long no kernel has run.
"""
FAST_COLUMNS = columns_of(FAST) + GPM_COLUMNS
SELDOM_COLUMNS = columns_of(SELDOM)
SLOW_COLUMNS = columns_of(SLOW) + SELDOM_COLUMNS + GPM_SLOW_COLUMNS
assert set(FAST_COLUMNS + SLOW_COLUMNS + WATCHED_COLUMNS) == set(DEVICE_COLUMNS)
