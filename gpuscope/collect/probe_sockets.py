"""Find the sockets of probes, and verify that each belongs to the process in its name.

The directories are ``/tmp/gpuscope-<uid>`` and ``$XDG_RUNTIME_DIR/gpuscope``; a socket is named
``<pid>-<start ticks>.sock``. A directory is used only if it is no symlink, belongs to this user
(root reads those of all users) and is closed to others.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Dict, List, Match, Optional, Pattern, Sequence, Tuple

from ..process.procfs import start_ticks
from . import containers, processes

MAX_DIRECTORIES = 256
"""How many directories of other users are searched each second."""
MAX_NAMES = 4096
"""How many names in one directory are examined."""
MAX_SOCKETS = 256
"""How many sockets in one directory are tried."""
BASES = (
    ("/tmp", re.compile(r"^gpuscope-([1-9][0-9]{0,9})$"), ""),
    ("/run/user", re.compile(r"^([1-9][0-9]{0,9})$"), "gpuscope"),
)
"""The places of users' directories: parent, name with the uid in it, and the path inside."""
_SOCKET_NAME = re.compile(r"^([1-9][0-9]{0,9})-([0-9]{1,19})\.sock$")
_SO_PEERCRED = getattr(socket, "SO_PEERCRED", 17)

Place = Tuple[int, int, str]
"""The directory's device and inode, and the socket's name in it.

A probe that binds its socket again is still the same.
"""


class ProbeSocketRefused(Exception):
    """A directory that is not searched, or a socket that is left alone. The text says why."""


@dataclass(frozen=True)
class FoundSocket:
    """A socket in a directory.

    ``pid`` and ``start`` (clock ticks since boot) are read from its name.
    """

    place: Place
    pid: int
    start: int

    @property
    def name(self) -> str:
        return self.place[2]


@dataclass
class Places:
    """The directories to search now, each with its owner, and what is not among them."""

    found: List[Tuple[str, int]] = field(default_factory=list)
    squatted: Dict[int, List[str]] = field(default_factory=dict)
    """Directories that are named for one user but belong to another, by the uid of the owner."""
    left_out: List[str] = field(default_factory=list)
    """One sentence for each limit that cut the search short."""


def places(directories: Optional[Sequence[str]] = None) -> Places:
    """Looks where probes may listen; ``directories`` replaces the usual places."""
    uid = os.geteuid()
    if directories is not None:
        return Places([(path, uid) for path in directories])
    found = Places([(f"/tmp/gpuscope-{uid}", uid)])
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        found.found.append((os.path.join(runtime, "gpuscope"), uid))
    if uid == 0:
        _add_everybodys(found)
    return found


def _add_everybodys(places: Places) -> None:
    """Add the directories of all users.

    Anybody may create a directory with such a name in /tmp, but only as its owner. The owner is
    therefore compared with the name first, which leaves one per user, and only these count against
    the limit.
    """
    own: List[Tuple[str, int]] = []
    for base, pattern, inside in BASES:
        try:
            matches = _matching(base, pattern)
        except OSError:
            continue
        for match in matches:
            path, uid = os.path.join(base, match.group(), inside).rstrip("/"), int(match.group(1))
            try:
                owner = os.lstat(path).st_uid
            except OSError:
                continue  # this user has no such directory
            if owner == uid:
                own.append((path, uid))
            else:
                places.squatted.setdefault(owner, []).append(path)
    if len(own) > MAX_DIRECTORIES:
        running = processes.owners()
        own.sort(key=lambda place: (place[1] not in running, place[1]))
        places.left_out.append(
            f"{len(own)} users have a directory for probes, and {MAX_DIRECTORIES} are searched, "
            "those with running processes first: trainers of the others are not seen"
        )
    places.found += own[:MAX_DIRECTORIES]


_SETTLED_NS = 2_000_000_000
"""Seconds; a directory changed so recently may change again without a newer timestamp."""
_listed: Dict[str, Tuple[Tuple[int, int, int], List[Match[str]]]] = {}


def _matching(base: str, pattern: Pattern[str]) -> List[Match[str]]:
    """Return the matching names in a directory. Raises OSError.

    The directory is read again only if it has changed, because /tmp may contain thousands of names.
    """
    status = os.stat(base)
    state = status.st_dev, status.st_ino, status.st_mtime_ns
    known = _listed.get(base)
    if known is not None and known[0] == state:
        return known[1]
    settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
    matches = [match for match in map(pattern.match, os.listdir(base)) if match is not None]
    if settled:
        _listed[base] = state, matches
    return matches


