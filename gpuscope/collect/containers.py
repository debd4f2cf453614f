"""Reach the sockets of trainers in containers from the host.

These sockets are in another ``/tmp``, which is reached through a process in that container. Of
every mount namespace that this user may inspect, one process is used. A path is followed one name
at a time and never through a symlink, because a link inside a container must not lead out of its
``/tmp``.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Set, Tuple

from ..process.procfs import read, status_values

MAX_NAMESPACES = 1024
MAX_NAMESPACES_OF_ONE = 64
"""The limit for one user other than root and this one."""
MAX_DIRECTORIES = 512
MAX_PROCESSES = 32768
AGAIN_SECONDS = 5.0
_DIRECTORY = re.compile(r"^gpuscope-(0|[1-9][0-9]{0,9})$")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SocketFinder:
    """The socket directories of other mount namespaces, looked for every ``AGAIN_SECONDS``."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._found: List[Tuple[str, int]] = []
        self._next = float("-inf")
        self.left_out: List[str] = []
        """One sentence for each limit that cut the last search short."""

    def places(self, now: float) -> List[Tuple[str, int]]:
        """Return paths for :func:`open_inside`, and who must own each."""
        if now >= self._next:
            self._next = now + AGAIN_SECONDS
            self.left_out = []
            found = [place for pid in self._namespaces() for place in self._directories(pid)]
            if len(found) > MAX_DIRECTORIES:
                self._leave_out(
                    f"containers have {len(found)} directories for probes: {MAX_DIRECTORIES} are "
                    "searched"
                )
            self._found = found[:MAX_DIRECTORIES]
        return self._found

    def _leave_out(self, what: str) -> None:
        self.left_out.append(f"{what}, and trainers in the others are not seen")

    def _namespaces(self) -> List[int]:
        """Return one process of every mount namespace except this process's own.

        Any user can create such namespaces, so each user except root gets only a share of the
        limit.
        """
        found: Dict[str, int] = {}
        count: Dict[int, int] = {}
        cut: Dict[int, Set[str]] = {}
        try:
            own = os.readlink(f"{self._proc}/self/ns/mnt")
            names = os.listdir(self._proc)
        except OSError:
            return []
        if len(names) > MAX_PROCESSES:
            self._leave_out(
                f"more than {MAX_PROCESSES} processes run here: the container of the others is "
                f"unknown"
            )
        for name in names[:MAX_PROCESSES]:
            if not name.isdigit():
                continue
            try:
                namespace = os.readlink(f"{self._proc}/{name}/ns/mnt")
                owner = os.stat(f"{self._proc}/{name}").st_uid
            except OSError:
                continue  # of another user, or it has just ended
            if namespace == own or namespace in found:
                continue
            most = MAX_NAMESPACES if owner in (0, os.geteuid()) else MAX_NAMESPACES_OF_ONE
            if count.get(owner, 0) < most and len(found) < MAX_NAMESPACES:
                found[namespace] = int(name)
                count[owner] = count.get(owner, 0) + 1
            else:
                cut.setdefault(owner, set()).add(namespace)
        for owner, namespaces in cut.items():
            left = len(namespaces - found.keys())
            if left:
                self._leave_out(
                    f"uid {owner} has {count.get(owner, 0) + left} containers: {left} are not "
                    "searched"
                )
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
            numbers = _uid_map(f"{self._proc}/{pid}/uid_map")
            for match in filter(None, map(_DIRECTORY.match, os.listdir(descriptor))):
                try:
                    owner = os.stat(match.group(), dir_fd=descriptor, follow_symlinks=False).st_uid
                except OSError:
                    continue  # just removed by the last trainer of its user
                # Each user has one directory, named by the user's number inside the container. A
                # directory of that name with another owner is ignored.
                if uid in (0, owner) and _inside(numbers, owner) == int(match.group(1)):
                    found.append((f"{path}/{match.group()}", owner))
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return found


def _uid_map(path: str) -> List[Tuple[int, int, int]]:
    """Return the rows of a user namespace: (first id inside, first id here, count).

    The result is [] where they cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            rows = [
                tuple(int(word) for word in line.split())
                for line in stream.read(16384).splitlines()
            ]
    except (OSError, ValueError):
        return []
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def _inside(numbers: List[Tuple[int, int, int]], uid: int) -> int:
    """Return the id that one of our users has inside a user namespace.

    It is the same id where nothing is mapped.
    """
    for inside, here, count in numbers:
        if here <= uid < here + count:
            return uid - here + inside
    return uid


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
    """Return the pid that a process has in its own pid namespace, None where it is hidden."""
    try:
        pids = status_values(read(f"/proc/{pid}/status"), b"NSpid")
    except (OSError, ValueError):
        return None
    return pids[-1] if pids else None
