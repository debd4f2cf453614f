"""Read the answers to the request ``recent``, which describe the time before the viewer was opened.

A probe answers with its trainer's readings of the last minutes, an agent with what the driver
itself sampled of its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

MAX_ROWS, MAX_DEVICES, MAX_COLUMNS = 1024, 64, 32
"""The most that is read from an answer, however much it contains."""
MAX_M = 1 << 62
Rows = tuple[list[int], dict[str, list[float | None]]]
"""Times on the host's monotonic clock in nanoseconds, and for each column as many values."""


def recent_rows(value: Mapping[str, object]) -> dict[int | str, Rows]:
    """Return the rows of the trainer, of its process, and of its allocators by ordinal.

    The answer comes from another process, so parts that are not such a table are left out.
    """
    out: dict[int | str, Rows] = {}
    for name in ("trainer", "process"):
        if (rows := _rows(value.get(name))) is not None:
            out[name] = rows
    allocators = value.get("allocators")
    for one in allocators[:MAX_DEVICES] if isinstance(allocators, list) else ():
        if not isinstance(one, list) or len(one) != 2 or type(one[0]) is not int:
            continue
        if (rows := _rows(one[1])) is not None:
            out[one[0]] = rows
    return out


def recent_device_rows(value: Mapping[str, object]) -> dict[str, Rows]:
    """Return the rows of each GPU by its UUID. Anything that is not such a table is left out."""
    out: dict[str, Rows] = {}
    devices = value.get("devices")
    for one in devices[:MAX_DEVICES] if isinstance(devices, list) else ():
        if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str):
            rows = _rows(one[1])
            if rows is not None:
                out[one[0]] = rows
    return out


def _rows(value: object) -> Rows | None:
    if not isinstance(value, Mapping):
        return None
    moments = value.get("m")
    if not isinstance(moments, list) or not 0 < len(moments) <= MAX_ROWS:
        return None
    if any(type(m) is not int or not 0 <= m < MAX_M for m in moments):
        return None
    if any(later <= before for before, later in pairwise(moments)):
        return None
    columns = {
        name: [v if type(v) in (int, float) and abs(v) < 1e300 else None for v in values]
        for name, values in list(value.items())[:MAX_COLUMNS]
        if name != "m" and isinstance(values, list) and len(values) == len(moments)
    }
    return moments, columns
