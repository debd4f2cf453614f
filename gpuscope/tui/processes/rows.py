"""This module makes the rows of the process screen.

It says what to show of which process, in which order, and what was left out and why. It knows
no widget. A reading that is not there is a dash; its reason stands with the process's readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.pace import pace_of
from ...model.ranks import name_of
from ...store.view import HistoryOf, HostView, ProcView
from ...text import styled
from ...text.process_name import short_script, shown_command
from ...text.ranges import ranges_text
from ...text.styled import Line, Piece
from ...text.units import amount_text, bytes_text, count_text, percent_text, short_age_text
from ...wire.frames import Unknown
from ..background.view_state import PROCESS_SORTS
from ..theme import UNICODE, Glyphs
from ..widgets.last_seen import as_last_seen
from ..widgets.table import Cell, Column, TableRow
from .entries import ProcessEntry, entries, state_of
from .idle import Idleness
from .state_text import memory_bar
from .training_cells import FULL_CELLS, INPUT, LOSS, PACE, PEAK, TRAINING, training_cells

COLUMNS = (
    Column("pid", "PID", 8, align="right"),
    Column("user", "USER", 8, priority=3),
    Column("gpu", "GPU", 5, priority=1),
    Column("memory", "GPU MEM GiB", 11, align="right"),
    Column("bar", "OF GPU", 8, flex=1, most=24, priority=10),
    PEAK,
    Column("sm", "UTIL 5s", 8, align="right", priority=5),
    Column("cpu", "CPU", 6, align="right", priority=6),
    Column("rss", "RSS GiB", 7, align="right", priority=8),
    Column("age", "AGE", 4, align="right", priority=7),
    Column("idle", "IDLE", 5, align="right", priority=4),
    Column("state", "STATE", 12, flex=2, most=36, priority=2),
    PACE,
    INPUT,
    LOSS,
    Column("where", "BELONGS TO", 12, flex=1, most=19, priority=9),
    Column("command", "COMMAND", 21, flex=4),
)
CHOICES = ("bar", "sm", "cpu", "rss", "age", "idle", "state", "where", *TRAINING)
"""Columns that can be left out."""
SPARSE = ("bar", "sm", "idle", "where", *TRAINING)
"""Columns that are left out where no process has anything to say in them."""
SORTS = PROCESS_SORTS
HEADING = "heading "
"""Begins the key of a row that is no process."""
NOTHING: Line = [("–", "faint")]
WORDS_CELLS, MOST_WORDS, MOST_STATE, WORDS_STEP = 100, 40, 16, 4
"""The width from which on a table shows the reason behind the state; the most cells of both, and of
the state alone; and the step by which both grow, so that other columns seldom move.
"""
ROOMY_CELLS, ROOMY_SHARE = 130, 0.45
"""From this width on the state with its reason may have such a share of the table: where a rank
hangs is read to its end.
"""
NARROW_CELLS = 80
NARROW = {"memory": ("MEM GiB", 7), "command": ("COMMAND", 18)}
"""In a narrower table: the title and the cells of columns that leave room for the state."""
INDICES = re.compile(r"\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*$")


@dataclass(frozen=True, slots=True)
class Choice:
    """How to look at the processes.

    ``job_gpus`` are the indices of the devices to keep, None for all.
    """

    sort: str = "gpu"
    mine: bool = False
    text: str = ""
    tree: bool = False
    hidden: frozenset[str] = frozenset()
    job_gpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The rows of the screen and what to say of them.

    ``notes`` say what is not shown and why, ``totals`` what each user holds.
    """

    rows: tuple[TableRow, ...]
    totals: Line
    notes: tuple[Line, ...]
    shown: int
    all: int


