"""Sum up where the bytes of a device are.

A part that was not measured has the reason in its place.

``used`` is what nvidia-smi shows; it does not include the driver's own reserve. Readings of the
driver and of the allocator are taken at slightly different moments, so a difference below zero is
shown as zero.
"""

from __future__ import annotations

from ..store.view import AllocView, DeviceView, HostView, TrainerView, by_id
from ..text.units import bytes_text, percent_text


def trainer_of(host: HostView, allocator: AllocView) -> TrainerView | None:
    """The trainer whose memory this is."""
    return by_id(host.trainers, allocator.definition.trainer)


def living(device: DeviceView) -> tuple[AllocView, ...]:
    """The allocators on this device that still answer."""
    return tuple(a for a in device.allocators if a.gone is None)


def layers(host: HostView, device: DeviceView) -> dict[str, float]:
    """Return the bytes by layer of ``theme.LAYERS``, bottom to top.

    They add up to the card; empty while its use is unknown.

    What nobody can attribute counts as ``other``: other users' bytes hidden by a container, say, or
    those of a training whose allocator was not read yet.
    """
    used, total = device.number("used_bytes"), device.definition.total_bytes
    if used is None:
        return {}
    allocators = living(device)
    reserved = sum(a.number("reserved_bytes") or 0.0 for a in allocators)
    allocated = sum(a.number("allocated_bytes") or 0.0 for a in allocators)
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    read = [a for a in allocators if a.number("reserved_bytes") is not None]
    inside = {t.process for a in read if (t := trainer_of(host, a)) is not None}
    own = sum(
        u.number("used_bytes") or 0.0 for u in device.uses if u.process in inside and u.gone is None
    )
    outside = min(max(0.0, own - reserved), used - reserved)
    out = {
        "allocated": allocated,
        "cached": reserved - allocated,
        "outside": outside,
        "other": used - reserved - outside,
        "driver": device.number("driver_reserved_bytes") or 0.0,
    }
    if total:
        out["free"] = max(0.0, total - sum(out.values()))
    return out


def of_the_card(device: DeviceView, headroom_bytes: float | None = None) -> str:
    """Return what the bytes used on a card now are a part of, and what a trainer can still get."""
    used, total, free = (
        device.number("used_bytes"),
        device.definition.total_bytes,
        device.number("free_bytes"),
    )
    notes = (
        [f"{percent_text(used / total)} of {bytes_text(total)}"]
        if used is not None and total
        else []
    )
    notes += [f"free {bytes_text(free)}"] if free is not None else []
    notes += [f"headroom {bytes_text(headroom_bytes)}"] if headroom_bytes is not None else []
    return " · ".join(notes)
