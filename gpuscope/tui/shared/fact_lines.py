"""Write a fact as a label and what follows it, or say why it is not known."""

from __future__ import annotations

from collections.abc import Sequence

from ...text import width
from ...text.styled import Line, Piece
from ...wire.frames import Unknown
from ..cells import fit
from .device_state_text import why_unread

LABEL = 12
"""The cells of a label."""


def fact(label: str, pieces: Sequence[Piece]) -> Line:
    return [(fit(label, LABEL), "muted"), *pieces]


def why(reading: object, replayed: bool = False) -> Piece:
    """Return why a reading is missing."""
    if not isinstance(reading, Unknown):
        return "–", "faint"
    return f"– {why_unread(reading.text, replayed)}", "faint"


def facts(label: str, parts: Sequence[str], cells: int, token: str = "text") -> list[Line]:
    """Return a label and what follows it, broken between the parts and not inside of one."""
    rows: list[str] = []
    for part in filter(None, parts):
        longer = f"{rows[-1]} · {part}" if rows else part
        if rows and LABEL + width.cells(longer) <= cells:
            rows[-1] = longer
        else:
            rows.append(part)
    return [fact(label if at == 0 else "", [(row, token)]) for at, row in enumerate(rows)]
