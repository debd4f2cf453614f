"""One client of the probe: its socket, its rate, and what was sent to it.

It never blocks, and its buffers are limited.
"""

from __future__ import annotations

import array
import fcntl
import socket
import termios
import time
from typing import Dict, List, Optional

from ..wire import codec
from ..wire.frames import (
    KEY_SECONDS,
    MAX_LINE_BYTES,
    MAX_RATE_HZ,
    Def,
    Error,
    Event,
    Frame,
    Key,
    Sample,
    Scalar,
)
from . import rendezvous
from .sampler import TRAINER_ID, Reasons, changes

DEFAULT_HZ = 2.0
MIN_RATE_HZ = 0.1
OUT_BYTES = 256 * 1024
ANSWER_BYTES = 2 * MAX_LINE_BYTES
"""An answer may be as long as a line, so this many bytes may wait to be sent."""
UNREAD_BYTES = 64 * 1024
"""A chunk of a blob is sent only to a client with less than this left to read, so that what follows
it is not late.
"""
EVENT_BYTES = 64 * 1024
"""An event is dropped if this much is still unsent, so that a storm of events does not cost the
connection.
"""
LINE_BYTES = 64 * 1024
BAD_LINES = 16


class Client:
    """A client; ``due`` is the monotonic time of its next sample.

    If older bytes are still unsent, a sample is dropped and counted. Definitions and answers are
    always kept, up to :data:`OUT_BYTES`; a client that lets more accumulate is disconnected.
    """

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.pid = rendezvous.peer_pid(peer)
        self.hz = DEFAULT_HZ
        self.due = 0.0
        self.alive = True
        self.is_new = True
        """Whether it has had no sample yet."""
        self._out = bytearray()
        self._in = bytearray()
        self._bad = 0
        self._dropped = 0
        self.lost = 0  # events that were dropped for this client
        self._sent_definitions: Dict[int, Def] = {}
        self._reasons: Reasons = {}
        self._key_due = time.monotonic() + KEY_SECONDS

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def set_rate(self, hz: float) -> float:
        self.hz = min(max(hz, MIN_RATE_HZ), MAX_RATE_HZ)
        self.due = 0.0
        return self.hz

    def sample(
        self,
        sample: Sample,
        reasons: Reasons,
        definitions: Dict[int, Def],
        shared: Dict[bytes, bytes],
    ) -> None:
        """Send the definitions that changed, then the sample with the reasons that are new.

        Only reasons that this client does not know yet are sent. ``shared`` keeps the encoded
        sample for the other clients of the same tick.
        """
        now = time.monotonic()
        self.due = max(self.due + 1.0 / self.hz, now + 0.5 / self.hz)
        if self._out:
            self._dropped += 1
            return
        if now >= self._key_due:
            self._key_due = now + KEY_SECONDS
            self._sent_definitions, self._reasons = {}, {}
            self.send(Key(q=sample.q, m=sample.m, t=time.time(), n=len(definitions)))
        self._define(definitions)
        if self._dropped or self.lost:
            what = [(self._dropped, "sample", "samples"), (self.lost, "event", "events")]
            text = (
                " and ".join(f"{n} {one if n == 1 else many}" for n, one, many in what if n)
                + " dropped: this reader is too slow"
            )
            data: Dict[str, Scalar] = {"n": self._dropped, "events": self.lost}
            self.send(Event(id=TRAINER_ID, e="dropped", m=sample.m, text=text, data=data))
            self._dropped = self.lost = 0
        why = changes(self._reasons, reasons)
        if why:
            self._reasons = dict(reasons)
            self.send(Sample(q=sample.q, m=sample.m, t=sample.t, a=sample.a, why=why))
        else:
            if b"" not in shared:
                shared[b""] = codec.encode(sample)
            self.send_bytes(shared[b""])

    def _define(self, definitions: Dict[int, Def]) -> None:
        for entity, definition in definitions.items():
            if self._sent_definitions.get(entity) is not definition:
                self._sent_definitions[entity] = definition
                self.send(definition)

    def event(self, event: Event, definitions: Dict[int, Def]) -> None:
        """Send an event, after the definition of the entity that it concerns.

        If too much is unsent, the event is only counted.
        """
        if len(self._out) > EVENT_BYTES:
            self.lost += 1
            return
        self._define(definitions)
        self.send(event)

    def send(self, frame: Frame) -> None:
        try:
            self.send_bytes(codec.encode(frame))
        except codec.WireError:
            # A frame may be longer than a line allows. Ours never are, but one that is must do no
            # harm.
            pass

    def answer(self, frame: Frame) -> None:
        """Send the answer to a request, which may be as long as a line."""
        try:
            line = codec.encode(frame)
        except codec.WireError as error:
            line = codec.encode(
                Error(getattr(frame, "id", 0), "failed", f"the answer does not fit: {error}")
            )
        self.send_bytes(line, ANSWER_BYTES)

    def has_room(self) -> bool:
        """Whether this client has read enough that a large chunk may be sent to it."""
        if self._out or not self.alive:
            return False
        unread = array.array("i", [0])
        try:
            fcntl.ioctl(self.socket, termios.TIOCOUTQ, unread)
        except OSError:
            return True
        return unread[0] <= UNREAD_BYTES

    def send_bytes(self, line: bytes, limit: int = OUT_BYTES) -> None:
        if len(self._out) + len(line) > limit:
            self.alive = False
            return
        self._out += line
        self.flush()

    def flush(self) -> None:
        while self._out and self.alive:
            try:
                sent = self.socket.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.alive = False
                return
            del self._out[:sent]

    def receive(self) -> List[bytes]:
        """Return complete lines that have arrived.

        A closed peer or an endless line ends the client.
        """
        try:
            chunk: Optional[bytes] = self.socket.recv(LINE_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            chunk = None
        if not chunk:
            self.alive = False
            return []
        self._in += chunk
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        if len(rest) > LINE_BYTES:
            self.alive = False
        return [line for line in lines if line]

    def bad_line(self) -> None:
        self._bad += 1
        if self._bad > BAD_LINES:
            self.alive = False

    def close(self) -> None:
        self.alive = False
        try:
            self.socket.close()
        except OSError:
            pass
