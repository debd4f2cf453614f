"""Small files of /proc and /sys: read bounded, and why one could not be read.

Everything takes the root of the tree, so that recorded trees of other hosts can be read too.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Dict, Optional

from ..wire.frames import DRIVER_ERROR, LOST, NO_PERMISSION, NOT_SUPPORTED, Unknown

READ_LIMIT = 1 << 16
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_GONE = (errno.ESRCH, errno.ENOENT)


def read(path: str, limit: int = READ_LIMIT) -> bytes:
    """The first ``limit`` bytes of the file. Raises OSError. Never follows into a device or a pipe that would block."""
    descriptor = os.open(path, _FLAGS)
    try:
        parts = []
        left = limit
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def key_values(path: str, separator: bytes = b" ") -> Dict[bytes, int]:
    """Lines ``key<separator>number …`` as a dict of the numbers; other lines are skipped. Raises OSError."""
    found: Dict[bytes, int] = {}
    for line in read(path).splitlines():
        key, _, rest = line.partition(separator)
        first = rest.split(None, 1)[:1]
        if first and first[0].isdigit():
            found[key] = int(first[0])
    return found


def why(error: Exception, what: str) -> Unknown:
    """Why reading the host's file ``what`` failed."""
    if isinstance(error, PermissionError):
        return Unknown(NO_PERMISSION, f"{what}: no permission")
    if not sys.platform.startswith("linux"):
        return Unknown(NOT_SUPPORTED, f"{what}: only Linux has it")
    if isinstance(error, OSError):
        if error.errno in _GONE:
            return Unknown(NOT_SUPPORTED, f"{what}: not on this host")
        return Unknown(DRIVER_ERROR, f"{what}: {os.strerror(error.errno or 0)}")
    return Unknown(DRIVER_ERROR, f"{what}: not in the form this version knows")


def why_process(error: Exception, pid: int, what: Optional[str] = None) -> Unknown:
    """Why a file of process ``pid`` could not be read."""
    if isinstance(error, OSError) and error.errno in _GONE and sys.platform.startswith("linux"):
        return Unknown(LOST, f"process {pid} is not there any more")
    return why(error, f"/proc/{pid}/{what}" if what else f"/proc/{pid}")
