"""The tables of the tab about time: rows of the clock, ranks side by side, rows of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.look import Look
from ...model.rank_times import Odd
from ...model.time_ledger import Row, TimeLedger
from ...text.units import DASH, duration_text, percent_text
from ...text.width import cells
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow
from .history import REST

TOTAL = "total"
"""The key of the row that the others add up to."""
CLOCK = (
    Column("step", "A STEP", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("interval", "95 %", 9, align="right", priority=2),
    Column("part", "STEPS", 5, priority=3),
    Column("bar", "", 5, flex=1, priority=1),
)
"""The columns of the clock beside the names of its rows, and those of the GPU."""
GPU = (
    Column("step", "A STEP", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("bar", "", 5, flex=1, priority=1),
)
PART = {True: "in", False: "out", None: DASH}
"""Whether a row is a part of the steps."""
RANK_ROWS = 6
"""Rows of the clock that the table of ranks has columns for."""
SHORT = {
    "input": "INPUT",
    "forward": "FORWARD",
    "backward": "BACKWARD",
    "optimizer": "OPTIM",
    "communication": "COMM",
    "read": "READS",
    "copy": "COPIES",
    "compile": "COMPILE",
    "checkpoint": "CHECKPT",
    "validation": "VALID",
    "logging": "LOGGING",
    "collection": "GARBAGE",
    "profiler": "PROFILE",
    "other": "OTHER",
    "unattributed": "REST",
}
FINE_SHARE = 0.02
"""Below this the bounds of a share are told with a decimal, else both would often read the same."""
FILL_CELLS = 2
"""Of the colour or pattern before a row's name, and a blank."""
LEAST_SHARE = 0.001
"""Rows of the GPU below are not listed; the bar of the whole has them."""
LOOK_TOKENS = {
    "kernels": "allocated",
    "communication": "series5",
    "copies": "series3",
    "idle": "series6",
    "rest": "driver",
}


def with_names(names: Iterable[str], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of a table behind one that is as wide as the longest name of a row."""
    longest = max((cells(name) for name in names), default=0)
    return (Column("row", "ROW", longest + FILL_CELLS), *columns)


def clock_rows(ledger: TimeLedger, tokens: Mapping[str, str], glyphs: Glyphs) -> list[TableRow]:
    """Return the rows of the ledger, and the wall clock that they add up to."""
    if not ledger.rows:
        return []
    step = ledger.step_seconds
    rows = [_clock_row(row, step, tokens.get(row.name, REST), glyphs) for row in ledger.whole]
    parts = tuple((row.share, tokens.get(row.name, REST)) for row in ledger.whole)
    drawn: dict[str, Cell] = {
        "row": [("wall clock", "title")],
        "step": [(duration_text(step) if step is not None else DASH, "title")],
        "share": [("100 %", "title")],
        "bar": Bar(parts, 1.0),
    }
    return [*rows, TableRow(TOTAL, drawn)]


def _clock_row(row: Row, step: float | None, token: str, glyphs: Glyphs) -> TableRow:
    name = "text" if row.seconds > 0 else "muted"
    digits = 0 if row.high >= FINE_SHARE else 1
    between = f"{100 * row.low:.{digits}f}–{100 * row.high:.{digits}f} %"
    drawn: dict[str, Cell] = {
        "row": [(glyphs.fill(token), token), (f" {row.words}", name)],
        "step": [(duration_text(step * row.share) if step is not None else DASH, "text")],
        "share": [(percent_text(row.share), "text")],
        "interval": [(between if row.looks else "", "faint")],
        "part": [(PART[row.inside], "muted")],
        "bar": Bar(((row.share, token),), 1.0),
    }
    return TableRow(row.name, drawn)


# ── ranks ──


def rank_columns(ledgers: Mapping[str, TimeLedger], odd: Odd | None) -> tuple[Column, ...]:
    """Return the columns of the table of ranks: those rows that take most of all ranks' time.

    The row by which a rank is ``odd`` comes first.
    """
    spent: dict[str, float] = {}
    for ledger in ledgers.values():
        for row in ledger.rows:
            spent[row.name] = spent.get(row.name, 0.0) + row.share
    first = odd.row.name if odd is not None else ""
    names = sorted(spent, key=lambda name: (name != first, -spent[name]))[:RANK_ROWS]
    named = (
        Column(name, SHORT[name], 8, align="right", priority=at + 1)
        for at, name in enumerate(names)
    )
    return (
        Column("rank", "RANK", 6, flex=1, most=24),
        Column("step", "A STEP", 8, align="right"),
        *named,
    )


def rank_rows(
    ledgers: Mapping[str, TimeLedger],
    names: Mapping[str, str],
    odd: Odd | None,
    worst: str,
    glyphs: Glyphs,
) -> list[TableRow]:
    """Return a line for each rank, the ``worst`` marked.

    ``ledgers`` and ``names`` are by the key of a trainer; the row by which ``odd`` differs stands
    out.
    """
    out = []
    for key, ledger in ledgers.items():
        step, marked = ledger.step_seconds, key == worst
        token = "warn" if marked else "text"
        drawn: dict[str, Cell] = {
            "rank": [(f"{glyphs.warn} " if marked else "  ", token), (names[key], token)],
            "step": [(duration_text(step) if step is not None else DASH, token)],
        }
        drawn |= {name: [(DASH, "faint")] for name in SHORT}
        for row in ledger.rows:
            here = marked and odd is not None and odd.row.name == row.name
            each = duration_text(step * row.share) if step is not None else percent_text(row.share)
            drawn[row.name] = [(each, "warn" if here else "text")]
        out.append(TableRow(key, drawn))
    return out


# ── the GPU ──


def gpu_rows(look: Look, glyphs: Glyphs) -> list[TableRow]:
    """Return what a look found on the GPU: kernels by class, and idle time by cause."""
    out = []
    for row in look.rows:
        if row.share < LEAST_SHARE:
            continue
        token = LOOK_TOKENS[row.kind]
        drawn: dict[str, Cell] = {
            "row": [(glyphs.fill(token), token), (f" {row.words}", "text")],
            "step": [(duration_text(row.seconds / look.steps), "text")],
            "share": [(percent_text(row.share), "text")],
            "bar": Bar(((row.share, token),), 1.0),
        }
        out.append(TableRow(row.name, drawn))
    return out
