"""The only writer of an agent's stream: decides what goes next, so that large blobs never make a sample late.

Order: control lines as they come; then the sample that waits, if any; then, when the pipe is drained and the receiver
has given credit, one chunk of a blob. Answers that end a relayed blob keep their place behind its chunks.
"""

from __future__ import annotations

import array
import collections
import errno
import fcntl
import os
import select
import stat
import termios
import threading
from typing import Deque, Dict, Optional

from ..wire.blobs import BlobError, BlobSender
from ..wire.codec import encode
from ..wire.frames import Error

MAX_WAITING_BYTES = 8 << 20
"""Control lines that may wait for a reader that does not read; what comes beyond is refused."""
_SLICE_BYTES = 4096  # PIPE_BUF: a pipe that polls writable takes so much without blocking
_DRAIN_POLL_SECONDS = 0.003
_CLOSE_POLL_MS = 100
_BLOB = b'{"k":"blob"'
_LAST_ANSWERS = (b'{"k":"result"', b'{"k":"error"')


class Outbox:
    """Thread-safe. Any thread puts; one thread is inside :meth:`run`. ``fd`` is a pipe or a socket, and stays open."""

    def __init__(self, fd: int) -> None:
        self.dropped_samples = 0
        self._fd = fd
        self._unread = termios.FIONREAD if stat.S_ISFIFO(os.fstat(fd).st_mode) else termios.TIOCOUTQ
        self._changed = threading.Condition()
        self._control: Deque[bytes] = collections.deque()
        self._sample: Optional[bytes] = None
        self._bulk: Deque[bytes] = collections.deque()
        self._blobs: Dict[int, BlobSender] = {}
        self._after: Dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._closed = False

    def put(self, line: bytes) -> bool:
        """Queues an encoded line: a chunk that is relayed goes with the blobs, all else before samples.

        False when the reader is so far behind that ``MAX_WAITING_BYTES`` wait already, or after :meth:`close`."""
        with self._changed:
            if self._closed or self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
                return False
            bulk = line.startswith(_BLOB) or (self._bulk and line.startswith(_LAST_ANSWERS))
            (self._bulk if bulk else self._control).append(line)
            self._waiting_bytes += len(line)
            self._changed.notify()
            return True

    def put_sample(self, line: bytes) -> bool:
        """Queues a sample. False when the one before still waits: then this one is dropped and counted, and what it
        would have told once (its reasons) has to go with the next."""
        with self._changed:
            if self._closed or self._sample is not None:
                self.dropped_samples += 1
                return False
            self._sample = line
            self._changed.notify()
            return True

    def add_blob(self, sender: BlobSender, after: bytes = b"") -> None:
        """Sends a blob between samples; ``after`` (its result) follows the last chunk.

        When its source fails, an ``error`` frame with code ``failed`` goes out in place of the rest and ``after``."""
        with self._changed:
            self._blobs[sender.id] = sender
            self._after[sender.id] = after
            self._changed.notify()

    def credit(self, request_id: int, chunks: int) -> None:
        """The receiver allows so many more chunks. Unknown ids are ignored: the blob may have ended."""
        with self._changed:
            sender = self._blobs.get(request_id)
            if sender is not None:
                sender.allow(chunks)
                self._changed.notify()

    def cancel(self, request_id: int) -> bool:
        """Stops a blob; True when there was one. Neither its rest nor ``after`` is sent."""
        with self._changed:
            sender = self._blobs.pop(request_id, None)
            self._after.pop(request_id, None)
        if sender is not None:
            sender.cancel()
        return sender is not None

    def close(self) -> None:
        """Lets :meth:`run` write the control lines that wait, if the reader takes them at once, and return."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Writes until :meth:`close`. Raises ``OSError`` when the reader is gone."""
        while True:
            line = self._next()
            if line is None:
                return
            self._write(line)

    def _next(self) -> Optional[bytes]:
        """The next line, waiting for one; None after close. Compression happens here, outside the lock."""
        while True:
            with self._changed:
                line = self._take()
                if line is not None or self._closed:
                    return line
                sender = next((s for s in self._blobs.values() if s.wants_turn), None)
                if sender is None and not self._bulk:
                    self._changed.wait()
                    continue
                if not self._drained():
                    self._changed.wait(_DRAIN_POLL_SECONDS)
                    continue
                if self._bulk:
                    line = self._bulk.popleft()
                    self._waiting_bytes -= len(line)
                    return line
            if sender is not None:
                line = self._chunk(sender)
                if line is not None:
                    return line

    def _take(self) -> Optional[bytes]:
        if self._control:
            line = self._control.popleft()
            self._waiting_bytes -= len(line)
            return line
        sample, self._sample = self._sample, None
        return None if self._closed else sample

    def _chunk(self, sender: BlobSender) -> Optional[bytes]:
        line: Optional[bytes] = None
        failure = b""
        try:
            line = sender.next_line()
        except BlobError as error:
            failure = encode(Error(sender.id, "failed", str(error)))
        with self._changed:
            if self._blobs.get(sender.id) is not sender:
                return None  # cancelled meanwhile
            if sender.done:
                del self._blobs[sender.id]
                after = failure or self._after.get(sender.id, b"")
                self._after.pop(sender.id, None)
                if after:
                    # Behind its last chunk, which is written before the queue is looked at again.
                    self._control.appendleft(after)
                    self._waiting_bytes += len(after)
            else:
                self._blobs[sender.id] = self._blobs.pop(sender.id)  # the next blob has its turn
        return line

    def _drained(self) -> bool:
        """Whether the reader has taken everything written so far. Where that cannot be asked, yes."""
        unread = array.array("i", [0])
        try:
            fcntl.ioctl(self._fd, self._unread, unread)
        except OSError:
            return True
        return unread[0] == 0

    def _write(self, line: bytes) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        view = memoryview(line)
        while view:
            if poll.poll(_CLOSE_POLL_MS):
                view = view[os.write(self._fd, view[:_SLICE_BYTES]) :]
            elif self._closed:
                raise OSError(errno.ETIMEDOUT, "the reader does not read")