class Directory:
    """An open socket directory that was checked. A context manager.

    It stays open, so that what was checked is what is used. Opening raises
    :class:`ProbeSocketRefused` for a directory that is not safe, and ``FileNotFoundError`` where
    there is none.
    """

    def __init__(self, path: str, owner: int) -> None:
        self.owner = owner
        self.left_out = ""
        """Why :meth:`sockets` did not return all sockets, "" where it did."""
        try:
            self._fd = containers.open_inside(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise ProbeSocketRefused(
                    f"{path} is a symlink or not a directory: not searched for trainers"
                ) from None
            raise ProbeSocketRefused(
                f"{path} cannot be searched for trainers: {error.strerror}"
            ) from None
        self._stat = os.fstat(self._fd)
        if self._stat.st_uid != owner or stat.S_IMODE(self._stat.st_mode) & 0o077:
            os.close(self._fd)
            if self._stat.st_uid != owner:
                raise ProbeSocketRefused(
                    f"{path} belongs to uid {self._stat.st_uid}, not {owner}: not searched for "
                    "trainers"
                )
            raise ProbeSocketRefused(
                f"{path} is open to other users: not searched for trainers. Next: chmod 700 {path}"
            )

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def sockets(self) -> List[FoundSocket]:
        """Return the sockets here that have a probe's name and the right owner.

        There are at most ``MAX_SOCKETS``, those of running processes first; ``left_out`` says
        whether this cut the list.
        """
        found = []
        with os.scandir(self._fd) as entries:
            names = [entry.name for entry in islice(entries, MAX_NAMES + 1)]
        if len(names) > MAX_NAMES:
            self.left_out = f"more than {MAX_NAMES} files: not all were checked"
        for name in names[:MAX_NAMES]:
            match = _SOCKET_NAME.match(name)
            if match is None:
                continue
            try:
                info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISSOCK(info.st_mode) and info.st_uid == self.owner:
                place = (self._stat.st_dev, self._stat.st_ino, name)
                found.append(FoundSocket(place, int(match.group(1)), int(match.group(2))))
        if len(found) > MAX_SOCKETS:
            self.left_out = (
                f"{len(found)} sockets: {MAX_SOCKETS} were tried, those of running processes first"
            )
            found.sort(key=lambda one: start_ticks(one.pid) != one.start)
        return found[:MAX_SOCKETS]

    def connect(self, found: FoundSocket) -> Optional[Tuple[socket.socket, Optional[int]]]:
        """Return a connection to a probe and the peer's pid, or None when nobody listens.

        The connection does not block. The pid is None for a process of another pid namespace. None
        is also returned when too many connections are waiting. A dead socket of this user is
        removed, which is safe because a probe names its socket only once it listens. Raises
        :class:`ProbeSocketRefused`.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            # Connecting through the open directory also avoids paths that are too long for
            # sun_path.
            sock.connect(f"/proc/self/fd/{self._fd}/{found.name}")
            peer_pid, peer_uid, _ = struct.unpack(
                "3i", sock.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, 12)
            )
            self._check(found, peer_pid, peer_uid)
        except OSError as error:
            sock.close()
            # the process was killed or became another program, so nobody will listen here again
            if error.errno == errno.ECONNREFUSED:
                self._remove(found.name)
            elif error.errno not in (errno.ENOENT, errno.EAGAIN):
                raise ProbeSocketRefused(f"no answer ({error.strerror})") from None
            return None
        except ProbeSocketRefused:
            sock.close()
            raise
        return sock, peer_pid or None

    def _check(self, found: FoundSocket, peer_pid: int, peer_uid: int) -> None:
        if peer_uid != self.owner:
            raise ProbeSocketRefused(f"served by uid {peer_uid}, not {self.owner}: ignored")
        if peer_pid not in (0, found.pid) and containers.number_inside(peer_pid) != found.pid:
            raise ProbeSocketRefused(
                f"served by pid {peer_pid}, not the one it is named for: ignored"
            )
        ticks = start_ticks(peer_pid or found.pid)
        if peer_pid and ticks is not None and ticks != found.start:
            raise ProbeSocketRefused("named for an earlier process with this pid: ignored")

    def _remove(self, name: str) -> None:
        if self.owner != os.geteuid():
            return
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError:
            pass
