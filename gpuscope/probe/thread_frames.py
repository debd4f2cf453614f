"""Reads what each thread of the trainer executes, in a way that cannot block the trainer."""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict


def current_frames() -> Dict[int, Any]:
    """Return the frame of each thread by its id, with garbage collection disabled meanwhile.

    Python holds the lock of its thread list while it makes these frames. In 3.11, a collection that
    begins at this moment and frees a ``threading.local`` waits for that lock forever, and so does
    every other thread.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collecting:
            gc.enable()