def columns(choice: Choice, rows: Sequence[TableRow] | None = None, room: int = 0) -> list[Column]:
    """Return the columns for ``room`` cells that are wanted and say something.

    The sorted one is marked.
    """
    out = []
    for column in COLUMNS:
        sparse = rows is not None and column.key in SPARSE and column.key != choice.sort
        if sparse and all(row.cells.get(column.key, "") in ("", NOTHING) for row in rows or ()):
            continue
        if column.key in choice.hidden or (column.key in TRAINING and room < FULL_CELLS):
            continue
        if column.key == "state" and room and rows is not None:
            longest = max((styled.cells(row.cells.get("state", [])) for row in rows), default=0)  # type: ignore[arg-type]
            most, step = (MOST_WORDS, WORDS_STEP) if room >= WORDS_CELLS else (MOST_STATE, 1)
            most = max(most, int(ROOMY_SHARE * room)) if room >= ROOMY_CELLS else most
            width = min(max(column.width, -(-longest // step) * step), most)
            column = column._replace(width=width, most=width)
        if column.key in NARROW and 0 < room < NARROW_CELLS:
            title, width = NARROW[column.key]
            column = column._replace(title=title, width=width)
        if column.key == "command" and rows and room >= WORDS_CELLS:
            longest = max(styled.cells(row.cells["command"]) for row in rows)  # type: ignore[arg-type]
            column = column._replace(most=max(column.width, longest))
        if column.key == choice.sort:
            column = column._replace(title=column.title[: column.width - 1] + "▾")
        out.append(column)
    return out


def listing(
    host: HostView,
    history: HistoryOf,
    choice: Choice,
    why_job: str = "",
    idleness: Idleness | None = None,
    glyphs: Glyphs = UNICODE,
    room: int = WORDS_CELLS,
) -> Listing:
    """Return the rows to show.

    ``why_job`` says where ``choice.job_gpus`` comes from; ``idleness`` is kept from call to
    call.
    """
    everything = entries(host, history, idleness or Idleness())
    kept = [entry for entry in everything if _matches(entry, choice)]
    ordered = _order_rows(kept, choice, glyphs)
    now = host.wall_seconds
    rows = []
    for entry, depth, head in ordered:
        if head is not None:
            rows.append(head)
        paced = room >= FULL_CELLS and PACE.key not in choice.hidden
        rows.append(_row(entry, depth, now, glyphs, room >= WORDS_CELLS, paced))
    if host.link.state in ("stale", "ended"):
        rows = [as_last_seen(row) for row in rows]
    return Listing(
        tuple(rows),
        _totals(kept),
        tuple(_notes(host, everything, choice, why_job)),
        len(kept),
        len(everything),
    )


def _matches(entry: ProcessEntry, choice: Choice) -> bool:
    if choice.mine and not entry.process.definition.mine:
        return False
    if choice.job_gpus is not None and not any(
        d.definition.index in choice.job_gpus for d in entry.devices
    ):
        return False
    return not choice.text or choice.text.casefold() in _haystack(entry).casefold()


def _haystack(entry: ProcessEntry) -> str:
    d = entry.process.definition
    gpus = " ".join(f"gpu {one.definition.index}" for one in entry.devices)
    job = f"slurm {d.slurm_job}" if d.slurm_job else ""
    words = (d.pid, d.user, d.command, d.name, d.container, d.pod, job, entry.job, gpus)
    return " ".join(str(word) for word in words if word is not None)


# ── order ──


def _order_rows(
    kept: Sequence[ProcessEntry], choice: Choice, glyphs: Glyphs
) -> list[tuple[ProcessEntry, int, TableRow | None]]:
    """Return (entry, depth, a heading above it or None) for each row, in order.

    Ranks of one job stand together, in their order.
    """
    if choice.tree:
        return _tree(kept, choice)
    groups: dict[str, list[ProcessEntry]] = {}
    for entry in kept:
        groups.setdefault(f"job {entry.job}" if entry.job else entry.process.key, []).append(entry)
    for members in groups.values():
        members.sort(key=_rank)
    parts = sorted(
        groups.items(), key=lambda part: min(_order(entry, choice.sort) for entry in part[1])
    )
    out: list[tuple[ProcessEntry, int, TableRow | None]] = []
    for key, members in parts:
        together = len(members) > 1
        for at, entry in enumerate(members):
            out.append(
                (
                    entry,
                    1 if together else 0,
                    _heading(key, members, glyphs) if together and at == 0 else None,
                )
            )
    return out


def _rank(entry: ProcessEntry) -> tuple[int, int]:
    rank = entry.trainer.definition.rank if entry.trainer is not None else None
    return rank if rank is not None else 1 << 30, entry.process.definition.pid


def _order(entry: ProcessEntry, sort: str) -> tuple[Any, ...]:
    d = entry.process.definition
    first = min((one.definition.index for one in entry.devices), default=1 << 30)
    numbers = {
        "memory": entry.memory,
        "sm": entry.sm,
        "cpu": entry.process.number("cpu_percent"),
        "rss": entry.process.number("rss_bytes"),
        "idle": entry.idle.seconds,
        "age": -d.start_time if d.start_time is not None else None,
    }
    if sort in numbers:
        value = numbers[sort]
        return value is None, -(value or 0.0), first, d.pid
    if sort == "user":
        return not d.mine, d.user or "~", first, d.pid
    # of those of one GPU, or of none, the one that is worst off comes first, as in the list of jobs
    return (d.pid,) if sort == "pid" else (first, -_gravity(entry), not d.mine, d.pid)


def _gravity(entry: ProcessEntry) -> int:
    """Return 2 for a process that hangs, whose GPU or loss is lost, 1 for a warning, else 0."""
    bad = entry.stalled == "bad" or entry.broken is not None or entry.lost is not None
    return 2 if bad else int(entry.ends is not None or entry.starved > 0)


def _tree(
    kept: Sequence[ProcessEntry], choice: Choice
) -> list[tuple[ProcessEntry, int, TableRow | None]]:
    """Return children below their parents, as far as both are in the list.

    A ring of parents, which hostile data may claim, loses nobody.
    """
    by_pid = {entry.process.definition.pid: entry for entry in kept}
    below: dict[int | None, list[ProcessEntry]] = {}
    for entry in kept:
        parent = entry.process.definition.ppid
        own = entry.process.definition.pid
        below.setdefault(parent if parent in by_pid and parent != own else None, []).append(entry)
    out: list[tuple[ProcessEntry, int, TableRow | None]] = []
    seen: set[str] = set()
    waiting = [
        (entry, 0)
        for entry in sorted(below.get(None, ()), key=lambda e: _order(e, choice.sort), reverse=True)
    ]
    rest = iter(sorted(kept, key=lambda e: _order(e, choice.sort)))
    while True:
        while waiting:
            entry, depth = waiting.pop()
            if entry.process.key in seen:
                continue
            seen.add(entry.process.key)
            out.append((entry, depth, None))
            children = below.get(entry.process.definition.pid, ())
            waiting += [
                (e, depth + 1)
                for e in sorted(children, key=lambda e: _order(e, choice.sort), reverse=True)
            ]
        left = next((entry for entry in rest if entry.process.key not in seen), None)
        if left is None:
            return out
        waiting = [(left, 0)]


# ── cells ──


def _heading(key: str, members: Sequence[ProcessEntry], glyphs: Glyphs) -> TableRow:
    first = members[0]
    sizes = [entry.memory for entry in members]
    indices = sorted({d.definition.index for entry in members for d in entry.devices})
    script = first.trainer.definition.script if first.trainer is not None else ""
    cells: dict[str, Cell] = {
        "pid": [(f"{len(members)} ranks", "title")],
        "user": [(first.process.definition.user or "?", "title")],
        "gpu": [(ranges_text(indices), "title")],
        "memory": [(amount_text(sum(s for s in sizes if s is not None)), "title")]
        if None not in sizes
        else NOTHING,
        "state": _worst_state(members, glyphs)[:1],
        "command": [(f"job {short_script(script) if script else key}", "title")],
    }
    return TableRow(f"{HEADING}{key}", cells, "title")


def _worst_state(members: Sequence[ProcessEntry], glyphs: Glyphs) -> Line:
    """Return the state of the first rank that is not well, else the steps of all of them."""
    states = [state_of(entry, glyphs) for entry in members]
    graves = ([one for one in states if one[0][1] == token] for token in ("bad", "warn"))
    grave = next((found[0] for found in graves if found), None)
    steps = pace_of([one.trainer for one in members if one.trainer is not None]).steps_text
    return grave or ([(f"{glyphs.ok} step {steps}", "ok")] if steps else [])


def _row(
    entry: ProcessEntry, depth: int, now: float | None, glyphs: Glyphs, words: bool, paced: bool
) -> TableRow:
    d = entry.process.definition
    cpu, rss = entry.process.number("cpu_percent"), entry.process.number("rss_bytes")
    age = now - d.start_time if now is not None and d.start_time is not None else None
    rank = (
        f"{name_of(entry.trainer)}: "
        if entry.trainer is not None and entry.trainer.definition.rank is not None
        else ""
    )
    command = shown_command(d.command) if d.command else d.name
    if rank and command and not words:  # a cut option says nothing
        command = command.split(" -")[0]
    indices = [one.definition.index for one in entry.devices]
    state = state_of(entry, glyphs, paced)
    cells: dict[str, Cell] = {
        "pid": [(str(d.pid), "text")],
        "user": [(d.user, "text" if d.mine else "muted")] if d.user else NOTHING,
        "gpu": [(ranges_text(indices), "text")] if indices else NOTHING,
        "memory": [(amount_text(entry.memory), "text")] if entry.memory is not None else NOTHING,
        "sm": [(percent_text(entry.sm / 100, whole=True), "text")]
        if entry.sm is not None
        else NOTHING,
        "cpu": [(percent_text(cpu / 100, whole=True), "muted")] if cpu is not None else NOTHING,
        "rss": [(amount_text(rss), "muted")] if rss is not None else NOTHING,
        "age": [(short_age_text(age), "muted")] if age is not None else NOTHING,
        "idle": [(entry.idle.text, "warn" if entry.memory and entry.idle.seconds > 600 else "idle")]
        if entry.idle
        else "",
        "bar": memory_bar(entry.uses, entry.devices, entry.trainer) or "",
        **training_cells(entry.trainer, entry.starved > 0, entry.loss),
        "state": state if words else state[:1],
        "where": [(where, "muted")] if (where := belongs(entry)) else "",
        "command": [
            ("  " * min(depth, 12), "muted"),
            (rank, "accent"),
            (command, "text" if d.mine else "muted") if command else _unknown(entry.process),
        ],
    }
    return TableRow(entry.process.key, cells, "text")


def _unknown(process: ProcView) -> Piece:
    why = process.readings.get("command")
    return (why.text if isinstance(why, Unknown) else "unknown", "faint")


def belongs(entry: ProcessEntry) -> str:
    """Return what a process belongs to, of which the most telling is named.

    Examples are ``slurm 4711``, ``pod 1c2d…`` and ``docker 3f2a91c07d1e``.
    """
    d = entry.process.definition
    pod = (
        entry.trainer.definition.pod
        if entry.trainer is not None and entry.trainer.definition.pod
        else None
    )
    if d.slurm_job:
        return f"slurm {d.slurm_job}"
    if pod or d.pod:
        return f"pod {pod or d.pod}"
    return d.container or ""


# ── around the table ──


def _totals(kept: Sequence[ProcessEntry]) -> Line:
    """Return what each user holds in how many processes.

    A process that holds nothing that is counted adds no 0 to it.
    """
    held: dict[str, list[ProcessEntry]] = {}
    for entry in kept:
        held.setdefault(entry.process.definition.user or "unknown owner", []).append(entry)
    mine = {user for user, own in held.items() if any(e.process.definition.mine for e in own)}
    known = {user: [e.memory for e in own if e.memory is not None] for user, own in held.items()}
    out: Line = []
    for user in sorted(held, key=lambda user: (user not in mine, -sum(known[user]))):
        out += [("   ", "muted")] if out else []
        parts = [bytes_text(sum(known[user]))] if known[user] else []
        parts += ["unknown"] if any(e.uses and e.memory is None for e in held[user]) else []
        amount = f"{' + '.join(parts)} in " if parts else ""
        count = count_text(len(held[user]), "process")
        out += [
            (user, "title" if user in mine else "text"),
            (f": {amount}{count}", "muted"),
        ]
    return out


def _notes(
    host: HostView, everything: Sequence[ProcessEntry], choice: Choice, why_job: str
) -> Iterable[Line]:
    if choice.job_gpus is not None:
        away = [
            e
            for e in everything
            if not any(d.definition.index in choice.job_gpus for d in e.devices)
        ]
        others = sorted(
            d.definition.index for d in host.devices if d.definition.index not in choice.job_gpus
        )
        if others:
            yield [
                ("not shown: ", "muted"),
                (f"GPU {ranges_text(others)} with {len(away)} processes: {why_job}", "text"),
            ]
    hidden = [e for e in everything if isinstance(e.process.readings.get("user"), Unknown)]
    reasons = dict.fromkeys(_reason_class(e.process.readings["user"]) for e in hidden)
    for reason in list(reasons)[:2]:
        count = sum(_reason_class(e.process.readings["user"]) == reason for e in hidden)
        yield [("unknown: ", "warn"), (f"owner of {count} of these: {reason}", "text")]


def _reason_class(reading: object) -> str:
    """Return a reason without its pid, so that equal reasons are listed once."""
    text = reading.text if isinstance(reading, Unknown) else ""
    return re.sub(r"^(?:process|pid) \d+ (?:is the host's number: )?", "", text)


def job_gpus(environment: Mapping[str, object]) -> tuple[frozenset[int] | None, str]:
    """Return the devices of a Slurm job by its own variables, and in words why.

    Where there is none, it is None and the reason.
    """
    job = environment.get("SLURM_JOB_ID")
    if not isinstance(job, str) or not job:
        return (
            None,
            "gpuscope there does not run in a Slurm job (SLURM_JOB_ID is not set): start it with "
            "srun "
            "--jobid",
        )
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        value = environment.get(name)
        if isinstance(value, str) and INDICES.match(value):
            found: set[int] = set()
            for part in value.split(","):
                first, _, last = part.partition("-")
                found.update(range(int(first), int(last or first) + 1))
            return frozenset(found), f"Slurm job {job} has {name}={value}"
    return None, f"Slurm job {job} does not report its GPUs (SLURM_JOB_GPUS is not set)"
