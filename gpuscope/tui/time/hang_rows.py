"""Where the time goes while a job hangs: a table of the samples of the hang itself."""

from __future__ import annotations

from collections.abc import Mapping

from ...model.time_ledger import TimeLedger, during_hang, recent
from ...store.view import TrainerView
from ...text.units import age_text, brief_duration_text, percent_text, window_text
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow

HANG = (
    Column("step", "TIME", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("bar", "", 5, flex=1, priority=1),
)
"""The columns beside the names of the rows. No step ends, so no time is that of a step."""
LEAST_SHARE = 0.005
DURING = "hang "
"""What the keys of these rows begin with."""


def hang_ledger(trainer: TrainerView) -> tuple[TimeLedger, str]:
    """Return what a trainer that hangs did, and the heading of the table.

    A probe of an older version does not tell the hang from the steps before it.
    """
    hang = during_hang(trainer)
    if hang.rows:
        return hang, f"During the hang, its first {age_text(hang.seconds)}"
    lately = recent(trainer)
    window = window_text(round(lately.seconds))
    return lately, f"What it did for the last {window}, partly before the hang"


def hang_rows(ledger: TimeLedger, tokens: Mapping[str, str], glyphs: Glyphs) -> list[TableRow]:
    """Return what the training thread did during a hang, the longest first."""
    out = []
    for row in ledger.rows:
        if row.share < LEAST_SHARE:
            continue
        token = tokens.get(row.name, "other")
        cells: dict[str, Cell] = {
            "row": [(glyphs.fill(token), token), (f" {row.words}", "text")],
            "step": [(brief_duration_text(row.seconds), "text")],
            "share": [(percent_text(row.share), "text")],
            "bar": Bar(((row.share, token),), 1.0),
        }
        out.append(TableRow(DURING + row.name, cells))
    return out
