"""The jobs of all hosts in a line each; ranks of one job on several hosts are one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...model.device_trainings import told_input, warned_starving
from ...model.job_order import Trouble, trouble
from ...model.job_state import JobState, Judged, job_state
from ...model.pace import pace_of, seconds_left
from ...store.view import HistoryOf, HostView, JobView, no_history
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import (
    amount_text,
    brief_duration_text,
    brief_left_text,
    count_text,
    percent_text,
)
from ..shared.job_rows import bytes_on_devices, devices_of, loss_piece
from ..theme import Glyphs
from ..widgets.table import Cell, Column, TableRow

COLUMNS = (
    Column("job", "JOB", 9, flex=2, most=40),
    Column("user", "USER", 4, flex=1, most=14),
    Column("hosts", "HOSTS", 8, flex=3, most=48),
    Column("gpus", "GPUS", 4, align="right"),
    Column("memory", "GPU MEM GiB", 11, align="right", priority=2),
    Column("step", "STEP", 7, align="right"),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("eta", "ETA", 6, align="right", priority=3),
    Column("loss", "LOSS", 7, align="right"),
    Column("input", "INPUT", 5, align="right", priority=1),
    Column("state", "STATE", 16, flex=1, most=60),
)
FLEXIBLE = ("job", "user", "hosts", "state")
"""Columns that get what their longest text needs, as far as there is room."""
SPARSE = ("gpus", "memory", "step", "pace", "eta", "loss", "input", "user")
"""Columns that are left out where no job has anything to say in them."""
LEAST_STATE = 30
"""The most cells that a long state takes from the other columns."""
GAP_CELLS = 2
"""Cells after the longest name of a column."""
NOTHING: Line = [("–", "faint")]


class HostJob(NamedTuple):
    """What a host reports about one of its jobs; None is unknown."""

    key: str
    title: str
    user: str
    mine: bool
    gpus: int
    bytes: float | None
    probed: bool
    state: JobState
    trouble: Trouble
    step: float | None
    pace: float | None
    eta: float | None
    loss: Piece | None
    input: float | None
    waits: bool
    """Whether a rank's wait for input is a warning."""
    warned: Piece | None = None
    """The worst that is found on it and how grave it is: "bad" or "warn"."""


def run_of(
    host: HostView,
    job: JobView,
    key: str,
    history: HistoryOf = no_history,
    judged: Judged | None = None,
) -> HostJob:
    """Return what a host reports about a job: its slowest rank there, and the last one."""
    living = [trainer for trainer in job.trainers if trainer.gone is None]

    def known(column: str) -> list[float]:
        return [value for one in living if (value := one.number(column)) is not None]

    shares = [share for one in living if (share := told_input(one)[0]) is not None]
    pace = pace_of(living) if living else None
    left = [n for one in living if (n := seconds_left(one)) is not None]
    return HostJob(
        key,
        job.title,
        job.user or "",
        job.mine,
        len(devices_of(host, job)),
        bytes_on_devices(job),
        bool(living),
        job_state(host, job, history, judged),
        trouble(host, job),
        min(known("step"), default=None),
        pace.seconds if pace is not None else None,
        None if pace is None or pace.stopped else max(left, default=None),
        loss_piece(host, living),
        max(shares, default=None),
        any(warned_starving(host, one, history) for one in living),
    )


@dataclass(frozen=True, slots=True)
class Joined:
    """A job of the cluster: its parts, each with the name of its host."""

    parts: tuple[tuple[str, HostJob], ...]


def joined(hosts: Sequence[tuple[str, Sequence[HostJob]]]) -> list[Joined]:
    """Return the jobs of these hosts: what has a problem, what has a warning, then the rest.

    Among these, mine come first, then what hangs longest, then those with most GPUs.
    """
    found: dict[str, list[tuple[str, HostJob]]] = {}
    for name, runs in hosts:
        for run in runs:
            found.setdefault(run.key, []).append((name, run))
    out = [Joined(tuple(parts)) for parts in found.values()]

    def place(one: Joined) -> tuple[int, bool, Trouble, int]:
        kinds: set[str] = {run.state.kind for _, run in one.parts}
        kinds |= {run.warned[1] for _, run in one.parts if run.warned is not None}
        waits = any(run.waits for _, run in one.parts)
        grade = 0 if "bad" in kinds else 1 if "warn" in kinds or waits else 2
        worst = min(run.trouble for _, run in one.parts)
        return grade, not one.parts[0][1].mine, worst, -sum(run.gpus for _, run in one.parts)

    return sorted(out, key=place)


