"""This module turns the histories of single columns into what charts show.

These are the layers of a device's memory over time, and curves of load.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ...model.allocator_account import REST_OF_PROCESS
from ...model.reading_age import HOLD_SECONDS
from ...store.view import (
    AllocView,
    DeviceView,
    Entity,
    Gone,
    History,
    HistoryOf,
    HostView,
    TrainerView,
)
from ..theme import UNREAD
from .stack_columns import Layer

LABELS = {
    "allocated": "allocated",
    "cached": "cached",
    "outside": "outside torch",
    UNREAD: "not read",
    "other": "other",
}
"""The layers by token, bottom up: the driver's own reserve is no part of what is in use over time.
"""
Column = list[float | None]


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


def device_layers(
    history: HistoryOf, host: HostView, device: DeviceView, seconds: float
) -> tuple[list[Layer], Sequence[float]]:
    """Return the layers of a device's memory over the last ``seconds``, bottom first.

    They add up to what nvidia-smi showed. What a training held while its allocator was not read is
    in none of torch's layers: from its start to the first reading, and in gaps. Nor is what was
    taken since the driver was last asked for processes, which is less often than for the sum; and a
    process holds memory before the driver first names it.
    """
    used = history(device.id, "used_bytes", seconds)
    moments = used.seconds
    # those that ended, too
    trainers = [t for t in host.trainers if any(a.gpu == device.id for a in t.allocators)]
    if not trainers:
        return [Layer("other", LABELS["other"], used.values)], moments
    held = [_held_by(history, host, one, device, moments, seconds) for one in trainers]
    parts: dict[str, Column] = {name: [] for name in LABELS}
    for i, total in enumerate(used.values):
        if total is None:
            for values in parts.values():
                values.append(None)
            continue
        reserved = allocated = own = unread = 0.0
        for one in held:
            if (read := one.reserved[i]) is not None:
                reserved += read
                allocated += one.allocated[i] or 0.0
                own += max(one.own[i] or 0.0, read)
            elif one.first <= moments[i] <= one.end:
                process = one.own[i]  # where it is unknown, all that is left may be torch's
                unread += total if process is None else process
            else:
                unread += one.own[i] or 0.0
        unread += max((one.grown(used.values, i) for one in held), default=0.0)
        inside = min(reserved, total)
        live = min(allocated, inside)
        outside = min(max(0.0, own - inside), total - inside)
        unread = min(unread, total - inside - outside)
        sizes = (live, inside - live, outside, unread, total - inside - outside - unread)
        for name, value in zip(LABELS, sizes, strict=True):
            parts[name].append(value)
    kept = {name: values for name, values in parts.items() if name == "other" or any(values)}
    return [Layer(name, LABELS[name], values) for name, values in kept.items()], moments


class _Held(NamedTuple):
    """What a training held on a device at each moment, None where it was not read."""

    reserved: Column
    allocated: Column
    own: Column
    """What the driver says of its process."""
    first: float
    """The moment of the first reading of its allocator, and below that of its end."""
    end: float
    asked: list[int | None]
    """At which of the moments the driver was last asked for it, or, just before it first named it,
    the moment from which on it may have taken memory.
    """
    named: int
    """The first of the moments at which the driver named it, and below what it held then."""
    begins: float

    def grown(self, used: Sequence[float | None], now: int) -> float:
        """Return how much of what is in use now was taken since; 0 where that is unknown."""
        then, after = self.asked[now], used[now]
        if then is None or after is None:
            return 0.0
        if now >= self.named:
            before = used[then] if self.own[now] is not None else None  # None: it has ended
            return 0.0 if before is None else max(0.0, after - before)
        least = min(value for value in used[then : now + 1] if value is not None)
        return min(after - least, self.begins)


def _held_by(
    history: HistoryOf,
    host: HostView,
    trainer: TrainerView,
    device: DeviceView,
    moments: Sequence[float],
    seconds: float,
) -> _Held:
    allocators = [a for a in trainer.allocators if a.gpu == device.id]
    process = [p for p in host.processes if p.id == trainer.process]
    uses = [u for p in process for u in p.uses if u.gpu == device.id]

    def sums(entities: Sequence[Entity], column: str) -> Column:
        columns = [at_moments(history(e.id, column, seconds), moments, e.gone) for e in entities]
        known = [[v for column in columns if (v := column[i]) is not None] for i in at]
        return [sum(values) if values else None for values in known]

    def asked(moment: float) -> int | None:
        newest = bisect_right(told, moment + 0.05) - 1
        if newest < 0 and (not told or moment < told[0] - HOLD_SECONDS):
            return None
        since = told[newest] if newest >= 0 else told[0] - HOLD_SECONDS
        return max(bisect_right(moments, since + 0.05) - 1, 0)

    at = range(len(moments))
    shares = [history(use.id, "used_bytes", seconds) for use in uses]
    told = sorted(second for one in shares for second in one.seconds)
    read = [history(a.id, "reserved_bytes", seconds).seconds for a in allocators]
    return _Held(
        sums(allocators, "reserved_bytes"),
        sums(allocators, "allocated_bytes"),
        sums(uses, "used_bytes"),
        min((one[0] for one in read if one), default=inf),
        max(inf if a.gone is None else a.gone.monotonic_seconds for a in allocators),
        [asked(moment) for moment in moments],
        bisect_left(moments, told[0] - 0.05) if told else len(moments),
        sum(one.values[0] or 0.0 for one in shares if one.values),
    )


COUNTED = (
    ("parameters", "allocated", "parameter_bytes"),
    ("optimizer state", "series6", "optimizer_state_bytes"),
    ("gradients", "cached", "gradient_bytes"),
    ("other models", "other", "other_model_bytes"),
)
"""What a probe counts of a trainer's memory where torch keeps no account, on a CPU."""


def process_layers(
    history: HistoryOf, process: int | None, allocator: AllocView | None, seconds: float
) -> tuple[list[Layer], Sequence[float]]:
    """Return what a process held over time on a CPU: what its probe counts, and the rest of it.

    Without its process there is no total.
    """
    rss = history(process, "rss_bytes", seconds) if process is not None else History()
    if not rss.seconds and allocator is None:
        return [], ()
    whole = rss
    if allocator is not None and not rss.seconds:
        whole = history(allocator.id, "parameter_bytes", seconds)
    layers, known = [], [0.0] * len(whole)
    for label, token, column in COUNTED if allocator is not None else ():
        assert allocator is not None
        values = at_moments(history(allocator.id, column, seconds), whole.seconds)
        known = [one + (more or 0.0) for one, more in zip(known, values, strict=True)]
        layers.append(Layer(token, label, values))
    layers = [layer for layer in layers if any(layer.values)]
    if rss.seconds:
        rest = [
            None if size is None or size < part else size - part
            for size, part in zip(rss.values, known, strict=True)
        ]
        layers.append(Layer("driver", REST_OF_PROCESS, rest))
    return layers, whole.seconds


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
