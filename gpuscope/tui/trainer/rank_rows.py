"""These are the rows of a job's ranks, the worst first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.device_state import DeviceState
from ...model.device_trainings import starving_warns, told_input
from ...model.job_ends import end_text
from ...model.job_state import broken_below
from ...model.late_rank import late_rank
from ...model.memory_room import TIGHT_BYTES, MemoryRoom, rooms
from ...model.pace import counts_of, has_stopped, pace_of
from ...model.ranks import running
from ...model.reading_age import old_seconds
from ...model.stalls import is_overdue, place, stalled_ranks, waits_in_collective, worst_rank
from ...model.step_parts import StepParts, step_parts
from ...store.view import by_id
from ...text import styled
from ...text.ranges import compact_ranges
from ...text.styled import Piece
from ...text.units import amount_text, amounts_text, brief_duration_text, percent_text
from ...text.width import cells as text_cells
from ..shared.job_notes import most_starving
from ..shared.job_rows import step_age_text
from ..shared.step_split import split_bar, tokens_of
from ..shell.keymap import key_of
from ..theme import UNICODE, Glyphs
from ..widgets.table import GUTTER, Cell, Column, TableRow, lay_out
from .rank_cells import wide_cells
from .rank_courses import COURSE_CELLS

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, JobView, TrainerView

LEAST_STEP, MOST_STEP = 6, 9
"""The width of the number of a step: it gives what it does not need to others."""
COLUMNS = (
    Column("rank", "RANK", 5, align="right"),
    Column("gpu", "GPU", 4, align="right", priority=4),
    Column("pid", "PID", 8, align="right", priority=8),
    Column("step", "STEP", MOST_STEP, align="right"),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("age", "STEP AGE", 8, align="right"),
    Column("p95", "P95", 9, align="right", priority=15),
    Column("input", "INPUT", 5, align="right", priority=10),
    Column("loss", "LOSS", 8, align="right", priority=10),
    Column("collectives", "COLLECTIVES", 11, align="right", priority=4),
    Column("memory", "PEAK/RES. GiB", 14, align="right", priority=1),
    Column("left", "HEADROOM", 8, align="right"),
    Column("ends", "RUNS OUT", 11, align="right", priority=3),
    Column("load", "UTIL", 5, align="right", priority=9),
    Column("power", "POWER", 6, align="right", priority=11),
    Column("cpu", "CPU", 6, align="right", priority=11),
    Column("rss", "RSS GiB", 7, align="right", priority=17),
    Column("course", "STEP TIME", COURSE_CELLS, priority=13),
    Column("busy", "UTIL", COURSE_CELLS, priority=16),
    Column("room", "GPU MEMORY", 10, flex=1, most=40, priority=14),
    Column("split", "STEP BREAKDOWN", 14, flex=2, most=60, priority=6),
    Column("at", "STUCK AT", 14, flex=3, most=60, priority=2, whole=True),
)
INPUT = Column("input", "INPUT", 6, align="right", priority=2)
"""The column of the wait for input, where that is the trouble of a rank."""
WIDE = (
    "rss", "busy", "p95", "room", "power", "cpu", "course", "loss", "input", "load",
)  # fmt: skip
"""Columns that only a panel of so many cells has; the first one gives its cells away first."""
WIDE_CELLS, COURSE_FROM = 125, 100
COURSES = ("course", "busy")
"""Columns that show the last minutes, and name them."""
OPTIONAL = ("rank", "pace", "age", "ends", "split", "at", "collectives", "memory", "left", *WIDE)
"""Columns that are left out where no rank has anything to say in them."""
GIVE_AWAY = ("", *WIDE, "split", "pid", "collectives", "memory", "left", "gpu")
"""Columns that give their cells away, one after the other, for where a rank is stuck."""
FRAME_CELLS = 4
"""Of the table: its frame, and the blanks beside that."""
NOTHING: Sequence[Piece] = [("–", "faint")]
OTHERS = "others"
"""Begins the keys of rows that stand for several ranks."""
LEAST_ALIKE = 3
"""From this number on, ranks that are alike share a row where rows are scarce."""
RANK_CELLS = 11
"""The greatest width of RANK, where a row names the ranks that it stands for."""


def _with_input(columns: Sequence[Column], rows: Sequence[TableRow]) -> Sequence[Column]:
    """Return the columns with the wait for input before the pid, where that is the trouble."""
    pieces = [cell for row in rows if isinstance(cell := row.cells.get("input"), list)]
    if not any(token == "warn" for cell in pieces for _, token in cell):
        return columns
    others = [column for column in columns if column.key != "input"]
    at = next(place for place, column in enumerate(others) if column.key == "pid")
    return [*others[:at], INPUT, *others[at:]]


def columns_for(rows: Sequence[TableRow], cells: int, window: str = "") -> list[Column]:
    """Return the columns that say something, for a panel of ``cells`` cells.

    ``window`` is the time that its courses show. Where a rank is stuck is told to its end where
    that is possible: the bar of a step's parts gives its cells away for it.
    """
    shown = [
        column
        for column in _with_input(COLUMNS, rows)
        if (column.key not in WIDE or column is INPUT or cells >= least_cells(column.key))
        and (
            column.key not in OPTIONAL
            or any(row.cells.get(column.key) not in (NOTHING, "", None) for row in rows)
        )
    ]
    named = max([_cells(row.cells.get("rank")) for row in rows], default=0)
    steps = max([_cells(row.cells.get("step")) for row in rows], default=0)
    widths = {"rank": max(named, 5), "step": min(max(steps, LEAST_STEP), MOST_STEP)}
    shown = [column._replace(width=widths.get(column.key, column.width)) for column in shown]
    shown = [
        column._replace(title=f"{column.title}, {window}") if column.key in COURSES else column
        for column in shown
    ]
    if all(column.key != "at" for column in shown):
        return shown
    wanted = [_cells(row.cells.get("at")) for row in rows]
    best = shown
    for most in (max(wanted), wanted[0]):  # of all ranks, else of the one that is stuck
        fitted = [
            column._replace(width=min(column.width, most), most=most, flex=50)
            if column.key == "at"
            else column
            for column in shown
        ]
        for left_out in GIVE_AWAY:
            fitted = [column for column in fitted if column.key != left_out]
            placed = lay_out(fitted, cells - FRAME_CELLS - GUTTER, 1)
            if any(column.key == "at" and width >= most for column, width in placed):
                return fitted
            best = fitted
    return best


def least_cells(column: str) -> int:
    """Return from how wide a panel on there is a column that not every table has."""
    return COURSE_FROM if column in ("course", "room") else WIDE_CELLS


def _cells(cell: Cell | None) -> int:
    """Return how wide a cell of text is."""
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        return styled.cells(cell)
    return text_cells(cell) if isinstance(cell, str) else 0


def rank_rows(
    host: HostView,
    job: JobView,
    most: int | None,
    history: HistoryOf,
    fold: bool = False,
    glyphs: Glyphs = UNICODE,
    parts: StepParts | None = None,
) -> list[TableRow]:
    """Return a row for each rank, the worst first.

    ``parts`` are those of the step of its ranks, where they are known already.

    With ``fold``, or where there are more than ``most``, ranks that are alike have one row. Where
    these are still too many, the last row sums up the others.
    """
    living = running(job.trainers)
    stalled = stalled_ranks(job)
    behind = {key for key, kind in stalled.items() if kind == "bad"}
    late = late_rank(living, history, host)
    slow = late.trainer if late is not None else None
    starved = most_starving(host, living, history)
    warns = late is not None and late.warns
    warned = starved is not None and starving_warns(host, starved[1], starved[0], history)
    hungry = starved[1] if starved is not None and warned else None
    worst, _ = worst_rank(living)
    by_trainer: dict[str, MemoryRoom] = {}
    for room in rooms(host.devices, living, history):
        by_trainer.setdefault(room.trainer.key, room)
    order = list(by_trainer)
    counts = {column: counts_of(living, column) for column in ("step", "collectives")}
    parts = parts or step_parts(living, host, history)
    tokens = tokens_of(parts) if parts is not None else {}
    broken = {t.key: lost for t in living if (lost := broken_below(host, t)) is not None}

    def badness(trainer: TrainerView) -> tuple[bool, bool, bool, bool, bool, bool, int]:
        room = by_trainer.get(trainer.key)
        return (
            trainer.key not in broken,
            trainer.key not in behind,
            room is None or room.runs_out is None,
            trainer is not slow,
            starved is None or trainer.key != starved[1].key,
            worst is None or trainer.key != worst.key,
            trainer.definition.rank or 0,
        )

    ranked = sorted(living, key=badness)
    first = order[0] if order and len(living) > 1 else ""

    def row(t: TrainerView) -> TableRow:
        return _rank_row(
            host,
            t,
            by_trainer.get(t.key),
            broken.get(t.key),
            stalled.get(t.key, ""),
            getattr(glyphs, stalled[t.key])
            if t.key in stalled
            else glyphs.warn
            if (warns and t is slow) or t is hungry
            else "",
            t.key == first,
            ends,
            tokens,
            history,
            counts,
        )

    ends = len({t.gone.reason for t in living if t.gone is not None}) > 1
    groups = [[t] for t in ranked]
    if fold or (most is not None and len(ranked) > most):
        odd = {t.key for t in ranked if any(not well for well in badness(t)[:-1])} | {first}
        groups = _fold(ranked, odd)
    if most is not None and len(groups) > most:
        rest = [t for group in groups[most - 1 :] for t in group]
        groups = [*groups[: most - 1], rest]
    return [
        row(group[0])
        if len(group) == 1
        else _group_row(host, group, by_trainer, tokens, counts["step"])
        for group in groups
    ]


def _fold(ranked: Sequence[TrainerView], odd: Collection[str]) -> list[list[TrainerView]]:
    """Return the ranks in groups of those that are stuck at one place, or all step.

    A rank of ``odd`` stays alone, and so do a few.
    """
    groups: dict[object, list[TrainerView]] = {}
    for trainer in ranked:
        alike = (*place(trainer), has_stopped(trainer), trainer.gone is None)
        groups.setdefault(trainer.key if trainer.key in odd else alike, []).append(trainer)
    out: list[list[TrainerView]] = []
    for group in groups.values():
        out += [group] if len(group) >= LEAST_ALIKE else [[one] for one in group]
    return sorted(out, key=len)


def _rank_row(
    host: HostView,
    trainer: TrainerView,
    room: MemoryRoom | None,
    broken: tuple[int, DeviceState] | None,
    stalled: str,
    mark: str,
    first: bool,
    ends: bool,
    tokens: Mapping[str, str],
    history: HistoryOf,
    counts: Mapping[str, Mapping[str, float]],
) -> TableRow:
    rank, alone = trainer.definition.rank, trainer.definition.world_size == 1
    age = trainer.number("step_age_seconds")
    device = by_id(host.devices, room.allocator.gpu) if room is not None else None
    bad = "bad" if stalled == "bad" or broken is not None else "warn" if mark else "text"
    cells: dict[str, Cell] = {
        "rank": NOTHING if rank is None or alone else [(f"{mark} {rank}".strip(), bad)],
        "gpu": str(device.definition.index)
        if device is not None
        else "cpu"
        if not trainer.definition.cuda
        else "–",
        "pid": [(str(trainer.definition.pid), "muted")],
        "step": _number(counts["step"].get(trainer.key), bad if bad == "bad" else "text"),
        "pace": NOTHING if has_stopped(trainer) else _seconds(trainer, "step_seconds"),
        "age": [
            (
                step_age_text(age) if age is not None else "–",
                "bad" if is_overdue(trainer) else "muted",
            )
        ]
        if trainer.gone is None
        else NOTHING,
        "collectives": _number(counts["collectives"].get(trainer.key), bad),
        "split": split_bar(parts, tokens)
        if not has_stopped(trainer) and (parts := step_parts([trainer])) is not None
        else NOTHING,
        "at": _at(trainer, broken, ends),
        **wide_cells(host, trainer, device, history),
    }
    if room is not None:
        allocated, reserved = (
            room.fullest.number("allocated_bytes"),
            room.fullest.number("reserved_bytes"),
        )
        old = old_seconds(host, room.allocator) is not None
        cells["memory"] = NOTHING if old else amounts_text(allocated, reserved)
        left = room.headroom_bytes
        tight = left is not None and left < TIGHT_BYTES
        size = amount_text(left) if left is not None else "–"
        token = "warn" if tight else "title" if first else "text"
        is_old = old and left is not None
        cells["left"] = [(f"{UNICODE.about}{size}", "faint")] if is_old else [(size, token)]
        end = room.runs_out
        cells["ends"] = [(f"~{end.steps:,.0f} steps", "bad")] if end is not None else NOTHING
    return TableRow(trainer.key, cells)


def _at(
    trainer: TrainerView, broken: tuple[int, DeviceState] | None = None, ends: bool = False
) -> Sequence[Piece]:
    """Return where a rank is stuck; with ``ends`` also how it ended."""
    where, functions, inner = (at := place(trainer)).line, at.functions, at.innermost
    if trainer.gone is not None:
        return [(end_text(trainer.gone), "muted")] if ends else NOTHING
    if broken is not None:
        index, state = broken
        stuck = f" · {where} {functions}" if where else ""
        return [(f"GPU {index} {state.word}", "bad"), (stuck, "muted")]
    if where and waits_in_collective(trainer):
        return [(f"waits in {inner} ", "text"), (where, "muted")]
    if where:
        return [(where, "title"), (f" {functions}", "muted")]
    phase = trainer.reading("phase")
    return [(phase, "muted")] if isinstance(phase, str) and phase != "train" else NOTHING


def _number(value: float | None, token: str) -> Sequence[Piece]:
    return [(f"{value:,.0f}", token)] if value is not None else NOTHING


def _seconds(trainer: TrainerView, column: str) -> Sequence[Piece]:
    value = trainer.number(column)
    return [(brief_duration_text(value), "text")] if value is not None else NOTHING


def _group_row(
    host: HostView,
    ranks: Sequence[TrainerView],
    by_trainer: Mapping[str, MemoryRoom],
    tokens: Mapping[str, str],
    counts: Mapping[str, float],
) -> TableRow:
    """Return ranks that have one row together, which says the worst of them."""
    pace, steps = pace_of(ranks), {counts[t.key] for t in ranks if t.key in counts}
    parts = None if pace.stopped else step_parts(ranks)
    found = [by_trainer[t.key] for t in ranks if t.key in by_trainer]
    allocated = [n for room in found if (n := room.fullest.number("allocated_bytes")) is not None]
    reserved = [n for room in found if (n := room.fullest.number("reserved_bytes")) is not None]
    left = [room.headroom_bytes for room in found if room.headroom_bytes is not None]
    ages = [n for t in ranks if (n := t.number("step_age_seconds")) is not None]
    times = [] if pace.stopped else [n for t in ranks if (n := t.number("step_seconds"))]
    shares = [n for t in ranks if (n := told_input(t)[0]) is not None]
    places = {place(t): t for t in ranks}
    cells: dict[str, Cell] = {
        "rank": [(_ranks_text(ranks), "text")],
        "step": _number(min(steps), "text") if len(steps) == 1 else [(pace.steps_text, "text")],
        "pace": _most([brief_duration_text(n) for n in sorted(times)], "text"),
        "age": _most([step_age_text(n) for n in sorted(ages)], "muted"),
        "split": split_bar(parts, tokens) if parts is not None else "",
        "input": _most([percent_text(n, whole=True) for n in sorted(shares)], "muted"),
        "at": _at(ranks[0])
        if len(places) == 1
        else [(f"{len(places)} places, {key_of('all', 'JobScreen')}: all ranks", "muted")],
    }
    if allocated and reserved:
        held = amounts_text(max(allocated), max(reserved))
        cells["memory"] = f"≤ {held}" if len(found) > 1 else held
    if left:
        size = f"{'≥ ' if len(left) > 1 else ''}{amount_text(min(left))}"
        old = any(old_seconds(host, room.allocator) is not None for room in found)
        cells["left"] = [(f"{UNICODE.about}{size}", "faint")] if old else size
    return TableRow(f"{OTHERS} {ranks[0].key}", cells)


def _ranks_text(ranks: Sequence[TrainerView]) -> str:
    """Return how many ranks have this row, and which, where that is short."""
    numbers = [t.definition.rank for t in ranks if t.definition.rank is not None]
    text = f"×{len(ranks)}: {compact_ranges(numbers)}"
    return text if len(numbers) == len(ranks) and len(text) <= RANK_CELLS else f"×{len(ranks)}"


def _most(texts: Sequence[str], token: str) -> Sequence[Piece]:
    """Return the last of texts in order as the most, or the one text where all are equal."""
    if not texts:
        return NOTHING
    return [(texts[-1] if texts[0] == texts[-1] else f"≤ {texts[-1]}", token)]
