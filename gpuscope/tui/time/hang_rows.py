"""What a trainer that hangs has done since its last step, beside the parts of the steps before.

It is one more column of their table, so that a step is divided in one way only, under one set of
names and colours: those of the chart beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...model.stalls import find_stall
from ...model.step_colours import token_of
from ...model.step_time import SPLIT_WORDS
from ...model.time_ledger import WORDS, TimeLedger, during_hang
from ...store.view import JobView, TrainerView
from ...text.styled import Line
from ...text.units import DASH, percent_text
from ...wire.clean import clean
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow
from .rows import SPLIT, TOTAL

AFTER_COLUMN = "share"
"""The column that the one of the hang stands behind."""
LEAST_SHARE = 0.005
FOLDED = {
    "input": "input",
    "forward": "compute",
    "backward": "compute",
    "optimizer": "optimizer",
    "communication": "communication",
    "copy": "h2d",
}
"""Under which part of a step, as the probe's marks divide it, a row of the ledger comes."""
REST = "other"
PLACE_CELLS = 160


def hang_of(trainer: TrainerView, job: JobView | None = None) -> TimeLedger | None:
    """Return what a trainer that hangs did since its last step, None where nothing is known.

    With its ``job`` what a rank waits for others in a backward pass is communication, as it is in
    the parts of a step that the probe's marks divide. Samples of stacks call both backward pass.
    """
    stall = find_stall(job.trainers) if job is not None else None
    waiting = stall.waiting if stall is not None and stall.behind else ()
    hang = during_hang(trainer, trainer.key in [one.key for one in waiting])
    return hang if hang.rows else None


def with_hang(columns: Sequence[Column], hang: TimeLedger | None) -> tuple[Column, ...]:
    """Return the columns of a table of parts with one for their shares of the hang."""
    if hang is None:
        return tuple(columns)
    column = Column("hang", "IN HANG", 8, align="right")
    at = next(place for place, one in enumerate(columns, 1) if one.key == AFTER_COLUMN)
    return (*columns[:at], column, *columns[at:])


def add_hang(rows: Sequence[TableRow], hang: TimeLedger | None, glyphs: Glyphs) -> list[TableRow]:
    """Return the rows of a table of parts with the share that each has of the hang.

    Of a long hang the probe has only the last minutes: their seconds would not be those of it all.
    What it does now stands first. What the steps before did not do has a row of its own.
    """
    if hang is None:
        return list(rows)
    marks = all(row.key.startswith(SPLIT) or row.key == TOTAL for row in rows)
    parts_known = {row.key.removeprefix(SPLIT) for row in rows}
    spent: dict[str, float] = {}
    for one in hang.rows:
        name = SPLIT + _part_of(one.name, parts_known) if marks else one.name
        if one.share >= LEAST_SHARE:
            spent[name] = spent.get(name, 0.0) + one.share
    known = {row.key for row in rows}
    new = [_new_row(name, glyphs) for name in spent if name not in known]
    total = [row for row in rows if row.key == TOTAL]
    parts = [*(row for row in rows if row.key != TOTAL), *new]
    parts.sort(key=lambda row: -spent.get(row.key, 0.0))
    most = max(spent.values(), default=0.0)
    out = []
    for row in (*parts, *total):
        share = 1.0 if row.key == TOTAL else spent.get(row.key)
        token = "title" if share == most or row.key == TOTAL else "text"
        cell: Line = [(percent_text(share), token) if share else (DASH, "faint")]
        out.append(row._replace(cells={**row.cells, "hang": cell}))
    return out


def _new_row(name: str, glyphs: Glyphs) -> TableRow:
    """Return a row for what was only done in the hang."""
    part = name.removeprefix(SPLIT)
    words = SPLIT_WORDS[part] if part != name else WORDS.get(part, part)
    token = token_of(part)
    cells: dict[str, Cell] = {
        "row": [(glyphs.fill(token), token), (f" {words}", "text")],
        "step": [(DASH, "faint")],
        "share": [(DASH, "faint")],
        "bar": Bar((), 1.0),
    }
    return TableRow(name, cells)


def _part_of(row: str, parts: Collection[str]) -> str:
    """Return the part of a step that a row of the ledger comes under.

    Where no part is the script's own code, that is in ``compute``: see :func:`words_of`.
    """
    part, mixed = FOLDED.get(row, REST), "compute" in parts and REST not in parts
    return "compute" if mixed and part == REST else part


def hang_lines(key: str, hang: TimeLedger | None, parts: Collection[str]) -> list[Line]:
    """Return what the details of a row say about the hang: its share, and its line of code.

    ``parts`` are those of its steps that are known.
    """
    if hang is None:
        return []
    marks, name = key.startswith(SPLIT), key.removeprefix(SPLIT)
    own = [r for r in hang.rows if (_part_of(r.name, parts) if marks else r.name) == name]
    out: list[Line] = []
    for row in own:
        if row.share >= LEAST_SHARE:
            at = f" at {clean(row.places[0][0], PLACE_CELLS)}" if row.places else ""
            text = f"{percent_text(row.share)} of it{at}"
            out.append([("In hang  ", "muted"), (text, "title")])
    return out
