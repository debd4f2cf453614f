"""Write an agent's stream so that large blobs never delay a sample.

Nothing else writes to that stream.

Control lines are written first, in the order in which they come, then the waiting sample, if any.
When the pipe is empty, one chunk of a blob that a probe sends follows. An answer that ends a blob
stays behind the blob's chunks.
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
from typing import Deque, Optional

MAX_WAITING_BYTES = 8 << 20
"""Limit of what waits for a reader that does not read; further lines are refused."""
# PIPE_BUF: if poll reports a pipe as writable, this many bytes can be written without blocking
_SLICE_BYTES = 4096
_DRAIN_POLL_SECONDS = 0.003
_CLOSE_POLL_MS = 100
_BLOB = b'{"k":"blob"'
_LAST_ANSWERS = (b'{"k":"result"', b'{"k":"error"')


class Outbox:
    """The queue of one stream. It is thread-safe.

    Any thread may put lines; one thread is inside :meth:`run`. ``fd`` is a pipe or a socket, and is
    not closed here.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = termios.FIONREAD if stat.S_ISFIFO(os.fstat(fd).st_mode) else termios.TIOCOUTQ
        self._changed = threading.Condition()
        self._control: Deque[bytes] = collections.deque()
        self._sample: Optional[bytes] = None
        self._bulk: Deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._closed = False

    def put(self, line: bytes) -> bool:
        """Queue an encoded line: a blob's chunk goes after samples, everything else before them.

        Return False if ``MAX_WAITING_BYTES`` are already waiting, or after :meth:`close`.
        """
        with self._changed:
            if self._closed or self._waiting_bytes + len(line) > MAX_WAITING_BYTES:
                return False
            bulk = line.startswith(_BLOB) or (self._bulk and line.startswith(_LAST_ANSWERS))
            (self._bulk if bulk else self._control).append(line)
            self._waiting_bytes += len(line)
            self._changed.notify()
            return True

    def put_sample(self, line: bytes) -> bool:
        """Queue a sample, or return False if the previous one still waits.

        Then the new sample is dropped, and what it would have sent only once (its
        reasons) must go with the next one.
        """
        with self._changed:
            if self._closed or self._sample is not None:
                return False
            self._sample = line
            self._changed.notify()
            return True

    def close(self) -> None:
        """Let :meth:`run` write the waiting control lines, if the reader takes them, and return."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Write until :meth:`close`. Raises ``OSError`` when the reader is gone."""
        while True:
            line = self._next()
            if line is None:
                return
            self._write(line)

    def _next(self) -> Optional[bytes]:
        """Wait for the next line and return it, or None after :meth:`close`."""
        while True:
            with self._changed:
                line = self._take()
                if line is not None or self._closed:
                    return line
                if not self._bulk:
                    self._changed.wait()
                elif not self._drained():
                    self._changed.wait(_DRAIN_POLL_SECONDS)
                else:
                    line = self._bulk.popleft()
                    self._waiting_bytes -= len(line)
                    return line

    def _take(self) -> Optional[bytes]:
        if self._control:
            line = self._control.popleft()
            self._waiting_bytes -= len(line)
            return line
        sample, self._sample = self._sample, None
        return None if self._closed else sample

    def _drained(self) -> bool:
        """Tell whether the reader has taken everything that was written so far.

        True if that cannot be found out.
        """
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
