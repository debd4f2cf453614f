"""Keep a large answer in an unlinked temporary file, never in the trainer's memory."""

from __future__ import annotations

import os
import tempfile
from typing import Any, BinaryIO, Optional, Tuple, cast

from ..wire.blobs import MAX_BLOB_BYTES
from . import file_size, rendezvous
from .long_requests import Refusal

SPARE_BYTES = 256 << 20
"""This much space is left free on the disk, because a full disk hurts the training more than a
missing snapshot does.
"""
LOOK_BYTES = 16 << 20
HOST_SPARE_BYTES = 512 << 20
DISKS = ("/var/tmp",)
"""These directories are tried before the probe's own one, because /tmp is often in memory."""


def directory() -> str:
    """Open the directory to write to.

    It is either our own, which nobody else may enter, or one in which nobody else can open our
    files. Raises :class:`Refusal` if there is no space.
    """
    free = []
    for path in (*DISKS, None):
        try:
            place = rendezvous.checked_directory() if path is None else path
            left = free_bytes(place)
        except (OSError, rendezvous.RendezvousError):
            continue
        if left > SPARE_BYTES and os.access(place, os.W_OK | os.X_OK):
            return place
        free.append(f"{left >> 20} MiB free in {place}")
    raise Refusal(
        "refused",
        "no space for a temporary file: " + (", ".join(free) or "no directory is writable"),
    )


def free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def host_memory() -> Optional[int]:
    """Return the bytes that this process may still allocate, by its host and its cgroup (v2).

    None if neither can be read.
    """
    left = []
    try:
        with open("/proc/meminfo", "rb") as file:
            left.append(int(file.read().partition(b"MemAvailable:")[2].split()[0]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    try:
        with open("/proc/self/cgroup") as text:
            group = text.read().partition("0::")[2].partition("\n")[0]
        base = "/sys/fs/cgroup" + group
        with open(base + "/memory.max") as limit, open(base + "/memory.current") as used:
            left.append(int(limit.read()) - int(used.read()))
    except (OSError, ValueError):  # "max": no limit
        pass
    return min(left) if left else None


def refuse_without_memory(needed: int, what: str) -> None:
    """Raise :class:`Refusal` unless ``needed`` bytes and a reserve are available."""
    left = host_memory()
    if left is not None and left < needed + HOST_SPARE_BYTES:
        raise Refusal(
            "refused",
            f"{what} may take {needed >> 20} MiB of the trainer's host memory, and only "
            f"{left >> 20} MiB are free",
        )


class OwnFile:
    """An unlinked file of ours that is checked before each use.

    A trainer may close all descriptors, and a file of its own may then have our descriptor's
    number. Writing more than ``limit`` bytes, or into the reserve of the disk, raises
    :class:`Refusal`.
    """

    def __init__(self, descriptor: int, place: str, limit: int = MAX_BLOB_BYTES) -> None:
        self.size = 0
        self.closed = False
        self._descriptor = descriptor
        self._place = place
        self._limit = limit
        self._look = 0
        self._mark = self._identity()

    def _identity(self) -> Tuple[int, int, int]:
        found = os.fstat(self._descriptor)
        # The number of an inode may soon belong to another file, but only our file has no name.
        return found.st_dev, found.st_ino, found.st_nlink

    def _check(self) -> None:
        if self.closed or self._identity() != self._mark:
            raise OSError("the trainer has closed our temporary file")

    def write(self, data: Any) -> int:
        """Write all of ``data``.

        Each part is one system call, made without the interpreter lock.
        """
        self._check()
        length = len(data)
        if self.size + length > self._limit:
            raise Refusal("refused", f"it would be larger than the {self._limit} bytes allowed")
        if self.size + length > self._look:
            self._look += LOOK_BYTES
            if free_bytes(self._place) < SPARE_BYTES:
                raise Refusal(
                    "refused",
                    f"no space left in {self._place}, with {self.size} bytes written",
                )
        try:
            file_size.check(self.size + length, "what is to be sent")
        except OSError as error:
            raise Refusal("refused", str(error)) from None
        with file_size.no_signal():
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        self.size += length
        return length

    def length(self) -> int:
        """Return the present size of the file in bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, size: int = -1) -> bytes:
        self._check()
        return os.read(self._descriptor, size if size >= 0 else 1 << 20)

    def rewind(self) -> BinaryIO:
        """Go to the beginning of the file, to read it."""
        self._check()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return cast(BinaryIO, self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            if self._identity() == self._mark:
                os.close(self._descriptor)
        except OSError:
            pass


def unlinked() -> OwnFile:
    """Return a new file without a name, which only this process can open.

    Raises :class:`Refusal`.
    """
    place = directory()
    try:
        descriptor, path = tempfile.mkstemp(prefix=".gpuscope-", dir=place)
        os.unlink(path)
    except OSError as error:
        raise Refusal(
            "refused", f"cannot create a temporary file in {place}: {error.strerror}"
        ) from None
    return OwnFile(descriptor, place)
