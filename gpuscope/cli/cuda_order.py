"""Say which GPU each process calls ``cuda:0``.

Its probe reports this where there is one; otherwise it follows from its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.cuda_devices import ORDER, VISIBLE, names_by_number, ordinals
from ..store.view import HostView, ProcView, TrainerView
from ..text import width
from ..wire.clean import clean
from ..wire.frames import NO_PERMISSION, Unknown
from . import output

MAX_PROCESSES = 64
Environments = Mapping[int, "Mapping[str, str] | Unknown"]
"""By pid: the allow-listed variables a process was started with, or why they are unknown."""


def processes_on_gpus(host: HostView) -> list[ProcView]:
    """The processes whose environment matters: those on a GPU, by pid."""
    if host.hidden is not None:
        return []
    on_a_gpu = [process for process in host.processes if process.uses]
    return sorted(on_a_gpu, key=lambda process: process.definition.pid)[:MAX_PROCESSES]


def of_this_machine(host: HostView) -> Environments:
    """Their environments, as far as they may be read."""
    from ..collect.process_context import environment_of

    environments = {
        process.definition.pid: environment_of(process.definition.pid)
        for process in processes_on_gpus(host)
    }
    return {pid: one if isinstance(one, Unknown) else one[0] for pid, one in environments.items()}


def rows(host: HostView, environments: Environments) -> list[dict[str, Any]]:
    """Return a row for each process.

    A row has ``pid``, ``rank``, ``source`` (probe or environment), ``visible_devices``,
    ``device_order``, ``ordinals`` (ordinal, index, uuid; null where unknown) and ``reason``.
    """
    trainers = {trainer.process: trainer for trainer in host.trainers}
    found = []
    for process in processes_on_gpus(host):
        pid, trainer = process.definition.pid, trainers.get(process.id)
        environment = environments.get(pid)
        variables = {} if environment is None or isinstance(environment, Unknown) else environment
        seen = _by_probe(host, trainer) if trainer is not None else []
        reason = None
        if seen:
            numbers: list[dict[str, Any]] | None = seen
        else:
            numbers, reason = _by_environment(host, process, environment)
        found.append(
            {
                "pid": pid,
                "rank": trainer.definition.rank if trainer is not None else None,
                "source": "probe" if seen else "environment",
                "visible_devices": clean(variables[VISIBLE]) if VISIBLE in variables else None,
                "device_order": clean(variables[ORDER]) if ORDER in variables else None,
                "ordinals": numbers,
                "reason": clean(reason) if reason else None,
            }
        )
    return found


def unknown(found: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the document's rows for processes whose device numbers are unknown.

    Other nulls in ``found`` mean that the process has no such value.
    """
    unknowns = output.Unknowns()
    for position, row in enumerate(found):
        if row["ordinals"] is None:
            unknowns.add(f"cuda_order[{position}].ordinals", Unknown(NO_PERMISSION, row["reason"]))
    return unknowns.rows


def _by_probe(host: HostView, trainer: TrainerView) -> list[dict[str, Any]]:
    devices = {device.id: device for device in host.devices}
    found = []
    for allocator in trainer.allocators:
        device = devices.get(allocator.gpu) if allocator.gpu is not None else None
        if allocator.definition.ordinal >= 0 and device is not None:
            found.append(
                _ordinal(
                    allocator.definition.ordinal, device.definition.index, device.definition.uuid
                )
            )
    return sorted(found, key=lambda one: int(one["ordinal"]))


def _by_environment(
    host: HostView, process: ProcView, environment: Mapping[str, str] | Unknown | None
) -> tuple[list[dict[str, Any]] | None, str | None]:
    inside = process.definition.container
    if environment is None:
        return None, "its environment was not read"
    if isinstance(environment, Unknown):
        return None, environment.text
    seen = ordinals(environment, [device.definition for device in host.devices])
    if isinstance(seen, Unknown):
        return None, seen.text
    if inside and not host.definition.container and names_by_number(environment):
        return (
            None,
            f"it runs in a container ({inside}), which may see fewer GPUs and number them "
            "otherwise",
        )
    return [_ordinal(one.number, one.gpu.index, one.gpu.uuid) for one in seen], None


def _ordinal(ordinal: int, index: int, uuid: str) -> dict[str, Any]:
    return {"ordinal": ordinal, "index": index, "uuid": clean(uuid)}


def lines(found: list[dict[str, Any]]) -> list[str]:
    """Return a line for each process whose device numbers differ from NVML's.

    They look like ``cuda pid 51120 (rank 1): cuda:0 = GPU 3, cuda:1 = GPU 1``.
    """
    out = []
    for row in found:
        numbers = row["ordinals"]
        if numbers is None or all(one["ordinal"] == one["index"] for one in numbers):
            continue
        rank = f" (rank {row['rank']})" if row["rank"] is not None else ""
        pairs = ", ".join(f"cuda:{one['ordinal']} = GPU {one['index']}" for one in numbers)
        out.append(width.cut(f"cuda  pid {row['pid']}{rank}: {pairs}", 200))
    return out
