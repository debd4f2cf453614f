"""Write what ``gpuscope devices`` prints for people."""

from __future__ import annotations

from typing import Any

from ....model.device_state import list_gap, listed_on, unowned_on
from ....store.view import DeviceView, HostView
from ....text import width
from ....text.ranges import ranges_text
from ....text.units import DASH
from ....wire.clean import clean
from ....wire.frames import (
    DRIVER_ERROR,
    LOST,
    TIMEOUT,
    Unknown,
)
from ... import free_devices, output
from ...output import gib, number, percent

STILL_WORKS = (
    "Works without a GPU: gpuscope ps (trainers on the CPU), gpuscope run train.py, gpuscope "
    "replay FILE."
)
STILL_WORKS_THERE = (
    "Works without a GPU: gpuscope ps TARGET (trainers on the CPU), gpuscope attach TARGET."
)


def text(host: HostView, problems: list[dict[str, Any]], there: bool = False) -> str:
    """Return the look as text: a table, then what is wrong, then why values are missing.

    ``there`` says that the devices are on another host.
    """
    name, definition = clean(host.name), host.definition
    if not host.devices:
        reason = host.nvml.text if host.nvml is not None else "the driver reports no GPUs"
        works = STILL_WORKS_THERE if there else STILL_WORKS
        told = [f"No GPU readings on {name}.", f"Why: {clean(reason)}", works]
        return "\n".join(part for line in told for part in output.on_terminal(line))
    versions = [f"driver {definition.driver_version}"] if definition.driver_version else []
    versions += [f"CUDA {definition.cuda_driver_version}"] if definition.cuda_driver_version else []
    rows: list[tuple[str, ...]] = [
        (
            "GPU",
            "NAME",
            "USED",
            "FREE",
            "TOTAL GiB",
            "UTIL",
            "SM",
            "TENSOR",
            "POWER",
            "TEMP",
            "SM CLOCK",
            "PROCESSES",
        )
    ]
    rows += [device_row(device) for device in host.devices]
    lines = ["  ".join([name, *versions]), "", *_fitting(rows)]
    if room := list(free_devices.lines(host)):
        lines += ["", *room]
    if problems:
        lines.append("")
    for severity, where, reason in output.grouped_problems(problems):
        lines.append(f"{_MARKS[severity]} {where}{': ' if where else ''}{reason}")
    notes = [*_unowned(host), *_missing(host)]
    lines = [*lines, "", *notes] if notes else lines
    table = 2 + len(rows)  # which is no sentence
    told = [part for line in lines[table:] for part in output.on_terminal(line)]
    return "\n".join([*lines[:table], *told])


SPARED = ("SM CLOCK", "TEMP", "SM")
"""The columns that a narrow terminal has no room for, the first before the others."""


def _fitting(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the table, with shorter names and fewer columns where a terminal is too narrow."""
    columns, left = output.terminal_width(), list(SPARED)
    table: list[list[str]] = [list(row) for row in rows]
    while True:
        lines = output.table(table, right=(0, *range(2, len(table[0]))))
        if columns is None or max(map(width.cells, lines)) <= columns:
            return lines
        short = [row[1].removeprefix("NVIDIA ") for row in table]
        if short != [row[1] for row in table]:
            for row, name in zip(table, short, strict=True):
                row[1] = name
        elif left:
            at = table[0].index(left.pop(0))
            for row in table:
                del row[at]
        else:
            return lines


_MARKS = {"problem": "PROBLEM ", "unchecked": "UNKNOWN ", "warning": "WARNING "}
_SHOWN = {
    "used_bytes": "used",
    "free_bytes": "free",
    "utilization_percent": "util",
    "sm_active_percent": "sm",
    "tensor_active_percent": "tensor",
    "power_watts": "power",
    "temperature_celsius": "temp",
    "sm_clock_mhz": "sm clock",
}


def device_row(device: DeviceView) -> tuple[str, ...]:
    uses = listed_on(device)
    get = device.readings.get
    return (
        str(device.definition.index),
        width.cut(clean(device.definition.name or DASH), 40),
        gib(get("used_bytes")),
        gib(get("free_bytes")),
        gib(device.definition.total_bytes),
        percent(get("utilization_percent")),
        percent(get("sm_active_percent")),
        percent(get("tensor_active_percent")),
        number(get("power_watts"), " W"),
        number(get("temperature_celsius"), " °C"),
        number(get("sm_clock_mhz"), " MHz"),
        str(len(uses)) if uses is not None else DASH,
    )


def _unowned(host: HostView) -> list[str]:
    """Memory that no process holds which the driver names, of all GPUs in one line."""
    if host.hidden is not None:
        return []
    listed = [device for device in host.devices if listed_on(device) is not None]
    sizes = [(device.definition.index, size) for device in listed if (size := unowned_on(device))]
    if not sizes:
        return []
    where, whole = ranges_text(index for index, _ in sizes), gib(sum(size for _, size in sizes))
    of_all = " in all" if len(sizes) > 1 else ""
    return [
        f"{DASH} GPU {where}: {whole} GiB{of_all} held by no visible process: gpuscope devices "
        "--holders"
    ]


def _missing(host: HostView) -> list[str]:
    """Why there is a dash in the table, unless a problem above says it; one line per reason."""
    lines: dict[str, list[str]] = {}
    for device in host.devices:
        shown = [(label, device.readings.get(column)) for column, label in _SHOWN.items()]
        shown.append(("processes", list_gap(device)))
        for label, reason in shown:
            if isinstance(reason, Unknown) and reason.code not in (LOST, TIMEOUT, DRIVER_ERROR):
                lines.setdefault(clean(reason.text), []).append(
                    f"GPU {device.definition.index} {label}"
                )
    return [f"{DASH} {', '.join(who)}: {why}" for why, who in lines.items()]
