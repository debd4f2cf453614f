"""Keep what one source has sent so far: frames go in, records change.

It handles the clock, restarts, joining at key frames, and the ends of entities.

Times are seconds of the host's monotonic clock (``m``), so setting the wall clock has no effect on
them. Wall times are computed from the pair (t, m) of the last hello or key frame. After a reboot
the monotonic clock starts at zero; it is then shifted by the time that has passed on the wall
clock, so that the axis still only grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import nan
from types import MappingProxyType

from ..wire.frames import (
    COLUMNS,
    HOST_ID,
    TEXT_COLUMNS,
    Def,
    Event,
    Frame,
    Hello,
    Key,
    Row,
    Sample,
    Unknown,
)
from .history import EMPTY, Ring
from .recent_rows import Rows, recent_device_rows, recent_rows
from .records import MAX_TEXT_CHARS, Kind, Record, Registry, is_wall_time
from .step_points import Track, remembered
from .text_history import Words
from .time_minutes import Minute, Minutes, of_answer, of_event
from .view import Gone, History, Mark

NO_REASON = Unknown("no_reason", "unknown, no reason given")
"""The code for a null that came without a why row. The viewer sets it; it is never sent."""
MAX_EVENTS = 256
MAX_MARKS = 512
MARKED = frozenset(("oom", "retry", "stall", "resumed", "phase"))
SETTLES_SECONDS = 3.0
"""After the first sample of a host: until then its processes and probes are found."""
CONFIRM_SECONDS = 10.0
"""After a restart of the agent, an entity must be defined again within this time, else it has
ended.
"""
_KIND_OF_TABLE: dict[str, Kind] = {
    "h": "host",
    "g": "gpu",
    "p": "proc",
    "u": "use",
    "t": "trainer",
    "a": "alloc",
}
REWIND_NS = 1_000_000_000
"""If a hello on the same boot's clock lies further back than this, a replay has gone back in time.
"""
_RECOUNT_CELLS = 250_000
_SHRINK_TO = 0.8
_NUMBERS = frozenset((int, float))
MAX_CELL_CHARS = 240
"""Limit of a text in a row: the name of a state, or a few names with their sizes."""
MAX_EVENT_DATA, MAX_NAME_CHARS = 16, 64
"""Limits of an event's data: this many entries, with names of this length."""
MAX_AWAY_SECONDS = 10 * 365.25 * 86400
"""If a host seems to have been down for longer than this, its wall clock is wrong."""
MAX_AGO_MS = 60_000
_Columns = tuple[tuple[str, ...], list[int] | None]
"""The names of the columns that we know, and their positions in a row; None for the positions if
they are 1, 2, 3 …
"""