def row_of(one: Joined, glyphs: Glyphs) -> TableRow:
    runs = [run for _, run in one.parts]
    first = runs[0]
    sizes = [run.bytes for run in runs]
    gpus = sum(run.gpus for run in runs)

    def known(name: str) -> list[float]:
        return [value for run in runs if (value := getattr(run, name)) is not None]

    steps, paces = known("step"), known("pace")
    stands = any(run.state.kind == "bad" for run in runs)
    etas = [] if stands else known("eta")  # the other hosts wait for the one that stands
    loss = _worst_loss(runs)
    shares, waits = known("input"), any(run.waits for run in runs)
    cells: dict[str, Cell] = {
        "job": [(first.title, "title" if first.mine else "text")],
        "user": [(first.user, "text" if first.mine else "muted")] if first.user else NOTHING,
        "hosts": [(", ".join(name for name, _ in one.parts), "muted")],
        "gpus": [(str(gpus), "text")] if gpus else NOTHING,
        "memory": [(amount_text(sum(size or 0.0 for size in sizes)), "text")]
        if None not in sizes and gpus
        else NOTHING,
        "step": [(f"{min(steps):,.0f}", "text")] if steps else NOTHING,
        "pace": [(brief_duration_text(max(paces)), "text")] if paces else NOTHING,
        "eta": [(brief_left_text(max(etas)), "muted")] if etas else NOTHING,
        "loss": [loss] if loss is not None else NOTHING,
        "input": [(percent_text(max(shares), whole=True), "warn" if waits else "muted")]
        if shares
        else NOTHING,
        "state": _state(one.parts, glyphs),
    }
    return TableRow(first.key, cells)


def job_line(run: HostJob, glyphs: Glyphs) -> Line:
    """Return a job of one host in a line: its state, and how it trains."""
    facts: list[Line] = [[(run.title, "title" if run.mine else "text")]]
    if run.step is not None:
        facts.append([(f"step {run.step:,.0f}", "muted")])
    if run.pace is not None:
        facts.append([(f"{brief_duration_text(run.pace)} a step", "muted")])
    if run.loss is not None:
        facts.append([("loss ", "muted"), run.loss])
    if run.eta is not None:
        facts.append([(f"{brief_left_text(run.eta)} left", "muted")])
    if run.gpus:
        facts.append([(count_text(run.gpus, "GPU"), "muted")])
    if run.input is not None:
        facts.append([(f"input {percent_text(run.input, whole=True)}", "muted")])
    state = _state((("", run),), glyphs)
    return [*state, ("  ", "text"), *styled.join(facts, " · ", "faint")]


def _worst_loss(runs: Sequence[HostJob]) -> Piece | None:
    """Return the loss of the first part that tells one, a lost one before others."""
    told = [run.loss for run in runs if run.loss is not None]
    return next((one for one in told if one[1] == "bad"), next(iter(told), None))


def _state(parts: Sequence[tuple[str, HostJob]], glyphs: Glyphs) -> Line:
    """Return the worst state of a job's parts, and on which GPUs or on which host it is."""
    runs = [run for _, run in parts]
    hungry = [name for name, run in parts if run.waits]
    for kind, sign in (("bad", glyphs.bad), ("warn", glyphs.warn)):
        for name, run in parts:
            if run.state.kind == kind:
                where = run.state.where if len(parts) == 1 else name
                return [(f"{sign} {run.state.word}", kind), (f" {where}" if where else "", "muted")]
        if kind == "warn" and hungry:
            where = f" {hungry[0]}" if len(parts) > 1 else ""
            return [(f"{sign} input-bound", kind), (where, "muted")]
        for run in runs:
            if run.warned is not None and run.warned[1] == kind:
                return [(f"{sign} ", kind), (run.warned[0], "text")]
    if not any(run.probed for run in runs):
        return [("no probe", "muted")]
    if any(run.step is not None for run in runs):
        return [(f"{glyphs.ok} trains", "ok")]
    return [(f"{glyphs.idle} no step yet", "idle")]


def columns(rows: Sequence[TableRow]) -> list[Column]:
    """Return the columns in which any row says something, names as wide as the longest."""
    found = [
        column
        for column in COLUMNS
        if column.key not in SPARSE or any(row.cells[column.key] != NOTHING for row in rows)
    ]
    longest = {
        name: max((styled.cells(row.cells[name]) for row in rows), default=0)  # type: ignore[arg-type]
        for name in FLEXIBLE
    }
    out = []
    for column in found:
        if column.key in longest and column.most is not None:
            most = max(column.width, min(column.most, longest[column.key]))
            least = most if column.key == "state" else column.width
            column = column._replace(width=min(least, LEAST_STATE), most=most + GAP_CELLS)
        out.append(column)
    return out
