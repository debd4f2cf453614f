"""Serve requests that take a while, each in a short-lived thread, so that samples go on.

What such an act has to say waits here until the probe's thread, the only one that writes to
sockets, takes it: progress, the chunks of a blob (a few ahead at most, on the receiver's credit),
and one last answer. Of the exclusive requests a trainer does one at a time. An act ends early when
its client cancels it or goes away, at its deadline, at detach.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, BinaryIO, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional

from ..wire import codec
from ..wire.blobs import MAX_BLOB_BYTES, BlobError, BlobSender
from ..wire.frames import EXCLUSIVE, Ack, Error, Frame, Progress, Request, Result
from .on_import import debug

CHUNKS_AHEAD = 4
MAX_ACTS = 8
MAX_DEADLINE_SECONDS = 3600.0
CLOSE_SECONDS = 5.0
"""How long taking the probe out waits for acts to end: a profiler has to be stopped, a file to be
closed.
"""
_LOOK_SECONDS = 0.25


class Refusal(Exception):
    """Raised by a handler that refuses a request.

    ``code`` as in :class:`~gpuscope.wire.frames.Error`, ``reason`` in words.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Stopped(Exception):
    """Raised when the request has already ended, so that its handler cleans up and returns.

    It was cancelled, it took too long, or its client is gone.
    """


class Answer(NamedTuple):
    """The answer to a request.

    ``blob`` is read from its beginning, sent before ``value``, and closed; ``size`` is its length
    in bytes.
    """

    value: Dict[str, Any]
    blob: Optional[BinaryIO] = None
    size: Optional[int] = None


Handler = Callable[["LongRequest"], Answer]


