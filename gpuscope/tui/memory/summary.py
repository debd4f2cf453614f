"""This module shows what ``torch.cuda.memory_summary()`` says of a running trainer.

It has the same rows, with rates per second, and a text to copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...text.units import bytes_text, duration_text, rate_text
from ..cells import fit

ROWS = (
    ("allocated_bytes", "allocated"),
    ("active_bytes", "active"),
    ("requested_bytes", "requested"),
    ("reserved_bytes", "reserved"),
    ("inactive_split_bytes", "inactive split"),
    ("allocation", "allocations"),
    ("active", "active blocks"),
    ("segment", "segments"),
    ("inactive_split", "inactive blocks"),
)
"""In torch's order; it calls inactive split non-releasable."""
WHOLE = (("oversize_allocations", "oversize blocks"), ("oversize_segments", "oversize segments"))
"""Not split by pool."""
POOLS = (("all", ""), ("large_pool", "large pool"), ("small_pool", "small pool"))
COUNTS = (
    ("num_alloc_retries", "cudaMalloc retries"),
    ("num_ooms", "OOMs"),
    ("num_oom_rejections", "OOM rejections"),
    ("num_device_alloc", "cudaMalloc calls"),
    ("num_device_free", "cudaFree calls"),
    ("num_sync_all_streams", "syncs of all streams"),
)
"""Counters that only grow; those a torch lacks are left out."""
PINNED = (("active_bytes", "pinned, active"), ("allocated_bytes", "pinned, reserved"))
"""Of the pinned host pool: ``active_bytes`` is in use, ``allocated_bytes`` what was taken from the
system.
"""


class SummaryRow(NamedTuple):
    """One row of the summary, in bytes or as a count.

    A figure is None where this torch does not have it. ``pool`` is "" for the whole.
    """

    key: str
    name: str
    pool: str
    is_bytes: bool
    current: float | None
    peak: float | None = None
    allocated: float | None = None
    freed: float | None = None
    allocated_per_second: float | None = None
    freed_per_second: float | None = None


def summary(
    value: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float | None
) -> list[SummaryRow]:
    """Return the rows of an answer to ``statistics``.

    Rates are computed from the answer ``before`` it, taken ``seconds`` earlier.
    """
    now, then = _figures(value, "statistics"), _figures(before or {}, "statistics")
    stats = []
    for key, name in ROWS:
        for pool, words in POOLS:
            prefix = f"{key}.{pool}"
            if f"{prefix}.current" in now:
                stats.append(_stat(now, then, prefix, name, words, key.endswith("_bytes"), seconds))
    stats += [
        _stat(now, then, key, name, "", False, seconds)
        for key, name in WHOLE
        if f"{key}.current" in now
    ]
    stats += [SummaryRow(key, name, "", False, now[key]) for key, name in COUNTS if key in now]
    pinned, earlier = _figures(value, "host_statistics"), _figures(before or {}, "host_statistics")
    for key, name in PINNED:
        if f"{key}.current" in pinned:
            stats.append(
                _stat(pinned, earlier, key, name, "", True, seconds)._replace(key=f"pinned.{key}")
            )
    return stats


def _figures(value: Mapping[str, Any], name: str) -> Mapping[str, float]:
    found = value.get(name)
    if not isinstance(found, Mapping):
        return {}
    return {str(key): number for key, number in found.items() if _is_number(number)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _stat(
    now: Mapping[str, float],
    then: Mapping[str, float],
    prefix: str,
    name: str,
    pool: str,
    size: bool,
    seconds: float | None,
) -> SummaryRow:
    allocated, freed = now.get(f"{prefix}.allocated"), now.get(f"{prefix}.freed")
    return SummaryRow(
        prefix,
        name,
        pool,
        size,
        now.get(f"{prefix}.current"),
        now.get(f"{prefix}.peak"),
        allocated,
        freed,
        _rate(allocated, then.get(f"{prefix}.allocated"), seconds),
        _rate(freed, then.get(f"{prefix}.freed"), seconds),
    )


def _rate(now: float | None, before: float | None, seconds: float | None) -> float | None:
    """Return the change per second.

    It is None without two readings, and where a counter was reset between them.
    """
    if now is None or before is None or not seconds or now < before:
        return None
    return (now - before) / seconds


def figure(value: float | None, is_bytes: bool) -> str:
    """Return a number as the table shows it: bytes with their unit, counts with separators.

    Counts from ten million on are shortened.
    """
    if value is None:
        return "–"
    if is_bytes:
        return bytes_text(value)
    if value >= 1e10:
        return f"{value / 1e9:.1f} G"
    return f"{value / 1e6:.1f} M" if value >= 1e7 else f"{value:,.0f}"


def rate(value: float | None, is_bytes: bool) -> str:
    """Return a rate per second in words, as ``1.20 GiB/s`` or ``3,400/s``."""
    if value is None:
        return "–"
    if is_bytes:
        return rate_text(value)
    return f"{figure(value, False)}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


HEAD = ("metric", "current", "peak", "allocated", "freed", "allocated/s", "freed/s")


def as_text(stats: Sequence[SummaryRow], title: str, value: Mapping[str, Any]) -> str:
    """The table for a file or the clipboard: plain, with its title and what the call took."""
    rows = [HEAD]
    for stat in stats:
        rows.append(
            (
                f"  {stat.pool}" if stat.pool else stat.name,
                figure(stat.current, stat.is_bytes),
                figure(stat.peak, stat.is_bytes),
                figure(stat.allocated, stat.is_bytes),
                figure(stat.freed, stat.is_bytes),
                rate(stat.allocated_per_second, stat.is_bytes),
                rate(stat.freed_per_second, stat.is_bytes),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    lines = [
        "  ".join(
            fit(cell, widths[at], "left" if at == 0 else "right") for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
    took, backend = value.get("seconds"), value.get("backend")
    foot = [f"allocator: {backend}"] if isinstance(backend, str) else []
    foot += (
        [f"one statistics call: {duration_text(float(took))}"]
        if _is_number(took) and took is not None
        else []
    )
    return "\n".join([title, "", *lines, *(["", " · ".join(foot)] if foot else [])]) + "\n"
