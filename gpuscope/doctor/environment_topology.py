"""Judge how the GPUs of a job reach each other, and which CPU cores feed them.

What a slow path costs depends on the model; the live rules measure that (exposed communication,
copies). A path that could merely be faster is therefore ``info``, while one that is broken or
switched off is graver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..text.ranges import compact_ranges
from .environment_facts import WORDINGS, Device, Facts, Path, names, read_visible_devices
from .finding import Abstained, Evidence, Finding

_SWITCHED_OFF = "switched off"


def judge(facts: Facts) -> Iterator[Finding | Abstained]:
    """Yields findings, and what could not be decided."""
    well = [device for device in facts.devices or () if device.lost is None and device.hung is None]
    yield from _links(well)
    yield from _fabric(well)
    chosen = [device for device in visible(facts) if device in well]
    yield from _processors(facts, chosen)
    if len(chosen) < 2:
        return
    wanted = {device.index for device in chosen}
    paths = [path for path in facts.paths or () if {path.first, path.second} <= wanted]
    if not any(path.no_peer is not None for path in paths):
        yield WORDINGS.abstained("peers", why=facts.why.get("paths"))
    yield from _peers(chosen, paths)
    yield from _sockets(facts, chosen, well, paths)


def visible(facts: Facts) -> list[Device]:
    """Returns the devices that a program started here sees, in CUDA's order."""
    devices = facts.devices or ()
    return [devices[position] for position in read_visible_devices(facts, devices).positions]


# ── NVLink ────────────────────────────────────────────────────────────────────────────────────────


def _links(devices: Sequence[Device]) -> Iterator[Finding]:
    """Yields a finding on each GPU that has fewer links up than another GPU of its model.

    Where all GPUs of a model have equally few links, the board may be wired so: a card with one
    bridge of three, or with none, has links that never come up.
    """
    for device in devices:
        alike = [one for one in devices if one.name == device.name and one.links_active is not None]
        best = max(alike, key=lambda one: one.links_active or 0, default=device)
        active, most = device.links_active, best.links_active
        if active is None or most is None or not device.links or active >= most:
            continue
        some = active > 0 or bool(device.fabric)
        yield WORDINGS.finding(
            "environment.nvlink",
            {"gpu": device.index, "active": active, "best": best.index, "most": most},
            severity="warning" if some else "info",
            evidence=(
                Evidence(f"GPU {device.index}: {active} of {device.links} NVLinks active", "nvml"),
                Evidence(f"GPU {best.index}, the same model: {most} of {best.links}", "nvml"),
            ),
            where=f"GPU {device.index} NVLink",
        )


def _fabric(devices: Sequence[Device]) -> Iterator[Finding]:
    """Yields a finding on GPUs that have not joined the fabric of their NVSwitches.

    Until then CUDA does not start on them (error 802, system not yet initialized). A GPU on which a
    program holds memory works, whatever state the driver reports.
    """
    waiting = [
        device
        for device in devices
        if device.fabric in ("not started", "in progress", "failed") and not device.owners
    ]
    if not waiting:
        return
    yield WORDINGS.finding(
        "environment.fabric",
        {"gpus": names(waiting)},
        severity="problem" if any(device.fabric == "failed" for device in waiting) else "warning",
        evidence=tuple(
            Evidence(f"GPU {one.index}: joining the fabric: {one.fabric}", "nvml")
            for one in waiting
        ),
        where=f"{names(waiting)} fabric",
    )


# ── paths ─────────────────────────────────────────────────────────────────────────────────────────


def _peers(chosen: Sequence[Device], paths: Sequence[Path]) -> Iterator[Finding]:
    """Yields a finding on pairs that reach each other only through the host's memory."""
    without = [path for path in paths if path.no_peer and not path.nvlink]
    if not without:
        return
    reasons: dict[str, list[Path]] = {}
    for path in without:
        reasons.setdefault(path.no_peer or "", []).append(path)
    off = any(_SWITCHED_OFF in reason for reason in reasons)
    every = len(without) == len(chosen) * (len(chosen) - 1) // 2
    better = _largest_without(chosen, without)
    picked = better if 1 < len(better) < len(chosen) else None
    name = "environment.p2p" if every else "environment.p2p.pairs"
    yield WORDINGS.finding(
        f"{name}.off" if off else name,
        {
            "gpus": names(list(chosen)),
            "pairs": len(without),
            "count": len(picked) if picked else None,
            "picked": ",".join(map(str, picked)) if picked else None,
        },
        severity="warning" if off else "info",
        confidence="definite",
        evidence=tuple(
            Evidence(f"{_pairs(found)}: {reason}", "nvml")
            for reason, found in list(reasons.items())[:8]
        ),
        where="peer access",
    )


def _sockets(
    facts: Facts, chosen: Sequence[Device], well: Sequence[Device], paths: Sequence[Path]
) -> Iterator[Finding]:
    """Yields a finding on GPUs of one job whose traffic crosses the link between sockets.

    A pair of GPUs with an NVLink between them does not need that path.
    """
    far = [path for path in paths if path.sockets and not path.nvlink]
    if not far:
        return
    everywhere = [path for path in facts.paths or () if path.sockets and not path.nvlink]
    better = _largest_without(well, everywhere)
    picked = ",".join(map(str, better[: len(chosen)])) if len(better) >= len(chosen) else None
    yield WORDINGS.finding(
        "environment.sockets",
        {"gpus": names(list(chosen)), "picked": picked},
        evidence=(
            Evidence(f"{_pairs(far)}: {far[0].crosses or 'two sockets'}, and no NVLink", "nvml"),
        ),
        where="sockets",
    )


def _largest_without(devices: Iterable[Device], paths: Sequence[Path]) -> list[int]:
    """Return the indices of a largest set of GPUs that have no two on one of ``paths``.

    The search is greedy from every GPU as the start, and the first of equally large sets is taken.
    This is exact where the GPUs without such a path between them form groups, as the GPUs of a
    socket or a board do.
    """
    apart = {frozenset((path.first, path.second)) for path in paths}
    indices = [device.index for device in devices]
    best: list[int] = []
    for start in range(len(indices)):
        found: list[int] = []
        for index in indices[start:] + indices[:start]:
            if all(frozenset((index, other)) not in apart for other in found):
                found.append(index)
        if len(found) > len(best):
            best = found
    return sorted(best)


def _pairs(paths: Sequence[Path]) -> str:
    listed = ", ".join(f"GPU {path.first} and {path.second}" for path in paths[:4])
    return listed + (f" and {len(paths) - 4} more pairs" if len(paths) > 4 else "")


# ── processors ────────────────────────────────────────────────────────────────────────────────────


def _processors(facts: Facts, chosen: Sequence[Device]) -> Iterator[Finding]:
    """Yields a finding where a job may run only on processors far from its GPUs.

    Copies then cross the link between the CPU sockets.
    """
    allowed = facts.host.allowed_cpus
    if not allowed:
        return
    far = [device for device in chosen if device.cpus and device.cpus.isdisjoint(allowed)]
    if not far or len(far) < len(chosen):
        return  # each rank may run on the socket of its own GPU
    near = sorted(frozenset[int]().union(*(device.cpus or () for device in far)))
    yield WORDINGS.finding(
        "environment.affinity",
        {"gpus": names(far), "processors": compact_ranges(near, 32)},
        evidence=(
            Evidence(f"CPU cores allowed here: {compact_ranges(allowed, 32)}", "sched_getaffinity"),
            Evidence(f"CPU cores next to {names(far)}: {compact_ranges(near, 32)}", "/sys/bus/pci"),
        ),
        where="processors",
    )
