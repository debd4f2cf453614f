"""Opens regular files, and nothing that only looks like one.

Opening a pipe waits for a writer, opening a device may trigger an action, and reading a file under
/proc may never return. This module uses only the standard library.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Optional, Union

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


class NotAFile(OSError):
    """The path is not a regular file. ``strerror`` says what it is and what to do."""

    def __init__(self, kind: str, path: Union[str, os.PathLike[str]]) -> None:
        then = (
            "name a file in it"
            if kind == "a directory"
            else "save its output to a file, and name that"
        )
        super().__init__(errno.EINVAL, f"it is {kind}, not a file. Next: {then}", os.fspath(path))


def open_regular(path: Union[str, os.PathLike[str]]) -> BinaryIO:
    """Open a file that a user named, for reading. It never waits.

    Raises OSError, and :class:`NotAFile` if it is not a regular file.
    """
    _check(os.stat(path), path)  # checked before opening, because opening alone may have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_regular_descriptor(path: str, flags: int, directory: Optional[int] = None) -> int:
    """Open a file of Linux safely, and return its descriptor.

    Another process may replace the file at any time; the file that is opened is the one that was
    checked. ``O_NOFOLLOW`` refuses a symbolic link, and ``directory`` is where a relative path
    begins. Files under /proc are accepted too. Raises OSError.
    """
    follow = flags & os.O_NOFOLLOW
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | follow, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(seen).st_mode):
            raise OSError(errno.EINVAL, f"{path} is not a regular file")
        return os.open(f"/proc/self/fd/{seen}", (flags & ~os.O_NOFOLLOW) | os.O_CLOEXEC)
    finally:
        os.close(seen)


def _check(found: os.stat_result, path: Union[str, os.PathLike[str]]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFile(_KINDS.get(stat.S_IFMT(found.st_mode), "something else"), path)
    if not found.st_size and found.st_dev in _kernels_own():
        raise NotAFile("a kernel file", path)


def _kernels_own() -> set[int]:
    """Return the device numbers of file systems without real files: /proc, /sys and the like."""
    found = set()
    for place in (
        "/proc",
        "/sys",
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/debug/tracing",
    ):
        try:
            found.add(os.stat(place).st_dev)
        except OSError:
            continue
    return found
