"""Ties a process to the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process as soon as ``parent`` has ended, for whatever reason.

    ``parent`` is the pid of the process that started this one. Only Linux offers this; on other
    systems the call does nothing.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the request to the kernel was made
