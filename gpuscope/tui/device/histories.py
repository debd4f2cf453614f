"""The histories of a GPU: their columns, where their axes end, and who knew them first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...store.view import History
from ...text.units import GIB, age_text, rate_text
from ..charts.line import Series
from ..charts.load_lanes import LOADS
from ..shared import host_trends as host_readings

if TYPE_CHECKING:
    from ...store.view import DeviceView

LOAD_AT, MEMORY_AT = 0, 1
"""Where the load and the memory are in the list of charts: these are no charts of lines."""
LOAD, MEMORY, POWER, TEMPERATURE = "Load %", "Memory GiB", "Power W", "Temperature °C"
STRIP = (
    *LOADS,
    ("warps", "sm_occupancy_percent"),
    ("mem I/O", "memory_utilization_percent"),
)
"""The loads on a broad terminal, as far as they are known. Each has a lane of its own at any size:
lines of loads that are alike cover one another.
"""


class Chart(NamedTuple):
    """Columns of one chart, with the top of its axis. Its title names the unit."""

    title: str
    columns: tuple[tuple[str, str], ...]
    top: float | None
    scale: float = 1.0
    name: str = ""
    token: str = "series1"
    say: Callable[[float], str] = str


def _mhz_text(value: float) -> str:
    return f"{value:,.0f} MHz"


def _traffic_text(value: float) -> str:
    return rate_text(value * GIB)


CHARTS = (
    Chart(LOAD, LOADS, 100.0),
    Chart(MEMORY, (("used", "used_bytes"),), None, 1 / GIB),
    Chart(
        POWER,
        (("power", "power_watts"),),
        None,
        name="power",
        token=host_readings.POWER,
        say=host_readings.watts_text,
    ),
    Chart(
        TEMPERATURE,
        (("GPU", "temperature_celsius"), ("memory", "memory_temperature_celsius")),
        None,
        name="temperature",
        token=host_readings.TEMPERATURE,
        say=host_readings.celsius_text,
    ),
    Chart(
        "Clock MHz",
        (("SM", "sm_clock_mhz"), ("memory", "memory_clock_mhz")),
        None,
        name="clock",
        say=_mhz_text,
    ),
    Chart(
        "Traffic GiB/s",
        (
            ("NVLink out", "nvlink_tx_bytes_per_second"),
            ("NVLink in", "nvlink_rx_bytes_per_second"),
            ("PCIe out", "pcie_tx_bytes_per_second"),
            ("PCIe in", "pcie_rx_bytes_per_second"),
        ),
        None,
        1 / GIB,
        name="traffic",
        token="series5",
        say=_traffic_text,
    ),
)


def top_of(what: Chart, device: DeviceView, series: Sequence[Series]) -> float | None:
    """Return where the axis of a chart ends: at what the GPU can, where no value is beyond."""
    most = {
        POWER: device.number("power_limit_watts"),
        TEMPERATURE: device.definition.slowdown_celsius,
    }.get(what.title, what.top)
    beyond = most is not None and any(v is not None and v > most for s in series for v in s.values)
    return None if beyond else most


def seconds_before_look(past: History) -> float:
    """Return how many seconds of a history lie before anybody looked here."""
    known = (at for at, v in zip(past.seconds, past.values, strict=True) if v is not None)
    first = next(known, None)
    return 0.0 if first is None or past.seen_since is None else max(past.seen_since - first, 0.0)


def source_text(remembered_seconds: float) -> str:
    """Return the end of a title that says how much of a chart is older than the look."""
    if remembered_seconds < 1:
        return ""
    return f" (first {age_text(remembered_seconds)}: the driver's own buffer)"
