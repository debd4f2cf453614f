"""Trainers in containers, seen from the host: their sockets lie in another ``/tmp``, reached through a process there.

Every mount namespace that this user may look into is searched by one of its processes. A path is followed one name at a
time and through no symlink: what a container calls ``/tmp`` must not lead out of it.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Tuple

MAX_NAMESPACES = 64
MAX_PROCESSES = 32768
AGAIN_SECONDS = 5.0
_DIRECTORY = re.compile(r"^gpuscope-(0|[1-9][0-9]{0,9})$")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Finder:
    """The socket directories of other mount namespaces, looked for every ``AGAIN_SECONDS``."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._found: List[Tuple[str, int]] = []
        self._next = float("-inf")

    def places(self, now: float) -> List[Tuple[str, int]]:
        """Paths as :func:`open_inside` takes them, and who must own each."""
        if now >= self._next:
            self._next = now + AGAIN_SECONDS
            self._found = [place for pid in self._namespaces() for place in self._directories(pid)]
        return self._found

    def _namespaces(self) -> List[int]:
        """One process of every mount namespace but our own."""
        found: Dict[str, int] = {}
        try:
            own = os.readlink(f"{self._proc}/self/ns/mnt")
            names = os.listdir(self._proc)[:MAX_PROCESSES]
        except OSError:
            return []
        for name in names:
            if name.isdigit() and len(found) < MAX_NAMESPACES:
                try:
                    namespace = os.readlink(f"{self._proc}/{name}/ns/mnt")
                except OSError:
                    continue  # another user's, or just gone
                if namespace != own:
                    found.setdefault(namespace, int(name))
        return list(found.values())

    def _directories(self, pid: int) -> List[Tuple[str, int]]:
        found = []
        uid = os.geteuid()
        path = f"{self._proc}/{pid}/root/tmp"
        try:
            descriptor = open_inside(path)
        except OSError:
            return []
        try:
            for name in filter(_DIRECTORY.match, os.listdir(descriptor)):
                try:
                    owner = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid
                except OSError:
                    continue  # just removed, by the last trainer of its user
                if uid in (0, owner):
                    found.append((f"{path}/{name}", owner))
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return found


def open_inside(path: str) -> int:
    """Opens a directory; behind ``/proc/PID/root`` no name may be a symlink. Raises OSError."""
    match = re.match(r"(.*/proc/[0-9]+/root)/(.+)$", path)
    if match is None:
        return os.open(path, _FLAGS)
    descriptor = os.open(match.group(1), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in match.group(2).split("/"):
        try:
            below = os.open(name, _FLAGS, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def number_inside(pid: int) -> Optional[int]:
    """The pid by which a process knows itself, in its own pid namespace; None where that cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:
            match = re.search(rb"^NSpid:([\t 0-9]+)$", stream.read(8192), re.M)
    except OSError:
        return None
    words = match.group(1).split() if match is not None else []
    return int(words[-1]) if words else None
