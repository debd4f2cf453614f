"""Sends large answers (snapshots, traces) as a stream of small compressed chunks.

The receiver controls the flow by credit: a sender may have ``WINDOW_CHUNKS`` chunks under way
before it hears anything, and each ``credit`` frame allows more. A transfer can be cancelled, its
size is limited, and its content is verified by a sha256. A chunk is one line of about 44 KB, which
fits into an empty pipe (64 KiB). So writing a chunk to an empty pipe never blocks, and samples in
between stay on time. This module uses only the standard library and the syntax of Python 3.8,
because the sending side also runs inside trainers.
"""

from __future__ import annotations

import binascii
import io
import zlib
from typing import TYPE_CHECKING, BinaryIO, Optional, Union

from .codec import encode
from .frames import Blob

if TYPE_CHECKING:
    import hashlib

CHUNK_BYTES = 32 * 1024
"""Compressed bytes per chunk, before base64. Receivers take up to 128 KiB."""
WINDOW_CHUNKS = 8
MAX_BLOB_BYTES = 4 << 30
"""Limit of the uncompressed size, enough for a snapshot of millions of events. Both ends refuse
more unless a caller asks for another limit.
"""
FLUSH_BYTES = 4 << 20
"""After this many uncompressed bytes a sender closes a chunk, however small they became."""
_READ_BYTES = 128 * 1024
_READS_PER_TURN = 8


def new_digest() -> hashlib._Hash:
    """Return a new digest.

    ``hashlib`` is imported only when a blob is sent, because it loads OpenSSL (5 MiB).
    """
    import hashlib

    return hashlib.sha256()


class BlobError(Exception):
    """A blob that cannot be sent or must not be accepted. The text says why."""


class BlobSender:
    """Cuts ``source`` into the blob frames of a request.

    ``source`` is bytes, or a binary file, which is read while it is sent and closed at the end. One
    writer thread calls :meth:`next_line`; other threads may only call :meth:`allow` (one at a time)
    and :meth:`cancel`. ``size`` is the uncompressed size, if it is known. A source that is larger
    than ``max_bytes`` raises :class:`BlobError`.
    """

    def __init__(
        self,
        request_id: int,
        source: Union[bytes, BinaryIO],
        size: Optional[int] = None,
        max_bytes: int = MAX_BLOB_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        level: int = 1,
    ) -> None:
        self.id = request_id
        self.done = False
        self._allowed = WINDOW_CHUNKS
        self._source = io.BytesIO(source) if isinstance(source, bytes) else source
        self._size = len(source) if isinstance(source, bytes) else size
        self._max_bytes = max_bytes
        self._chunk_bytes = chunk_bytes
        self._compressor = zlib.compressobj(level)
        self._digest = new_digest()
        self._pending = bytearray()
        self._read = 0
        self._flushed = 0  # bytes of the source that the closed chunks cover
        self._sent = 0
        self._source_ended = False

    @property
    def wants_turn(self) -> bool:
        """Whether :meth:`next_line` may be called: there is more to send, and credit for it."""
        return not self.done and self._sent < self._allowed

    def allow(self, chunks: int) -> None:
        """Add credit: the receiver allows this many more chunks."""
        self._allowed += max(chunks, 0)

    def next_line(self) -> Optional[bytes]:
        """Return the next encoded frame, or None if this call only compressed data.

        After None, call it again; other lines may be sent in between. One call reads and compresses
        about 1 MiB at most. Raises :class:`BlobError` if the source cannot be read or is too large.
        """
        for _ in range(_READS_PER_TURN):
            if self._source_ended or len(self._pending) >= self._chunk_bytes:
                break
            self._compress_some()
        if not self._source_ended and len(self._pending) < self._chunk_bytes:
            if self._read - self._flushed < FLUSH_BYTES:
                return None
            self._pending += self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._flushed = self._read
        chunk = bytes(self._pending[: self._chunk_bytes])
        del self._pending[: self._chunk_bytes]
        self._digest.update(chunk)
        last = self._source_ended and not self._pending
        blob = Blob(
            self.id, self._sent, binascii.b2a_base64(chunk, newline=False).decode("ascii"), last
        )
        if self._sent == 0:
            blob.size = self._size
        if last:
            blob.sha256 = self._digest.hexdigest()
            self.cancel()
        self._sent += 1
        return encode(blob)

    def _compress_some(self) -> None:
        try:
            data = self._source.read(_READ_BYTES)
        except (OSError, ValueError) as error:
            self.cancel()
            raise BlobError(f"reading the data failed: {error}") from None
        self._read += len(data)
        if self._read > self._max_bytes:
            self.cancel()
            raise BlobError(f"it is larger than the {self._max_bytes} bytes allowed")
        if data:
            self._pending += self._compressor.compress(data)
        else:
            self._pending += self._compressor.flush()
            self._source_ended = True

    def cancel(self) -> None:
        """Send no more frames, and close the source."""
        self.done = True
        try:
            self._source.close()
        except OSError:
            pass
