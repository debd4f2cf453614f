"""``gpuscope devices``: the GPUs of this machine, their readings, and what is wrong with them, once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ....collect.clock_events import clock_event_words
from ....collect.xid import HARMLESS, xid_advice, xid_words
from ....model.device_state import faults_of, list_gap, listed_on, slowed, unowned_on
from ....store.view import DeviceView, HostView, ProcView
from ....text import width
from ....text.units import DASH
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
from ... import cuda_order, free_devices, output, remote
from ... import watch as cli_watch
from ...local_look import Look, look
from ...output import Unknowns, exit_code, gib, number, percent, problem

__all__ = ["add_arguments", "document", "find_problems", "run", "text"]

STILL_WORKS = (
    "Works without a GPU: gpuscope ps (trainers on the CPU), gpuscope run python train.py, gpuscope replay FILE."
)
STILL_WORKS_THERE = "Works without a GPU: gpuscope ps TARGET (trainers on the CPU), gpuscope attach TARGET."
_STATIC = (
    "uuid", "index", "name", "pci_bus_id", "compute_capability", "max_sm_clock_mhz", "max_pcie_generation",
    "max_pcie_width", "architecture", "memory_bus_bits", "max_memory_clock_mhz", "vbios_version", "minor",
    "ecc_enabled", "ecc_pending", "mig_enabled", "mig_pending", "mig_instances", "default_power_limit_watts",
    "min_power_limit_watts",
    "max_power_limit_watts", "slowdown_celsius", "shutdown_celsius", "persistence", "compute_mode", "numa_node",
    "cpu_affinity", "nvlink_states", "topology", "peer_access", "fabric",
)  # fmt: skip
_MEMORY = ("used_bytes", "driver_reserved_bytes", "free_bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help=remote.WHERE)
    parser.add_argument("--holders", action="store_true", help="also who has a device open, by /proc/*/fd there")
    cli_watch.add_argument(parser, "device, until one is lost,")
    output.add_arguments(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace, look: Callable[..., Look] = look) -> int:
    """Print the document or the text; the exit code says whether all is well (``look`` is for tests)."""
    if args.watch is not None:
        from .watch import watch

        return watch(args, look)
    there = args.target is not None or bool(args.via)
    if there:
        found = remote.look(args, "devices", want_trainers=False)
        if isinstance(found, int):
            return found
        seen = found
    else:
        seen = look(timeout=args.timeout, want_trainers=False)
        seen.environments = cuda_order.of_this_machine(seen.host)
    problems = find_problems(seen.host)
    if not seen.complete:
        problems += output.unanswered(problems, args.timeout)
    result = document(seen.host, problems)
    result["cuda_order"] = cuda_order.rows(seen.host, seen.environments)
    result["unknown"] += cuda_order.unknown(result["cuda_order"])
    more = cuda_order.lines(result["cuda_order"])
    more = ["", *more] if more else []
    if args.holders:
        from . import holders as devices_holders

        if not there:
            seen.holders = devices_holders.of_this_machine(seen.host)
        holding = devices_holders.by_device(seen)
        held = devices_holders.lines(seen, holding)
        more += held
        for position, device in enumerate(result["devices"]):
            device["holders"] = holding.get(device["index"])
            result["unknown"] += devices_holders.unknown(seen, f"devices[{position}].holders", device["holders"])
    print(output.dump(result) if args.json else "\n".join([text(seen.host, problems, there), *more]))
    return int(result["exit_code"])


def document(host: HostView, problems: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON document. Numbers are numbers, units are in the names, unknown is null with a row in ``unknown``."""
    unknowns = Unknowns()
    if host.nvml is not None and not host.devices:
        unknowns.add("devices", host.nvml)
    versions = unknowns.fields("", host.definition, ("driver_version", "cuda_driver_version"), host.readings)
    return {
        "host": clean(host.name),
        **versions,
        "devices": [_device(unknowns, index, device, host) for index, device in enumerate(host.devices)],
        "problems": problems,
        "unknown": unknowns.rows,
        "exit_code": exit_code(problems),
    }


def _device(unknowns: Unknowns, position: int, device: DeviceView, host: HostView) -> dict[str, Any]:
    path = f"devices[{position}]"
    memory = f"{path}.memory"
    total = unknowns.value(
        f"{memory}.total_bytes", device.definition.total_bytes, output.reason(device.readings, "total_bytes")
    )
    reasons = device.readings.get("clock_event_reasons")
    xid = device.readings.get("last_xid")
    apart = (*_MEMORY, "clock_event_reasons", "idle_since_seconds")
    others = {name: name for name in DEVICE_COLUMNS if name not in apart}
    return {
        **unknowns.fields(path, device.definition, _STATIC, device.readings),
        "memory": {"total_bytes": total, **unknowns.columns(memory, device.readings, {name: name for name in _MEMORY})},
        **unknowns.columns(path, device.readings, others),
        "clock_event_reasons": list(clock_event_words(reasons, harmless=True))
        if isinstance(reasons, int)
        else unknowns.value(f"{path}.clock_event_reasons", reasons),
        "idle_seconds": unknowns.value(f"{path}.idle_seconds", free_devices.idle_seconds(host, device)),
        "last_xid_words": unknowns.value(f"{path}.last_xid_words", _xid_words(xid)),
        "unaccounted_bytes": unknowns.value(f"{path}.unaccounted_bytes", unaccounted(device, host)),
        "processes": _processes(unknowns, f"{path}.processes", device, host),
    }


