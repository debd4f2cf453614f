"""Build the JSON document of ``gpuscope devices`` for one host.

It includes what is wrong with the devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....collect.clock_events import clock_event_words
from ....model.device_state import DeviceState, faults_of, judge, list_gap, listed_on, slowed
from ....model.xid_errors import last_xid_error
from ....store.view import DeviceView, HostView, ProcView
from ....wire.clean import clean
from ....wire.frames import (
    DEVICE_COLUMNS,
    DRIVER_ERROR,
    HOST_ID,
    LOST,
    NOT_INITIALISED,
    TIMEOUT,
    Event,
    Reading,
    Unknown,
)
from ... import free_devices, output
from ...output import Unknowns, exit_code, problem

_STATIC = (
    "uuid", "index", "name", "pci_bus_id", "compute_capability", "max_sm_clock_mhz",
    "max_pcie_generation", "max_pcie_width", "architecture", "memory_bus_bits",
    "max_memory_clock_mhz", "vbios_version", "minor", "ecc_enabled", "ecc_pending", "mig_enabled",
    "mig_pending", "mig_instances", "default_power_limit_watts", "min_power_limit_watts",
    "max_power_limit_watts", "slowdown_celsius", "shutdown_celsius", "persistence", "compute_mode",
    "numa_node", "cpu_affinity", "nvlink_states", "topology", "peer_access", "fabric",
)  # fmt: skip
_MEMORY = ("used_bytes", "driver_reserved_bytes", "free_bytes")


def document(host: HostView, problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document.

    Numbers are numbers, and their units are part of the keys. An unknown value is null and has a
    row in ``unknown``.
    """
    unknowns = Unknowns()
    if host.nvml is not None and not host.devices:
        unknowns.add("devices", host.nvml)
    versions = unknowns.fields(
        "", host.definition, ("driver_version", "cuda_driver_version"), host.readings
    )
    return {
        "host": clean(host.name),
        **versions,
        "devices": [
            _device(unknowns, index, device, host) for index, device in enumerate(host.devices)
        ],
        "problems": problems,
        "unknown": unknowns.rows,
        "exit_code": exit_code(problems),
    }


def _device(
    unknowns: Unknowns, position: int, device: DeviceView, host: HostView
) -> dict[str, Any]:
    path = f"devices[{position}]"
    memory = f"{path}.memory"
    total = unknowns.value(
        f"{memory}.total_bytes",
        device.definition.total_bytes,
        device.unknown("total_bytes"),
    )
    reasons = device.readings.get("clock_event_reasons")
    apart = (*_MEMORY, "clock_event_reasons", "idle_since_seconds")
    others = {name: name for name in DEVICE_COLUMNS if name not in apart}
    return {
        **unknowns.fields(path, device.definition, _STATIC, device.readings),
        "state": state_fields(judge(host, device)),
        "memory": {
            "total_bytes": total,
            **unknowns.columns(memory, device.readings, {name: name for name in _MEMORY}),
        },
        **unknowns.columns(path, device.readings, others),
        "clock_event_reasons": list(clock_event_words(reasons, harmless=True))
        if isinstance(reasons, int)
        else unknowns.value(f"{path}.clock_event_reasons", reasons),
        "idle_seconds": unknowns.value(
            f"{path}.idle_seconds", free_devices.idle_seconds(host, device)
        ),
        "last_xid_words": unknowns.value(f"{path}.last_xid_words", _xid_words(device)),
        "unaccounted_bytes": unknowns.value(f"{path}.unaccounted_bytes", unaccounted(device, host)),
        "processes": _processes(unknowns, f"{path}.processes", device, host),
    }


def state_fields(state: DeviceState) -> dict[str, str]:
    """Return the state of a device as JSON."""
    return {"kind": state.kind, "word": state.word, "reason": clean(state.reason)}


def _xid_words(device: DeviceView) -> Reading:
    error, reading = last_xid_error(device.readings), device.readings.get("last_xid")
    if error is not None:
        return error.text
    return (
        reading
        if isinstance(reading, Unknown)
        else Unknown(NOT_INITIALISED, "the driver has reported no critical error")
    )


