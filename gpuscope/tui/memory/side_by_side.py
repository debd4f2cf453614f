"""This module says in a line each how full the devices and trainers of a host are.

It stands below the waterfall, which shows one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.memory_room import headroom
from ...store.view import HistoryOf, HostView
from ...text.styled import Line
from ...text.units import bytes_text
from ..cells import fit
from .subjects import Subject

FRAME_ROWS, LEAST = 3, 2
"""Its border and heading; it is shown for no fewer subjects."""
NEAR_BYTES = 4 << 30
"""Less room than this for the next allocation is marked, as on the Overview."""
_NAME, _SIZE = 30, 10
_COLUMNS = (
    ("ALLOCATED", "allocated_bytes"),
    ("PEAK", "peak_allocated_bytes"),
    ("RESERVED", "reserved_bytes"),
)
"""The first of them is left out where there is little room: it changes within a step."""


def rows_of(everything: Sequence[Subject], room: int) -> int:
    """Return how many rows it takes of so many, 0 where it does not fit."""
    wanted = len(everything) + FRAME_ROWS
    return wanted if len(everything) >= LEAST and wanted <= room else 0


def side_by_side(
    host: HostView, everything: Sequence[Subject], chosen: int, history: HistoryOf, cells: int
) -> list[Line]:
    """Return a heading and a line for each subject, the chosen one marked."""
    shown = _COLUMNS if cells >= _NAME + _SIZE * (len(_COLUMNS) + 1) + 2 else _COLUMNS[1:]
    name = max(12, min(_NAME, cells - _SIZE * (len(shown) + 1) - 2))
    heads = [*(title for title, _ in shown), "HEADROOM"]
    head = "".join(fit(word, _SIZE, "right") for word in heads)
    lines: list[Line] = [[("  " + fit("", name) + head, "muted")]]
    for place, one in enumerate(everything):
        where = f"GPU {one.device.definition.index}" if one.device is not None else "CPU"
        if one.trainer is not None:
            d = one.trainer.definition
            where += f" rank {d.rank}" if d.rank is not None else f" pid {d.pid}"
            where += f" {(d.script or '').rsplit('/', 1)[-1]}"
        left = (
            headroom(host.devices, one.trainer, one.allocator, history)
            if one.trainer is not None and one.allocator is not None
            else one.device.number("free_bytes")
            if one.device is not None
            else None
        )
        sizes = [
            one.allocator.number(column) if one.allocator is not None else None
            for _, column in shown
        ]
        here = place == chosen
        lines.append(
            [
                ("▸ " if here else "  ", "accent"),
                (fit(where, name), "title" if here else "text"),
                ("".join(_size(size) for size in sizes), "text"),
                (_size(left), "warn" if left is not None and left < NEAR_BYTES else "text"),
            ]
        )
    return lines


def _size(value: float | None) -> str:
    return fit("–" if value is None else bytes_text(value), _SIZE, "right")