class Stream:
    """The state of one source.

    ``changed`` is set by :meth:`apply` when there is something new to draw.
    """

    def __init__(self, key: str, history_cells: int) -> None:
        self.key = key
        self.history_cells = history_cells
        self.hello: Hello | None = None
        self.last_received: float | None = None
        self.changed = True
        self.recent: deque[float] = deque(maxlen=9)
        """Times of the last samples, for the rate."""
        self.began: float | None = None
        """Time of the first sample."""
        self.events_changed = True
        self._offset = 0.0
        self._clear()

    def _clear(self) -> None:
        self.registry = Registry(self.key)
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.events_changed = True
        self.last_m: int | None = None
        self.recent.clear()
        self.began = None
        self._anchor = (0.0, 0)  # wall seconds, monotonic ns, read together
        self._columns: dict[str, _Columns] = {}
        # definitions that a key frame announced, records named since
        self._join: tuple[int, set[int]] | None = None
        self._confirm_by: float | None = None
        self._refused_reported = 0
        self._appended = 0

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def seconds(self, m: int) -> float:
        """Convert a monotonic time of the host to the time axis of the view."""
        return m / 1e9 + self._offset

    def wall(self, m: int) -> float | None:
        """Return the wall clock at ``m``.

        None before a hello, and if it is not a time that a clock can show.
        """
        seconds = self._anchor[0] + (m - self._anchor[1]) / 1e9
        return seconds if self.hello is not None and is_wall_time(seconds) else None

    # ── frames ────────────────────────────────────────────────────────────────────────────────────

    def apply(self, frame: Frame, received_seconds: float) -> None:
        """Take in one frame.

        Frames that carry no state (pong, answers to requests) only show that the source is alive.
        """
        self.last_received = received_seconds
        if not isinstance(frame, Def):
            self._end_join()
        if isinstance(frame, Sample):
            self._sample(frame)
        elif isinstance(frame, Def):
            self._define(frame)
        elif isinstance(frame, Event):
            self._event(frame)
        elif isinstance(frame, Key):
            self._key(frame)
        elif isinstance(frame, Hello):
            self._hello(frame)
        else:
            return
        self.changed = True

    def _hello(self, hello: Hello) -> None:
        before, self.hello = self.hello, hello
        if before is not None and self.last_m is not None:
            same_boot = hello.boot == before.boot
            last_wall = self._anchor[0] + (self.last_m - self._anchor[1]) / 1e9
            if (
                hello.m < self.last_m - REWIND_NS
                if same_boot
                else hello.t < last_wall - REWIND_NS / 1e9
            ):
                self._clear()  # a replay went back in time
                self._offset = 0.0
            elif not same_boot:
                self._restarted(self.last_m, "the host was rebooted")
                away = hello.t - last_wall
                away = away if 0 < away < MAX_AWAY_SECONDS else 0.0
                self._offset = self.seconds(self.last_m) + away - hello.m / 1e9
                self.last_m = hello.m
            elif (hello.pid, hello.nonce) != (before.pid, before.nonce):
                self._restarted(hello.m)
        self._anchor = (hello.t, hello.m)
        self._columns = {
            table: _known_columns(hello.cols.get(table, []), COLUMNS[table]) for table in COLUMNS
        }

    def _restarted(self, m: int, ended: str = "") -> None:
        self.registry.forget_wire_ids()
        self._confirm_by = self.seconds(m) + CONFIRM_SECONDS
        if ended:
            for kind in ("proc", "trainer"):
                for record in list(self.registry.of(kind)):
                    self.registry.mark_gone(record, self._gone_at(m, ended))

    def _define(self, frame: Def) -> None:
        before = self.registry.by_wire.get(frame.id)
        record = self.registry.define(frame)
        if (
            record is not None
            and before is not None
            and before is not record
            and before is not self.registry.host
        ):
            self.registry.mark_gone(before, self._gone_at(self.last_m or 0, "its id was reused"))
        if self._join is not None and record is not None:
            self._join[1].add(record.id)
        if self.registry.refused > self._refused_reported == 0:
            self._refused_reported = self.registry.refused
            text = "too many or invalid entities: not all are shown"
            self._say(Event(HOST_ID, "problem", self.last_m or 0, text))

    def _key(self, key: Key) -> None:
        self._anchor = (key.t, key.m)
        self._join = (key.n, set())

    def _end_join(self) -> None:
        """End the definitions of a key frame.

        If all of them came, entities that they did not name have ended.
        """
        if self._join is not None:
            announced, named = self._join
            self._join = None
            if 0 < announced <= len(named):
                self._leave_out(named, "the agent no longer reports it")

    def _leave_out(self, named: set[int], reason: str) -> None:
        gone = self._gone_at(self.last_m or 0, reason)
        for record in list(self.registry.by_id.values()):
            if record.id not in named:
                self.registry.mark_gone(record, gone)
        self._confirm_by = None

    def _event(self, event: Event) -> None:
        record = self.registry.by_wire.get(event.id)
        if event.e == "time":
            if record is not None and record.kind == "trainer":
                self._keep_minutes(record, [of_event(event.data)])
            return
        self._say(replace(event, id=record.id if record is not None else event.id))
        if event.e == "gone" and record is not None:
            gone = self._gone_at(event.m, event.text or "ended")
            if record.gone is not None and record.owner and record.gone is record.owner.gone:
                # the trainer's own end replaces that of its process
                record.gone, record.stale = gone, True
            else:
                self.registry.mark_gone(record, gone)

    def _say(self, event: Event) -> None:
        if event.data:
            some = list(event.data.items())[:MAX_EVENT_DATA]
            cut = {
                name[:MAX_NAME_CHARS]: v[:MAX_TEXT_CHARS] if isinstance(v, str) else v
                for name, v in some
            }
            event = replace(event, data=cut)
        self.events.append(event)
        self.events_changed = True
        if event.e in MARKED:
            self.marks.append(
                Mark(event.id, event.e, self.seconds(event.m), event.text, event.data)
            )

    def _gone_at(self, m: int, reason: str) -> Gone:
        return Gone(self.seconds(m), self.wall(m), reason)

    # ── samples ───────────────────────────────────────────────────────────────────────────────────

    def _sample(self, sample: Sample) -> None:
        if self.last_m is not None and sample.m < self.last_m:
            return  # late: newer readings are already shown
        self.last_m = sample.m
        seconds = self.seconds(sample.m)
        self.recent.append(seconds)
        self.began = seconds if self.began is None else self.began
        by_wire = self.registry.by_wire
        for cells in sample.why:
            self._explain(cells)
        ago = {
            cells[0]: cells[1] / 1e3
            for cells in sample.ago
            if len(cells) == 2 and 0 <= cells[1] <= MAX_AGO_MS
        }
        for table, kind in _KIND_OF_TABLE.items():
            columns = self._columns.get(table)
            if columns is not None and columns[0]:
                for row in getattr(sample, table):
                    record = by_wire.get(row[0]) if row and type(row[0]) is int else None
                    if record is not None and record.kind == kind and record.gone is None:
                        self._read(record, columns, row, seconds)
                        if row[0] in ago:
                            record.seconds = seconds - ago[row[0]]
        if self._appended > _RECOUNT_CELLS:
            self._bound_history()
        if self._confirm_by is not None and seconds > self._confirm_by:
            confirmed = {record.id for record in by_wire.values()}
            self._leave_out(confirmed, "not seen again since the agent restarted")

    def _explain(self, cells: list[int | str]) -> None:
        match cells:
            case [int(id), str(column), str(code), str(text), *_]:
                self.registry.explain(id, column, Unknown(code, text))

    def _read(self, record: Record, known: _Columns, row: Row, seconds: float) -> None:
        columns, positions = known
        values = row[1:] if positions is None else [row[i] for i in positions if i < len(row)]
        if record.kind == "gpu":
            if len(values) < len(columns) and record.columns is columns:
                values += record.row[len(values) :]  # the other columns keep their values
            record.row, record.columns = values, columns
        readings: dict[str, object] = dict(zip(columns, values, strict=False))
        why = record.why
        if not _NUMBERS.issuperset(map(type, values)):
            numbers = values.copy()  # a device's row is kept as it came
            for at, value in enumerate(values):
                if type(value) in _NUMBERS:
                    continue
                numbers[at] = nan
                if at < len(columns):
                    column = columns[at]
                    if value is None or value is True or value is False:
                        readings[column] = why.get(column, NO_REASON)
                    elif isinstance(value, str):
                        readings[column] = value[:MAX_CELL_CHARS]
                        record.words = record.words or Words()
            values = numbers
        for column, reason in why.items():
            readings.setdefault(column, reason)
        if record.words is not None:
            for column in TEXT_COLUMNS:
                word = readings.get(column)
                record.words.note(seconds, column, word if isinstance(word, str) else None)
        record.readings = MappingProxyType(readings)  # type: ignore[arg-type]  # no None is left
        record.seconds = seconds
        record.stale = True
        if record.ring is None or record.ring.columns != columns:
            record.ring = Ring(columns)
        record.ring.append(seconds, values)
        self._appended += len(row)
        if record.kind == "alloc":
            step, size = readings.get("step_allocated_step"), readings.get("step_allocated_bytes")
            if isinstance(step, (int, float)) and isinstance(size, (int, float)):
                if record.track is None:
                    record.track = Track()
                record.track.add(step, size)

    def remember_growth(self, trainer_id: int, value: Mapping[str, object]) -> None:
        """Put the memory that a trainer's probe remembers before the points that were seen."""
        points = remembered(value)
        for record in self.registry.of("alloc"):
            before = points.get(record.definition.ordinal)
            if before and record.owner is not None and record.owner.id == trainer_id:
                record.track = record.track or Track()
                record.track.put_before(before)
                record.stale = self.changed = True

    def remember_recent(self, trainer_id: int, value: Mapping[str, object]) -> None:
        """Put the readings that a trainer's probe remembers before those that were seen."""
        trainer = self.registry.by_id.get(trainer_id)
        if trainer is None or trainer.kind != "trainer":
            return
        recent = recent_rows(value)
        of: dict[int | str, Record] = {"trainer": trainer}
        if trainer.owner is not None:
            of["process"] = trainer.owner
        of.update((part.definition.ordinal, part) for part in trainer.parts.values())
        for ordinal, rows in recent.items():
            self._put_before(of.get(ordinal), rows)

    def remember_time(self, trainer_id: int, value: Mapping[str, object]) -> None:
        """Keep the minutes of the time ledger that a trainer's probe remembers."""
        trainer = self.registry.by_id.get(trainer_id)
        if trainer is not None and trainer.kind == "trainer":
            self._keep_minutes(trainer, of_answer(value))
            look = value.get("look")
            if isinstance(look, Mapping):
                self.remember_look(trainer_id, look)

    def remember_look(self, trainer_id: int, value: Mapping[str, object]) -> None:
        """Keep what a look at a trainer's device has found, in place of the one before."""
        trainer = self.registry.by_id.get(trainer_id)
        if trainer is not None and trainer.kind == "trainer" and trainer.look != value:
            trainer.look = value
            trainer.stale = self.changed = True

    def _keep_minutes(self, trainer: Record, minutes: Iterable[Minute]) -> None:
        trainer.minutes = trainer.minutes or Minutes()
        for minute in minutes:
            trainer.minutes.add(minute)
        trainer.stale = self.changed = True

    def remember_devices(self, value: Mapping[str, object]) -> None:
        """Put what the driver itself sampled before the readings of GPUs that were seen."""
        for uuid, rows in recent_device_rows(value).items():
            self._put_before(self.registry.find("gpu", uuid), rows)

    def _put_before(self, record: Record | None, rows: Rows) -> None:
        moments, columns = rows
        if record is not None and record.ring is not None:
            record.ring.put_before([self.seconds(m) for m in moments], columns)
            self._appended += len(moments) * (len(columns) + 1)

    def _bound_history(self) -> None:
        self._appended = 0
        rings = [record.ring for record in self.registry.by_id.values() if record.ring is not None]
        held = sum(ring.cells for ring in rings)
        if held > self.history_cells:
            for ring in rings:
                ring.shrink(_SHRINK_TO * self.history_cells / held)

    def wire_id(self, entity_id: int) -> int | None:
        """Return the id of an entity of the view in the running stream; None if it has none."""
        record = self.registry.by_id.get(entity_id)
        known = (
            record is not None
            and record.gone is None
            and self.registry.by_wire.get(record.wire_id) is record
        )
        return record.wire_id if record is not None and known else None

    def history(self, entity_id: int, column: str, window_seconds: float | None) -> History:
        """Return ``column`` of the entity with this id in the view; empty if there is none."""
        record = self.registry.by_id.get(entity_id)
        return (
            EMPTY
            if record is None or record.ring is None
            else record.ring.history(column, window_seconds)
        )

    def then(
        self, entity_id: int, seconds: float
    ) -> tuple[float, Mapping[str, float | str | None]] | None:
        """Return the newest readings of an entity that are not later than ``seconds``.

        They come with the moment at which they were read.
        """
        record = self.registry.by_id.get(entity_id)
        found = None if record is None or record.ring is None else record.ring.at(seconds)
        if found is None or record is None or record.words is None:
            return found
        return found[0], {**found[1], **record.words.at(seconds)}

    @property
    def oldest_seconds(self) -> float | None:
        """Return the oldest moment about which all is known that was there from the start.

        The first sample has no processes, and probes answer one after the other.
        """
        rings = (record.ring for record in self.registry.by_id.values())
        firsts = [ring.first_seconds for ring in rings if ring is not None]
        if not firsts:
            return None
        soon = min(firsts) + SETTLES_SECONDS
        return max(first for first in firsts if first <= soon)


def _known_columns(sent: list[str], known: tuple[str, ...]) -> _Columns:
    positions = {name: i for i, name in reversed(list(enumerate(sent, 1))) if name in known}
    names = tuple(sorted(positions, key=positions.__getitem__))
    in_order = [positions[name] for name in names]
    return names, None if in_order == list(range(1, len(sent) + 1)) else in_order
