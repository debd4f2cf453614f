"""The axis of stacked areas: its units, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...text.units import GIB, KIB, MIB, brief_duration_text
from .axes import nice_step

Units = Sequence[tuple[str, int]]
"""Names of units and how much each is of the smallest."""
BYTES: Units = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1))
TIMES: Units = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))
ZOOM_SHARE = 0.45
"""Below this share of the capacity the axis ends nearer to the data: a flat strip at the bottom
tells nothing.
"""
LEAST_SHARE = 1 / 32
"""Of the capacity: the driver's own megabytes are no mountain."""
SHRINK_SHARE = 0.4
"""An axis stays as it is until the data fall below this share of it."""


def unit_of(size: float, units: Units = BYTES) -> tuple[str, int]:
    """Return the unit an axis up to ``size`` is counted in, and how much it is."""
    return next((unit for unit in units if size >= unit[1]), units[-1])


def axis_top(
    peak: float, capacity: float | None, before: float = 0.0, units: Units = BYTES
) -> float:
    """Return where an axis ends that shows ``peak`` at most.

    It is at ``capacity``, at a round value in its unit, or as ``before`` while that still fits.
    """
    if capacity and peak > capacity * ZOOM_SHARE:
        return capacity
    if before > 0 and before >= peak >= before * SHRINK_SHARE:
        return before
    wanted = max(peak, (capacity or 0.0) * LEAST_SHARE)
    if wanted < 1:
        return 0.0
    _, unit = unit_of(wanted, units)
    step = nice_step(wanted / unit, 4)
    top = math.ceil(wanted / unit / step * 1.02) * step * unit
    return min(top, capacity) if capacity else top


def nanoseconds_text(value: float) -> str:
    """Return a time in nanoseconds as a duration."""
    return brief_duration_text(value / 1e9)
