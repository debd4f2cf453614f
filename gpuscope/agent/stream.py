"""Remember what was sent on one stream, so that only changes travel.

It knows the ids and definitions that were sent, and the reasons that hold.
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, List, Mapping, Optional, Tuple

from ..wire.frames import (
    COLUMNS,
    HOST_ID,
    KEPT,
    TABLES,
    Def,
    Event,
    Key,
    Reading,
    Row,
    Sample,
    Unknown,
)

MAX_REASONS_PER_SAMPLE = 2000
"""Limit of reasons in one sample. The rest follows with the next samples, because a line must stay
below the limit even if nothing can be read.
"""
MAX_REASON_CHARS = 300
MAX_AGO_MS = 60_000
"""A reading that claims to be older than this was timed by another clock."""

Reasons = Dict[str, Tuple[str, str]]


class _Entity:
    __slots__ = (
        "column_reasons",
        "definition",
        "field_reasons",
        "id",
        "kind",
        "seen",
        "sent_reasons",
        "sent_rest",
    )

    def __init__(self, number: int, kind: str) -> None:
        self.id = number
        self.kind = kind
        self.definition: Any = None
        self.field_reasons: Reasons = {}
        self.column_reasons: Reasons = {}
        self.sent_reasons: Reasons = {}
        self.sent_rest: Optional[Row] = None
        """The part of the last row beyond the columns of every row; None if it must be sent again.
        """
        self.seen = 0


class StreamMemory:
    """The memory of one stream.

    At each tick call :meth:`define` and :meth:`row` for everything there is, then :meth:`tick`. Ids
    are never reused. What was defined before and is not defined at this tick has ended.
    """

    def __init__(self) -> None:
        self._entities: Dict[Hashable, _Entity] = {}
        self._last_id = HOST_ID
        self._round = 1
        self._definitions: List[Def] = []
        self._rows: Dict[str, List[Row]] = {table: [] for table in TABLES}
        self._read: Dict[int, float] = {}
        self._sequence = 0

    def define(
        self, kind: str, key: Hashable, definition: Any, reasons: Mapping[str, Unknown]
    ) -> int:
        """Return the id of an entity that exists now.

        ``kind`` is a field of Def; ``reasons`` say why a field is unknown.
        """
        entity = self._entities.get(key)
        if entity is None:
            if kind != "host":
                self._last_id += 1
            entity = self._entities[key] = _Entity(
                HOST_ID if kind == "host" else self._last_id, kind
            )
        entity.seen = self._round
        if entity.definition is not definition and entity.definition != definition:
            entity.definition = definition
            self._definitions.append(Def(entity.id, **{kind: definition}))
        entity.field_reasons = {name: _words(reason) for name, reason in reasons.items()}
        return entity.id

    def keep(self, key: Hashable) -> Optional[int]:
        """Return the id of an entity that still exists unchanged; None if it never existed."""
        entity = self._entities.get(key)
        if entity is None:
            return None
        entity.seen = self._round
        return entity.id

    def id_of(self, key: Hashable) -> Optional[int]:
        entity = self._entities.get(key)
        return entity.id if entity is not None else None

    def row(
        self, table: str, key: Hashable, readings: Mapping[str, Reading], read_seconds: float = 0.0
    ) -> None:
        """Add the new readings of an entity that was defined at this tick.

        ``read_seconds``: when they were read, in monotonic seconds, 0 where unknown.
        """
        entity = self._entities[key]
        row: Row = [entity.id]
        reasons: Reasons = {}
        for column in COLUMNS[table]:
            value: Any = readings.get(column)
            if isinstance(value, Unknown):
                reasons[column] = _words(value)
                value = None
            row.append(value)
        entity.column_reasons = reasons
        if table in KEPT:
            rest = row[1 + KEPT[table] :]
            if rest == entity.sent_rest:
                del row[1 + KEPT[table] :]
            entity.sent_rest = rest
        self._rows[table].append(row)
        if read_seconds > 0:
            self._read[entity.id] = read_seconds

    def tick(
        self, monotonic_ns: int, endings: Mapping[Hashable, str]
    ) -> Tuple[List[Def], Sample, List[Event]]:
        """Return the frames of this tick.

        They are new definitions, the sample, and a ``gone`` event for whatever has ended;
        ``endings`` says how.
        """
        self._sequence += 1
        sample = Sample(self._sequence, monotonic_ns)
        for table, rows in self._rows.items():
            setattr(sample, table, rows)
        # what the driver and an allocator report is compared, so the time of each reading matters
        if sample.a:
            ago = [
                [number, round(monotonic_ns / 1e6 - read * 1e3)]
                for number, read in self._read.items()
            ]
            sample.ago = [[number, ms] for number, ms in ago if 0 <= ms <= MAX_AGO_MS]
        self._read = {}
        for entity in self._entities.values():
            if len(sample.why) < MAX_REASONS_PER_SAMPLE:
                sample.why.extend(_changes(entity))
        gone = []
        for key, entity in list(self._entities.items()):
            if entity.seen != self._round:
                del self._entities[key]
                gone.append(
                    Event(entity.id, "gone", monotonic_ns, endings.get(key, "no longer there"))
                )
        definitions, self._definitions = self._definitions, []
        self._rows = {table: [] for table in TABLES}
        self._round += 1
        return definitions, sample, gone

    def key_frame(self, monotonic_ns: int, wall: float) -> Tuple[Key, List[Def]]:
        """Return a place to join the stream: every live definition.

        The next sample carries every reason that holds.
        """
        definitions = [
            Def(entity.id, **{entity.kind: entity.definition}) for entity in self._entities.values()
        ]
        self.forget_reasons()
        return Key(self._sequence, monotonic_ns, wall, len(definitions)), definitions

    def forget_reasons(self) -> None:
        """Send all reasons again with the next sample: the reader may have missed some."""
        for entity in self._entities.values():
            # Reasons that were removed meanwhile must still be cancelled: keep their names, with a
            # text that cannot be current.
            entity.sent_reasons = dict.fromkeys(entity.sent_reasons, ("", ""))
            entity.sent_rest = None


def _words(reason: Unknown) -> Tuple[str, str]:
    return reason.code, reason.text[:MAX_REASON_CHARS]


def _changes(entity: _Entity) -> List[List[Any]]:
    now = {**entity.field_reasons, **entity.column_reasons}
    sent = entity.sent_reasons
    if now == sent:
        return []
    rows: List[List[Any]] = [
        [entity.id, name, *reason] for name, reason in now.items() if sent.get(name) != reason
    ]
    rows.extend([entity.id, name, "", ""] for name in sent if name not in now)
    entity.sent_reasons = now
    return rows
