"""This module turns the histories of single columns into what charts show.

These are the layers of a device's memory over time, and curves of load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from ...store.view import AllocView, DeviceView, Entity, Gone, History, HistoryOf, HostView
from .stacked import Layer

HOLD_SECONDS = 6.0
"""Seconds for which a reading counts at most, until the next one replaces it.

The driver and the probe are not read at the same moment.
"""

LABELS = {
    "allocated": "allocated",
    "cached": "cached",
    "outside": "outside torch",
    "other": "other",
}


def at_moments(
    history: History, moments: Sequence[float], gone: Gone | None = None
) -> list[float | None]:
    """Return the value that held at each moment, None where none is known.

    That is before the first value, after a gap or the end, and where it was unknown.
    """
    out: list[float | None] = []
    end = inf if gone is None else gone.monotonic_seconds
    for moment in moments:
        index = bisect_right(history.seconds, moment + 0.05) - 1
        fresh = index >= 0 and moment - history.seconds[index] <= HOLD_SECONDS and moment <= end
        out.append(history.values[index] if fresh else None)
    return out


POINTS = 300
"""The most readings of a chart: more than it has columns would only cost time."""


def thin(history: History) -> History:
    """Return at most :data:`POINTS` of the readings, evenly, with the newest.

    Histories of one entity have the same moments, and keep the same of them.
    """
    every = len(history) // POINTS + 1
    first = (len(history) - 1) % every if every > 1 else 0
    return History(history.seconds[first::every], history.values[first::every])


def _sum(columns: Sequence[Sequence[float | None]], count: int) -> list[float | None]:
    """Return the sums for each moment.

    A part that is unknown counts as 0.
    """
    return [sum(column[i] or 0.0 for column in columns) for i in range(count)]


def device_layers(
    history: HistoryOf, host: HostView, device: DeviceView, seconds: float
) -> tuple[list[Layer], Sequence[float]]:
    """Return the layers of a device's memory over the last ``seconds``, bottom first.

    They add up to what nvidia-smi showed.
    """
    used = history(device.id, "used_bytes", seconds)
    moments, count = used.seconds, len(used)
    # those that ended, too
    trainers = [t for t in host.trainers if any(a.gpu == device.id for a in t.allocators)]
    allocators = [a for t in trainers for a in t.allocators if a.gpu == device.id]

    def held_by(entities: Sequence[Entity], column: str) -> list[float | None]:
        return _sum(
            [at_moments(history(e.id, column, seconds), moments, e.gone) for e in entities],
            count,
        )

    allocated, reserved = (
        held_by(allocators, "allocated_bytes"),
        held_by(allocators, "reserved_bytes"),
    )
    inside = {t.process for t in trainers}
    uses = [u for p in host.processes if p.id in inside for u in p.uses if u.gpu == device.id]
    if not allocators and not uses:
        return [Layer("other", LABELS["other"], used.values)], moments
    own = held_by(uses, "used_bytes")
    parts: dict[str, list[float | None]] = {name: [] for name in LABELS}
    for i, total in enumerate(used.values):
        if total is None:
            for values in parts.values():
                values.append(None)
            continue
        held = min(reserved[i] or 0.0, total)
        live = min(allocated[i] or 0.0, held)
        outside = min(max(0.0, (own[i] or 0.0) - held), total - held)
        for name, value in zip(
            LABELS, (live, held - live, outside, total - held - outside), strict=True
        ):
            parts[name].append(value)
    kept = {name: values for name, values in parts.items() if name == "other" or any(values)}
    return [Layer(name, LABELS[name], values) for name, values in kept.items()], moments


def allocator_layers(
    history: HistoryOf, allocator: AllocView, seconds: float
) -> tuple[list[Layer], Sequence[float]]:
    """Return what a trainer's categories were over time, on a CPU.

    There no driver counts a total.
    """
    first = history(allocator.id, "parameter_bytes", seconds)
    names = (
        ("parameters", "allocated", "parameter_bytes"),
        ("optimizer state", "series6", "optimizer_state_bytes"),
        ("gradients", "cached", "gradient_bytes"),
        ("other models", "other", "other_model_bytes"),
    )
    layers = [
        Layer(t, label, at_moments(history(allocator.id, c, seconds), first.seconds))
        for label, t, c in names
    ]
    return [layer for layer in layers if any(layer.values)], first.seconds


def mean_over(
    history: HistoryOf, devices: Sequence[DeviceView], column: str, seconds: float
) -> History:
    """Return the mean of a reading of these devices, over those that were known."""
    histories = [history(d.id, column, seconds) for d in devices]
    moments = max((h.seconds for h in histories), key=len, default=())
    columns = [at_moments(h, moments) for h in histories]
    values: list[float | None] = []
    for i in range(len(moments)):
        known = [v for column in columns if (v := column[i]) is not None]
        values.append(sum(known) / len(known) if known else None)
    return History(tuple(moments), tuple(values))


def average(history: History) -> float | None:
    """Return the mean of what was known."""
    known = [v for v in history.values if v is not None]
    return sum(known) / len(known) if known else None
