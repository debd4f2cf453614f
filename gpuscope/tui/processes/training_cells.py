"""The cells of a table of processes that only a process with a probe fills."""

from __future__ import annotations

from ...model.device_trainings import told_input
from ...model.pace import pace_of
from ...store.view import TrainerView
from ...text.styled import Piece
from ...text.units import amount_text, brief_duration_text, percent_text
from ..widgets.table import Cell, Column

PEAK = Column("peak", "PEAK GiB", 8, align="right", priority=13)
PACE = Column("pace", "STEP TIME", 9, align="right", priority=11)
INPUT = Column("input", "INPUT", 5, align="right", priority=12)
LOSS = Column("loss", "LOSS", 8, align="right", priority=12)
TRAINING = (PEAK.key, PACE.key, INPUT.key, LOSS.key)
FULL_CELLS = 150
"""The width from which on a table has these columns."""


def training_cells(trainer: TrainerView | None, waits: bool, loss: Piece | None) -> dict[str, Cell]:
    """Return what torch held at most, the step time, the wait for data and the ``loss``.

    ``waits`` says whether that wait is a warning.
    """
    if trainer is None:
        return {}
    peaks = [peak for one in trainer.allocators if (peak := one.number("peak_allocated_bytes"))]
    pace, share = pace_of([trainer]).seconds, told_input(trainer)[0]
    cells: dict[str, Cell] = {}
    if peaks:
        cells[PEAK.key] = [(amount_text(max(peaks)), "muted")]
    if pace is not None:
        cells[PACE.key] = [(brief_duration_text(pace), "text")]
    if share is not None:
        cells[INPUT.key] = [(percent_text(share, whole=True), "warn" if waits else "muted")]
    if loss is not None:
        cells[LOSS.key] = [loss]
    return cells
