"""The first frame of the agent: who it is, and what it can be asked."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .. import __version__
from ..wire import frames

RELAYED = (
    "snapshot",
    "history",
    "profile",
    "stacks",
    "statistics",
    "modules",
    "growth",
    "recent",
    "time",
    "look",
    "detach",
    "environment",
)
"""What a probe may offer; whether this one does, it says itself."""
OFFERED = ("rate", "cancel", "inject", "signal", "holders", *RELAYED)
"""What a viewer finds in ``hello.requests``: also what only some of the trainers can do."""


def hello(args: Any) -> frames.Hello:
    """Who this is. ``args``: rate and nonce."""
    return frames.Hello(
        role="agent",
        version=__version__,
        host=os.uname().nodename,
        boot=_boot_id(),
        py=".".join(map(str, sys.version_info[:3])),
        pid=os.getpid(),
        uid=os.getuid(),
        t=time.time(),
        m=time.monotonic_ns(),
        hz=args.hz,
        cols={table: list(columns) for table, columns in frames.COLUMNS.items()},
        requests=list(OFFERED),
        nonce=args.nonce,
    )


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read(64).strip()
    except OSError:
        return ""
