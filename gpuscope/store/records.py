"""The mutable side of a source: one :class:`Record` per entity, found by wire id and by stable key, bounded in number.

Wire ids are those of the running stream and start anew when an agent is started again; records are matched by key then
(a device's UUID, a process's ``pid:start``), so that their ids in the view and their history go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from ..wire.frames import HOST_ID, Def, HostDef, ProcDef, Reading, TrainerDef, Unknown
from .history import Ring
from .view import Gone

Kind = Literal["host", "gpu", "proc", "use", "trainer", "alloc"]
LIMITS: dict[Kind, int] = {"host": 1, "gpu": 64, "proc": 4096, "use": 8192, "trainer": 512, "alloc": 2048}
KEEP_GONE: dict[Kind, int] = {"gpu": 64, "proc": 64, "trainer": 16}
"""How many that ended stay with their last state. Uses go with their process, allocators with their trainer."""
MAX_REASONS = 64
NO_READINGS: Mapping[str, Reading] = MappingProxyType({})


class Record:
    """One entity as it is known now. ``stale`` is set by whoever changes it and cleared by whoever draws it."""

    __slots__ = (
        "definition", "gone", "id", "key", "kind", "owner", "readings", "ring", "seconds", "stale", "target", "view",
        "why", "wire_id",
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
        self.owner: Record | None = None  # use → process, allocator → trainer, trainer → process
        self.target: Record | None = None  # use, allocator → device
        self.view: Any = None
        self.stale = True

    def explain(self, column: str, reason: Unknown) -> None:
        """Notes why ``column`` is unknown; a reason without a code lifts the earlier one."""
        readings = dict(self.readings)
        if reason.code:
            if column not in self.why and len(self.why) >= MAX_REASONS:
                return
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
        self.refused = 0
        """Definitions that were not taken: over a limit, or of something that refers to nothing known."""

    def of(self, kind: Kind) -> Iterator[Record]:
        return iter(self._by_key[kind].values())

    def find(self, kind: Kind, key: str) -> Record | None:
        return self._by_key[kind].get(key)

    def forget_wire_ids(self) -> None:
        """A new stream begins: its ids mean nothing yet."""
        self.by_wire = {HOST_ID: self.host}

    def define(self, frame: Def) -> Record | None:
        """The record of a definition, made, matched by key or brought back; None when it is refused."""
        if frame.host is not None:
            record = self.host
            record.definition, record.stale = frame.host, True
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
            found = self.by_id[number] = self._by_key[kind][key] = Record(number, kind, key, definition)
        elif found.gone is not None:
            found.gone = None
            del self._gone[kind][found.id]
        found.definition, found.owner, found.target, found.stale = definition, owner, target, True
        if self.by_wire.get(found.wire_id) is found:
            del self.by_wire[found.wire_id]
        found.wire_id = frame.id
        self.by_wire[frame.id] = found
        return found

    def _name(self, frame: Def) -> tuple[Kind, str, Any, Record | None, Record | None] | None:
        """Kind, stable key, definition, owner and target; None for what refers to nothing known."""
        if frame.gpu is not None:
            return "gpu", frame.gpu.uuid, frame.gpu, None, None
        if frame.proc is not None:
            return "proc", process_key(frame.proc), frame.proc, None, None
        if frame.use is not None:
            process, gpu = self._wired(frame.use.proc, "proc"), self._wired(frame.use.gpu, "gpu")
            return ("use", f"{process.key}@{gpu.key}", frame.use, process, gpu) if process and gpu else None
        if frame.trainer is not None:
            key = process_key(frame.trainer)
            return "trainer", key, frame.trainer, self._wired(frame.trainer.proc, "proc"), None
        if frame.alloc is not None:
            trainer, gpu = self._wired(frame.alloc.trainer, "trainer"), self._wired(frame.alloc.gpu, "gpu")
            return ("alloc", f"{trainer.key}/{frame.alloc.ordinal}", frame.alloc, trainer, gpu) if trainer else None
        return None

    def _wired(self, wire_id: int | None, kind: Kind) -> Record | None:
        record = self.by_wire.get(wire_id) if wire_id is not None else None
        return record if record is not None and record.kind == kind else None

    def process_of(self, trainer: Record) -> Record | None:
        """The process a trainer runs in: as the agent said, else the one with the same pid and start time."""
        return trainer.owner or self.find("proc", trainer.key)

    def device_of(self, alloc: Record) -> Record | None:
        """The device of an allocator: as the agent said, else the one with the same UUID."""
        return alloc.target or (self.find("gpu", alloc.definition.uuid) if alloc.definition.uuid else None)

    # ── the end of things ──────────────────────────────────────────────────────────────────────────────────

    def mark_gone(self, record: Record, gone: Gone) -> None:
        """Ends a record and what lives inside it; the last state stays. Old ones of its kind are dropped."""
        if record.gone is not None or record is self.host:
            return
        record.gone, record.stale = gone, True
        self._gone[record.kind][record.id] = record
        for part in self._parts(record):
            self.mark_gone(part, gone)
        keep = KEEP_GONE.get(record.kind)
        if keep is not None:
            self._drop_oldest(record.kind, len(self._gone[record.kind]) - keep)

    def _parts(self, record: Record) -> list[Record]:
        if record.kind == "proc":
            trainer = self.find("trainer", record.key)
            return [r for r in self.of("use") if r.owner is record] + ([trainer] if trainer else [])
        return [r for r in self.of("alloc") if r.owner is record] if record.kind == "trainer" else []

    def _make_room(self, kind: Kind) -> bool:
        excess = len(self._by_key[kind]) - LIMITS[kind] + 1
        return excess <= 0 or self._drop_oldest(kind, excess) == excess

    def _drop_oldest(self, kind: Kind, count: int) -> int:
        dropped = 0
        for record in list(self._gone[kind].values()):
            if dropped >= count:
                break
            if kind == "proc" and self.find("trainer", record.key) is not None:
                continue  # a trainer that is kept keeps its process
            self._drop(record)
            dropped += 1
        return dropped

    def _drop(self, record: Record) -> None:
        for part in self._parts(record):
            self._drop(part)
        self._gone[record.kind].pop(record.id, None)
        self._by_key[record.kind].pop(record.key, None)
        self.by_id.pop(record.id, None)
        if self.by_wire.get(record.wire_id) is record:
            del self.by_wire[record.wire_id]


def process_key(definition: ProcDef | TrainerDef) -> str:
    """``pid:start``: unlike a pid it is never used twice."""
    return f"{definition.pid}:{'' if definition.start is None else definition.start}"
