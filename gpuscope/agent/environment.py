"""Gather the facts that the doctor's environment rules judge: driver, GPUs, host and torch.

This runs in the process of ``gpuscope doctor`` for this machine, and in an agent for its host
(``environment`` with ``of: "host"``).

The agent's own workers ask the driver, with a time limit: a call that hangs is reported as a fact
and not waited for without end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..collect.clock_events import POWER_CAP, SLOWED_CLOCK_EVENTS, clock_event_words
from ..wire.environment import Device, Facts, Owner
from ..wire.frames import LOST, TIMEOUT, Reading, Unknown
from . import environment_host, environment_paths, environment_torch
from .environment_paths import whole
from .oneshot import OneShot, collect_once
from .picture import DevicePicture, Picture

if TYPE_CHECKING:
    from ..collect.nvml import Nvml
    from ..collect.nvml_topology import Topology

_HEALTH_SECONDS = 1.0


def gather(
    ask_torch: bool = False,
    timeout: float = 5.0,
    look: Callable[..., OneShot] = collect_once,
    environ: Mapping[str, str] | None = None,
    running: bool = False,
) -> Facts:
    """Gather everything that can be read here without importing torch.

    With ``ask_torch``, torch is asked too, for :data:`environment_torch.TORCH_SECONDS` at most.
    With ``running``, if no active environment has a torch, the torch that a running process has
    loaded is examined instead.
    """
    environ = dict(os.environ if environ is None else environ)
    opened: list[Nvml] = []
    picture = look(timeout=timeout, want_trainers=False, make_nvml=lambda: _opened(opened)).picture
    health, topologies = _health(opened[-1], picture) if opened and picture.devices else ({}, {})
    host, why = environment_host.host(picture)
    devices, reason, code = _devices(picture, health, topologies)
    paths, unpaired = environment_paths.paths(topologies, len(devices or ()))
    if unpaired:
        why["paths"] = unpaired
    if reason:
        why["devices"] = reason
    found = environment_torch.installed(environ, architectures=bool(devices))
    if found.build is None and running:
        found = environment_torch.running(architectures=bool(devices)) or found
    if found.why:
        why["build"] = found.why
    if found.no_architectures:
        why["architectures"] = found.no_architectures
    torch = None
    if ask_torch and running and found.build is None:
        why["torch"] = f"{found.why}, and no environment is active there"
    elif ask_torch:
        torch, silent = environment_torch.ask(environment_torch.python_of(found.prefix))
        if silent:
            why["torch"] = silent
    xids, unread = environment_host.xids() if devices else (None, "no driver")
    if unread:
        why["xids"] = unread
    return Facts(
        devices=devices,
        driver_version=picture.host.driver_version,
        driver_cuda=picture.host.cuda_driver_version,
        driver_code=code,
        nvml_note=picture.note,
        host=host,
        build=found.build,
        torch=torch,
        torch_asked=ask_torch,
        packages=found.packages,
        own_packages=_own_packages(),
        requires=found.requires,
        environment=environ,
        xids=xids,
        paths=paths,
        why=why,
    )


def _opened(opened: list[Nvml]) -> Nvml:
    from ..collect.nvml import Nvml

    nvml = Nvml()
    opened.append(nvml)
    return nvml


def _own_packages() -> dict[str, str]:
    import sysconfig

    return environment_torch.listed(sysconfig.get_path("purelib"))


# ── devices ───────────────────────────────────────────────────────────────────────────────────────


def _devices(
    picture: Picture,
    health: Mapping[int, Mapping[str, Reading]],
    topologies: Mapping[int, Topology],
) -> tuple[tuple[Device, ...] | None, str, str]:
    """Return the devices; or None, the reason, and its code.

    If the driver answers and has no device, the devices are ().
    """
    if picture.nvml is not None and not picture.devices:
        if picture.host.driver_version is not None:
            return (), picture.nvml.text, picture.nvml.code
        return None, picture.nvml.text, picture.nvml.code
    return (
        tuple(
            _device(one, health.get(one.definition.index, {}), topologies.get(one.definition.index))
            for one in picture.devices
        ),
        "",
        "",
    )


def _device(
    picture: DevicePicture, health: Mapping[str, Reading], topology: Topology | None
) -> Device:
    definition, readings = picture.definition, picture.readings
    mask = readings.get("clock_event_reasons")
    bits = mask if isinstance(mask, int) else 0
    failed: dict[str, str] = {}
    for value in [*readings.values(), *picture.reasons.values()]:
        if isinstance(value, Unknown):
            failed.setdefault(value.code, value.text)
    gap = picture.reasons.get("processes")
    hung = (
        picture.late.text
        if picture.late is not None and picture.late.code == TIMEOUT
        else failed.get(TIMEOUT)
    )
    return Device(
        index=definition.index,
        uuid=definition.uuid,
        name=definition.name,
        pci=definition.pci_bus_id,
        capability=_capability(definition.compute_capability),
        total_bytes=definition.total_bytes,
        used_bytes=whole(readings.get("used_bytes")),
        reserved_bytes=whole(readings.get("driver_reserved_bytes")),
        utilization_percent=_number(readings.get("utilization_percent")),
        performance_state=whole(readings.get("performance_state")),
        slowed=clock_event_words(bits & SLOWED_CLOCK_EVENTS),
        capped=bool(bits & POWER_CAP),
        temperature_celsius=_number(readings.get("temperature_celsius")),
        power_watts=_number(readings.get("power_watts")),
        power_limit_watts=_number(readings.get("power_limit_watts")),
        default_power_watts=_number(health.get("default_power_watts")),
        ecc_uncorrected=whole(readings.get("ecc_uncorrected_count")),
        remap_pending=_yes(health.get("remap_pending")),
        remap_failed=_yes(health.get("remap_failed")),
        pages_pending=_yes(health.get("pages_pending")),
        persistence=_yes(health.get("persistence")),
        pcie_generation=whole(readings.get("pcie_generation")),
        pcie_width=whole(readings.get("pcie_width")),
        max_pcie_generation=definition.max_pcie_generation,
        max_pcie_width=definition.max_pcie_width,
        owners=None
        if picture.processes is None
        else tuple(Owner(pid, whole(used)) for pid, used in picture.processes),
        owners_incomplete=None if gap is None else gap.text,
        lost=failed.get(LOST),
        hung=None if LOST in failed else hung,
        links=whole(topology and topology.links),
        links_active=whole(topology and topology.links_active),
        fabric=environment_paths.fabric(topology),
        cpus=environment_paths.cpus_near_device(definition.pci_bus_id),
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    major, dot, minor = (text or "").partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _yes(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _health(
    nvml: Nvml, picture: Picture
) -> tuple[dict[int, Mapping[str, Reading]], dict[int, Topology]]:
    """Read what only the doctor needs of a device, and its paths to the devices after it.

    Each device is read in a thread of its own, because such a call may hang too. Devices that did
    not answer before are left out, so that no other thread is inside a call to them.
    """
    found: dict[int, Mapping[str, Reading]] = {}
    topologies: dict[int, Topology] = {}
    well = [
        device.definition.index
        for device in picture.devices
        if not any(
            isinstance(value, Unknown) and value.code in (LOST, TIMEOUT)
            for value in device.readings.values()
        )
    ]

    def ask(index: int) -> None:
        found[index] = nvml.device(index).health()
        topologies[index] = nvml.device(index).topology([other for other in well if other > index])

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in well]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _HEALTH_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found), dict(topologies)
