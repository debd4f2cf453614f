"""Keep some readings of the last ten minutes, for a screen that is opened later.

They are taken from samples that are made anyway, at least two seconds apart. A viewer asks for them
once, so that its charts do not begin empty.
"""

from __future__ import annotations

import math
import os
from array import array
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..wire.columns import COLUMNS
from ..wire.frames import Def, Sample

APART_NS = 1_900_000_000
"""A little less than two seconds, because samples do not come exactly on time."""
KEPT = 300
SAME_STEP = 60
"""At most this many rows of one step are kept: if a trainer hangs, the rows before are more useful.
"""
MAX_DEVICES = 8
TRAINER = (
    "step",
    "step_seconds",
    "loss",
    "input_seconds",
    "h2d_seconds",
    "compute_seconds",
    "optimizer_seconds",
    "communication_seconds",
    "other_seconds",
    "quick_own_seconds",
)
ALLOCATOR = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "inactive_split_bytes",
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_state_bytes",
)
PROCESS = ("rss_bytes",)
_STEP = COLUMNS["t"].index("step") + 1
_DIGITS = 5


class _Rows:
    """Times with some readings, 8 bytes per number: 52 kB in all with one device."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self._kept = array("d")

    def add_row(self, m: int, table: str, row: Sequence[Any]) -> None:
        places = [COLUMNS[table].index(column) + 1 for column in self.columns]
        self.add(m, [row[place] if place < len(row) else None for place in places])

    def add(self, m: int, values: Sequence[Any]) -> None:
        width = len(self.columns) + 1
        self._kept.append(float(m))
        self._kept.extend([float(v) if isinstance(v, (int, float)) else math.nan for v in values])
        del self._kept[: -KEPT * width]

    def answer(self) -> Dict[str, List[Optional[float]]]:
        """Return the times in nanoseconds as ``m``, and each column; None for unknown."""
        width = len(self.columns) + 1
        out = {"m": [int(moment) for moment in self._kept[::width]]}  # type: Dict[str, Any]
        for place, column in enumerate(self.columns, 1):
            out[column] = [_short(value) for value in self._kept[place::width]]
        return out


class Recent:
    """The rows of one trainer and of its allocators.

    Only the probe's thread may use it.
    """

    def __init__(self) -> None:
        self._last = 0
        self._step: Any = None
        self._same = 0
        self._trainer, self._process = _Rows(TRAINER), _Rows(PROCESS)
        self._allocators: Dict[int, _Rows] = {}

    def note(self, sample: Sample, definitions: Dict[int, Def]) -> None:
        """Keep a sample that was made for somebody else, if the interval is over."""
        if sample.m - self._last < APART_NS or not sample.t:
            return
        step = sample.t[0][_STEP] if len(sample.t[0]) > _STEP else None
        self._same = self._same + 1 if step == self._step else 0
        self._step = step
        if self._same > SAME_STEP:
            return
        self._last = sample.m
        self._trainer.add_row(sample.m, "t", sample.t[0])
        self._process.add(sample.m, [_resident_bytes()])
        for row in sample.a:
            found = definitions.get(int(row[0])) if row else None  # type: ignore[arg-type]
            if found is None or found.alloc is None:
                continue
            ordinal = found.alloc.ordinal
            if ordinal not in self._allocators and len(self._allocators) < MAX_DEVICES:
                self._allocators[ordinal] = _Rows(ALLOCATOR)
            if ordinal in self._allocators:
                self._allocators[ordinal].add_row(sample.m, "a", row)

    def answer(self) -> Dict[str, Any]:
        allocators: List[Tuple[int, Any]] = sorted(
            (ordinal, rows.answer()) for ordinal, rows in self._allocators.items()
        )
        return {
            "trainer": self._trainer.answer(),
            "process": self._process.answer(),
            "allocators": [[ordinal, answer] for ordinal, answer in allocators],
        }


def _resident_bytes() -> Optional[int]:
    """Return how much of the host's memory this process holds, as its agent reads it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read(128).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _short(value: float) -> Optional[float]:
    """Return a number with few digits (a line holds many of them), None if it was unknown."""
    if value != value or math.isinf(value):
        return None
    if value == int(value):
        return int(value)
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