class LongRequest:
    """One request in progress.

    Handlers use ``args``, ``deadline`` (monotonic seconds), :meth:`progress`, :meth:`check` and
    :meth:`wait`; ``stage`` says in words what is being done, for the error when time runs out.
    """

    def __init__(
        self, request: Request, client: object, pid: int, wake: Callable[[], None]
    ) -> None:
        self.id = request.id
        self.name = request.r
        self.args = request.args
        self.client = client
        self.pid = pid  # of the client, 0 where it is in another process namespace
        self.seconds = min(max(request.deadline, 0.0), MAX_DEADLINE_SECONDS)
        self.deadline = time.monotonic() + self.seconds
        self.stage = "it is about to start"
        self.over = False  # its last answer is decided
        self.done = False  # its thread holds nothing any more: the next exclusive act may begin
        self.thread: Optional[threading.Thread] = None
        self.file: Optional[Any] = None  # what it has open: a forked child closes its copy
        self._wake = wake
        self._stop = threading.Event()
        self._moved = threading.Event()
        self._lock = threading.Lock()
        self._lines: Deque[bytes] = deque()
        self._sender: Optional[BlobSender] = None

    # ── for handlers ──

    def check(self) -> None:
        """Raises :class:`Stopped` when nobody waits for the answer any more."""
        if self._stop.is_set():
            raise Stopped

    def wait(self, seconds: float) -> None:
        """Sleep; raises :class:`Stopped` as soon as nobody waits for the answer any more."""
        if self._stop.wait(seconds):
            raise Stopped

    def progress(self, fraction: Optional[float], text: str) -> None:
        if len(self._lines) <= CHUNKS_AHEAD:  # a client that does not read needs no news
            self._say(Progress(self.id, fraction, text))

    # ── its thread ──

    def run(self, handler: Handler) -> None:
        last: Frame
        answer: Optional[Answer] = None
        try:
            answer = handler(self)
            self._send_blob(answer)
            last = Result(self.id, answer.value)
        except Refusal as refusal:
            last = Error(self.id, refusal.code, refusal.reason)
        except Stopped:
            last = Error(self.id, "cancelled", "it was stopped")  # its true ending was said already
        except BlobError as error:
            last = Error(self.id, "failed", str(error))
        except Exception as error:
            debug(f"{self.name} failed", error)
            words = str(error).partition("\n")[0][:300]
            last = Error(self.id, "failed", f"{type(error).__name__}: {words} (while {self.stage})")
        try:
            if answer is not None and answer.blob is not None:
                answer.blob.close()
        except OSError:
            pass
        self._sender = None
        self.done = True
        self.end(last)

    def _send_blob(self, answer: Answer) -> None:
        if answer.blob is None:
            return
        if answer.size is not None and answer.size > MAX_BLOB_BYTES:
            raise BlobError(f"it has {answer.size} bytes, more than the {MAX_BLOB_BYTES} allowed")
        self.stage = "its data is being sent"
        sender = self._sender = BlobSender(self.id, answer.blob, answer.size)
        while not sender.done:
            self._moved.clear()
            if sender.wants_turn and len(self._lines) < CHUNKS_AHEAD:
                line = sender.next_line()
                if line is not None:
                    with self._lock:
                        if not self.over:
                            self._lines.append(line)
                    self._wake()
            else:
                self._moved.wait(_LOOK_SECONDS)
            self.check()

    def _say(self, frame: Frame) -> None:
        line = codec.encode(frame)
        with self._lock:
            if self.over:
                return
            self._lines.append(line)
        self._wake()

    # ── for the probe's thread ──

    def end(self, last: Frame) -> bool:
        """Set the last answer, unless it is already set.

        If that is an error, everything that still waits to be sent is dropped.
        """
        try:
            line = codec.encode(last)
        except codec.WireError as error:
            line = codec.encode(
                Error(self.id, "failed", f"its answer is too long for a line: {error}")
            )
        with self._lock:
            if self.over:
                return False
            self.over = True
            if isinstance(last, Error):
                self._lines.clear()
            self._lines.append(line)
        self._stop.set()
        self._moved.set()
        self._wake()
        return True

    def allow(self, chunks: int) -> None:
        sender = self._sender
        if sender is not None:
            sender.allow(min(max(chunks, 0), 1024))
            self._moved.set()

    @property
    def waiting(self) -> bool:
        return bool(self._lines)

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do or to send.

        Its thread is done a moment before its last answer is set.
        """
        with self._lock:
            return self.done and self.over and not self._lines

    def next_line(self) -> Optional[bytes]:
        with self._lock:
            line = self._lines.popleft() if self._lines else None
        self._moved.set()
        return line

    def forget(self) -> None:
        """End the request, because its client is gone."""
        self.end(Error(self.id, "gone"))
        with self._lock:
            self._lines.clear()


class Acts:
    """All long requests of a trainer.

    Only the probe's thread calls its methods; ``wake`` is called from the requests' threads.
    """

    def __init__(self, handlers: Mapping[str, Handler], wake: Callable[[], None]) -> None:
        self._handlers = handlers
        self._wake = wake
        self._acts: List[LongRequest] = []

    def begin(self, request: Request, client: object, pid: int) -> Frame:
        """Start a request, and return the immediate answer: an ack, or an error."""
        running = [act for act in self._acts if not act.done]
        other = next((act for act in running if act.name in EXCLUSIVE), None)
        if request.r in EXCLUSIVE and other is not None:
            return Error(request.id, "busy", busy(other))
        if len(running) >= MAX_ACTS or any(
            act.client is client and act.id == request.id for act in self._acts
        ):
            return Error(request.id, "busy", f"{len(running)} requests are already running")
        act = LongRequest(request, client, pid, self._wake)
        handler = self._handlers[request.r]
        act.thread = threading.Thread(
            target=act.run, args=(handler,), name="gpuscope-act", daemon=True
        )
        try:
            act.thread.start()
        except (OSError, RuntimeError) as error:
            return Error(request.id, "failed", f"cannot start a thread: {error}")
        self._acts.append(act)
        return Ack(request.id)

    def blocking(self) -> Optional[LongRequest]:
        """Return the exclusive request in progress, if any."""
        return next((act for act in self._acts if not act.done and act.name in EXCLUSIVE), None)

    def of(self, client: object) -> List[LongRequest]:
        return [act for act in self._acts if act.client is client]

    def cancel(self, client: object, number: object) -> bool:
        """Cancel a request of this client; False if there is no such request, or it has ended."""
        return any(
            act.end(Error(act.id, "cancelled", "cancelled on request"))
            for act in self.of(client)
            if act.id == number and not act.over
        )

    def gone(self, client: object) -> None:
        for act in self.of(client):
            act.forget()

    def due(self) -> float:
        """Return the next deadline, in monotonic seconds."""
        return min([act.deadline for act in self._acts if not act.over] or [float("inf")])

    def expire(self, now: float) -> None:
        """End requests that are late, and forget those that are finished."""
        for act in self._acts:
            if now >= act.deadline and not act.over:
                act.end(
                    Error(
                        act.id,
                        "unfinished",
                        f"{act.name} was not done within {round(act.seconds, 1):g} s: {act.stage}",
                    )
                )
        self._acts = [act for act in self._acts if not act.is_finished]

    @property
    def busy(self) -> bool:
        return any(not act.done for act in self._acts)

    def abandon(self) -> None:
        """In a forked child, close the descriptors of the parent's requests and forget the rest.

        Their threads do not exist here, and their locks may be held for ever.
        """
        acts, self._acts = self._acts, []
        for act in acts:
            if act.file is not None:
                act.file.close()

    def close(self, why: str) -> None:
        """End all requests, and wait a while for their threads."""
        for act in self._acts:
            act.end(Error(act.id, "cancelled", f"the probe stops: {why}"))
        until = time.monotonic() + CLOSE_SECONDS
        for act in self._acts:
            if act.thread is not None:
                act.thread.join(max(0.0, until - time.monotonic()))


def busy(act: LongRequest) -> str:
    """Say in words which request keeps the trainer busy, and for whom."""
    who = f"pid {act.pid}" if act.pid else "a client of another pid namespace"
    return f"busy with {act.name} for {who}" + (", which is being stopped" if act.over else "")
