"""One client of the probe: its socket, its rate, and what it has been told. Never blocks, never grows without bound."""

from __future__ import annotations

import socket
import time
from typing import Dict, List, Optional

from ..wire import codec
from ..wire.frames import KEY_SECONDS, MAX_RATE_HZ, Def, Event, Frame, Key, Sample
from .sampler import TRAINER_ID, Reasons, changes

DEFAULT_HZ = 2.0
MIN_RATE_HZ = 0.1
OUT_BYTES = 256 * 1024
LINE_BYTES = 64 * 1024
BAD_LINES = 16


class Client:
    """``due`` is the monotonic time of its next sample. A sample that finds older bytes still unsent is dropped and
    counted; definitions and answers are kept, up to :data:`OUT_BYTES`: a client that lets more pile up is let go."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self.socket = peer
        self.hz = DEFAULT_HZ
        self.due = 0.0
        self.alive = True
        self._out = bytearray()
        self._in = bytearray()
        self._bad = 0
        self._dropped = 0
        self._told: Dict[int, Def] = {}
        self._reasons: Reasons = {}
        self._key_due = time.monotonic() + KEY_SECONDS

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def set_rate(self, hz: float) -> float:
        self.hz = min(max(hz, MIN_RATE_HZ), MAX_RATE_HZ)
        self.due = 0.0
        return self.hz

    def sample(self, sample: Sample, reasons: Reasons, definitions: Dict[int, Def], shared: Dict[bytes, bytes]) -> None:
        """Send what changed in the definitions, then the sample with the reasons this client does not know yet.
        ``shared`` keeps the encoded sample for the other clients of the same tick."""
        now = time.monotonic()
        self.due = max(self.due + 1.0 / self.hz, now + 0.5 / self.hz)
        if self._out:
            self._dropped += 1
            return
        if now >= self._key_due:
            self._key_due = now + KEY_SECONDS
            self._told, self._reasons = {}, {}
            self.send(Key(q=sample.q, m=sample.m, t=time.time(), n=len(definitions)))
        for entity, definition in definitions.items():
            if self._told.get(entity) is not definition:
                self._told[entity] = definition
                self.send(definition)
        if self._dropped:
            text = f"{self._dropped} samples dropped: this reader is too slow"
            self.send(Event(id=TRAINER_ID, e="dropped", m=sample.m, text=text, data={"n": self._dropped}))
            self._dropped = 0
        why = changes(self._reasons, reasons)
        if why:
            self._reasons = dict(reasons)
            self.send(Sample(q=sample.q, m=sample.m, t=sample.t, a=sample.a, why=why))
        else:
            if b"" not in shared:
                shared[b""] = codec.encode(sample)
            self.send_bytes(shared[b""])

    def send(self, frame: Frame) -> None:
        try:
            self.send_bytes(codec.encode(frame))
        except codec.WireError:
            pass  # longer than a line may be: cannot happen with our own frames, and must not hurt if it does

    def send_bytes(self, line: bytes) -> None:
        if len(self._out) + len(line) > OUT_BYTES:
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
        """Complete lines that have arrived; a closed peer or an endless line ends the client."""
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
