"""Bytes, seconds and shares in words, as they stand in evidence."""

from __future__ import annotations

GIB, MIB = 1 << 30, 1 << 20


def size(amount: float) -> str:
    """Bytes in GiB, below one of them in MiB: ``3.40 GiB``, ``120 MiB``, ``1.2 MiB``."""
    if abs(amount) >= GIB:
        return f"{amount / GIB:,.1f} GiB" if abs(amount) >= 10 * GIB else f"{amount / GIB:.2f} GiB"
    return f"{amount / MIB:.1f} MiB" if abs(amount) < 10 * MIB else f"{amount / MIB:.0f} MiB"


def seconds(value: float) -> str:
    """``0.36 ms``, ``23 ms``, ``1.4 s``, ``12 min``, ``3.1 h``."""
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def percent(share: float) -> str:
    """A share of 1 as ``42 %``."""
    return f"{100 * share:.1f} %" if 0 < share < 0.02 else f"{100 * share:.0f} %"
