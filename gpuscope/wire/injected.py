"""Finds the files that injections left behind in a user's private directory.

An injector removes its files when it is done. One that is killed cannot, and what it has put there
would stay for ever: so the next injector there, and every probe that starts there, removes what
nobody needs any more. Stdlib only.
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
"""No file is removed before: it may belong to an injection under way in another pid namespace."""
LATE_SECONDS = 3600.0
"""No injection takes so long: what is older is removed even where a process has the number again.
"""
_NAME = re.compile(
    r"inject-([1-9][0-9]{0,9})(?:-[0-9a-f]{16}\.(?:py|json|json\.taken|done|done\.new)|(?P<lock>\.lock))"
)


def remove_left(directory: str) -> int:
    """Remove from ``directory`` the files that injections have left.

    Their process is gone, or they are too old to matter. Only what belongs to the owner of the
    directory goes, and no lock that is held. Returns how many files went. Raises OSError where
    the directory cannot be read. ``directory`` may be ``/proc/self/fd/N``.
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
            continue  # somebody else was quicker, or holds it
    return removed


def _runs(pid: str) -> bool:
    """Whether there is such a process; also where /proc does not tell."""
    return os.path.exists(f"/proc/{pid}") or not os.path.exists("/proc/self")


def _remove_lock(path: str) -> None:
    """Remove a lock. Raises OSError where somebody holds it.

    Whoever opened it before looks whether it still has a name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)
