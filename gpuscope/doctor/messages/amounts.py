"""Amounts of memory as people read them."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20


def text(size: int | None) -> str:
    """``1.25 GiB`` or ``20 MiB``; ``an unknown amount`` for None."""
    if size is None:
        return "an unknown amount"
    if abs(size) >= GIB:
        return f"{size / GIB:.2f} GiB"
    if abs(size) >= MIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size} bytes"
