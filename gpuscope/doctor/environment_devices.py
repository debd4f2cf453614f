"""Judges the GPUs: whether they are healthy, who may use them, and who holds their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..model.device_state import hardware_faults, unowned_bytes
from ..model.xid_errors import HARDWARE, PROGRAM, xid_error
from ..text.ranges import ranges_text
from ..text.units import bytes_text
from .environment_facts import WORDINGS, Device, Facts, names, read_visible_devices
from .finding import Abstained, Evidence, Finding

_BUSY_PERCENT = 20
"""A GPU at or above this utilization counts as busy, so its PCIe link should run at full speed."""


def judge(facts: Facts) -> Iterator[Finding | Abstained]:
    """Yields findings, and what could not be decided."""
    devices = facts.devices or ()
    if not devices:
        return
    for device in devices:
        yield from _health(device, facts)
        yield from _clocks(device)
    yield from _visible(facts, devices)
    yield from _order(facts, devices)
    yield from _pcie([device for device in devices if device.lost is None])
    yield from _settings([device for device in devices if device.lost is None])
    yield from _unowned_memory(facts, [device for device in devices if device.lost is None])
    if facts.xids is None:
        yield WORDINGS.abstained("xids", why=facts.why.get("xids"))


# ── health ────────────────────────────────────────────────────────────────────────────────────────


def _health(device: Device, facts: Facts) -> Iterator[Finding]:
    where = f"GPU {device.index}"
    broken = device.lost or device.hung
    if broken is not None:
        yield WORDINGS.finding(
            "device.lost" if device.lost else "device.lost.hung",
            {"gpu": device.index, "pids": None, "others": None},
            evidence=(Evidence(broken, "nvml"), *_xids(device, facts)),
            where=where,
        )
        return
    faults = hardware_faults(
        device.ecc_uncorrected, device.remap_failed, device.remap_pending, device.pages_pending
    )
    evidence, problem = (
        [fault.reason for fault in faults],
        any(fault.kind == "bad" for fault in faults),
    )
    xids = _xids(device, facts)
    if not evidence and not xids:
        return
    of_device = [xid for xid in facts.xids or () if _is_same_device(xid.pci, device.pci)]
    causes = {xid_error(xid.number).cause for xid in of_device}
    serious = HARDWARE in causes
    sure = bool(evidence)
    if device.ecc_uncorrected:
        name = "environment.ecc"
    elif sure:
        name = "environment.remap"
    else:
        name = "environment.xid.hardware" if serious else "environment.xid"
        if causes == {PROGRAM}:
            name = "environment.xid.program"
    yield WORDINGS.finding(
        name,
        {"gpu": device.index},
        severity="problem" if problem else "warning" if sure or serious else "info",
        confidence="definite" if sure else "likely",
        evidence=(*(Evidence(text, "nvml") for text in evidence), *xids),
        where=where,
    )


def _xids(device: Device, facts: Facts) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"XID {xid.number}, {xid.count} times since boot", "kernel log")
        for xid in facts.xids or ()
        if _is_same_device(xid.pci, device.pci)
    )


def _is_same_device(left: str, right: str | None) -> bool:
    """Returns whether two PCI addresses are those of the same device.

    NVML writes the PCI domain with eight digits; the kernel writes it with four and omits the
    function.
    """
    return right is not None and _bus(left) == _bus(right)


def _bus(address: str) -> tuple[str, ...]:
    domain, *rest = address.lower().split(".")[0].split(":")
    return (domain[-4:].rjust(4, "0"), *rest)


def _clocks(device: Device) -> Iterator[Finding]:
    if device.slowed:
        heat = (
            f", {device.temperature_celsius:.0f} °C"
            if device.temperature_celsius is not None
            else ""
        )
        yield WORDINGS.finding(
            "environment.throttle",
            {"gpu": device.index, "why": ", ".join(device.slowed)},
            evidence=(Evidence(f"clock events: {', '.join(device.slowed)}{heat}", "nvml"),),
            where=f"GPU {device.index}",
        )
    limit, default = device.power_limit_watts, device.default_power_watts
    if limit is not None and default is not None and limit < 0.95 * default:
        used = f", {device.power_watts:.0f} W drawn now" if device.power_watts is not None else ""
        holds = "; it holds the clock down now" if device.capped else ""
        yield WORDINGS.finding(
            "environment.power-cap",
            {"gpu": device.index, "limit": f"{limit:.0f}", "default": f"{default:.0f}"},
            evidence=(
                Evidence(f"power limit {limit:.0f} W of {default:.0f} W{used}{holds}", "nvml"),
            ),
            where=f"GPU {device.index} power",
        )


def _pcie(devices: Sequence[Device]) -> Iterator[Finding]:
    """Yields findings on PCIe links that have fewer lanes or are slower than they can be.

    The number of lanes of a link does not change when the GPU is idle. Its speed (the PCIe
    generation) does, so only a busy GPU shows whether the link is too slow.
    """
    narrow = [
        device
        for device in devices
        if device.pcie_width and device.max_pcie_width and device.pcie_width < device.max_pcie_width
    ]
    if narrow:
        half = any(
            2 * (device.pcie_width or 0) <= (device.max_pcie_width or 0) and _busy(device)
            for device in narrow
        )
        yield WORDINGS.finding(
            "environment.pcie.lanes",
            {"gpus": names(narrow)},
            severity="warning" if half else "info",
            evidence=tuple(
                Evidence(f"GPU {one.index}: x{one.pcie_width} of x{one.max_pcie_width}", "nvml")
                for one in narrow
            ),
            where=names(narrow),
        )
    slow = [
        device
        for device in devices
        if _busy(device)
        and device.pcie_generation
        and device.max_pcie_generation
        and device.pcie_generation < device.max_pcie_generation
    ]
    if slow:
        yield WORDINGS.finding(
            "environment.pcie.generation",
            {"gpus": names(slow)},
            evidence=tuple(
                Evidence(
                    f"GPU {one.index}: generation {one.pcie_generation} of "
                    f"{one.max_pcie_generation}, {one.utilization_percent or 0:.0f} % busy",
                    "nvml",
                )
                for one in slow
            ),
            where=f"{names(slow)} generation",
        )


def _busy(device: Device) -> bool:
    return (device.utilization_percent or 0) >= _BUSY_PERCENT and device.performance_state in (
        0,
        1,
        2,
        None,
    )


def _settings(devices: Sequence[Device]) -> Iterator[Finding]:
    off = [device for device in devices if device.persistence is False]
    if off:
        yield WORDINGS.finding(
            "environment.persistence",
            {"gpus": names(off)},
            evidence=(Evidence(f"persistence mode off on {names(off)}", "nvml"),),
            where=names(off),
        )


# ── who may use them ──────────────────────────────────────────────────────────────────────────────


def _visible(facts: Facts, devices: Sequence[Device]) -> Iterator[Finding]:
    """Yields a finding where CUDA_VISIBLE_DEVICES hides GPUs that it seems to name.

    CUDA stops reading at the first entry that is no device: that entry and everything after it is
    hidden.
    """
    text = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return
    seen = read_visible_devices(facts, devices)
    value = Evidence(f"CUDA_VISIBLE_DEVICES={text[:300]}", "environment")
    here = Evidence(f"the driver has {len(devices)} GPUs: 0 to {len(devices) - 1}", "nvml")
    if seen.mig:
        return
    if not seen.positions and text.split(",")[0].strip() in ("", "-1"):
        yield WORDINGS.finding(
            "environment.visible-devices.none", evidence=(value, here), where="CUDA_VISIBLE_DEVICES"
        )
        return
    if text.startswith("GPU-") and not all(device.uuid.startswith("GPU-") for device in devices):
        return  # the driver does not report the UUIDs of all devices, so none can be ruled out
    bad, repeated = seen.stopped_at, seen.repeated
    if bad is not None:
        left = len(seen.positions)
        yield WORDINGS.finding(
            "environment.visible-devices.stops"
            if left
            else "environment.visible-devices.stops-at-once",
            {"entry": bad[:60] or "an empty entry", "left": left, "gpus": _indices(devices)},
            evidence=(value, here),
            where="CUDA_VISIBLE_DEVICES",
        )
    elif repeated is not None:
        once = ",".join(dict.fromkeys(word.strip() for word in text.split(",")))
        yield WORDINGS.finding(
            "environment.visible-devices.repeated",
            {"entry": repeated[:60], "gpus": once},
            evidence=(value, here),
            where="CUDA_VISIBLE_DEVICES",
        )


def _indices(devices: Iterable[Device]) -> str:
    return ",".join(str(device.index) for device in devices)


def _order(facts: Facts, devices: Sequence[Device]) -> Iterator[Finding]:
    order = facts.environment.get("CUDA_DEVICE_ORDER")
    if order is not None and order not in ("PCI_BUS_ID", "FASTEST_FIRST"):
        yield WORDINGS.finding(
            "environment.visible-devices.order",
            {"order": order[:60]},
            evidence=(Evidence(f"CUDA_DEVICE_ORDER={order[:300]}", "environment"),),
            where="CUDA_DEVICE_ORDER",
        )
    models = {device.name for device in devices if device.name}
    if order != "PCI_BUS_ID" and len(models) > 1:
        yield WORDINGS.finding(
            "environment.visible-devices.fastest-first",
            evidence=(
                *(Evidence(f"GPU {one.index}: {one.name}", "nvml") for one in devices[:16]),
                Evidence("CUDA_DEVICE_ORDER is not PCI_BUS_ID", "environment"),
            ),
            where="CUDA_DEVICE_ORDER numbers",
        )


def _unowned_memory(facts: Facts, devices: Sequence[Device]) -> Iterator[Finding | Abstained]:
    """Yields a finding on memory in use that no listed process holds.

    The rule abstains where the driver's process list may be incomplete: in a container, under WSL,
    and in MIG mode, where the driver does not report the utilization. It abstains too where kernels
    run and no process is listed: one that is left over runs none.
    """
    found = []
    not_told: dict[tuple[str, str | None], list[tuple[int, float]]] = {}
    for device in devices:
        if device.used_bytes is None or device.owners is None:
            continue
        held = [owner.used_bytes for owner in device.owners]
        rest = unowned_bytes(
            device.used_bytes, [size or 0 for size in held], device.reserved_bytes is not None
        )
        if not rest:
            continue
        why, unclear = device.owners_incomplete, ""
        hidden = facts.host.pids_hidden is not None or facts.host.own_pid_namespace
        if hidden or facts.host.container is not None:
            unclear = "unowned.container"
        elif "microsoft" in (facts.host.kernel or "").lower():
            unclear = "unowned.wsl"
        elif None in held or device.utilization_percent is None or why is not None:
            unclear = "unowned"
        elif not device.owners and device.utilization_percent >= _BUSY_PERCENT:
            unclear, why = "unowned", f"kernels run {device.utilization_percent:.0f} % of the time"
        if unclear:
            not_told.setdefault((unclear, why), []).append((device.index, rest))
        else:
            found.append(
                (
                    device,
                    rest,
                    f"{len(held)} that hold {bytes_text(sum(size or 0 for size in held))}",
                )
            )
    for (unclear, why), rests in not_told.items():  # of all GPUs alike in one line
        sizes = bytes_text(sum(size for _, size in rests))
        gpus = ranges_text(index for index, _ in rests)
        yield WORDINGS.abstained(unclear, held=sizes, gpu=gpus, why=why)
    if not found:
        return
    where, paths = (
        names([one for one, _, _ in found]),
        " ".join(f"/dev/nvidia{one.index}" for one, _, _ in found),
    )
    yield WORDINGS.finding(
        "environment.memory-without-process",
        {"held": bytes_text(sum(size for _, size, _ in found)), "gpus": where, "paths": paths},
        evidence=tuple(
            Evidence(
                f"GPU {one.index}: {bytes_text(one.used_bytes or 0)} in use; processes "
                f"listed: {listed if one.owners else 'none'}",
                "nvml",
            )
            for one, _, listed in found
        ),
        where=where,
    )
