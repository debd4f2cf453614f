"""Say how much memory is left to each rank of a job, and whose runs out first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..store.view import AllocView, DeviceView, HistoryOf, TrainerView, no_history
from ..text.units import GIB
from .fullest import at_the_fullest, seconds_of
from .growth import Forecast, forecast, trend_of
from .pace import pace_of

TIGHT_BYTES = 4 * GIB
"""Less room than this for the next allocation is worth a look."""
NEAR = 4.0
"""Growth is a warning where memory will run out within this many times the observed steps.

The growth has then taken a fifth of the free memory while it was observed. A cache that fills
during a first epoch stops long before.
"""


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """The memory that is left to one allocator.

    ``fullest`` is the allocator at the fullest moment of its last steps, with what it has reserved
    now: what screens show of it. ``runs_out`` is set where its memory grows and that moment is near
    enough to be told.
    """

    trainer: TrainerView
    allocator: AllocView
    fullest: AllocView
    headroom_bytes: float | None
    runs_out: Forecast | None


def ends_before_memory(room: MemoryRoom) -> bool:
    """Tell whether a training ends before its memory does, by its own estimate."""
    ends, eta = room.runs_out, room.trainer.number("eta_seconds")
    return ends is not None and ends.seconds is not None and eta is not None and eta < ends.seconds


def alarm(room: MemoryRoom) -> Literal["bad", "warn"] | None:
    """Return how grave it is that memory runs out; None where nobody needs to act.

    Every surface that speaks of it asks here. It is bad where memory runs out within as many steps
    as its growth was observed for.
    """
    ends, trend = room.runs_out, trend_of(room.allocator)
    if ends is None or trend is None or ends_before_memory(room):
        return None
    if ends.steps > NEAR * trend.steps:
        return None
    return "bad" if ends.steps <= trend.steps else "warn"


def releasable(reserved: float, active: float, inactive_split: float) -> float:
    """Bytes of cache that torch gives back before it fails: whole free segments."""
    return max(0.0, reserved - active - inactive_split)


def headroom(
    devices: Iterable[DeviceView],
    trainer: TrainerView,
    allocator: AllocView,
    history: HistoryOf = no_history,
) -> float | None:
    """Return the bytes that a trainer can still get on its device, None where that is unknown."""
    return room_of(devices, trainer, allocator, history).headroom_bytes


def room_of(
    devices: Iterable[DeviceView],
    trainer: TrainerView,
    allocator: AllocView,
    history: HistoryOf = no_history,
) -> MemoryRoom:
    """Return the memory room of one allocator.

    Its headroom is what is free on the device now, and what torch's cache gives back before it
    fails. One that is gone has none.

    Memory that is idle between two layers is needed again within the step. So the cache is
    counted as it was at the fullest moment of the last steps, if ``history`` contains it. With the
    present reading alone, the result would rise and fall within each step.
    """
    fullest = at_the_fullest(allocator, history, seconds_of(trainer)).allocator
    left = _left(devices, fullest) if trainer.gone is None else None
    trend, ends = trend_of(allocator), None
    if trend is not None and trend.grows:  # of few it does, and their pace takes time to judge
        ends = forecast(trend, left, pace_of([trainer]).seconds)
    return MemoryRoom(trainer, allocator, fullest, left, ends)


def _left(devices: Iterable[DeviceView], allocator: AllocView) -> float | None:
    device = next((d for d in devices if d.id == allocator.gpu), None)
    free, reserved = (
        device.number("free_bytes") if device else None,
        allocator.number("reserved_bytes"),
    )
    active = allocator.number("active_bytes")
    active = allocator.number("allocated_bytes") if active is None else active
    if free is None or reserved is None or active is None:
        return None
    return free + releasable(reserved, active, allocator.number("inactive_split_bytes") or 0.0)


def rooms(
    devices: Sequence[DeviceView],
    ranks: Iterable[TrainerView],
    history: HistoryOf = no_history,
    ended: bool = False,
) -> list[MemoryRoom]:
    """Return the memory room of every living rank's allocators on a device.

    The one that runs out first is in front: by forecast, then by room. ``ended``: those of ranks
    that are gone too, which have no room any more.
    """
    out = [
        room_of(devices, trainer, allocator, history)
        for trainer in ranks
        for allocator in trainer.allocators
        if (ended or trainer.gone is None) and allocator.definition.ordinal >= 0
    ]
    inf = float("inf")
    return sorted(
        out,
        key=lambda room: (
            room.runs_out.steps if room.runs_out else inf,
            room.headroom_bytes if room.headroom_bytes is not None else inf,
        ),
    )
