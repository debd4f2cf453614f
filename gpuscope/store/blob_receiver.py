"""Receives what :mod:`gpuscope.wire.blobs` sends, and trusts none of it."""

from __future__ import annotations

import binascii
import os
import zlib
from typing import Optional

from ..wire.blobs import MAX_BLOB_BYTES, BlobError, new_digest
from ..wire.frames import Blob

MAX_CHUNK_UNPACKS_BYTES = 16 << 20
"""Receivers refuse a chunk that unpacks to more, so that a line of compressed zeros from a hostile
sender can neither hold them up nor fill their disk. The limit is larger than :data:`FLUSH_BYTES`
because a compressor may keep data back from one chunk to the next.
"""
_WRITE_BYTES = 1 << 20


class BlobReceiver:
    """Puts a blob together in a temporary file, verifies it, and moves it to ``path``.

    The content at ``path`` is uncompressed. A hostile sender cannot write anywhere else, cannot
    fill memory, and cannot use more of the disk than ``max_bytes`` and than it has announced. A
    single chunk cannot unpack to more than :data:`MAX_CHUNK_UNPACKS_BYTES`.
    """

    def __init__(self, request_id: int, path: str, max_bytes: int = MAX_BLOB_BYTES) -> None:
        self.id = request_id
        self.path = path
        self.size: Optional[int] = None
        """Uncompressed size as announced, where known."""
        self.written_bytes = 0
        self.received_bytes = 0
        self.complete = False
        self._max_bytes = max_bytes
        self._next = 0
        self._digest = new_digest()
        self._decompressor = zlib.decompressobj()
        try:
            import tempfile

            fd, self._temporary = tempfile.mkstemp(
                prefix=".gpuscope-", dir=os.path.dirname(os.path.abspath(path))
            )
        except OSError as error:
            raise BlobError(f"cannot write {path}: {error.strerror}") from None
        self._file = os.fdopen(fd, "wb")

    def feed(self, blob: Blob) -> bool:
        """Take the next chunk. True if the blob is complete and has been moved to ``path``.

        Raises :class:`BlobError` for invalid or damaged data; nothing is left on disk then.
        """
        try:
            self._take(blob)
        except (BlobError, OSError, ValueError, zlib.error) as error:
            self.abort()
            if isinstance(error, BlobError):
                raise
            if isinstance(error, OSError):
                raise BlobError(f"cannot write {self.path}: {error.strerror}") from None
            raise BlobError("the data arrived damaged: it cannot be decompressed") from None
        return self.complete

    def _take(self, blob: Blob) -> None:
        if self.complete or self._file.closed:
            raise BlobError("more data came after its end")
        if blob.n != self._next:
            raise BlobError(f"chunk {self._next} is missing: chunk {blob.n} came instead")
        self._next += 1
        if blob.size is not None and blob.n == 0:
            self.size = blob.size
            if blob.size > self._max_bytes:
                raise BlobError(
                    f"it has {blob.size} bytes, more than the {self._max_bytes} allowed"
                )
        data = binascii.a2b_base64(blob.data)
        self.received_bytes += len(data)
        # zlib may add a little
        if self.received_bytes > self._max_bytes + (self._max_bytes >> 8) + 1024:
            raise BlobError(f"more than the {self._max_bytes} bytes allowed were sent")
        self._digest.update(data)
        self._decompress(data)
        if blob.last:
            self._finish(blob.sha256)

    def _decompress(self, data: bytes) -> None:
        before = self.written_bytes
        while data:
            part = self._decompressor.decompress(data, _WRITE_BYTES)
            self.written_bytes += len(part)
            if self.written_bytes > self._max_bytes:
                raise BlobError(f"it unpacks to more than the {self._max_bytes} bytes allowed")
            if self.size is not None and self.written_bytes > self.size:
                raise BlobError(
                    f"it unpacks to more than the {self.size} bytes that were announced"
                )
            if self.written_bytes - before > MAX_CHUNK_UNPACKS_BYTES:
                raise BlobError(
                    f"one chunk of it unpacks to more than {MAX_CHUNK_UNPACKS_BYTES} bytes"
                )
            self._file.write(part)
            data = self._decompressor.unconsumed_tail
        if self._decompressor.unused_data:
            raise BlobError("more data came after its end")

    def _finish(self, sha256: str) -> None:
        if not self._decompressor.eof:
            raise BlobError("it ended early")
        if self._digest.hexdigest() != sha256:
            raise BlobError("the data arrived damaged: its sha256 differs")
        if self.size is not None and self.written_bytes != self.size:
            raise BlobError(f"it has {self.written_bytes} bytes, but {self.size} were announced")
        self._file.close()
        os.replace(self._temporary, self.path)
        self.complete = True

    def abort(self) -> None:
        """Give up and remove the temporary file. A complete blob is left as it is."""
        if self.complete:
            return
        for step in (self._file.close, lambda: os.unlink(self._temporary)):
            try:
                # Closing writes buffered data, which fails on a full disk; the file must be removed
                # then too.
                step()
            except OSError:
                pass