def unaccounted(device: DeviceView, host: HostView) -> Reading:
    """Bytes in use that no process holds which the driver names."""
    used = device.readings.get("used_bytes")
    if not isinstance(used, int):
        return used if isinstance(used, Unknown) else output.NO_REASON_GIVEN
    uses = listed_on(device)
    if uses is None:
        gap = list_gap(device)
        return output.NO_REASON_GIVEN if gap is None else gap
    pids = {process.id: process.definition.pid for process in host.processes}
    known = 0
    for use in uses:
        size = use.reading("used_bytes")
        if not isinstance(size, int):
            why = size.text if isinstance(size, Unknown) else "not reported"
            return Unknown(
                NOT_INITIALISED, f"how much process {pids[use.process]} holds is unknown: {why}"
            )
        known += size
    return max(0, used - known)


def _processes(
    unknowns: Unknowns, path: str, device: DeviceView, host: HostView
) -> list[dict[str, Any]] | None:
    gap, uses = list_gap(device), listed_on(device)
    if gap is not None:
        unknowns.add(path, gap)
    if uses is None:
        return None
    processes = {process.id: process for process in host.processes}
    rows = []
    for index, use in enumerate(uses):
        process, here = processes[use.process], f"{path}[{index}]"
        rows.append(
            {
                "pid": process.definition.pid,
                **process_fields(unknowns, here, process),
                "used_bytes": unknowns.value(f"{here}.used_bytes", use.reading("used_bytes")),
                "sm_percent": unknowns.value(f"{here}.sm_percent", use.reading("sm_percent")),
            }
        )
    return rows


def process_fields(unknowns: Unknowns, path: str, process: ProcView) -> dict[str, Any]:
    """Return when the process was started, its user and its command.

    If the process cannot be seen, its start in ticks is null for the same reason as its start time.
    """
    readings = process.readings
    if "start" in readings:
        readings = {"start_time": readings["start"], **readings}
    return unknowns.fields(path, process.definition, ("start_time", "user", "command"), readings)


def find_problems(host: HostView) -> list[dict[str, Any]]:
    """Return by device what is wrong, and what could not be read.

    A reading that a device does not support is neither.
    """
    problems = []
    if host.nvml is not None:
        problems.append(problem(None, "unchecked", host.nvml.text))
    problems += [problem(None, "warning", event.text) for event in host.events if _is_note(event)]
    for device in host.devices:
        index = device.definition.index
        failed: dict[str, dict[str, list[str]]] = {}  # code → words → what is missing
        for name, reason in device.readings.items():
            if isinstance(reason, Unknown):
                failed.setdefault(reason.code, {}).setdefault(reason.text, []).append(name)
        if LOST in failed:
            problems.append(problem(index, "problem", next(iter(failed[LOST]))))
        for words in failed.get(TIMEOUT, {}):
            problems.append(problem(index, "unchecked", words))
        for words, names in failed.get(DRIVER_ERROR, {}).items():
            dead = all(isinstance(device.readings.get(name), Unknown) for name in DEVICE_COLUMNS)
            problems.append(
                problem(index, "problem" if dead else "warning", f"{words} ({', '.join(names)})")
            )
        problems.extend(_health(index, device.readings))
    return problems


def _is_note(event: Event) -> bool:
    """Whether it says how this host's driver is read, as beside a library that is in the way."""
    return event.id == HOST_ID and event.e == "note"


_SEVERITIES = {"bad": "problem", "warn": "warning"}


def _health(index: int, readings: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    if reasons := slowed(readings):
        found.append(problem(index, "warning", f"it is throttled: {', '.join(reasons)}"))
    found += [
        problem(index, _SEVERITIES[fault.kind], fault.reason) for fault in faults_of(readings)
    ]
    error = last_xid_error(readings)
    if error is not None and error.kind != "ok":
        found.append(
            problem(
                index,
                _SEVERITIES[error.kind],
                f"{error.text}. Next: {error.advice or 'look it up'}",
            )
        )
    return found
