"""The allocator's own counters, as ``torch.cuda.memory_summary()`` groups them."""

from __future__ import annotations

from ...store.view import AllocView
from ...wire.frames import Unknown
from ..cells import bytes_text, seconds_text
from .table import Cell, Column, TableRow

COLUMNS = (
    Column("metric", "METRIC", 18, flex=1, most=30),
    Column("now", "CURRENT", 12, align="right"),
    Column("peak", "PEAK", 12, align="right", priority=1),
)
ROWS = (
    ("allocated", "allocated_bytes", "peak_allocated_bytes"),
    ("reserved", "reserved_bytes", "peak_reserved_bytes"),
    ("active", "active_bytes", ""),
    ("inactive split", "inactive_split_bytes", ""),
    ("requested", "requested_bytes", ""),
    ("private pools", "private_pool_bytes", ""),
    ("live allocations", "allocation_count", ""),
    ("live segments", "segment_count", ""),
    ("cudaMalloc retries", "alloc_retries", ""),
    ("OOMs", "ooms", ""),
    ("reading took", "statistics_seconds", ""),
)


def counter_rows(allocator: AllocView) -> list[TableRow]:
    """One row a counter; peaks are torch's own, never reset by us."""
    return [
        TableRow(name, {"metric": [(name, "muted")], "now": _cell(allocator, now), "peak": _cell(allocator, peak)})
        for name, now, peak in ROWS
    ]


def _cell(allocator: AllocView, column: str) -> Cell:
    if not column:
        return ""
    reading = allocator.reading(column)
    if isinstance(reading, Unknown):
        return [("– " + reading.code.replace("_", " "), "faint")]
    if isinstance(reading, str):
        return reading
    if column.endswith("_bytes"):
        return bytes_text(reading)
    return seconds_text(reading) if column.endswith("_seconds") else f"{reading:,.0f}"
