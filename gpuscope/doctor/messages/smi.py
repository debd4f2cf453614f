"""Read from nvidia-smi's table in a log who holds which device, and how busy it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import figures
from .text import Log
from .votes import Vote

_ROW = re.compile(r"(\d{1,7})mib/(\d{1,7})mib\|(\d{1,3})%")
MOST_ROWS = 64
HELD_SHARE = 0.5
UNEVEN = 1.3
"""Results are gathered on the first device if it uses this many times the memory of each other."""


def votes(log: Log) -> Iterator[Vote]:
    """Yield the causes that an ``nvidia-smi`` table supports.

    One table shows no trend, so everything here is weak except for a table with uneven memory.
    """
    hits = log.find_all(_ROW.pattern, MOST_ROWS)
    rows = [(int(hit[1] or 0), int(hit[2] or 0), int(hit[3] or 0)) for hit in hits]
    rows = [row for row in rows if row[1]]
    if not rows:
        return
    matched = tuple(
        (f"{used} of {total} MiB used at {busy} % load", log.where(hit))
        for (used, total, busy), hit in zip(rows[:4], hits, strict=False)
    )
    held = [row for row in rows if row[0] > HELD_SHARE * row[1]]
    if len(rows) > 1 and rows[0][0] > UNEVEN * max(row[0] for row in rows[1:]) and rows[0][2] > 0:
        yield from figures.votes("smi.first-device-above-all", matched)
    elif any(row[2] == 0 for row in held):
        yield from figures.votes("smi.held-and-idle", matched)
    elif held:
        yield from figures.votes("smi.held", matched)
