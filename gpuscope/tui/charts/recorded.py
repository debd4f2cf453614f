"""How much time a chart shows that has all that is recorded, up to a limit."""

from __future__ import annotations

WINDOWS = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def recorded_seconds(known: float, most: float) -> float:
    """Return the shortest of the usual times in which ``known`` seconds fit, or ``most``."""
    return next((one for one in WINDOWS if known <= one <= most), most)
