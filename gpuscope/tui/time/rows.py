"""The tables of the tab about time: rows of the clock, ranks side by side, rows of the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...model.look import Look, LookRow
from ...model.rank_times import Odd
from ...model.step_colours import LOOK_TOKENS, REST, SPLIT_TOKENS
from ...model.step_time import SPLIT_WORDS, measured_step, shares_of, words_of
from ...model.time_ledger import Row, TimeLedger
from ...store.view import TrainerView
from ...text.ranges import interval_text
from ...text.styled import Piece
from ...text.units import DASH, brief_duration_text, percent_text
from ...text.width import cells
from ...wire.clean import clean
from ..charts.spark import spark
from ..doctor.text import SEVERITY_TOKENS, glyph_of
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow

if TYPE_CHECKING:
    from ...doctor.finding import Severity

NOTHING_CURABLE: Mapping[str, Severity] = MappingProxyType({})
NO_COURSES: Mapping[str, Sequence[float | None]] = MappingProxyType({})
TOTAL, SPLIT = "total", "split "
"""The key of the row that the others add up to, and what keys of parts of a step begin with."""
CLOCK = (
    Column("step", "PER STEP", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("interval", "95 % CI", 9, align="right", priority=2),
    Column("part", "WHEN", 5, priority=3),
    Column("bar", "", 5, flex=1, priority=1),
)
COURSE_CELLS = 10
NARROW_CLOCK = (*CLOCK[:3], Column("course", f"{COURSE_CELLS} MIN", COURSE_CELLS + 2, priority=1))
"""The columns of the clock beside the names of its rows. A narrow terminal has the course of each
row over so many minutes instead of a bar: there is no room for the chart.
"""
GPU = (
    Column("step", "PER STEP", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("bar", "", 5, flex=1, priority=1),
)
KERNELS = (
    Column("row", "WHAT", 30, flex=1),
    Column("step", "PER STEP", 8, align="right"),
    Column("share", "SHARE", 6, align="right"),
    Column("bar", "", 12, priority=1),
)
"""The columns of the GPU where kernels stand below their class."""
PART = {True: "step", False: "pause", None: DASH}
"""Whether a row is a part of the steps, or a pause between them."""
RANK_ROWS = 6
"""Rows of the clock that the table of ranks has columns for."""
SHORT = {
    "input": "INPUT",
    "forward": "FORWARD",
    "backward": "BACKWARD",
    "optimizer": "OPTIM",
    "communication": "COMM",
    "read": "SYNCS",
    "copy": "COPIES",
    "compile": "COMPILE",
    "checkpoint": "CHECKPT",
    "validation": "VALID",
    "logging": "LOGGING",
    "collection": "GARBAGE",
    "profiler": "PROFILE",
    "release": "RELEASE",
    "other": "OTHER",
    "unattributed": "REST",
}
SPLIT_NOTES = {
    "input": "waiting for data",
    "compute": "forward, backward",
    "communication": "between ranks",
    "other": "your own code",
}
"""What stands behind the name of a part that does not explain itself."""
FINE_SHARE = 0.02
"""Below this the bounds of a share are told with a decimal, else both would often read the same."""
FILL_CELLS, MARK_CELLS = 2, 2
"""Of the colour or pattern before a row's name and a blank, and of the mark behind it."""
KERNEL_INDENT = "    "
NAME_CELLS = 240
LEAST_SHARE = 0.001
"""Rows of the GPU below are not listed; the bar of the whole has them."""


def split_names() -> Iterable[str]:
    """Return the names of the parts of a step as their rows have them."""
    return (f"{name}  {SPLIT_NOTES.get(part, '')}" for part, name in SPLIT_WORDS.items())


