"""Account for a trainer's memory at the fullest moment of its last steps.

``model.fullest`` finds that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..store.view import AllocView, DeviceView, HistoryOf, HostView, TrainerView, by_id
from ..text.units import MIB, bytes_text
from ..wire.frames import Unknown
from .allocator_account import on_cpu
from .fullest import at_the_fullest, seconds_of
from .memory_account import Account, account
from .memory_layers import trainer_of
from .reading_age import old_seconds

WORTH_SAYING_BYTES = 64 * MIB


class FullestRows(NamedTuple):
    """The rows of the fullest moment.

    ``now`` holds the present value of each allocated row, by the row that contains it and its name.
    ``seconds`` is the length of time of which that moment was the fullest.
    """

    account: Account
    now: Mapping[tuple[str, str], float]
    seconds: float


def account_at_the_fullest(
    host: HostView, device: DeviceView | None, allocator: AllocView | None, history: HistoryOf
) -> FullestRows:
    """Return the rows of a device with the trainer's part as it was when it was fullest.

    The total is what is used now. Without a device it is a CPU: the rows are what the probe has
    counted, and the rest of the process where its resident memory is known, which is the total.
    Tensors that were never written, or that are paged out, can be more than that: they are then the
    total.
    """
    if device is None:
        assert allocator is not None
        rss = rss_of(host, trainer_of(host, allocator))
        parts = on_cpu(allocator, rss)
        known = sum(part.known for part in parts)
        if rss is not None and known <= rss:
            return FullestRows(Account(parts, rss), {}, 0.0)
        unknown = [part.size for part in parts if isinstance(part.size, Unknown)]
        total = unknown[0] if len(unknown) == len(parts) else known
        notes = [] if rss is None else [_beyond(known - rss)]
        return FullestRows(Account(parts, total, notes=notes), {}, 0.0)
    if allocator is None:
        return FullestRows(account(host, device, None), {}, 0.0)
    if old_seconds(host, allocator) is not None:  # of the time since then no moment is known
        return FullestRows(account(host, device, allocator), {}, 0.0)
    then, seconds = at_the_fullest(allocator, history, seconds_of(trainer_of(host, allocator)))
    found = account(host, device, then)
    found.notes[:0] = _missed_notes(then)
    moment = account(host, device, allocator).parts
    now = {(part.inside, part.name): part.known for part in moment if part.token == "allocated"}
    return FullestRows(found, now, seconds)


def _beyond(beyond_bytes: float) -> str:
    """Return why the tensors of a process on a CPU are more than its resident memory."""
    return (
        f"the tensors are {bytes_text(beyond_bytes)} more than the RSS: these were never written, "
        "or are paged out"
    )


def rss_of(host: HostView, trainer: TrainerView | None) -> float | None:
    """Return the resident memory of a trainer's process in bytes, None where it is not known.

    A process that ends has given its memory back before it is gone: of it nothing is told.
    """
    process = by_id(host.processes, trainer.process) if trainer is not None else None
    return (process.number("rss_bytes") or None) if process is not None else None


def _missed_notes(then: AllocView) -> list[str]:
    """Return what the readings may have missed between them.

    torch updates its peak at every allocation, but that peak is the one since the program began.
    """
    most, found = then.number("peak_allocated_bytes"), then.number("allocated_bytes")
    if most is None or found is None or most - found < WORTH_SAYING_BYTES:
        return []
    return [
        f"peak since the start: {bytes_text(most)}, {bytes_text(most - found)} above what these "
        "readings caught"
    ]
