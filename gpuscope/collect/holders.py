"""Who has a GPU open: the processes with a descriptor of /dev/nvidiaN, on demand.

For memory that no process holds which the driver names: one that lives in another container, or does not end, still has
the device open.

Reads one directory per process: some ten ms on a busy host, never in a loop.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple, Tuple

MAX_DESCRIPTORS = 65536
"""Of one process: more are not looked at."""


class Holders(NamedTuple):
    """``pids`` have the device open. ``hidden``: so many processes whose descriptors may not be read."""

    pids: Tuple[int, ...]
    hidden: int


def holders(minor: int, proc: str = "/proc") -> Holders:
    """The processes that have ``/dev/nvidia<minor>`` open. Never raises for what ends or is closed to us meanwhile."""
    wanted = f"/dev/nvidia{minor}"
    pids: List[int] = []
    hidden = 0
    try:
        names = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return Holders((), 0)
    for name in sorted(names, key=int):
        folder = f"{proc}/{name}/fd"
        try:
            with os.scandir(folder) as entries:
                links = [entry.name for _, entry in zip(range(MAX_DESCRIPTORS), entries)]
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # it has ended
        if any(_target(f"{folder}/{link}") == wanted for link in links):
            pids.append(int(name))
    return Holders(tuple(pids), hidden)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
