"""Where each thread of the trainer stands, asked for in a way that cannot stop the trainer."""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict


def current_frames() -> Dict[int, Any]:
    """The frame of each thread by its number, without a collection of garbage meanwhile.

    Python holds the lock of its list of threads while it makes these frames: in 3.11 a collection
    that begins there and frees a ``threading.local`` waits for that lock for ever, and every thread
    with it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collecting:
            gc.enable()
