"""Where the bytes of a device are: sums over readings, with the reason where a part was not measured.

``used`` is what nvidia-smi shows; the driver's own reserve is beside it, not in it. Readings of the driver and of the
allocator are taken at slightly different moments, so a difference below zero is shown as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..store.view import NOT_SENT, AllocView, DeviceView, HostView, TrainerView, UseView
from ..wire.frames import HIDDEN_BY_CONTAINER, Unknown


@dataclass(frozen=True, slots=True)
class Part:
    """One row. ``size`` in bytes, or the reason it is unknown; ``token`` its layer; ``inside`` names the row it is a
    part of, "" for the rows that add up to the total; ``free_by`` says how it can be given back, "" if it cannot."""

    name: str
    token: str
    size: float | Unknown
    inside: str = ""
    free_by: str = ""

    @property
    def known(self) -> float:
        """Bytes, 0 where unknown: for sums that say what they leave out."""
        return self.size if isinstance(self.size, (int, float)) else 0.0


def trainer_of(host: HostView, allocator: AllocView) -> TrainerView | None:
    """The trainer whose memory this is."""
    return next((t for t in host.trainers if t.id == allocator.definition.trainer), None)


def living(device: DeviceView) -> tuple[AllocView, ...]:
    """The allocators on this device that still answer."""
    return tuple(a for a in device.allocators if a.gone is None)


def layers(host: HostView, device: DeviceView) -> dict[str, float]:
    """Bytes by layer of ``theme.LAYERS``, bottom to top, adding up to the card; empty while its use is unknown.

    What cannot be told apart (other users' bytes hidden by a container, say) counts as ``other``."""
    used, total = device.number("used_bytes"), device.definition.total_bytes
    if used is None:
        return {}
    allocators = living(device)
    reserved = sum(a.number("reserved_bytes") or 0.0 for a in allocators)
    allocated = sum(a.number("allocated_bytes") or 0.0 for a in allocators)
    reserved = min(reserved, used)
    allocated = min(allocated, reserved)
    inside = {t.process for a in allocators if (t := trainer_of(host, a)) is not None}
    own = sum(u.number("used_bytes") or 0.0 for u in device.uses if u.process in inside and u.gone is None)
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


UNEXPLAINED_SHARE, UNEXPLAINED_BYTES, WITH_RESERVE_BYTES = 0.01, 300 << 20, 1 << 30
"""Less than the first two is rounding, or readings that were not taken at one moment; a CUDA context takes more. A
driver that does not tell its own reserve counts it as used."""


def unexplained(device: DeviceView, used: float | None = None) -> float | None:
    """Bytes on a device that no process named here holds, 0 while that is too little to say so.

    ``used`` stands for the device's own reading. None when it cannot be told: the driver names processes and not how
    much they hold, or does not answer."""
    used = device.number("used_bytes") if used is None else used
    sizes = [u.number("used_bytes") for u in device.uses if u.gone is None]
    known = [size for size in sizes if size is not None]
    if used is None or len(known) < len(sizes):
        return None
    rest = used - sum(known)
    total = device.definition.total_bytes
    least = min(UNEXPLAINED_BYTES, total * UNEXPLAINED_SHARE) if total else UNEXPLAINED_BYTES
    if device.number("driver_reserved_bytes") is None:
        least = WITH_RESERVE_BYTES
    return rest if rest >= least else 0.0


def headroom(host: HostView, allocator: AllocView) -> float | None:
    """Bytes a trainer can still allocate on this device: free on the card, and cached by its own allocator."""
    device = next((d for d in host.devices if d.id == allocator.gpu), None)
    free = device.number("free_bytes") if device else None
    reserved, allocated = allocator.number("reserved_bytes"), allocator.number("allocated_bytes")
    if free is None or reserved is None or allocated is None:
        return None
    return free + max(0.0, reserved - allocated)


CATEGORIES = (
    ("parameters", "parameter_bytes"),
    ("gradients", "gradient_bytes"),
    ("optimizer state", "optimizer_state_bytes"),
)


def categories(allocator: AllocView, allocated: float | Unknown) -> list[Part]:
    """What the live tensors are, as far as the probe knows them; the rest of ``allocated`` is other tensors."""
    known = [Part(name, "allocated", _size(allocator, column), "allocated") for name, column in CATEGORIES]
    if isinstance(allocated, Unknown):
        rest: float | Unknown = allocated
    elif any(isinstance(part.size, Unknown) for part in known):
        rest = Unknown("not_sent", "cannot be told from the categories that are unknown")
    else:
        rest = max(0.0, allocated - sum(part.known for part in known))
    return [
        *known,
        Part(
            "other tensors",
            "allocated",
            rest,
            "allocated",
            "a smaller micro-batch, activation checkpointing, fewer references kept",
        ),
    ]


def torch_parts(allocator: AllocView) -> list[Part]:
    """A trainer's own rows on one device: allocated with its categories, cached with its two kinds."""
    allocated, reserved = _size(allocator, "allocated_bytes"), _size(allocator, "reserved_bytes")
    active, split = allocator.number("active_bytes"), allocator.number("inactive_split_bytes")
    if isinstance(allocated, Unknown) or isinstance(reserved, Unknown):
        why = allocated if isinstance(allocated, Unknown) else reserved
        assert isinstance(why, Unknown)
        return [
            Part("allocated", "allocated", allocated),
            *categories(allocator, allocated),
            Part("cached", "cached", why),
        ]
    parts = [Part("allocated", "allocated", allocated), *categories(allocator, allocated)]
    cached = max(0.0, reserved - allocated)
    parts.append(Part("cached", "cached", cached))
    if active is not None and split is not None:
        pending = max(0.0, active - allocated)
        releasable = max(0.0, cached - split - pending)
        parts.append(Part("releasable", "cached", releasable, "cached", "torch.cuda.empty_cache()"))
        parts.append(
            Part("inactive split", "cached", min(split, cached), "cached", "expandable_segments:True in the next run")
        )
        if pending:
            parts.append(Part("awaiting free", "cached", min(pending, cached), "cached"))
    return parts


def device_parts(host: HostView, device: DeviceView, allocator: AllocView | None) -> tuple[list[Part], float | Unknown]:
    """The rows of the waterfall, and its total, what nvidia-smi shows. ``allocator`` is the trainer looked at.

    A process's bytes are read after the card's: while they grow, the rows end at the total all the same."""
    used = _size(device, "used_bytes")
    parts = torch_parts(allocator) if allocator else []
    room = used - sum(p.known for p in parts if not p.inside) if isinstance(used, (int, float)) else float("inf")
    trainer = trainer_of(host, allocator) if allocator else None
    own = next((u for u in device.uses if trainer and u.process == trainer.process and u.gone is None), None)
    if allocator:
        outside = _outside_torch(host, own, allocator)
        if not isinstance(outside, Unknown):
            outside = max(0.0, min(outside, room))
            room -= outside
        parts.append(Part("outside torch", "outside", outside))
    others = [u for u in device.uses if u.gone is None and u is not own]
    sizes = [u.number("used_bytes") for u in others]
    if None in sizes:
        why = Unknown("no_permission", "the driver does not say how much each holds")
        parts.append(Part("other processes", "other", why))
    else:
        other = max(0.0, min(sum(size for size in sizes if size is not None), room))
        room -= other
        parts.append(Part("other processes", "other", other, "", "their owners" if other else ""))
    if isinstance(used, (int, float)) and room > min(8 << 20, used * 0.005):
        if any(isinstance(part.size, Unknown) for part in parts if not part.inside):
            name, token = "not told apart", "other"
        elif host.definition.container and unexplained(device):
            name, token = "owners hidden by the container", "other"
        else:
            name, token = "not of any process", "driver"
        parts.append(Part(name, token, room))
    return parts, used


def _outside_torch(host: HostView, own: UseView | None, allocator: AllocView) -> float | Unknown:
    """What the trainer's process holds on the device beyond torch's segments."""
    if own is None:
        inside = host.definition.container
        if inside:
            return Unknown(HIDDEN_BY_CONTAINER, f"in this container ({inside}) the driver does not name the process")
        return Unknown("not_sent", "the driver has not named the process yet")
    held, reserved = own.reading("used_bytes"), allocator.number("reserved_bytes")
    if isinstance(held, (int, float)) and reserved is not None:
        return held - reserved
    return held if isinstance(held, Unknown) else NOT_SENT


def by_size(parts: list[Part]) -> list[Part]:
    """The largest first, each followed by the parts inside it in the same order; unknown ones last."""

    def rank(part: Part) -> tuple[bool, float]:
        return isinstance(part.size, Unknown), -part.known

    out: list[Part] = []
    for part in sorted((p for p in parts if not p.inside), key=rank):
        out += [part, *sorted((p for p in parts if p.inside == part.name), key=rank)]
    return out


def largest_freeable(parts: list[Part]) -> Part | None:
    """The largest row that can be given back, None when nothing of at least 64 MiB can."""
    candidates = [part for part in parts if part.free_by and part.known >= 64 << 20]
    return max(candidates, key=lambda part: part.known, default=None)


def _size(entity: AllocView | DeviceView, column: str) -> float | Unknown:
    reading = entity.reading(column)
    if isinstance(reading, str):
        return NOT_SENT
    return reading
