"""Replaces a file in one step, so that readers never see a part of the old or new content."""

from __future__ import annotations

import errno
import os
import stat
from typing import Union

Path = Union[str, "os.PathLike[str]"]


def write(
    path: Path, content: bytes, mode: int = 0o600, shared: bool = False, sync: bool = False
) -> None:
    """Write ``content`` to ``path`` atomically, replacing a file that is there.

    The umask applies to ``mode`` as for any new file, except with ``shared``, which sets all of its
    bits. ``sync`` waits until the content is on the disk, so that not even a power failure leaves
    an empty file. Raises OSError, and leaves no temporary file behind then. What is no file, such
    as /dev/null, is not replaced: root could do that, and every program would miss it.
    """
    target = os.fspath(path)
    _refuse_what_is_no_file(target)
    folder, name = os.path.split(target)
    fresh = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            if shared:
                # Through the descriptor: in a folder of another user the name may be swapped.
                os.fchmod(stream.fileno(), mode)
            if sync:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(fresh, target)
    except BaseException:
        os.unlink(fresh)
        raise


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Put ``text`` at ``path`` in UTF-8, as :func:`write` does."""
    write(path, text.encode(), mode)


def write_output(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write ``content`` where a user wants it: to a file as :func:`write` does, or to a device.

    /dev/null, /dev/stdout and a pipe are written to as they are. Raises OSError.
    """
    if is_no_file(path):
        with open(path, "wb") as device:
            device.write(content)
    else:
        write(path, content, mode)


def put_in_place(written: Path, path: Path) -> None:
    """Rename a file that was written next to ``path`` to ``path``, replacing a file that is there.

    Raises OSError.
    """
    _refuse_what_is_no_file(path)
    os.replace(written, path)


def is_no_file(path: Path) -> bool:
    """Tell whether a device, a pipe or a socket is there, also by a symbolic link."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def _refuse_what_is_no_file(path: Path) -> None:
    if is_no_file(path):
        raise OSError(errno.EINVAL, "It is a device or a pipe, not a file", os.fspath(path))
