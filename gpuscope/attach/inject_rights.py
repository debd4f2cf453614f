"""Touches files of a trainer with the rights of its user, also where root does the work.

Between two steps of a program that uses path names, a user can mount whatever he can see over any
name in his own mount namespace. So root must not make, open or give away anything there with root's
rights. Linux keeps credentials for each thread, so one thread takes those of the user for a moment.
The kernel then checks each step as if the user had made it, and whatever a name leads to, nothing
can happen that the user could not do alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from typing import Any, Iterator, Optional, Sequence

_SETGROUPS = {"x86_64": 116, "aarch64": 159}
"""The raw system call, because the C library's function changes all threads of the process."""
_CAPABILITY_VERSION_3 = 0x20080522
_ASK = 0xFFFFFFFF
"""No user and no group has this id, so setting it changes nothing and returns the present one."""


class CannotTakeRights(OSError):
    """This process may not act as that user. The text says why."""


@contextlib.contextmanager
def rights_of(uid: int, gid: int, groups: Sequence[int]) -> Iterator[None]:
    """Give this thread the file rights of a user, without capabilities, until the block ends.

    For the process's own user, without root, nothing changes. Raises :class:`CannotTakeRights`.
    """
    own = os.geteuid()
    if own == uid != 0:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    before, others = _capabilities(library), os.getgroups()
    try:
        if own != uid:
            _set_groups(library, groups)
            library.setfsgid(gid)
            library.setfsuid(uid)
            if library.setfsgid(_ASK) != gid or library.setfsuid(_ASK) != uid:
                raise CannotTakeRights(
                    1, f"this process may not act as uid {uid} (CAP_SETUID and CAP_SETGID)"
                )
        # Even a trainer of root may run where root's rights are limited: in a container without
        # capabilities.
        _set_effective(library, before, 0)
        yield
    finally:
        _set_effective(library, before, None)
        if own != uid:
            library.setfsuid(own)
            library.setfsgid(os.getegid())
            if os.getgroups() != others:
                _set_groups(library, others)


def _set_groups(library: Any, groups: Sequence[int]) -> None:
    number = _SETGROUPS.get(platform.machine()) if struct.calcsize("P") == 8 else None
    if number is None:
        raise CannotTakeRights(
            38, f"changing one thread's groups is not supported on {platform.machine()}"
        )
    array = (ctypes.c_uint32 * max(1, len(groups)))(*groups)
    if library.syscall(ctypes.c_long(number), ctypes.c_long(len(groups)), array):
        raise CannotTakeRights(
            ctypes.get_errno(), "this process may not change its groups (CAP_SETGID)"
        )


def _capabilities(library: Any) -> Any:
    """Return what ``capget`` reports for this thread: effective, permitted, inheritable, twice."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if library.capget(header, data):
        raise CannotTakeRights(ctypes.get_errno(), "this process cannot read its own capabilities")
    return data


def _set_effective(library: Any, before: Any, effective: Optional[int]) -> None:
    """Set the effective capabilities of this thread to those of ``before``.

    With ``effective``, both halves of them are set to that value instead.
    """
    data = (ctypes.c_uint32 * 6)(*before)
    if effective is not None:
        data[0] = data[3] = effective
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if library.capset(header, data):
        raise CannotTakeRights(ctypes.get_errno(), "this process cannot change its capabilities")
