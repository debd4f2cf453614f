"""A trainer's memory at the fullest moment of its last steps.

Inside one step the allocated bytes rise and fall by gigabytes, and a reading meets any moment of it. What a step needs
is its peak: what is idle then can be given back, what is idle at another moment is needed again within the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...store.view import AllocView, HistoryOf, HostView, TrainerView
from ...store.reserved import COLUMNS, POOL_COLUMNS
from ...store.view import AllocView, History, HostView, TrainerView
from ...wire.frames import Reading
from ..cells import bytes_text
from .memory_account import Account, account, on_cpu
from .subjects import Subject

STEPS = 5
"""So many steps are looked back at, and at least :data:`LEAST_SECONDS`, so that readings meet all moments of a step."""
LEAST_SECONDS, MOST_SECONDS = 30.0, 300.0
TAKEN = (
    "allocated_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes", *POOL_COLUMNS, "private_pool_bytes",
    "workspace_bytes", "parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "other_model_bytes",
)  # fmt: skip
"""Columns of that moment; all others are as they are now."""
WORTH_SAYING_BYTES = 64 << 20


class Fullest(NamedTuple):
    """The allocator as it was then, and over how many seconds of readings that is the fullest moment."""

    allocator: AllocView
    seconds: float


class Shown(NamedTuple):
    """The rows at the fullest moment; what each of the allocated ones is now, by (row it is inside, name); and over
    how many seconds it was the fullest."""

    account: Account
    now: Mapping[tuple[str, str], float]
    seconds: float


def account_at_the_fullest(host: HostView, subject: Subject, history: HistoryOf) -> Shown:
    """The rows of a device with the trainer's part as it was when it was fullest. Their total is what is used now.
    On a CPU, what the probe counted."""
    device, allocator = subject.device, subject.allocator
    if device is None:
        assert allocator is not None
        parts = on_cpu(allocator)
        return Shown(Account(parts, sum(part.known for part in parts)), {}, 0.0)
    if allocator is None:
        return Shown(account(host, device, None), {}, 0.0)
    then, seconds = at_the_fullest(allocator, history, seconds_of(subject.trainer))
    found = account(host, device, then)
    found.notes[:0] = _missed(then)
    moment = account(host, device, allocator).parts
    now = {(part.inside, part.name): part.known for part in moment if part.token == "allocated"}
    return Shown(found, now, seconds)


def seconds_of(trainer: TrainerView | None) -> float:
    """How far to look back for this trainer."""
    step = trainer.number("step_seconds") if trainer is not None else None
    return min(max(LEAST_SECONDS, STEPS * (step or 0.0)), MOST_SECONDS)


def at_the_fullest(allocator: AllocView, history: HistoryOf, seconds: float) -> Fullest:
    """The allocator with what it held when most was allocated within the last ``seconds``, reserved as it is now.

    All of it is one reading, so that its parts add up. What was before the reserve last shrank does not count: those
    bytes were given back."""
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


def _missed(then: AllocView) -> list[str]:
    """What readings may have missed: torch counts its peak at every allocation, but since the program began."""
    most, found = then.number("peak_allocated_bytes"), then.number("allocated_bytes")
    if most is None or found is None or most - found < WORTH_SAYING_BYTES:
        return []
    return [f"between two readings a step may need up to {bytes_text(most - found)} more: torch's own peak so far"]
