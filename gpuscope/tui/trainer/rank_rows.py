"""These are the rows of a job's ranks, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.device_state import DeviceState
from ...model.job_state import broken_below
from ...model.memory_room import TIGHT_BYTES, MemoryRoom, rooms
from ...model.pace import has_stopped, pace_of
from ...model.stalls import find_stall, is_overdue, place, waits_in_collective, worst_rank
from ...model.step_time import shares_of, split_of
from ...model.stragglers import is_warning, straggler
from ...text import styled
from ...text.styled import Piece
from ...text.units import amount_text, duration_text
from ..overview.job_rows import end_word, most_starving, step_age_text
from ..overview.step_split import SPLIT_TOKENS
from ..shell.keymap import key_of
from ..widgets.bars import Bar
from ..widgets.table import GUTTER, Cell, Column, TableRow, lay_out
from .rank_cells import wide_cells

if TYPE_CHECKING:
    from ...store.view import HistoryOf, HostView, JobView, TrainerView

COLUMNS = (
    Column("rank", "RANK", 5, align="right"),
    Column("gpu", "GPU", 4, align="right", priority=4),
    Column("pid", "PID", 8, align="right", priority=8),
    Column("step", "STEP", 9, align="right"),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("age", "STEP AGE", 8, align="right"),
    Column("p95", "P95", 9, align="right", priority=12),
    Column("input", "INPUT", 5, align="right", priority=10),
    Column("loss", "LOSS", 8, align="right", priority=10),
    Column("collectives", "COLLECT.", 9, align="right", priority=4),
    Column("memory", "PEAK/RES. GiB", 14, align="right", priority=1),
    Column("left", "HEADROOM", 8, align="right"),
    Column("ends", "RUNS OUT", 11, align="right", priority=3),
    Column("load", "UTIL", 5, align="right", priority=9),
    Column("power", "POWER", 6, align="right", priority=11),
    Column("cpu", "CPU", 6, align="right", priority=11),
    Column("rss", "RSS GiB", 7, align="right", priority=12),
    Column("split", "STEP BREAKDOWN", 14, flex=2, most=60, priority=6),
    Column("at", "STUCK AT", 14, flex=3, most=60, priority=2),
)
WIDE = ("rss", "p95", "power", "cpu", "loss", "input", "load")
"""Columns that only a panel of so many cells has; the first one gives its cells away first."""
WIDE_CELLS = 150
OPTIONAL = ("age", "ends", "split", "at", "collectives", "memory", "left", *WIDE)
"""Columns that are left out where no rank has anything to say in them."""
GIVE_AWAY = ("", *WIDE, "split", "pid", "collectives", "memory", "left", "gpu")
"""Columns that give their cells away, one after the other, for where a rank is stuck."""
FRAME_CELLS = 4
"""Of the table: its frame, and the blanks beside that."""
NOTHING: Sequence[Piece] = [("–", "faint")]
OTHERS = "others"


def columns_for(rows: Sequence[TableRow], cells: int) -> list[Column]:
    """Return the columns that say something, for a panel of ``cells`` cells.

    Where a rank is stuck is told to its end where that is possible: the bar of a step's parts
    gives its cells away for it.
    """
    shown = [
        column
        for column in COLUMNS
        if (column.key not in WIDE or cells >= WIDE_CELLS)
        and (
            column.key not in OPTIONAL
            or any(row.cells.get(column.key) not in (NOTHING, "", None) for row in rows)
        )
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


def _cells(cell: Cell | None) -> int:
    """Return how wide a cell of pieces is."""
    return styled.cells(cell) if isinstance(cell, Sequence) and not isinstance(cell, str) else 0


def rank_rows(host: HostView, job: JobView, most: int | None, history: HistoryOf) -> list[TableRow]:
    """Return a row for each rank, the worst first.

    Where there are more than ``most``, the last row sums up the others.
    """
    living = [t for t in job.trainers if t.gone is None] or list(job.trainers)
    stall = find_stall(living)
    behind = {t.key for t in stall.behind} if stall is not None else set()
    found = straggler(living, history)
    slow = found.trainer if found is not None else None
    starved = most_starving(host, living, history)
    warns = found is not None and is_warning(found, host, history)
    worst, _ = worst_rank(living)
    by_trainer: dict[str, MemoryRoom] = {}
    for room in rooms(host.devices, living, history):
        by_trainer.setdefault(room.trainer.key, room)
    order = list(by_trainer)
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
    shown = ranked if most is None or len(ranked) <= most else ranked[: most - 1]
    first = order[0] if order and len(living) > 1 else ""
    rows = [
        _rank_row(
            host,
            t,
            by_trainer.get(t.key),
            broken.get(t.key),
            t.key in behind,
            warns and t is slow,
            t.key == first,
        )
        for t in shown
    ]
    rest = ranked[len(shown) :]
    return [*rows, _others_row(rest)] if rest else rows


def _rank_row(
    host: HostView,
    trainer: TrainerView,
    room: MemoryRoom | None,
    broken: tuple[int, DeviceState] | None,
    behind: bool,
    slow: bool,
    first: bool,
) -> TableRow:
    rank = trainer.definition.rank
    age = trainer.number("step_age_seconds")
    device = next(
        (d for d in host.devices if room is not None and d.id == room.allocator.gpu), None
    )
    bad = "bad" if behind or broken is not None else "warn" if slow else "text"
    cells: dict[str, Cell] = {
        "rank": [(str(rank) if rank is not None else "–", bad)],
        "gpu": str(device.definition.index)
        if device is not None
        else "cpu"
        if not trainer.definition.cuda
        else "–",
        "pid": [(str(trainer.definition.pid), "muted")],
        "step": _number(trainer, "step", bad),
        "pace": NOTHING if has_stopped(trainer) else _seconds(trainer, "step_seconds"),
        "age": [
            (
                step_age_text(age) if age is not None else "–",
                "bad" if is_overdue(trainer) else "muted",
            )
        ]
        if trainer.gone is None
        else NOTHING,
        "collectives": _number(trainer, "collectives", bad),
        "split": Bar(
            tuple((seconds, SPLIT_TOKENS[name]) for name, seconds in split.items()),
            sum(split.values()),
        )
        if not has_stopped(trainer) and (split := split_of(trainer))
        else NOTHING,
        "at": _at(trainer, broken),
        **wide_cells(host, trainer, device),
    }
    if room is not None:
        allocated, reserved = (
            room.fullest.number("allocated_bytes"),
            room.fullest.number("reserved_bytes"),
        )
        held, cached = (
            amount_text(size) if size is not None else "–" for size in (allocated, reserved)
        )
        cells["memory"] = f"{held}/{cached}"
        left = room.headroom_bytes
        tight = left is not None and left < TIGHT_BYTES
        cells["left"] = [
            (
                amount_text(left) if left is not None else "–",
                "warn" if tight else "title" if first else "text",
            )
        ]
        ends = room.runs_out
        cells["ends"] = [(f"~{ends.steps:,.0f} steps", "bad")] if ends is not None else NOTHING
    return TableRow(trainer.key, cells)


def _at(trainer: TrainerView, broken: tuple[int, DeviceState] | None = None) -> Sequence[Piece]:
    where, function = place(trainer)
    if trainer.gone is not None:
        return [(f"{end_word(trainer.gone)}: {trainer.gone.reason}", "muted")]
    if broken is not None:
        index, state = broken
        at = f" · {where} {function}" if where else ""
        return [(f"GPU {index} {state.word}", "bad"), (at, "muted")]
    if where and waits_in_collective(trainer):
        return [(f"waits in {function} ", "text"), (where, "muted")]
    if where:
        return [(where, "title"), (f" {function}", "muted")]
    phase = trainer.reading("phase")
    return [(phase, "muted")] if isinstance(phase, str) and phase != "train" else NOTHING


def _number(trainer: TrainerView, column: str, token: str) -> Sequence[Piece]:
    value = trainer.number(column)
    return [(f"{value:,.0f}", token)] if value is not None else NOTHING


def _seconds(trainer: TrainerView, column: str) -> Sequence[Piece]:
    value = trainer.number(column)
    return [(duration_text(value), "text")] if value is not None else NOTHING


def _others_row(rest: Sequence[TrainerView]) -> TableRow:
    """Return the ranks that have no row of their own, summed up."""
    pace = pace_of(rest)
    held = [n for t in rest for a in t.allocators if (n := a.number("allocated_bytes")) is not None]
    shares = {} if pace.stopped else shares_of(rest)
    cells: dict[str, Cell] = {
        "rank": [(f"+{len(rest)}", "muted")],
        "step": [(pace.steps_text, "muted")],
        "pace": [(f"≤ {duration_text(pace.seconds)}", "muted")] if pace.seconds is not None else "",
        "age": [(f"≤ {step_age_text(pace.age_seconds)}", "muted")]
        if pace.age_seconds is not None
        else "",
        "memory": [(f"Σ {amount_text(sum(held))}", "muted")] if held else "",
        "split": Bar(tuple((share, SPLIT_TOKENS[name]) for name, share in shares.items()), 1.0)
        if shares
        else "",
        "at": [(f"{key_of('all', 'JobScreen')}: all ranks", "faint")]
        if any(place(t)[0] for t in rest)
        else "",
    }
    return TableRow(OTHERS, cells)
