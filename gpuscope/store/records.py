"""Keep the mutable side of a source: one :class:`Record` per entity.

Records are found by wire id and by stable key, and bounded in number.

Wire ids are those of the running stream, and start from 1 again when an agent is restarted. Records
are then matched by their key (a device's UUID, a process's ``pid:start``), so that their ids in the
view and their history continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from ..wire.clean import limited
from ..wire.frames import (
    HOST_ID,
    AllocDef,
    Def,
    GpuDef,
    HostDef,
    ProcDef,
    Reading,
    TrainerDef,
    Unknown,
)
from .history import Ring
from .step_points import Track
from .text_history import Words
from .time_minutes import Minutes
from .view import Gone

Kind = Literal["host", "gpu", "proc", "use", "trainer", "alloc"]
LIMITS: dict[Kind, int] = {
    "host": 1,
    "gpu": 64,
    "proc": 4096,
    "use": 8192,
    "trainer": 512,
    "alloc": 2048,
}
KEEP_GONE: dict[Kind, int] = {"gpu": 64, "proc": 64, "trainer": 16}
"""How many ended entities of each kind are kept with their last state. Uses are dropped with their
process, and allocators with their trainer.
"""
MAX_REASONS = 128
"""Limit of the reasons of one entity; :data:`MAX_ALL_REASONS` limits those of all together."""
MAX_ALL_REASONS = 65536
MAX_REASON_CHARS = 512
MAX_TEXT_CHARS = 256
"""Limit of a string in a definition, except for commands and scripts: there may be four thousand
processes.
"""
_LONG_TEXTS = frozenset(("command", "script"))
NO_READINGS: Mapping[str, Reading] = MappingProxyType({})


Definition = TypeVar("Definition", HostDef, GpuDef, ProcDef, TrainerDef, AllocDef)
_TEXTS: dict[type[Any], list[str]] = {
    cls: [f.name for f in fields(cls) if "str" in str(f.type) and f.name not in _LONG_TEXTS]
    for cls in (HostDef, GpuDef, ProcDef, TrainerDef, AllocDef)
}


class Record:
    """One entity as it is known now.

    Code that changes the record sets ``stale``, and the code that draws it clears it.
    """

    __slots__ = (
        "columns", "definition", "gone", "id", "key", "kind", "look", "minutes", "owner",
        "parts", "readings", "ring", "row", "seconds", "stale", "target", "track", "view", "why",
        "wire_id", "words",
    )  # fmt: skip

    def __init__(self, number: int, kind: Kind, key: str, definition: Any) -> None:
        self.id = number
        self.wire_id = number
        self.kind = kind
        self.key = key
        self.definition = definition
        self.readings = NO_READINGS
        self.why: dict[str, Unknown] = {}
        self.seconds: float | None = None
        self.gone: Gone | None = None
        self.ring: Ring | None = None
        self.words: Words | None = None  # of one that has said any
        self.row: list[Any] = []  # a device's last complete row, in the order of these columns
        self.columns: tuple[str, ...] = ()
        self.track: Track | None = None  # of an allocator
        self.minutes: Minutes | None = None  # of a trainer
        self.look: Mapping[str, Any] | None = None  # of a trainer
        self.owner: Record | None = None  # use → process, allocator → trainer, trainer → process
        self.target: Record | None = None  # use, allocator → device
        self.parts: dict[int, Record] = {}  # the entities that belong to it
        self.view: Any = None
        self.stale = True

    def explain(self, column: str, reason: Unknown) -> None:
        """Note why ``column`` is unknown. A reason without a code removes the earlier one."""
        readings = dict(self.readings)
        if reason.code:
            readings[column] = self.why[column] = reason
        else:
            self.why.pop(column, None)
            if isinstance(readings.get(column), Unknown):
                del readings[column]
        self.readings = MappingProxyType(readings)
        self.stale = True


class Registry:
    """All records of one source. The host's own has id ``HOST_ID`` and always exists."""

    def __init__(self, host_key: str) -> None:
        self.host = Record(HOST_ID, "host", host_key, HostDef())
        self.by_wire: dict[int, Record] = {HOST_ID: self.host}
        self.by_id: dict[int, Record] = {HOST_ID: self.host}
        self._by_key: dict[Kind, dict[str, Record]] = {kind: {} for kind in LIMITS}
        self._by_key["host"][host_key] = self.host
        self._gone: dict[Kind, dict[int, Record]] = {kind: {} for kind in LIMITS}
        self._free_id = HOST_ID + 1
        self._reasons = 0
        self.refused = 0
        """Definitions that were refused, because of a limit or because they refer to an unknown
        entity.
        """

    def of(self, kind: Kind) -> Iterator[Record]:
        return iter(self._by_key[kind].values())

    def find(self, kind: Kind, key: str) -> Record | None:
        return self._by_key[kind].get(key)

    def forget_wire_ids(self) -> None:
        """Forget the wire ids, because a new stream begins and its ids are new."""
        self.by_wire = {HOST_ID: self.host}

    def define(self, frame: Def) -> Record | None:
        """Return the record of a definition: a new one, one matched by key, or one that had ended.

        None if the definition is refused.
        """
        if frame.host is not None:
            record = self.host
            record.definition, record.stale = _trimmed(frame.host), True
            return record
        named = self._name(frame)
        if named is None or frame.id == HOST_ID:
            self.refused += 1
            return None
        kind, key, definition, owner, target = named
        found = self._by_key[kind].get(key)
        if found is None:
            if not self._make_room(kind):
                self.refused += 1
                return None
            number = frame.id if frame.id not in self.by_id else self._free_id
            self._free_id = max(self._free_id, number + 1)
            found = self.by_id[number] = self._by_key[kind][key] = Record(
                number, kind, key, definition
            )
        elif found.gone is not None:
            found.gone = None
            del self._gone[kind][found.id]
        self._move(found, owner)
        found.definition, found.target, found.stale = definition, target, True
        if self.by_wire.get(found.wire_id) is found:
            del self.by_wire[found.wire_id]
        found.wire_id = frame.id
        self.by_wire[frame.id] = found
        return found

    def _move(self, record: Record, owner: Record | None) -> None:
        if record.owner is not None and record.owner is not owner:
            record.owner.parts.pop(record.id, None)
        if owner is not None:
            owner.parts[record.id] = record
        record.owner = owner

    def explain(self, wire_id: int, column: str, reason: Unknown) -> None:
        """Note why a column or field of an entity is unknown.

        Nothing is kept for an entity that is not known or has ended.
        """
        record = self.by_wire.get(wire_id)
        if record is None or record.gone is not None:
            return
        before = len(record.why)
        if (
            column in record.why
            or not reason.code
            or (before < MAX_REASONS and self._reasons < MAX_ALL_REASONS)
        ):
            record.explain(
                limited(column, MAX_TEXT_CHARS),
                Unknown(limited(reason.code, MAX_TEXT_CHARS), reason.text[:MAX_REASON_CHARS]),
            )
            self._reasons += len(record.why) - before

    def _name(self, frame: Def) -> tuple[Kind, str, Any, Record | None, Record | None] | None:
        """Return kind, stable key, definition, owner, target; None if it names an unknown id."""
        if frame.gpu is not None:
            gpu_def = _trimmed(frame.gpu)
            return "gpu", gpu_def.uuid, gpu_def, None, None
        if frame.proc is not None:
            return "proc", process_key(frame.proc), _trimmed(frame.proc), None, None
        if frame.use is not None:
            process, gpu = self._wired(frame.use.proc, "proc"), self._wired(frame.use.gpu, "gpu")
            return (
                ("use", f"{process.key}@{gpu.key}", frame.use, process, gpu)
                if process and gpu
                else None
            )
        if frame.trainer is not None:
            key = process_key(frame.trainer)
            return (
                "trainer",
                key,
                _trimmed(frame.trainer),
                self._wired(frame.trainer.proc, "proc"),
                None,
            )
        if frame.alloc is not None:
            trainer, gpu = (
                self._wired(frame.alloc.trainer, "trainer"),
                self._wired(frame.alloc.gpu, "gpu"),
            )
            alloc = _trimmed(frame.alloc)
            return (
                ("alloc", f"{trainer.key}/{alloc.ordinal}", alloc, trainer, gpu)
                if trainer
                else None
            )
        return None

    def _wired(self, wire_id: int | None, kind: Kind) -> Record | None:
        record = self.by_wire.get(wire_id) if wire_id is not None else None
        return record if record is not None and record.kind == kind else None

    def process_of(self, trainer: Record) -> Record | None:
        """Return the process that a trainer runs in.

        It is the one that the agent named, else the one with the same pid and start time.
        """
        return trainer.owner or self.find("proc", trainer.key)

    def trainer_in(self, process: Record) -> Record | None:
        """Return the newest trainer that names this process as its own.

        Otherwise the trainer with the same key that names no process.
        """
        trainers = [part for part in process.parts.values() if part.kind == "trainer"]
        if trainers:
            return trainers[-1]
        same = self.find("trainer", process.key)
        return same if same is not None and same.owner is None else None

    def device_of(self, alloc: Record) -> Record | None:
        """Return an allocator's device: the one the agent named, else the one with its UUID."""
        if alloc.target is not None and self.by_id.get(alloc.target.id) is alloc.target:
            return alloc.target
        return self.find("gpu", alloc.definition.uuid) if alloc.definition.uuid else None

    # ── the end of things ─────────────────────────────────────────────────────────────────────────

    def mark_gone(self, record: Record, gone: Gone) -> None:
        """End a record and all that belongs to it; the last state stays.

        Ended records of its kind beyond the limit are dropped, the oldest first.
        """
        if (
            record.gone is not None
            or record is self.host
            or self.by_id.get(record.id) is not record
        ):
            return
        record.gone, record.stale = gone, True
        self._gone[record.kind][record.id] = record
        for part in self._parts(record):
            self.mark_gone(part, gone)
        keep = KEEP_GONE.get(record.kind)
        if keep is not None:
            self._drop_oldest(record.kind, len(self._gone[record.kind]) - keep)

    def _parts(self, record: Record) -> list[Record]:
        """Return what ends with it: a process's uses and trainers, a trainer's allocators."""
        parts = list(record.parts.values())
        if (
            record.kind == "proc"
            and (trainer := self.trainer_in(record)) is not None
            and trainer.owner is None
        ):
            parts.append(trainer)
        return parts

    def _make_room(self, kind: Kind) -> bool:
        excess = len(self._by_key[kind]) - LIMITS[kind] + 1
        return excess <= 0 or self._drop_oldest(kind, excess) == excess

    def _drop_oldest(self, kind: Kind, count: int) -> int:
        dropped = 0
        for record in list(self._gone[kind].values()):
            if dropped >= count:
                break
            if kind == "proc" and self.trainer_in(record) is not None:
                continue  # a trainer that is kept also keeps its process
            self._drop(record)
            dropped += 1
        return dropped

    def _drop(self, record: Record) -> None:
        parts = self._parts(record)
        if record.kind == "gpu":
            parts = [use for use in self.of("use") if use.target is record]
        for part in parts:
            self._drop(part)
        if record.owner is not None:
            record.owner.parts.pop(record.id, None)
        for holder in (record.owner, record.target):
            if holder is not None:
                holder.stale = True
        self._reasons -= len(record.why)
        self._gone[record.kind].pop(record.id, None)
        self._by_key[record.kind].pop(record.key, None)
        self.by_id.pop(record.id, None)
        if self.by_wire.get(record.wire_id) is record:
            del self.by_wire[record.wire_id]


def _trimmed(definition: Definition) -> Definition:
    """Return the definition with its strings cut to a limited length.

    A start time that no clock can show is removed.
    """
    changed: dict[str, Any] = {}
    for name in _TEXTS[type(definition)]:
        text = getattr(definition, name)
        if text is not None and len(text) > MAX_TEXT_CHARS:
            changed[name] = limited(text, MAX_TEXT_CHARS)
    start_time = getattr(definition, "start_time", None)
    if start_time is not None and not is_wall_time(start_time):
        changed["start_time"] = None
    return replace(definition, **changed) if changed else definition


def process_key(definition: ProcDef | TrainerDef) -> str:
    """Return ``pid:start``. Unlike a pid alone, it is never used again."""
    return f"{definition.pid}:{'' if definition.start is None else definition.start}"


def is_wall_time(seconds: float) -> bool:
    """Whether it can be a wall time, in seconds since the epoch: from 1970 to the year 2100."""
    return 0.0 <= seconds < 4_102_444_800.0  # the year 2100
