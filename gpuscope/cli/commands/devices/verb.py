"""``gpuscope devices``: the GPUs of this machine, their readings, and what is wrong with them, once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from ....agent.oneshot import OneShot, collect_once
from ....agent.picture import DevicePicture, Picture
from ....collect.clock_events import clock_event_words
from ....collect.xid import HARMLESS, xid_advice, xid_words
from ....model.device_state import faults_of, slowed, unowned
from ....text import width
from ....text.units import DASH
from ....wire.clean import clean
from ....wire.frames import DEVICE_COLUMNS, DRIVER_ERROR, LOST, NOT_INITIALISED, TIMEOUT, Reading, Unknown
from ... import cuda_order, free_devices, output, remote
from ... import watch as cli_watch
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


def run(args: argparse.Namespace, look: Callable[..., OneShot] = collect_once) -> int:
    """Print the document or the text; the exit code says whether all is well (``look`` is for tests)."""
    if args.watch is not None:
        from .watch import watch

        return watch(args, look)
    host = ""
    if args.target is not None or args.via:
        found = remote.shot(args, "devices", want_trainers=False)
        if isinstance(found, int):
            return found
        host, shot = found
    else:
        shot = look(timeout=args.timeout, want_trainers=False)
    problems = find_problems(shot.picture)
    if not shot.complete:
        problems += output.unanswered(problems, args.timeout)
    result = document(shot.picture, problems, host)
    if not host:
        shot.environments = cuda_order.of_this_machine(shot.picture)
    result["cuda_order"] = cuda_order.rows(shot.picture, shot.environments)
    result["unknown"] += cuda_order.unknown(result["cuda_order"])
    more = cuda_order.lines(result["cuda_order"])
    more = ["", *more] if more else []
    if args.holders:
        from . import holders as devices_holders

        if not host:
            shot.holders = devices_holders.of_this_machine(shot.picture)
        holding = devices_holders.by_device(shot)
        held = devices_holders.lines(shot, holding)
        more += held
        for position, device in enumerate(result["devices"]):
            device["holders"] = holding.get(device["index"])
            result["unknown"] += devices_holders.unknown(shot, f"devices[{position}].holders", device["holders"])
    print(output.dump(result) if args.json else "\n".join([text(shot.picture, problems, host), *more]))
    return int(result["exit_code"])


def document(picture: Picture, problems: list[dict[str, Any]], host: str = "") -> dict[str, Any]:
    """The JSON document. Numbers are numbers, units are in the names, unknown is null with a row in ``unknown``."""
    unknowns = Unknowns()
    if picture.nvml is not None and not picture.devices:
        unknowns.add("devices", picture.nvml)
    versions = unknowns.fields("", picture.host, ("driver_version", "cuda_driver_version"), picture.host_reasons)
    return {
        "host": clean(host or os.uname().nodename),
        **versions,
        "devices": [_device(unknowns, index, device, picture) for index, device in enumerate(picture.devices)],
        "problems": problems,
        "unknown": unknowns.rows,
        "exit_code": exit_code(problems),
    }


def _device(unknowns: Unknowns, position: int, device: DevicePicture, picture: Picture) -> dict[str, Any]:
    path = f"devices[{position}]"
    memory = f"{path}.memory"
    total = unknowns.value(f"{memory}.total_bytes", device.definition.total_bytes, device.reasons.get("total_bytes"))
    reasons = device.readings.get("clock_event_reasons")
    xid = device.readings.get("last_xid")
    apart = (*_MEMORY, "clock_event_reasons", "idle_since_seconds")
    others = {name: name for name in DEVICE_COLUMNS if name not in apart}
    return {
        **unknowns.fields(path, device.definition, _STATIC, device.reasons),
        "memory": {"total_bytes": total, **unknowns.columns(memory, device.readings, {name: name for name in _MEMORY})},
        **unknowns.columns(path, device.readings, others),
        "clock_event_reasons": list(clock_event_words(reasons, harmless=True))
        if isinstance(reasons, int)
        else unknowns.value(f"{path}.clock_event_reasons", reasons),
        "idle_seconds": unknowns.value(f"{path}.idle_seconds", free_devices.idle_seconds(picture, device)),
        "last_xid_words": unknowns.value(f"{path}.last_xid_words", _xid_words(xid)),
        "unaccounted_bytes": unknowns.value(f"{path}.unaccounted_bytes", unaccounted(device)),
        "processes": _processes(unknowns, f"{path}.processes", device, picture),
    }


def _xid_words(xid: Reading | None) -> Reading:
    if isinstance(xid, int) and xid:
        return xid_words(xid)
    return xid if isinstance(xid, Unknown) else Unknown(NOT_INITIALISED, "the driver has reported no critical error")


def unaccounted(device: DevicePicture) -> Reading:
    """Bytes in use that no process holds which the driver names."""
    used = device.readings.get("used_bytes")
    if not isinstance(used, int):
        return used if isinstance(used, Unknown) else output.NOT_TOLD
    if device.processes is None:
        return device.reasons.get("processes", output.NOT_TOLD)
    known = 0
    for pid, size in device.processes:
        if not isinstance(size, int):
            why = size.text if isinstance(size, Unknown) else "not told"
            return Unknown(NOT_INITIALISED, f"how much process {pid} holds is not known: {why}")
        known += size
    return max(0, used - known)


def _processes(unknowns: Unknowns, path: str, device: DevicePicture, picture: Picture) -> list[dict[str, Any]] | None:
    if "processes" in device.reasons:
        unknowns.add(path, device.reasons["processes"])
    if device.processes is None:
        return None
    rows = []
    for index, (pid, used) in enumerate(device.processes):
        row, here = {"pid": pid}, f"{path}[{index}]"
        known = picture.processes.get(pid) if picture.hidden is None else None
        for name in ("start_time", "user", "command"):
            if known is not None:
                why = reason_of(name, known.reasons)
                row[name] = unknowns.value(f"{here}.{name}", getattr(known.definition, name), why)
            else:
                row[name] = unknowns.value(f"{here}.{name}", None, picture.hidden)
        row["used_bytes"] = unknowns.value(f"{here}.used_bytes", used)
        row["sm_percent"] = unknowns.value(f"{here}.sm_percent", device.load.get(pid))
        rows.append(row)
    return rows


def reason_of(name: str, reasons: Mapping[str, Unknown]) -> Unknown | None:
    """Why a field of a process is not known. Of one that cannot be seen, only its start in ticks has a reason."""
    return reasons.get(name, reasons.get("start") if name == "start_time" else None)


def find_problems(picture: Picture) -> list[dict[str, Any]]:
    """What is wrong, or could not be looked at, by device. Missing readings that a device does not have are neither."""
    problems = []
    if picture.nvml is not None:
        problems.append(problem(None, "unchecked", picture.nvml.text))
    if picture.note:
        problems.append(problem(None, "warning", picture.note))
    for device in picture.devices:
        index = device.definition.index
        failed: dict[str, dict[str, list[str]]] = {}  # code → words → what is missing
        for name, reason in [*device.readings.items(), *device.reasons.items()]:
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


def text(picture: Picture, problems: list[dict[str, Any]], host: str = "") -> str:
    """The same for people: a table, then what is wrong, then why something is missing."""
    if not picture.devices:
        reason = picture.nvml.text if picture.nvml is not None else "the driver has no devices"
        works = STILL_WORKS_THERE if host else STILL_WORKS
        return f"No GPU readings on {clean(host or os.uname().nodename)}.\nWhy: {clean(reason)}\n{works}"
    versions = [f"driver {picture.host.driver_version}"] if picture.host.driver_version else []
    versions += [f"CUDA {picture.host.cuda_driver_version}"] if picture.host.cuda_driver_version else []
    rows: list[tuple[str, ...]] = [
        ("GPU", "NAME", "USED", "FREE", "TOTAL GiB", "UTIL", "SM", "TENSOR", "POWER", "TEMP", "SM CLOCK", "PROCESSES")
    ]
    rows += [device_row(device) for device in picture.devices]
    name = clean(host or os.uname().nodename)
    lines = ["  ".join([name, *versions]), "", *output.table(rows, right=(0, *range(2, 12)))]
    if room := list(free_devices.lines(picture)):
        lines += ["", *room]
    if problems:
        lines.append("")
    for row in problems:
        where = "" if row["device"] is None else f"GPU {row['device']}: "
        lines.append(f"{_MARKS[row['severity']]} {where}{row['reason']}")
    notes = [*_unowned(picture), *_missing(picture)]
    return "\n".join([*lines, "", *notes] if notes else lines)


_MARKS = {"problem": "PROBLEM ", "unchecked": "UNKNOWN ", "warning": "WARNING "}
_SHOWN = {
    "used_bytes": "used", "free_bytes": "free", "utilization_percent": "util", "sm_active_percent": "sm",
    "tensor_active_percent": "tensor", "power_watts": "power", "temperature_celsius": "temp",
    "sm_clock_mhz": "sm clock",
}  # fmt: skip


def device_row(device: DevicePicture) -> tuple[str, ...]:
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
        str(len(device.processes)) if device.processes is not None else DASH,
    )


def _unowned(picture: Picture) -> list[str]:
    """Memory that no process holds which the driver names."""
    if picture.hidden is not None:
        return []
    sizes = [
        (device.definition.index, unowned(device.readings, [size for _, size in device.processes]))
        for device in picture.devices
        if device.processes is not None
    ]
    return [
        f"{DASH} GPU {index}: {gib(size)} GiB held by no process the driver names: gpuscope devices --holders"
        for index, size in sizes
        if size
    ]


def _missing(picture: Picture) -> list[str]:
    """Why there is a dash in the table, unless a problem above says it; one line per reason."""
    lines: dict[str, list[str]] = {}
    for device in picture.devices:
        shown = [(label, device.readings.get(column)) for column, label in _SHOWN.items()]
        shown.append(("processes", device.reasons.get("processes")))
        for label, reason in shown:
            if isinstance(reason, Unknown) and reason.code not in (LOST, TIMEOUT, DRIVER_ERROR):
                lines.setdefault(clean(reason.text), []).append(f"GPU {device.definition.index} {label}")
    return [f"{DASH} {', '.join(who)}: {why}" for why, who in lines.items()]
