"""Handle one connection to a probe: its readings, and pending requests.

A probe runs inside a training and is not trusted. The sizes of lines, entities and columns are
limited, a value that is not a number becomes Unknown, and frames are read at a limited rate.
Nothing here blocks.
"""

from __future__ import annotations

import collections
import math
import socket
import time
from dataclasses import dataclass, field, fields
from typing import Deque, Dict, List, Optional, Set, Tuple, Union

from ..wire import frames
from ..wire.codec import WireError, decode, encode
from ..wire.frames import (
    DRIVER_ERROR,
    MAX_LINE_BYTES,
    NOT_INITIALISED,
    AllocDef,
    Reading,
    TrainerDef,
    Unknown,
)
from .exit_watch import ExitWatch

FRAMES_PER_SECOND = 20.0
BYTES_PER_SECOND = 256.0 * 1024
ANSWER_FACTOR = 50
"""How many times the usual rate a probe may send while it answers a request.

This allows a blob of 100 MB in some ten seconds.
"""
MAX_ALLOCATORS = 64
MAX_EVENTS = 64
MAX_EVENT_DATA = 32
PROBE_EVENTS = frozenset(
    (
        "oom",
        "retry",
        "stall",
        "resumed",
        "phase",
        "attach",
        "detach",
        "gap",
        "dropped",
        "problem",
        "skip",
        "note",
        "time",
    )
)
"""The events that a probe may report about its trainer."""
MAX_BAD_LINES = 3
MAX_REASON_CHARS = 300
HELLO_SECONDS = 10.0
_READ_BYTES = 1 << 16
_MAX_OUTGOING = 1 << 18

NO_VALUE = Unknown(NOT_INITIALISED, "the probe has no value yet")

Answer = Union[frames.Ack, frames.Progress, frames.Result, frames.Error, frames.Blob]
_ANSWERS = (frames.Ack, frames.Progress, frames.Result, frames.Error, frames.Blob)


@dataclass
class ProbeEntity:
    """A trainer or an allocator as the probe describes it.

    It has a definition, readings by column, and reasons for unknown fields.
    """

    definition: Union[TrainerDef, AllocDef]
    table: str
    readings: Dict[str, Reading] = field(default_factory=dict)
    reasons: Dict[str, Unknown] = field(default_factory=dict)
    rows: int = 0  # the number of rows received
    read_seconds: float = 0.0  # when the last row was read, in monotonic seconds


