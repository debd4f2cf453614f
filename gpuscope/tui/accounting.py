"""Where the bytes of a device are: sums over readings, with the reason where a part was not measured.

``used`` is what nvidia-smi shows; the driver's own reserve is beside it, not in it. Readings of the driver and of the
allocator are taken at slightly different moments, so a difference below zero is shown as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..store.view import NOT_SENT, AllocView, DeviceView, HostView, TrainerView
from ..wire.frames import Unknown


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
    """The rows of the waterfall, and its total, what nvidia-smi shows. ``allocator`` is the trainer looked at."""
    used = _size(device, "used_bytes")
    parts = torch_parts(allocator) if allocator else []
    reserved = allocator.number("reserved_bytes") if allocator else 0.0
    trainer = trainer_of(host, allocator) if allocator else None
    own = next((u for u in device.uses if trainer and u.process == trainer.process and u.gone is None), None)
    outside: float | Unknown
    if allocator:
        reading = (
            own.reading("used_bytes") if own else Unknown("hidden_by_container", "the driver names no process here")
        )
        if isinstance(reading, (int, float)) and reserved is not None:
            outside = max(0.0, reading - reserved)
        else:
            outside = reading if isinstance(reading, Unknown) else NOT_SENT
        parts.append(Part("outside torch", "outside", outside))
    others = [u for u in device.uses if u.gone is None and u is not own]
    sizes = [u.number("used_bytes") for u in others]
    other = sum(size for size in sizes if size is not None)
    if all(size is not None for size in sizes):
        parts.append(Part("other processes", "other", other, "", "their owners" if other else ""))
    else:
        parts.append(
            Part("other processes", "other", Unknown("no_permission", "the driver does not say how much each holds"))
        )
    if isinstance(used, (int, float)):
        rest = used - sum(part.known for part in parts if not part.inside)
        if rest > (8 << 20):
            unknown = any(isinstance(part.size, Unknown) for part in parts if not part.inside)
            parts.append(Part("not told apart" if unknown else "not of any process", "driver", rest))
    return parts, used


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
