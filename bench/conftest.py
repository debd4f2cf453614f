"""Benchmarks: measurements with a bar.

``make bench`` runs them, and ``BENCHMARKS.md`` quotes what they print.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import pytest

import tests.conftest  # noqa: F401  # terminal, threads and ledger are set as for the tests


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Print one line of figures, even if pytest captures the output."""

    def say(what: str, **figures: object) -> None:
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {what}: " + ", ".join(f"{k}={v}" for k, v in figures.items()) + "\n"
            )

    return say


def alternate(
    first: Callable[[], float], second: Callable[[], float], runs: int
) -> tuple[float, float, float]:
    """Measure two functions alternately.

    Return both medians and the median of their pairwise ratios.

    Each is called once before, to warm up.
    """
    first(), second()
    pairs = [(first(), second()) for _ in range(runs)]
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )
