"""Say where probes are found.

There is a private directory for each user, with one socket per process, named by pid and start
time.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import Tuple, Union

BASE = "/tmp"
"""This is not $XDG_RUNTIME_DIR, because logind deletes that directory at the last logout, when a
tmux session may still run, and cron jobs have none.
"""
SUN_PATH_BYTES = 107


class RendezvousError(Exception):
    """The directory is not safe to use. The text explains that to the user."""


def directory() -> str:
    return os.path.join(BASE, f"gpuscope-{os.geteuid()}")


def checked_directory() -> str:
    """Return the private directory, made if needed.

    Raises :class:`RendezvousError` if it is a symbolic link, somebody else's, or open to others.
    """
    path = directory()
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise RendezvousError(f"cannot create {path}: {error.strerror}") from None
    try:
        found = os.lstat(path)
    except OSError as error:
        raise RendezvousError(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RendezvousError(f"{path} is not a directory (a symlink or a file is in its place)")
    if found.st_uid != os.geteuid():
        raise RendezvousError(f"{path} belongs to uid {found.st_uid}, not to you")
    if stat.S_IMODE(found.st_mode) != 0o700:
        raise RendezvousError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, it must be 0700 (chmod 700 {path})"
        )
    return path


def start_ticks(pid: Union[int, str] = "self") -> int:
    """Return when a process started, in clock ticks since boot (/proc/PID/stat, field 22).

    0 if there is no such process to be seen.

    The probe has its own function for this, because of gpuscope only the wire goes into a trainer
    with it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def bind() -> Tuple[socket.socket, str, Tuple[int, int]]:
    """Return a listening socket for this process, its path, and (device, inode) to recognise it by.

    The socket is bound under another name and then renamed, so nobody ever sees it while it does
    not listen yet. An existing socket is replaced: it has our pid and start time, so it is from
    before an ``exec`` or a detach. Raises :class:`RendezvousError`.
    """
    path = os.path.join(checked_directory(), f"{os.getpid()}-{start_ticks()}.sock")
    fresh = path[: -len(".sock")] + ".new"
    if len(os.fsencode(path)) > SUN_PATH_BYTES:
        raise RendezvousError(f"{path} is too long for a socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.unlink(fresh)
        except FileNotFoundError:
            pass
        listener.bind(fresh)
        os.chmod(fresh, 0o600)
        listener.listen(16)
        listener.setblocking(False)
        found = os.lstat(fresh)
        os.rename(fresh, path)
    except OSError as error:
        listener.close()
        raise RendezvousError(f"cannot listen at {path}: {error.strerror or error}") from None
    return listener, path, (found.st_dev, found.st_ino)


def is_ours(path: str, identity: Tuple[int, int]) -> bool:
    """Whether the socket at ``path`` is still the one that :func:`bind` put there."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == identity


def peer_allowed(peer: socket.socket) -> bool:
    """Whether the peer is this user or root, as the kernel reports it (SO_PEERCRED)."""
    return _peer(peer)[1] in (0, os.geteuid())


def peer_pid(peer: socket.socket) -> int:
    """Return the pid of the process that connected.

    0 for a process in another pid namespace, or if the kernel does not tell.
    """
    return max(0, _peer(peer)[0])


def _peer(peer: socket.socket) -> Tuple[int, int]:
    """Return (pid, uid), each -1 if the kernel does not tell."""
    try:
        pid, uid, _ = struct.unpack(
            "3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
    except (OSError, struct.error):
        return -1, -1
    return int(pid), int(uid)
