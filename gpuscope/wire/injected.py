"""Removes the files that injections left behind in a user's private directory.

An injector removes its files when it is done, but one that is killed cannot do so, and its files
would stay forever. So the next injector in that directory, and every probe that starts there,
removes the files that nobody needs any more. This module uses only the standard library.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from itertools import islice

MAX_NAMES = 4096
SOON_SECONDS = 60.0
"""No file is removed earlier, because it may belong to an injection in another pid namespace."""
LATE_SECONDS = 3600.0
"""No injection takes this long. An older file is removed even if a process has the pid in its name.
"""
_NAME = re.compile(
    r"inject-([1-9][0-9]{0,9})(?:-[0-9a-f]{16}\.(?:py|json|json\.taken|done|done\.new)|(?P<lock>\.lock))"
)


def remove_left(directory: str) -> int:
    """Remove from ``directory`` the files that injections have left behind.

    A file is removed if the process that made it has ended, or if it is too old to matter. Only
    files of the directory's owner are removed, and no lock that somebody holds. Returns the number
    of removed files. Raises OSError if the directory cannot be read. ``directory`` may be
    ``/proc/self/fd/N``.
    """
    owner, now, removed = os.stat(directory).st_uid, time.time(), 0
    with os.scandir(directory) as entries:
        names = [entry.name for entry in islice(entries, MAX_NAMES)]
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        path = os.path.join(directory, name)
        try:
            seen = os.lstat(path)
            age = now - seen.st_mtime
            if (
                seen.st_uid != owner
                or 0 <= age < SOON_SECONDS
                or (age < LATE_SECONDS and _runs(match.group(1)))
            ):
                continue
            if match.group("lock"):
                _remove_lock(path)
            else:
                os.unlink(path)
            removed += 1
        except OSError:
            continue  # another process removed it first, or holds it
    return removed


def _runs(pid: str) -> bool:
    """Whether a process with this pid runs; True also if /proc cannot tell."""
    return os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self")


def _remove_lock(path: str) -> None:
    """Remove a lock. Raises OSError if somebody holds it.

    A process that opened the lock before checks afterwards whether the file still has its name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)
