"""Sum up where the bytes of a device are.

A part that was not measured has the reason in its place.

``used`` is what nvidia-smi shows; it does not include the driver's own reserve. Readings of the
driver and of the allocator are taken at slightly different moments, so a difference below zero is
shown as zero.
"""

from __future__ import annotations

from ..store.view import AllocView, DeviceView, HostView, TrainerView, by_id
from ..text.units import bytes_text, percent_text
from .reading_age import marked, old_seconds


def trainer_of(host: HostView, allocator: AllocView) -> TrainerView | None:
    """The trainer whose memory this is."""
    return by_id(host.trainers, allocator.definition.trainer)


def living(device: DeviceView) -> tuple[AllocView, ...]:
    """The allocators on this device that still answer."""
    return tuple(a for a in device.allocators if a.gone is None)


def layers(host: HostView, device: DeviceView) -> dict[str, float]:
    """Return the bytes by layer of ``theme.LAYERS`` and ``theme.UNREAD``, bottom to top.

    They add up to the card; empty while its use is unknown.

    What nobody can attribute counts as ``other``: other users' bytes hidden by a container, say.
    What a training holds whose allocator was not read, or not for long, is ``unread``.
    """
    used, total = device.number("used_bytes"), device.definition.total_bytes
    if used is None:
        return {}
    allocators = [a for a in living(device) if _is_read(host, a)]
    reserved = sum(a.number("reserved_bytes") or 0.0 for a in allocators)
    allocated = sum(a.number("allocated_bytes") or 0.0 for a in allocators)
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    own = sum(held for a in allocators if (held := _of_process(host, device, a)) is not None)
    outside = min(max(0.0, own - reserved), used - reserved)
    left, unread = used - reserved - outside, 0.0
    for one in living(device):
        if one not in allocators:
            held = _of_process(host, device, one)
            if held is None and one.number("reserved_bytes") is not None:
                held = left  # where its process is not named, all that is left may be torch's
            unread += held or 0.0
    unread = min(unread, left)
    out = {
        "allocated": allocated,
        "cached": reserved - allocated,
        "outside": outside,
        "unread": unread,
        "other": left - unread,
        "driver": device.number("driver_reserved_bytes") or 0.0,
    }
    if total:
        out["free"] = max(0.0, total - sum(out.values()))
    return out


def _is_read(host: HostView, allocator: AllocView) -> bool:
    return allocator.number("reserved_bytes") is not None and old_seconds(host, allocator) is None


def _of_process(host: HostView, device: DeviceView, allocator: AllocView) -> float | None:
    """Return what the driver says that the process of an allocator holds, None if it does not."""
    trainer = trainer_of(host, allocator)
    if trainer is None:
        return None
    uses = (u for u in device.uses if u.process == trainer.process and u.gone is None)
    return next((held for u in uses if (held := u.number("used_bytes")) is not None), None)


def of_the_card(
    device: DeviceView, headroom_bytes: float | None = None, age: float | None = None
) -> str:
    """Return what the bytes used on a card now are a part of, and what a trainer can still get.

    ``age`` is how old the reading is on which the headroom rests, None where it is of now.
    """
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
    if headroom_bytes is not None:
        notes.append(f"headroom {marked(bytes_text(headroom_bytes), age)}")
    return " · ".join(notes)


def of_the_host(host: HostView, used: float | None) -> str:
    """Return what a process's memory is a part of on a CPU, and how much the host has left.

    A cgroup with a limit may end a process long before the host is full.
    """
    total, free = host.definition.memory_total_bytes, host.number("memory_available_bytes")
    limit, held = host.definition.cgroup_memory_limit_bytes, host.number("cgroup_memory_used_bytes")
    notes = []
    if total and used is not None:
        notes.append(f"{percent_text(used / total)} of the host's {bytes_text(total)}")
    if free is not None:
        notes.append(f"{bytes_text(free)} are free{'' if notes else ' on the host'}")
    if limit and held is not None:
        left = bytes_text(max(0.0, limit - held))
        notes.append(f"its cgroup has {left} of {bytes_text(limit)} left")
    return " · ".join(notes)
