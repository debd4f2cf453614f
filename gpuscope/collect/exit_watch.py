"""Learn how a process ended that is not our child.

Only a parent is told the exit code of a process. But the kernel shows it in /proc while nobody has
reaped the process, and since Linux 6.15 also later, to whoever has held a pidfd of it. Elsewhere it
stays unknown. Only the standard library is needed; before Python 3.9 there is no pidfd.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Optional

from ..process.procfs import stat_of

_GET_INFO = 0xC040FF0B
"""``PIDFD_GET_INFO`` of <linux/pidfd.h>: ``_IOWR(0xFF, 11, struct pidfd_info)`` of 64 bytes."""
_EXIT = 1 << 3
"""``PIDFD_INFO_EXIT``: asks for the exit code, and says in the answer that it is there."""
_INFO_BYTES, _EXIT_AT = 64, 60


class ExitWatch:
    """Holds on to a process, so that its exit status can be read when it has ended."""

    def __init__(self, pid: int, start: Optional[int]) -> None:
        self._pid, self._start = pid, start
        opened: Any = getattr(os, "pidfd_open", None)
        try:
            self._fd = opened(pid) if opened is not None else -1
        except OSError:
            self._fd = -1

    def status(self) -> Optional[int]:
        """Return its status as :func:`os.waitpid` would; None while it runs or if it is unknown."""
        found = self._of_reaped()
        return found if found is not None else self._of_zombie()

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _of_reaped(self) -> Optional[int]:
        if self._fd < 0:
            return None
        import fcntl

        answer = bytearray(_INFO_BYTES)
        struct.pack_into("=Q", answer, 0, _EXIT)
        try:
            fcntl.ioctl(self._fd, _GET_INFO, answer)
        except OSError:
            return None
        known = struct.unpack_from("=Q", answer)[0] & _EXIT
        return int(struct.unpack_from("=i", answer, _EXIT_AT)[0]) if known else None

    def _of_zombie(self) -> Optional[int]:
        """Return what /proc says; 0 stands there also for whom may not know it."""
        try:
            stat = stat_of(self._pid)
        except (OSError, ValueError):
            return None
        same = self._start in (None, stat.start_ticks)
        return (stat.exit_status or None) if same and stat.has_ended else None
