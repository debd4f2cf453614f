"""Keep files that outlive a trainer in a private directory.

These are OOM records and the black boxes of trainers that died. The directory is
``$XDG_STATE_HOME/gpuscope/records``, else ``~/.local/state/gpuscope/records``, with mode 0700 and a
limited number of files.
"""

from __future__ import annotations

import os
import re
import stat
import time
from typing import List, Tuple

from . import file_size

MAX_FILES = 64
MAX_BYTES = 64 << 20
FREE_BYTES = 64 << 20
"""Nothing is written to a disk with less free space than this."""
_OURS = re.compile(r"(?:oom|box)-[\w.-]+\.gz(?:\.new)?")
KEPT_LONGER = ".confirmed."
"""A part of the name of records that are known to matter, which are removed last."""


def place() -> str:
    base = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "gpuscope", "records")


def check_private(path: str) -> None:
    """Raise OSError unless ``path`` is a directory of this user that nobody else can enter."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{path} is not a directory")
    if found.st_uid != os.geteuid():
        raise OSError(f"{path} belongs to uid {found.st_uid}, not to you")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(f"{path} is open to others (chmod 700 {path})")


def check_room(path: str, size: int) -> None:
    """Raise OSError if ``size`` more bytes would leave the disk nearly full."""
    free = os.statvfs(path)
    if free.f_bavail * free.f_frsize < size + FREE_BYTES:
        raise OSError(f"the disk of {path} is nearly full")


def write(name: str, data: bytes) -> str:
    """Write a file into the directory and return its path.

    It appears complete or not at all. Raises OSError, whose text says why.
    """
    directory = place()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    check_private(directory)
    prune(directory)
    check_room(directory, len(data))
    file_size.check(len(data), "a record")
    path = os.path.join(directory, name)
    fresh = path + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(fresh, flags, 0o600)
    try:
        with file_size.no_signal():
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
    except OSError:
        os.unlink(fresh)
        raise
    finally:
        os.close(descriptor)
    os.rename(fresh, path)
    return path


def prune(directory: str) -> None:
    """Remove the oldest of our files if there are too many, unconfirmed ones first."""
    found: List[Tuple[bool, float, str, int]] = []
    for name in os.listdir(directory)[:4096]:
        if not _OURS.fullmatch(name):
            continue
        path = os.path.join(directory, name)
        try:
            seen = os.lstat(path)
        except OSError:
            continue
        if name.endswith(".new") and time.time() - seen.st_mtime > 3600:
            remove(path)
            continue
        found.append((KEPT_LONGER in name, seen.st_mtime, path, seen.st_size))
    found.sort()
    total = sum(size for *_, size in found)
    while found and (len(found) >= MAX_FILES or total > MAX_BYTES):
        _, _, path, size = found.pop(0)
        total -= size
        remove(path)


def remove(path: str) -> None:
    """Remove a file, if it is there and may be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass
