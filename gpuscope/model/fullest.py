"""Find a trainer's memory at the fullest moment of its last steps.

Within one step the allocated bytes rise and fall by gigabytes, and a reading is taken at any moment
of it. A step needs its peak. Memory that is idle at the peak can be released, but memory that is
idle at another moment is needed again within the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..store.view import AllocView, HistoryOf, TrainerView
from ..text.units import window_text
from ..wire.frames import Reading
from .allocator_split import COLUMNS, POOL_COLUMNS

STEPS = 5
"""How many steps are looked back at, and at least :data:`LEAST_SECONDS`.

So the readings cover all moments of a step.
"""
LEAST_SECONDS, MOST_SECONDS = 30.0, 300.0
PEAK_BASIS = f"of the last {LEAST_SECONDS:.0f} s (at least {STEPS} steps)"
"""Which time PEAK covers, in the words of a panel. The peak since the start is called so."""
TAKEN = (
    "allocated_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes", *POOL_COLUMNS,
    "private_pool_bytes", "workspace_bytes", "parameter_bytes", "gradient_bytes",
    "optimizer_state_bytes", "other_model_bytes",
)  # fmt: skip
"""Columns that are taken from that moment. All others keep their present values."""


class Fullest(NamedTuple):
    """An allocator at its fullest moment.

    ``seconds`` is the length of the readings of which it is the fullest.
    """

    allocator: AllocView
    seconds: float


def peak_text(seconds: float) -> str:
    """Return the time that a peak covers, in words: ``peak in the last 30 s``."""
    return f"peak in the last {window_text(max(5, 5 * round(seconds / 5)))}"


def seconds_of(trainer: TrainerView | None) -> float:
    """Return how far to look back for this trainer."""
    step = trainer.number("step_seconds") if trainer is not None else None
    return min(max(LEAST_SECONDS, STEPS * (step or 0.0)), MOST_SECONDS)


def at_the_fullest(allocator: AllocView, history: HistoryOf, seconds: float) -> Fullest:
    """Return the allocator with what it held when most was allocated.

    That is within the last ``seconds``, with ``reserved`` as it is now.

    All of it is one reading, so that its parts add up. Readings from before reserved memory last
    shrank do not count, because those bytes were released.
    """
    reserved = allocator.number("reserved_bytes")
    held = history(allocator.id, "reserved_bytes", seconds)
    live = history(allocator.id, "allocated_bytes", seconds)
    if reserved is None or not held or len(held) != len(live):
        return Fullest(allocator, 0.0)
    place, most, first = None, allocator.number("allocated_bytes") or 0.0, len(held) - 1
    for number in reversed(range(len(live))):
        there, bytes_then = held.values[number], live.values[number]
        if there is None or bytes_then is None:
            continue
        if there > reserved:
            break
        first = number
        if bytes_then > most:
            place, most = number, bytes_then
    seen = held.seconds[-1] - held.seconds[first]
    if place is None:
        return Fullest(allocator, seen)
    readings: dict[str, Reading] = dict(allocator.readings)
    for column in TAKEN:
        values = history(allocator.id, column, seconds).values
        value = values[place] if place < len(values) else None
        if value is not None:
            readings[column] = value
        elif column in COLUMNS:
            return Fullest(allocator, 0.0)
    return Fullest(replace(allocator, readings=readings), seen)
