"""From histories of single columns to what charts show: layers of a device over time, lines of load."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from ..store.view import AllocView, DeviceView, History, HostView
from .accounting import living, trainer_of
from .cells import GIB, KIB, MIB
from .charts.stacked import Layer
from .session import Session

HOLD_SECONDS = 6.0
"""A reading counts until the next one, for so long at most: the driver and the probe are not read at one moment."""

LABELS = {"allocated": "allocated", "cached": "cached", "outside": "outside torch", "other": "other"}


def at_moments(history: History, moments: Sequence[float]) -> list[float | None]:
    """The value that held at each moment, None before the first, after a gap, and where it was unknown."""
    out: list[float | None] = []
    for moment in moments:
        index = bisect_right(history.seconds, moment + 0.05) - 1
        fresh = index >= 0 and moment - history.seconds[index] <= HOLD_SECONDS
        out.append(history.values[index] if fresh else None)
    return out


def _sum(columns: Sequence[Sequence[float | None]], count: int) -> list[float | None]:
    """Moment by moment; a part that is unknown counts as nothing, all unknown is unknown only if there is no part."""
    return [sum(column[i] or 0.0 for column in columns) for i in range(count)]


def device_layers(
    session: Session, host: HostView, device: DeviceView, seconds: float
) -> tuple[list[Layer], Sequence[float]]:
    """Layers of a device's memory over the last ``seconds``, bottom first, adding up to what nvidia-smi showed."""
    used = session.history(device.id, "used_bytes", seconds)
    moments, count = used.seconds, len(used)
    allocators = living(device)
    allocated = _sum(
        [at_moments(session.history(a.id, "allocated_bytes", seconds), moments) for a in allocators], count
    )
    reserved = _sum([at_moments(session.history(a.id, "reserved_bytes", seconds), moments) for a in allocators], count)
    inside = {t.process for a in allocators if (t := trainer_of(host, a)) is not None}
    uses = [u for u in device.uses if u.process in inside]
    own = _sum([at_moments(session.history(u.id, "used_bytes", seconds), moments) for u in uses], count)
    parts: dict[str, list[float | None]] = {name: [] for name in LABELS}
    for i, total in enumerate(used.values):
        if total is None:
            for values in parts.values():
                values.append(None)
            continue
        held = min(reserved[i] or 0.0, total)
        live = min(allocated[i] or 0.0, held)
        outside = min(max(0.0, (own[i] or 0.0) - held), total - held)
        for name, value in zip(LABELS, (live, held - live, outside, total - held - outside), strict=True):
            parts[name].append(value)
    return [Layer(name, LABELS[name], values) for name, values in parts.items() if any(values)], moments


def allocator_layers(session: Session, allocator: AllocView, seconds: float) -> tuple[list[Layer], Sequence[float]]:
    """What a trainer's categories were over time, where there is no driver that counts a total: on a CPU."""
    first = session.history(allocator.id, "parameter_bytes", seconds)
    names = (("parameters", "allocated", "parameter_bytes"), ("gradients", "cached", "gradient_bytes"))
    names += (("optimizer state", "outside", "optimizer_state_bytes"),)  # type: ignore[assignment]
    layers = [
        Layer(t, label, at_moments(session.history(allocator.id, c, seconds), first.seconds)) for label, t, c in names
    ]
    return [layer for layer in layers if any(layer.values)], first.seconds


def mean_load(session: Session, devices: Sequence[DeviceView], seconds: float) -> History:
    """The mean utilisation of these devices, over those that were known."""
    histories = [session.history(d.id, "utilization_percent", seconds) for d in devices]
    moments = max((h.seconds for h in histories), key=len, default=())
    columns = [at_moments(h, moments) for h in histories]
    values: list[float | None] = []
    for i in range(len(moments)):
        known = [v for column in columns if (v := column[i]) is not None]
        values.append(sum(known) / len(known) if known else None)
    return History(tuple(moments), tuple(values))


def average(history: History) -> float | None:
    """The mean of what was known."""
    known = [v for v in history.values if v is not None]
    return sum(known) / len(known) if known else None


def scaled(layers: list[Layer]) -> tuple[list[Layer], str]:
    """Layers in a unit that suits them, for a chart whose axis counts GiB, and that unit."""
    top = max(
        (sum(v or 0.0 for v in column) for column in zip(*(layer.values for layer in layers), strict=True)), default=0.0
    )
    unit, factor = next(((u, f) for u, f in (("GiB", 1), ("MiB", KIB)) if top * f >= GIB / 2), ("KiB", MIB))
    values = [[None if v is None else v * factor for v in layer.values] for layer in layers]
    return [replace(layer, values=v) for layer, v in zip(layers, values, strict=True)], unit