def _xid_words(xid: Reading | None) -> Reading:
    if isinstance(xid, int) and xid:
        return xid_words(xid)
    return xid if isinstance(xid, Unknown) else Unknown(NOT_INITIALISED, "the driver has reported no critical error")


def unaccounted(device: DeviceView, host: HostView) -> Reading:
    """Bytes in use that no process holds which the driver names."""
    used = device.readings.get("used_bytes")
    if not isinstance(used, int):
        return used if isinstance(used, Unknown) else output.NOT_TOLD
    uses = listed_on(device)
    if uses is None:
        gap = list_gap(device)
        return output.NOT_TOLD if gap is None else gap
    pids = {process.id: process.definition.pid for process in host.processes}
    known = 0
    for use in uses:
        size = use.reading("used_bytes")
        if not isinstance(size, int):
            why = size.text if isinstance(size, Unknown) else "not told"
            return Unknown(NOT_INITIALISED, f"how much process {pids[use.process]} holds is not known: {why}")
        known += size
    return max(0, used - known)


def _processes(unknowns: Unknowns, path: str, device: DeviceView, host: HostView) -> list[dict[str, Any]] | None:
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
    """When it was started, whose it is and what it runs. Of a process that cannot be seen, its start in ticks has the
    reason that its start time lacks."""
    readings = process.readings
    if "start" in readings:
        readings = {"start_time": readings["start"], **readings}
    return unknowns.fields(path, process.definition, ("start_time", "user", "command"), readings)


def find_problems(host: HostView) -> list[dict[str, Any]]:
    """What is wrong, or could not be looked at, by device. Missing readings that a device does not have are neither."""
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
            problems.append(problem(index, "problem" if dead else "warning", f"{words} ({', '.join(names)})"))
        problems.extend(_health(index, device.readings))
    return problems


def _is_note(event: Event) -> bool:
    """Whether it says how this host's driver is read, as beside a library that is in the way."""
    return event.id == HOST_ID and event.e == "note"


_SEVERITIES = {"bad": "problem", "warn": "warning"}


def _health(index: int, readings: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    if reasons := slowed(readings):
        found.append(problem(index, "warning", f"its clock is held down now: {', '.join(reasons)}"))
    found += [problem(index, _SEVERITIES[fault.kind], fault.reason) for fault in faults_of(readings)]
    xid = readings.get("last_xid")
    if isinstance(xid, int) and xid and xid not in HARMLESS:
        found.append(problem(index, "warning", f"{xid_words(xid)}. Next: {xid_advice(xid) or 'look it up'}"))
    return found


def text(host: HostView, problems: list[dict[str, Any]], there: bool = False) -> str:
    """The same for people: a table, then what is wrong, then why something is missing. ``there``: on another host."""
    name, definition = clean(host.name), host.definition
    if not host.devices:
        reason = host.nvml.text if host.nvml is not None else "the driver has no devices"
        works = STILL_WORKS_THERE if there else STILL_WORKS
        return f"No GPU readings on {name}.\nWhy: {clean(reason)}\n{works}"
    versions = [f"driver {definition.driver_version}"] if definition.driver_version else []
    versions += [f"CUDA {definition.cuda_driver_version}"] if definition.cuda_driver_version else []
    rows: list[tuple[str, ...]] = [
        ("GPU", "NAME", "USED", "FREE", "TOTAL GiB", "UTIL", "SM", "TENSOR", "POWER", "TEMP", "SM CLOCK", "PROCESSES")
    ]
    rows += [device_row(device) for device in host.devices]
    lines = ["  ".join([name, *versions]), "", *output.table(rows, right=(0, *range(2, 12)))]
    if room := list(free_devices.lines(host)):
        lines += ["", *room]
    if problems:
        lines.append("")
    for row in problems:
        where = "" if row["device"] is None else f"GPU {row['device']}: "
        lines.append(f"{_MARKS[row['severity']]} {where}{row['reason']}")
    notes = [*_unowned(host), *_missing(host)]
    return "\n".join([*lines, "", *notes] if notes else lines)


_MARKS = {"problem": "PROBLEM ", "unchecked": "UNKNOWN ", "warning": "WARNING "}
_SHOWN = {
    "used_bytes": "used", "free_bytes": "free", "utilization_percent": "util", "sm_active_percent": "sm",
    "tensor_active_percent": "tensor", "power_watts": "power", "temperature_celsius": "temp",
    "sm_clock_mhz": "sm clock",
}  # fmt: skip


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
    """Memory that no process holds which the driver names."""
    if host.hidden is not None:
        return []
    listed = [device for device in host.devices if listed_on(device) is not None]
    sizes = [(device.definition.index, unowned_on(device)) for device in listed]
    return [
        f"{DASH} GPU {index}: {gib(size)} GiB held by no process the driver names: gpuscope devices --holders"
        for index, size in sizes
        if size
    ]


def _missing(host: HostView) -> list[str]:
    """Why there is a dash in the table, unless a problem above says it; one line per reason."""
    lines: dict[str, list[str]] = {}
    for device in host.devices:
        shown = [(label, device.readings.get(column)) for column, label in _SHOWN.items()]
        shown.append(("processes", list_gap(device)))
        for label, reason in shown:
            if isinstance(reason, Unknown) and reason.code not in (LOST, TIMEOUT, DRIVER_ERROR):
                lines.setdefault(clean(reason.text), []).append(f"GPU {device.definition.index} {label}")
    return [f"{DASH} {', '.join(who)}: {why}" for why, who in lines.items()]
