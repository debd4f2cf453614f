"""Tells which devices a run of the Lab would take, and who holds them.

It also tells what the tensor pipes of the run do. It goes only by what the agent saw: nothing
here asks a driver, and what it did not see is unknown, never free.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from functools import lru_cache

from ...lab import device_selection
from ...lab.config import LabConfig
from ...lab.metrics import Started
from ...lab.rules import RunFacts
from ...model import cuda_devices
from ...model import occupants as jobs_on
from ...model.occupants import Occupant, draws_screen
from ...store.view import DeviceView, HostView
from ...wire.frames import Unknown
from .choices import DeviceChoice


def driver_has_answered(host: HostView | None) -> bool:
    """Say whether it is known which devices the host has.

    The first samples of a host come before its driver has answered: then there are no devices yet,
    and no reason why.
    """
    return (
        host is not None
        and host.sampled_seconds is not None
        and (bool(host.devices) or host.nvml is not None)
    )


def where(config: LabConfig, host: HostView | None, started: Started | None) -> DeviceChoice:
    """Return the kind of device a run would train on.

    ``started`` is what the last worker said, which knows its torch.
    """
    if config.device != "auto":
        return DeviceChoice(config.device, "chosen")
    if started is not None and started.config.get("device") == "auto":
        return DeviceChoice(started.device, "as in the last run")
    if host is None or host.sampled_seconds is None:
        return DeviceChoice()
    if any(device.gone is None for device in host.devices):
        return (
            DeviceChoice("cuda", "there is a GPU")
            if cuda_devices.visible_devices(host.devices)
            else DeviceChoice("cpu", f"{cuda_devices.VISIBLE} hides every GPU")
        )
    return DeviceChoice("cpu", "no GPU found here") if host.nvml is not None else DeviceChoice()


def devices_of_run(config: LabConfig, host: HostView, device: DeviceChoice) -> list[DeviceView]:
    """Return the devices that a run with these switches takes.

    It takes the first, or as many as it has processes; there are none where their order cannot
    be told.
    """
    seen = cuda_devices.visible_in_order(host.devices) if device.kind == "cuda" else None
    return device_selection.devices_for_run(config, seen or ())


def family(host: HostView, pid: int | None) -> set[int]:
    """Return the pids of ``pid`` and of the processes that it started, as far as they are seen.

    They are of its family however many lie between them.
    """
    if pid is None:
        return set()
    parents = {p.definition.pid: p.definition.ppid for p in host.processes}
    out = {pid}
    for one in parents:
        at: int | None = one
        for _ in range(8):
            if at is None or at == pid:
                break
            at = parents.get(at)
        if at == pid:
            out.add(one)
    return out


def occupants(
    config: LabConfig,
    host: HostView | None,
    device: DeviceChoice,
    own: Collection[int] = (),
    alone: bool = True,
) -> list[Occupant]:
    """Return who else is on the devices of a run.

    ``own`` are pids of the Lab's workers, which are no strangers. ``alone`` says that nothing
    of ours has been on a device lately, so that memory in use there without a process is
    somebody's.
    """
    if host is None:
        return []
    return [
        occupant
        for one in devices_of_run(config, host, device)
        for occupant in jobs_on.occupants(host, one, own, alone)
    ]


def facts(
    config: LabConfig,
    host: HostView | None,
    device: DeviceChoice,
    started: Started | None,
    own: int | None,
) -> RunFacts:
    """Return what is known without asking torch.

    A run of our own that would be restarted gives back what it holds. So the free bytes are given
    only while there is no such run.
    """
    seen = (
        cuda_devices.visible_devices(host.devices)
        if host is not None and device.kind == "cuda"
        else []
    )
    free = [one.number("free_bytes") for one in seen]
    if host is not None and device.kind == "cpu":
        free = [host.number("memory_available_bytes")]
    # A worker that has started knows its torch and its model better than we do.
    same_model = (
        started is not None
        and started.config.get("model") == config.model
        and config.factory is not None
    )
    return RunFacts(
        device_type=device.kind or "cpu",
        gpus=len(cuda_devices.visible_devices(host.devices))
        if host is not None and driver_has_answered(host)
        else None,
        gpu_name=seen[0].definition.name if seen else None,
        capability=device_selection.capability(seen[0].definition.compute_capability)
        if seen
        else None,
        free_bytes=[int(f) for f in free if f is not None]
        if free and None not in free and own is None
        else None,
        torch_version=started.torch_version if started is not None else None,
        cores=device_selection.cores(),
        has_compiler=_compiler(device.kind),
        parameters=started.parameters if started is not None and same_model else None,
    )


@lru_cache(maxsize=4)
def _compiler(kind: str) -> bool | None:
    """Return whether there is a C++ compiler for a CPU.

    For CUDA that is the worker's to tell: Triton is beside its torch.
    """
    return shutil.which(os.environ.get("CXX") or "g++") is not None if kind == "cpu" else None


# ── the tensor pipes of a run ──


def tensor_shares(
    host: HostView, started: Started, own: Collection[int]
) -> tuple[dict[str, tuple[float, float]], str]:
    """Return the tensor shares of each device of a run, and why there are none, else "".

    They are UUID → (seconds of the host's clock, tensor share in percent). The counters are a
    whole device's: where somebody else computes too, they are not the run's.
    """
    uuids = {
        str(d.get("uuid")).lower() for d in started.devices if isinstance(d, dict) and d.get("uuid")
    }
    on = [d for d in host.devices if d.gone is None and d.definition.uuid.lower() in uuids]
    if not on or len(on) < len(uuids):
        return {}, "the run's GPUs are unknown, or not visible to the agent"
    processes = {p.id: p for p in host.processes}
    for device in on:
        for use in device.uses:
            other = processes.get(use.process)
            if (
                use.gone is None
                and other is not None
                and other.definition.pid not in own
                and not draws_screen(other)
            ):
                return (
                    {},
                    f"the counters cover the whole GPU, and pid {other.definition.pid} is on it "
                    "too",
                )
    out = {}
    for device in on:
        reading = device.reading("tensor_active_percent")
        if isinstance(reading, Unknown):
            return {}, reading.text
        if isinstance(reading, (int, float)) and device.sampled_seconds is not None:
            out[device.definition.uuid.lower()] = (device.sampled_seconds, float(reading))
    return out, ""
