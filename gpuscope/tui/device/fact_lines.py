"""Write a fact as a label and what follows it, or say why it is not known."""

from __future__ import annotations

from collections.abc import Sequence

from ...text.styled import Line, Piece
from ...wire.frames import Unknown
from ..cells import fit
from .device_state import in_short

LABEL = 12
"""Cells of a label."""


def fact(label: str, pieces: Sequence[Piece]) -> Line:
    """Return a label and what follows it."""
    return [(fit(label, LABEL), "muted"), *pieces]


def why(reading: object) -> Piece:
    """Return the reason for a reading that is not there."""
    return (f"– {in_short(reading.text)}" if isinstance(reading, Unknown) else "–", "faint")
