"""This module says which device and trainer the Memory tab begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.memory_room import MemoryRoom, room_of
from .advice import MEMORY
from .subjects import Subject

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView
    from ..shell.selection import Selection
    from ..shell.session import Session

CLEARLY = 0.01
"""Headrooms that differ by less than this share of a card are taken for equal."""


def keys_of(subject: Subject) -> tuple[str | None, str | None]:
    """Return the keys of what is looked at: of the device and of the trainer."""
    device, trainer = subject.device, subject.trainer
    return device.key if device else None, trainer.key if trainer else None


def selected(subject: Subject, selection: Selection) -> bool:
    """Return whether this is the trainer that the session looks at, or stands on its device."""
    device, trainer = keys_of(subject)
    if selection.trainer is not None:
        return trainer == selection.trainer
    return selection.device is not None and device == selection.device


def found_wrong(session: Session, everything: Sequence[Subject]) -> str:
    """Return the key of the trainer with the doctor's first finding about memory, or ""."""
    found = [
        case.pid
        for case in session.doctor.cases
        if case.grave and case.kind == "live" and case.finding.cause in MEMORY
    ]
    pids = {s.trainer.definition.pid: s.key for s in everything if s.trainer}
    return next((pids[pid] for pid in found if pid in pids), "")


def least_headroom(host: HostView, everything: Sequence[Subject], history: HistoryOf) -> str:
    """Return the key of the trainer with clearly the least headroom, the first of equal ones."""
    known = {
        one.key: round(left / (CLEARLY * (one.device.definition.total_bytes or 1)))
        for one in everything
        if one.device is not None
        and (room := room_of_subject(host, one, history)) is not None
        and (left := room.headroom_bytes) is not None
    }
    return min(known, key=lambda key: known[key], default="")


def room_of_subject(host: HostView, subject: Subject, history: HistoryOf) -> MemoryRoom | None:
    """Return the memory that is left to the trainer that is looked at, None without one."""
    if subject.trainer is None or subject.allocator is None:
        return None
    return room_of(host.devices, subject.trainer, subject.allocator, history)
