"""Replaces a file in one step, so that readers never see a part of the old or new content."""

from __future__ import annotations

import os
from typing import Union

Path = Union[str, "os.PathLike[str]"]


def write(
    path: Path, content: bytes, mode: int = 0o600, shared: bool = False, sync: bool = False
) -> None:
    """Write ``content`` to ``path`` atomically, replacing a file that is there.

    The umask applies to ``mode`` as for any new file, except with ``shared``, which sets all of its
    bits. ``sync`` waits until the content is on the disk, so that not even a power failure leaves
    an empty file. Raises OSError, and leaves no temporary file behind then.
    """
    target = os.fspath(path)
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


def put_in_place(written: Path, path: Path) -> None:
    """Rename a file that was written next to ``path`` to ``path``, replacing a file that is there.

    Raises OSError.
    """
    os.replace(written, path)
