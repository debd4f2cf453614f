"""Keep the requests under way on one connection.

It handles deadlines, cancellation, progress, and the blobs that belong to an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..process import atomic_file
from ..text.units import window_text
from ..wire.blobs import MAX_BLOB_BYTES, BlobError
from ..wire.frames import Ack, Blob, Credit, Error, Frame, Progress, Request, Result, Scalar
from .blob_receiver import BlobReceiver

GRACE_SECONDS = 1.5
"""How much longer than the deadline we wait: the other end keeps the deadline and reports what
happened.
"""
MAX_CALLS = 64


class SourceError(UserError):
    """A request that failed. ``code`` is as in :class:`~gpuscope.wire.frames.Error`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason, code=code)


OnProgress = Callable[[Progress], None]


@dataclass
class _Call:
    name: str
    answer: asyncio.Future[Result]
    on_progress: OnProgress | None
    blob_to: Path | None
    max_bytes: int
    receiver: BlobReceiver | None = None
    part: Path | None = None
    """The temporary file of a blob that is complete, until the result arrives."""


class PendingRequests:
    """The open requests of one connection, for one event loop. ``send`` takes a frame to send."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._calls: dict[int, _Call] = {}

    async def call(
        self,
        name: str,
        args: Mapping[str, Scalar],
        deadline: float,
        on_progress: OnProgress | None = None,
        blob_to: Path | None = None,
        max_bytes: int = MAX_BLOB_BYTES,
    ) -> Result:
        """Send a request and wait ``deadline`` seconds for its result.

        A blob that belongs to it is written uncompressed to the file ``blob_to``. Raises
        :class:`SourceError`. If this call is cancelled, it cancels the request at the other end
        too.
        """
        if len(self._calls) >= MAX_CALLS:
            raise SourceError("busy", f"{MAX_CALLS} requests are already running")
        number = next(self._ids)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._calls[number] = _Call(name, answer, on_progress, blob_to, max_bytes)
        try:
            self._send(Request(name, number, dict(args), deadline))
            return await asyncio.wait_for(answer, deadline + GRACE_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            self._cancel(number)
            late = f"{name}: no answer within {window_text(deadline)}"
            raise SourceError("timeout", late) from None
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        finally:
            call = self._calls.pop(number)
            if call.receiver is not None:
                call.receiver.abort()
            if call.part is not None:
                with contextlib.suppress(OSError):
                    call.part.unlink()

    def take(self, frame: Frame) -> bool:
        """Take in a frame, and tell whether it is an answer.

        Answers are handled here, also those that nobody waits for any more.
        """
        if not isinstance(frame, (Ack, Progress, Result, Error, Blob)):
            return False
        call = self._calls.get(frame.id)
        if call is None or call.answer.done():
            return True
        if isinstance(frame, Progress):
            self._progress(call, frame)
        elif isinstance(frame, Blob):
            self._chunk(frame, call)
        elif isinstance(frame, Error):
            call.answer.set_exception(
                SourceError(frame.code or "failed", frame.reason or f"{call.name} failed")
            )
        elif isinstance(frame, Result):
            if call.blob_to is not None and not (call.receiver and call.receiver.complete):
                call.answer.set_exception(
                    SourceError("failed", f"{call.name}: its data ended early")
                )
            else:
                self._finish(call, frame)
        return True

    def fail_all(self, code: str, reason: str) -> None:
        """Fail all requests, because the connection has ended and nobody will answer."""
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(SourceError(code, reason))

    def _chunk(self, blob: Blob, call: _Call) -> None:
        try:
            if call.receiver is None:
                if call.blob_to is None:
                    raise BlobError("it came with unrequested data")
                call.part = call.blob_to.with_name(f".gpuscope-{os.getpid()}-{id(call):x}.part")
                call.receiver = BlobReceiver(blob.id, str(call.part), call.max_bytes)
            if not call.receiver.feed(blob):
                self._send(Credit(blob.id, 1))
        except BlobError as error:
            self._cancel(blob.id)
            call.answer.set_exception(SourceError("failed", f"{call.name}: {error}"))
            return
        if call.receiver.size:
            fraction = min(call.receiver.written_bytes / call.receiver.size, 1.0)
            self._progress(call, Progress(blob.id, fraction, "receiving"))

    @staticmethod
    def _finish(call: _Call, result: Result) -> None:
        """End a call. Only after a success does its blob replace the file ``blob_to``."""
        try:
            if call.part is not None and call.blob_to is not None:
                atomic_file.put_in_place(call.part, call.blob_to)
                call.part = None
        except OSError as error:
            call.answer.set_exception(
                SourceError("failed", f"cannot write {call.blob_to}: {error.strerror}")
            )
        else:
            call.answer.set_result(result)

    def _progress(self, call: _Call, progress: Progress) -> None:
        if call.on_progress is not None:
            call.on_progress(progress)

    def _cancel(self, number: int) -> None:
        self._send(Request("cancel", next(self._ids), {"id": number}))