class Budget:
    """A token bucket: ``rate`` tokens per second, at most ``burst`` saved.

    It may go into debt, which must be waited off.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate, self.burst, self.left, self.at = rate, burst, burst, now

    def spend(self, amount: float, now: float) -> None:
        self.left = min(self.burst, self.left + (now - self.at) * self.rate) - amount
        self.at = now

    def free_at(self) -> float:
        """Return the time from which on more may be taken."""
        return self.at if self.left > 0 else self.at + (1 - self.left) / self.rate


class ProbeLink:
    """A connected probe. It is not thread-safe.

    :class:`~gpuscope.collect.trainers.Probes` calls it while it holds its lock. ``name`` is never
    reused. ``pid`` and ``start`` come from the kernel and from the socket's name, never from the
    probe; ``pid`` is None when the kernel cannot tell it across pid namespaces. ``owner`` is the
    uid of its user. ``closed`` is "" or says why the link ended.
    """

    def __init__(
        self,
        name: int,
        sock: socket.socket,
        pid: Optional[int],
        start: Optional[int],
        now: float,
        owner: int,
    ) -> None:
        self.name = name
        self.owner = owner
        self.sock = sock
        self.pid, self.start = pid, start
        self.exit_watch = ExitWatch(pid, start) if pid is not None else None
        self.opened = self.last_heard_at = now
        self.hello: Optional[frames.Hello] = None
        self.trainer: Optional[ProbeEntity] = None
        self.trainer_id = -1  # the id that the probe itself uses
        self.allocators: Dict[int, ProbeEntity] = {}
        self.events: Deque[frames.Event] = collections.deque(maxlen=MAX_EVENTS)
        self.pending: Set[int] = set()  # ids of requests without a final answer
        self.closed = ""
        self.sent_bye = False
        self.violated = False
        self._columns: Dict[str, List[str]] = {}
        self._buffer = bytearray()
        self._scanned = 0
        self._bad_lines = 0
        self._outgoing: Deque[bytes] = collections.deque()
        self._outgoing_bytes = 0
        self._frames = Budget(FRAMES_PER_SECOND, 10 * FRAMES_PER_SECOND, now)
        self._bytes = Budget(BYTES_PER_SECOND, 4 * BYTES_PER_SECOND, now)

    # ── sending ──

    def send(self, frame: frames.Frame) -> bool:
        """Queue a frame; False when the probe does not read what it already has."""
        line = encode(frame)
        if self.closed or self._outgoing_bytes + len(line) > _MAX_OUTGOING:
            return False
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        return True

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing) and not self.closed

    def write(self) -> None:
        """Send what the socket takes now."""
        while self._outgoing:
            line = self._outgoing[0]
            try:
                sent = self.sock.send(line)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"it disconnected ({error.strerror})")
                return
            self._outgoing_bytes -= sent
            if sent < len(line):
                self._outgoing[0] = line[sent:]
                return
            self._outgoing.popleft()

    # ── reading ──

    def readable_at(self) -> float:
        """Return the time until which the probe is over its rate and is not read.

        Meanwhile its socket fills, which slows it down.
        """
        return max(self._frames.free_at(), self._bytes.free_at())

    def read(self, now: float, answers: List[Answer]) -> None:
        """Read what has arrived, up to the rate limit; answers to requests go to ``answers``.

        The end of the stream and a protocol error close the link.
        """
        factor = ANSWER_FACTOR if self.pending else 1
        if not self.has_lines:
            try:
                data = self.sock.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"it disconnected ({error.strerror})")
                return
            if not data:
                self.close("its socket was closed")
                return
            self._bytes.spend(len(data) / factor, now)
            self._buffer += data
        while not self.closed and now >= self._frames.free_at():
            end = self._buffer.find(b"\n", self._scanned)
            if end < 0:
                self._scanned = len(self._buffer)
                if self._scanned > MAX_LINE_BYTES:
                    self._violation("it sent a line that is too long")
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._scanned = 0
            self._frames.spend(1.0 / factor, now)
            self._line(line, now, answers)

    @property
    def has_lines(self) -> bool:
        """Whether a whole line waits in the buffer, which no poll of the socket would show."""
        return self._buffer.find(b"\n", self._scanned) >= 0

    def check(self, now: float) -> None:
        """End a link whose probe did not introduce itself in time."""
        if self.hello is None and now - self.opened > HELLO_SECONDS:
            self.close(
                f"no answer within {HELLO_SECONDS:.0f} s: its trainer is stopped or busy in C code"
            )

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = reason
            self.sock.close()

    def _violation(self, reason: str) -> None:
        self.violated = True
        self.close(reason)

    def _line(self, line: bytes, now: float, answers: List[Answer]) -> None:
        try:
            frame = decode(line)
        except WireError as error:
            self._bad_lines += 1
            if self.hello is None or self._bad_lines >= MAX_BAD_LINES:
                self._violation(f"it does not speak gpuscope's protocol: {error}")
            return
        if self.hello is None:
            self._meet(frame)
            return
        self.last_heard_at = now
        if isinstance(frame, frames.Sample):
            self._sample(frame)
        elif isinstance(frame, frames.Def):
            self._define(frame)
        elif isinstance(frame, frames.Event):
            self._event(frame)
        elif isinstance(frame, frames.Bye):
            self.sent_bye = True
            self.close(frame.why[:MAX_REASON_CHARS] or "the probe disconnected")
        elif isinstance(frame, _ANSWERS) and frame.id in self.pending:
            if isinstance(frame, (frames.Result, frames.Error)):
                self.pending.discard(frame.id)
            answers.append(frame)

    def _meet(self, frame: frames.Frame) -> None:
        if not isinstance(frame, frames.Hello) or frame.role != "probe":
            self._violation("its first message was not a probe's hello")
        elif frame.refusal:
            self._violation(frame.refusal)
        else:
            self.hello = frame
            self._columns = {table: frame.cols.get(table, []) for table in "ta"}

    def _define(self, frame: frames.Def) -> None:
        if frame.trainer is not None and (self.trainer is None or frame.id == self.trainer_id):
            definition = frame.trainer
            definition.proc = None
            if self.pid is not None:
                definition.pid, definition.start = self.pid, self.start
            self.trainer_id = frame.id
            if self.trainer is None:
                self.trainer = ProbeEntity(definition, "t")
            self.trainer.definition = definition
        elif frame.alloc is not None and frame.alloc.trainer == self.trainer_id:
            known = self.allocators.get(frame.id)
            if known is not None:
                known.definition = frame.alloc
            elif len(self.allocators) < MAX_ALLOCATORS:
                self.allocators[frame.id] = ProbeEntity(frame.alloc, "a")

    def _entity(self, number: object) -> Optional[ProbeEntity]:
        if number == self.trainer_id:
            return self.trainer
        return self.allocators.get(number) if isinstance(number, int) else None

    def _sample(self, frame: frames.Sample) -> None:
        for row in frame.why:
            if len(row) != 4:
                continue
            entity = self._entity(row[0])
            _, column, code, text = row
            if entity is None or column not in _known_names(entity) or not isinstance(text, str):
                continue
            if code in frames.CODES:
                entity.reasons[str(column)] = Unknown(str(code), text[:MAX_REASON_CHARS])
            else:
                entity.reasons.pop(str(column), None)
        for table, rows in (("t", frame.t), ("a", frame.a)):
            for values in rows:
                entity = self._entity(values[0]) if values else None
                if entity is not None and entity.table == table:
                    named = dict(zip(self._columns[table], values[1:]))
                    entity.readings = {
                        name: _reading_of(named, name, entity) for name in frames.COLUMNS[table]
                    }
                    entity.rows += 1
                    entity.read_seconds = max(0, min(frame.m, time.monotonic_ns())) / 1e9

    def _event(self, frame: frames.Event) -> None:
        # In particular not "gone": the kernel tells which processes have ended.
        if frame.e not in PROBE_EVENTS:
            return
        if self._entity(frame.id) is None:
            frame.id = self.trainer_id
        frame.m = max(0, min(frame.m, time.monotonic_ns()))
        frame.text = frame.text[: 4 * MAX_REASON_CHARS]
        frame.data = {
            name[:MAX_REASON_CHARS]: value[: 4 * MAX_REASON_CHARS]
            if isinstance(value, str)
            else value
            for name, value in list(frame.data.items())[:MAX_EVENT_DATA]
        }
        self.events.append(frame)


_NAMES: Dict[str, Tuple[str, ...]] = {
    "t": frames.TRAINER_COLUMNS + tuple(f.name for f in fields(TrainerDef)),
    "a": frames.ALLOCATOR_COLUMNS + tuple(f.name for f in fields(AllocDef)),
}


def _known_names(entity: ProbeEntity) -> Tuple[str, ...]:
    return _NAMES[entity.table]


def _reading_of(named: Dict[str, frames.Scalar], name: str, entity: ProbeEntity) -> Reading:
    value = named.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    if isinstance(value, str) and name in frames.TEXT_COLUMNS:
        return value[:MAX_REASON_CHARS]
    if value is not None:
        return Unknown(DRIVER_ERROR, "the probe sent something that is not a number")
    if name not in named:
        return Unknown(frames.NOT_SUPPORTED, "the probe does not send it")
    return entity.reasons.get(name, NO_VALUE)
