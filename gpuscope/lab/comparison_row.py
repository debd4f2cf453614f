"""One measurement of two sides, and what its interval lets one say of them."""

from __future__ import annotations

from dataclasses import dataclass

from .intervals import is_wide

SINGLE = "one run each"
WITHIN = "steps within one run"
"""What a ratio is of where there are no repeats."""
LEAST_DIFFERENCE = 0.01
"""A pace, a time or a peak that differs by less than this share is called the same: nobody chooses
a setting for it.
"""
LEAST_LOSS_DIFFERENCE = 0.001
"""The same for a loss whose seeds say less than that, or nothing, of how far losses scatter."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One measurement of both sides.

    ``a`` and ``b`` are in ``unit`` (geometric means if there are repeats), None if unknown.
    ``ratio`` is b / a, [``low``, ``high``] is its 95 % interval, and ``basis`` says how that was
    computed. ``reason`` says why a value is None. A ratio nearer to 1 than ``least`` makes no
    practical difference.
    """

    key: str
    title: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = ""
    better: str = ""
    reason: str = ""
    least: float = LEAST_DIFFERENCE

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 1, so that the two sides certainly differ."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)

    @property
    def wide(self) -> bool:
        """Whether the interval reaches so far that its ends say nothing."""
        return is_wide(self.ratio, self.low, self.high)

    @property
    def verdict(self) -> str:
        """Whether B is ``better`` or ``worse``, ``same`` or ``undecided``; "" if nothing tells."""
        if self.ratio is None or self.low is None or self.high is None or not self.better:
            return ""
        if self.wide:
            return "undecided"
        farthest = max(self.high - 1, 1 - self.low)
        if farthest <= self.least or (self.decided and abs(self.ratio - 1) < self.least):
            return "same"
        if not self.decided:
            return "undecided"
        return "better" if (self.ratio > 1) == (self.better == "higher") else "worse"
