"""The value below which a share of the values lies, as all instruments take it."""

from __future__ import annotations

from collections.abc import Iterable


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
