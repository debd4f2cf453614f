"""Draw the rows of a host that sends nothing new without the colours of the present."""

from __future__ import annotations

from dataclasses import dataclass

from ...text.styled import Line
from ...wire.frames import Unknown
from ..theme import Glyphs
from .bars import Meter
from .table import Cell, TableRow, WidthCell

FAINT = "faint"


@dataclass(frozen=True, slots=True)
class Faint:
    """A cell that is drawn like another one, in one faint colour."""

    cell: WidthCell

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        return [(text, FAINT) for text, _ in self.cell.draw(width, glyphs)]


def as_last_seen(row: TableRow) -> TableRow:
    """Return a row in one faint colour."""
    return TableRow(row.key, {key: _faint(cell) for key, cell in row.cells.items()}, FAINT)


def _faint(cell: Cell) -> Cell:
    if isinstance(cell, str) or (isinstance(cell, Meter) and _is_unknown(cell)):
        return cell
    return Faint(cell) if hasattr(cell, "draw") else [(text, FAINT) for text, _ in cell]


def _is_unknown(cell: Meter) -> bool:
    return cell.percent is None or isinstance(cell.percent, Unknown)
