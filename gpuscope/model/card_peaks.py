"""What cards can do by their data sheets: FLOPs by type, and the bandwidth of the memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import checked_rows
from ..checked_rows import checked

FILE = Path(__file__).with_name("card_peaks.toml")
TYPES: Mapping[str, str] = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
"""Names of torch's types as people say them."""


@dataclass(frozen=True, slots=True)
class CardPeaks:
    """A row of the table: ``peaks`` in TFLOPS by type, ``bandwidth`` in GB/s."""

    id: str
    names: tuple[str, ...]
    bandwidth: float
    peaks: Mapping[str, float]
    source: str

    def peak(self, kind: str) -> float | None:
        """Return FLOPs per second of a type, None where the card has no such peak."""
        found = self.peaks.get(kind)
        return found * 1e12 if found is not None else None


@cache
def cards() -> dict[str, CardPeaks]:
    """All cards by their id. Raises TableError."""
    return checked_rows.load(FILE, "card", _card)


def _card(row: Any) -> CardPeaks:
    found = CardPeaks(**checked(row, CardPeaks))
    for pattern in found.names:
        re.compile(pattern)
    for kind, peak in found.peaks.items():
        if kind not in {*TYPES.values(), "tf32"} or not isinstance(peak, (int, float)) or peak <= 0:
            raise ValueError(f"peaks cannot have {kind} = {peak!r}")
    return found


def card_named(name: str) -> CardPeaks | None:
    """Return the card that the driver calls so, None where the table does not know it."""
    return next(
        (one for one in cards().values() if any(re.search(part, name) for part in one.names)), None
    )
