"""Find out whether the memory that a log prints grows steadily."""

from __future__ import annotations

import re
from itertools import pairwise

from ...text.units import bytes_text
from . import tables
from .oom import size
from .text import Log

_AMOUNT = re.compile(r"mem\w*\D{0,24}?(\d+(?:\.\d+)?)\s?(gib|gb|g|mib|mb|m)\b", re.I)
LEAST_READINGS = 12
GROWTH_SHARE = 0.25
"""The least relative rise over the log that counts as growth, without the first steps."""


def describe_growth(log: Log) -> str | None:
    """Return a sentence about the memory that the log prints if it grows steadily, else None.

    After the first tenth of the log, most readings must rise, and the last must be a quarter above
    the first.
    """
    series: list[int] = []
    for _, line in log.excerpt.figures or log.excerpt.lines:
        match = _AMOUNT.search(line) if "mem" in line.lower() else None
        if match is None or "tried to allocate" in line.lower() or "memory in use" in line.lower():
            continue
        unit = match[2].lower()
        value = size(match[1], unit if len(unit) > 1 else unit + "b")
        if value is not None:
            series.append(value)
    series = series[len(series) // 10 + 1 :]
    if len(series) < LEAST_READINGS or not series[0]:
        return None
    steps = list(pairwise(series))
    falls = sum(later < earlier for earlier, later in steps)
    if (
        falls > len(steps) // 10
        or series[-1] < series[0] * (1 + GROWTH_SHARE)
        or series[-1] <= series[len(series) // 2]
    ):
        return None
    return tables.circumstances()["growth"].format(
        first=bytes_text(series[0]), last=bytes_text(series[-1]), count=len(series)
    )
