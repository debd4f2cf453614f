"""A table of nvidia-smi in a log: who holds which device, and how busy it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .text import Log
from .votes import Vote

_ROW = re.compile(r"(\d{1,7})mib/(\d{1,7})mib\|(\d{1,3})%")
MOST_ROWS = 64
HELD_SHARE = 0.5
UNEVEN = 1.3
"""The first device above all others by this factor is what gathering on it looks like."""


def votes(log: Log) -> Iterator[Vote]:
    """Causes that the table speaks for. One row is no trend: everything here is weak but for the uneven table."""
    hits = log.find_all(_ROW.pattern, MOST_ROWS)
    rows = [(int(hit[1] or 0), int(hit[2] or 0), int(hit[3] or 0)) for hit in hits]
    rows = [row for row in rows if row[1]]
    if not rows:
        return
    said = tuple(
        (f"{used} of {total} MiB used at {busy} % load", log.where(hit))
        for (used, total, busy), hit in zip(rows[:4], hits, strict=False)
    )
    held = [row for row in rows if row[0] > HELD_SHARE * row[1]]
    if len(rows) > 1 and rows[0][0] > UNEVEN * max(row[0] for row in rows[1:]) and rows[0][2] > 0:
        yield _vote("dp-imbalance-gpu0", "dp.imbalance", "The first device holds more than the others", 0.6, said)
        yield _vote("ddp-instead-of-dp", "dp.slow", "One process for each device balances them", 0.5, said)
        yield _vote("set-device-per-rank", "ddp.shared-device", "Ranks may share the first device", 0.45, said)
    elif any(row[2] == 0 for row in held):
        yield _vote(
            "kill-zombie-process", "oom.other-process", "Memory is held on a device that does no work", 0.5, said
        )
        yield _vote(
            "other-process-holds-gpu", "oom.other-process", "Another process holds part of the device", 0.45, said
        )
        yield _vote("num-workers", "loader.starved", "The step may wait for the loader", 0.3, said)
    elif held:
        yield _vote(
            "other-process-holds-gpu", "oom.other-process", "Another process may hold part of the device", 0.4, said
        )
        yield _vote("dp-imbalance-gpu0", "dp.imbalance", "The first device may hold more than the others", 0.35, said)
        yield _vote("num-workers", "loader.starved", "The step may wait for the loader", 0.3, said)


def _vote(pitfall: str, cause: str, title: str, weight: float, said: tuple[tuple[str, str], ...]) -> Vote:
    return Vote(pitfall=pitfall, cause=cause, title=title, weight=weight, evidence=said)
