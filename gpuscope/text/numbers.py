"""Read numbers from documents and answers that others wrote, in which a value may be anything.

True and False are no numbers here, though Python counts them among the integers.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Optional


def number(value: Any) -> Optional[float]:
    """Return a finite number; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON's integers have no upper bound
        return None
    return found if isfinite(found) else None


def amount(value: Any) -> Optional[float]:
    """Return a finite number that is not below 0; None for any other value."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def whole(value: Any, least: int = 0, most: int = (1 << 63) - 1) -> Optional[int]:
    """Return a whole number from ``least`` to ``most``; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None
