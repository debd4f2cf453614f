"""The first frame of the agent: its identity, and the requests that it serves."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .. import __version__
from ..process import procfs
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
    "work",
    "detach",
    "environment",
)
"""Requests that a probe may serve; each probe says which of them it does."""
OFFERED = ("rate", "cancel", "inject", "signal", "holders", *RELAYED)
"""The requests in ``hello.requests``, including those that only some of the trainers serve."""


def hello(args: Any) -> frames.Hello:
    """Return the hello. ``args`` holds rate and nonce."""
    return frames.Hello(
        role="agent",
        version=__version__,
        host=os.uname().nodename,
        boot=procfs.boot_id(),
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