def with_names(names: Iterable[str], columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of a table behind one that is as wide as the longest name of a row."""
    longest = max((cells(name) for name in names), default=0)
    return (Column("row", "WHAT", longest + FILL_CELLS + MARK_CELLS), *columns)


def clock_rows(
    ledger: TimeLedger,
    tokens: Mapping[str, str],
    glyphs: Glyphs,
    curable: Mapping[str, Severity] = NOTHING_CURABLE,
    courses: Mapping[str, Sequence[float | None]] = NO_COURSES,
) -> list[TableRow]:
    """Return the rows of the ledger, and the wall clock that they add up to.

    ``curable`` has those that a cure would shorten, each with how grave the doctor takes it.
    ``courses`` has the seconds a step of each row over time; all are drawn on one scale.
    """
    if not ledger.rows:
        return []
    step = ledger.step_seconds
    known = [value for values in courses.values() for value in values if value is not None]
    drawn_courses = {
        name: spark(values, COURSE_CELLS, max(known, default=0.0), glyphs)
        for name, values in courses.items()
    }
    rows = [
        _clock_row(
            row,
            step,
            tokens.get(row.name, REST),
            glyphs,
            curable.get(row.name),
            drawn_courses.get(row.name, ""),
            ledger.sure,
        )
        for row in ledger.whole
    ]
    parts = tuple((row.share, tokens.get(row.name, REST)) for row in ledger.whole)
    drawn: dict[str, Cell] = {
        "row": [("wall clock", "title")],
        "step": [(brief_duration_text(step) if step is not None else DASH, "title")],
        "share": [("100 %", "title")],
        "course": [(spark(_sums(courses), COURSE_CELLS, None, glyphs), "title")],
        "bar": Bar(parts, 1.0),
    }
    return [*rows, TableRow(TOTAL, drawn)]


def _sums(courses: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    """Return the wall clock a step in each minute: what all rows of that minute add up to."""
    minutes = zip(*courses.values(), strict=True)
    return [None if None in each else sum(one or 0.0 for one in each) for each in minutes]


def _clock_row(
    row: Row,
    step: float | None,
    token: str,
    glyphs: Glyphs,
    severity: Severity | None,
    course: str,
    sure: bool,
) -> TableRow:
    """Return a row of the ledger; one that could be saved has the mark that the doctor gives it.

    It has an interval where there were enough samples to be ``sure`` of one.
    """
    grave = SEVERITY_TOKENS[severity] if severity not in (None, "info") else ""
    name = grave or ("text" if row.seconds > 0 else "muted")
    figure = grave or "text"
    mark = f" {glyph_of(severity, glyphs)}" if severity is not None else ""
    digits = 0 if row.high >= FINE_SHARE else 1
    between = interval_text(*(f"{100 * end:.{digits}f}" for end in (row.low, row.high))) + " %"
    drawn: dict[str, Cell] = {
        "row": [(glyphs.fill(token), token), (f" {row.words}{mark}", name)],
        "step": [(brief_duration_text(step * row.share) if step is not None else DASH, figure)],
        "share": [(percent_text(row.share), figure)],
        "interval": [(between if row.looks and sure else "", "faint")],
        "part": [(PART[row.inside], "muted")],
        "course": [(course, token)],
        "bar": Bar(((row.share, token),), 1.0),
    }
    return TableRow(row.name, drawn)


# ── without minutes ──


def split_rows(trainer: TrainerView, glyphs: Glyphs) -> list[TableRow]:
    """Return the parts of the last steps as the probe timed them, while no minute has come."""
    step, shares = measured_step([trainer]), shares_of([trainer])
    if not step or not shares:
        return []
    if (trainer.definition.world_size or 1) < 2 and not shares.get("communication"):
        shares = {name: one for name, one in shares.items() if name != "communication"}
    rows, words = [], words_of(shares)
    noted = {name for name in SPLIT_NOTES if words.get(name) == SPLIT_WORDS[name]}
    for name, share in sorted(shares.items(), key=lambda one: -one[1]):
        token = SPLIT_TOKENS[name]
        drawn: dict[str, Cell] = {
            "row": [
                (glyphs.fill(token), token),
                (f" {words[name]}", "text"),
                (f"  {SPLIT_NOTES[name]}" if name in noted else "", "faint"),
            ],
            "step": [(brief_duration_text(step * share), "text")],
            "share": [(percent_text(share), "text")],
            "bar": Bar(((share, token),), 1.0),
        }
        rows.append(TableRow(SPLIT + name, drawn))
    total: dict[str, Cell] = {
        "row": [("step", "title")],
        "step": [(brief_duration_text(step), "title")],
        "share": [("100 %", "title")],
        "bar": Bar(tuple((share, SPLIT_TOKENS[name]) for name, share in shares.items()), 1.0),
    }
    return [*rows, TableRow(TOTAL, total)]


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
        Column("step", "STEP TIME", 9, align="right"),
        *named,
    )


def rank_rows(
    ledgers: Mapping[str, TimeLedger],
    names: Mapping[str, str],
    odd: Odd | None,
    marks: Mapping[str, Piece],
) -> list[TableRow]:
    """Return a line for each rank; ``marks`` has the sign of those that stand out, with its token.

    ``ledgers``, ``names`` and ``marks`` are by the key of a trainer; the row by which ``odd``
    differs stands out.
    """
    out = []
    for key, ledger in ledgers.items():
        step, marked = ledger.step_seconds, key in marks
        sign, token = marks.get(key, (" ", "text"))
        drawn: dict[str, Cell] = {
            "rank": [(f"{sign} ", token), (names[key], token)],
            "step": [(brief_duration_text(step) if step is not None else DASH, token)],
        }
        drawn |= {name: [(DASH, "faint")] for name in SHORT}
        for row in ledger.rows:
            here = marked and odd is not None and odd.row.name == row.name
            each = (
                brief_duration_text(step * row.share)
                if step is not None
                else percent_text(row.share)
            )
            drawn[row.name] = [(each, token if here else "text")]
        out.append(TableRow(key, drawn))
    return out


# ── the GPU ──


def gpu_rows(look: Look, glyphs: Glyphs, room: int = 0) -> list[TableRow]:
    """Return what a look found on the GPU: kernels by class, and idle time by cause.

    Each class is followed by as many of its longest kernels as ``room`` rows have place for.
    """
    out = []
    rows = [row for row in look.rows if row.share >= LEAST_SHARE]
    kernels = _kernels_each(rows, room - len(rows))
    for row in rows:
        token = LOOK_TOKENS[row.kind]
        drawn: dict[str, Cell] = {
            "row": [(glyphs.fill(token), token), (f" {row.words}", "text")],
            "step": [(brief_duration_text(row.seconds / look.steps), "text")],
            "share": [(percent_text(row.share), "text")],
            "bar": Bar(((row.share, token),), 1.0),
        }
        out.append(TableRow(row.name, drawn))
        out += [
            _kernel_row(f"{row.name}/{place}", name, seconds, look)
            for place, (name, seconds) in enumerate(row.kernels[:kernels])
        ]
    return out


def row_of(key: str) -> str:
    """Return the name of the row of a look that a row of the table belongs to."""
    return key.partition("/")[0]


def _kernels_each(rows: Sequence[LookRow], room: int) -> int:
    """Return how many kernels of each class fit into so many rows."""
    most = max((len(row.kernels) for row in rows), default=0)
    fits = (n for n in range(most, 0, -1) if sum(len(row.kernels[:n]) for row in rows) <= room)
    return next(fits, 0)


def _kernel_row(key: str, name: str, seconds: float, look: Look) -> TableRow:
    drawn: dict[str, Cell] = {
        "row": [(f"{KERNEL_INDENT}{short_kernel(name)}", "muted")],
        "step": [(brief_duration_text(seconds / look.steps), "muted")],
        "share": [(percent_text(seconds / look.seconds), "muted")],
    }
    return TableRow(key, drawn)


def short_kernel(name: str) -> str:
    """Return the name of a kernel without what all of torch's begin with."""
    short = clean(name, NAME_CELLS).removeprefix("void ")
    return short.replace("at::native::", "").replace("(anonymous namespace)::", "")
