"""Run a sweep: every configuration of a matrix, in repeats, each in a fresh worker.

The plan is written to the ledger before the first run, and every run when it ends. So a sweep that
was killed continues where it was: no run is lost and none is made twice. Only the standard library
is needed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import UserError
from ..wire.clean import clean
from . import metrics
from .config import ConfigError, LabConfig
from .ledger import Entry, RunLedger
from .ledger_file import explain
from .matrix import MAX_CELLS, MAX_REPEATS, interleaved, label, varying
from .run_series import RunSeries, Watcher, stopped_late
from .toggles import BY_NAME

SOURCE, SEARCH = "sweep", "tune"
STEPS = 50
"""The number of steps in each run, unless the user sets another."""
REPEATS = 3
LIMIT_SECONDS = 3600.0
"""The time limit of one run, unless the user sets another."""


class SweepError(UserError):
    """The sweep cannot be run."""


class NoSuchSweep(SweepError):
    """The ledger has no sweep of this name."""


@dataclass(frozen=True, slots=True)
class Objection:
    """A fault of a combination that was known before anything started.

    Either it cannot run, or a toggle has no effect. ``nearest`` is the command of the nearest
    combination without this fault, "" if there is none.
    """

    label: str
    what: str
    why: str
    nearest: str = ""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The work of a sweep. ``digest`` is the same for the same work on the same host.

    ``searched`` has the ledger's name and the label of each cell of a search, whose cells are those
    that it has run: nobody knows them before, nor how often each is run.
    """

    group: str
    cells: list[LabConfig]
    repeats: int
    refused: list[Objection] = field(default_factory=list)
    host: str = ""
    warnings: list[Objection] = field(default_factory=list)
    searched: list[tuple[str, str]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return digest_of(self.host, str(self.repeats), *(cell.to_json() for cell in self.cells))

    @property
    def labels(self) -> list[str]:
        """The words that tell each cell from the others."""
        if self.searched:
            return [label for _, label in self.searched]
        names = varying(self.cells)
        return [label(cell, names) for cell in self.cells]

    def to_mapping(self) -> dict[str, Any]:
        return {
            "cells": [cell.to_mapping() for cell in self.cells],
            "repeats": self.repeats,
            "refused": [[row.label, row.what, row.why, row.nearest] for row in self.refused],
            "warnings": [[row.label, row.what, row.why, row.nearest] for row in self.warnings],
            "host": self.host,
            "digest": self.digest,
        }

    @classmethod
    def from_mapping(cls, group: str, values: Mapping[str, Any]) -> SweepPlan:
        """Read what :meth:`to_mapping` wrote. Raises :class:`SweepError` for anything else."""
        try:
            cells = [LabConfig.from_mapping(cell) for cell in values["cells"]]
            refused, warnings = (
                [Objection(*(clean(str(word)) for word in row)) for row in values[key]]
                for key in ("refused", "warnings")
            )
            repeats = int(values["repeats"])
            if not 0 < len(cells) <= MAX_CELLS or not 0 < repeats <= MAX_REPEATS:
                raise ValueError("it has no runs, or too many")
            return cls(group, cells, repeats, refused, str(values["host"]), warnings)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise SweepError(
                f"The plan of {group} cannot be read.",
                f"It is from another gpuscope, or damaged ({type(error).__name__}: "
                f"{str(error)[:200]}).",
                "gpuscope lab sweep --new ...    starts over",
            ) from None


def new_plan(
    cells: Sequence[LabConfig],
    repeats: int,
    refused: Sequence[Objection] = (),
    warnings: Sequence[Objection] = (),
) -> SweepPlan:
    """Return a plan under a group name of its own."""
    cells, refused, warnings = list(cells), list(refused), list(warnings)
    return SweepPlan(new_group(SOURCE), cells, repeats, refused, platform.node(), warnings)


def unfinished(ledger: RunLedger, plan: SweepPlan) -> SweepPlan | None:
    """Return the newest sweep of exactly this work that has not come to its end."""
    found = ledger.unfinished_work(plan.digest)
    return SweepPlan.from_mapping(*found) if found else None


def stored(ledger: RunLedger, group: str) -> SweepPlan:
    """Return the plan of a sweep that was begun, or what a search has run.

    Raises :class:`NoSuchSweep` if there is none.
    """
    values = ledger.plan(group)
    if values is not None and values.get("kind") == SEARCH:
        cells: dict[tuple[str, str], LabConfig] = {}
        for one in reversed(ledger.entries(limit=None, group=group)):
            if one.config is not None:
                cells.setdefault((one.cell, one.label), one.config)
        return SweepPlan(group, list(cells.values()), 1, searched=list(cells))
    if values is not None:
        return SweepPlan.from_mapping(group, values)
    known = ", ".join(name for name, _, _ in ledger.unfinished(5)) or "none"
    raise NoSuchSweep(
        f"There is no sweep {group!r} in {ledger.path}.",
        f"Unfinished sweeps: {known}.",
        "gpuscope lab runs    lists the runs with their sweeps",
    )


def new_group(kind: str) -> str:
    """Return a name that no other group of runs has."""
    return time.strftime(f"{kind}-%m%d-%H%M-") + secrets.token_hex(2)


def digest_of(*words: str) -> str:
    """Return what is the same for the same words, to find unfinished work again."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def cell_key(cell: LabConfig) -> str:
    """Return the ledger's name of a cell: a digest of all its toggles as they were asked for."""
    return hashlib.sha256(cell.to_json().encode()).hexdigest()[:12]


# ── running ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class State:
    """The progress of a sweep, for display.

    ``done`` counts runs that are written down or need not be made.
    """

    plan: SweepPlan
    total: int
    done: int
    ahead: int  # runs that are left, including the one in progress
    cell: int = -1
    repeat: int = 0
    step: int = 0
    steps: int = 0
    made: int = 0  # runs made by this process
    took_seconds: float = 0.0  # duration of all of these together

    def eta_seconds(self) -> float | None:
        """Return the estimated seconds that are left, from the runs so far.

        None before the first has ended.
        """
        if not self.made:
            return None
        share = self.step / self.steps if self.steps else 0.0
        return self.took_seconds / self.made * max(0.0, self.ahead - share)


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """How a sweep ended.

    ``complete`` says that the whole plan was done; otherwise ``stopped`` says in words what stopped
    it.
    """

    complete: bool
    stopped: str = ""
    failure: metrics.RunFailure | None = None
    """The reason if nothing can run here at all (no torch)."""


OnChange = Callable[[State, Entry | None], None]
"""A function that is called after a change; with the entry when a run has ended."""


def seeded(cell: LabConfig, repeat: int) -> LabConfig:
    """Return the cell with the seed of this repeat, which is the same for all cells.

    So the influence of the seed on a loss is part of its spread, and not of the ratio of two cells.
    """
    return cell.changed("seed", (cell.seed + repeat) % (BY_NAME["seed"].maximum + 1))


class Sweep(RunSeries):
    """Makes the runs of the plan that are not in the ledger yet."""

    def __init__(
        self,
        plan: SweepPlan,
        ledger: RunLedger,
        on_change: OnChange,
        limit_seconds: float = LIMIT_SECONDS,
        watch: Callable[[], Watcher] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the sweep; nothing is run yet.

        ``environment`` holds variables that the workers are started with, in addition to this
        process's own.
        """
        super().__init__(watch, environment)
        self.plan = plan
        self.ledger = ledger
        self._on_change = on_change
        self._limit = limit_seconds
        self._keys = [cell_key(cell) for cell in plan.cells]

    def run(self) -> SweepOutcome:
        """Make all runs that are left in the plan.

        SIGINT, SIGTERM and SIGHUP end it in an orderly way: the run in progress is dropped, and all
        results stay. Raises :class:`SweepError` if another process runs the same sweep, and
        ``LedgerError`` if nothing can be written.
        """
        with alone(
            self.ledger.path,
            self.plan.group,
            "sweep",
            f"gpuscope lab sweep --resume {self.plan.group} once that has ended; "
            "--new starts another",
        ):
            self.ledger.keep_plan(self.plan.group, self.plan.to_mapping())
            outcome = asyncio.run(self._all())
            if outcome.complete:
                self.ledger.finish_plan(self.plan.group)
            return outcome

    async def _all(self) -> SweepOutcome:
        self._stop_on_signals()
        written = self.ledger.entries(limit=None, group=self.plan.group)
        done = {(entry.cell, entry.repeat) for entry in written}
        failed = {entry.cell for entry in written if entry.failure}
        # A run that failed before is not repeated, unless the caller has removed it from the
        # ledger.
        order = interleaved(len(self.plan.cells), self.plan.repeats)
        left = [(repeat, cell) for repeat, cell in order if (self._keys[cell], repeat) not in done]
        left = [(repeat, cell) for repeat, cell in left if self._keys[cell] not in failed]
        state = State(self.plan, len(order), len(order) - len(left), len(left))
        while left and not self._stopped:
            repeat, cell = left.pop(0)
            state.cell, state.repeat, state.step, state.steps = (
                cell,
                repeat,
                0,
                self.plan.cells[cell].steps or 0,
            )
            self._on_change(state, None)
            began = time.monotonic()
            entry, failure = await self._one(state)
            if failure is not None:
                return SweepOutcome(False, "", failure)
            if entry is None:
                break
            if entry.failure:  # what failed once is not tried again in every round
                left = [pair for pair in left if pair[1] != cell]
            state.made, state.took_seconds = (
                state.made + 1,
                state.took_seconds + time.monotonic() - began,
            )
            state.done, state.ahead, state.step = len(order) - len(left), len(left), 0
            self._on_change(state, entry)
        return SweepOutcome(not self._stopped, self._stopped)

    async def _one(self, state: State) -> tuple[Entry | None, metrics.RunFailure | None]:
        """Make one run and return its entry, or the failure with which no run can succeed.

        Both are None if the run was stopped.
        """
        config = seeded(self.plan.cells[state.cell], state.repeat)

        def take(record: metrics.Record) -> None:
            if isinstance(record, metrics.Step):
                state.step = record.step
                self._on_change(state, None)

        hint = "it did not end in time (to wait longer: gpuscope lab sweep --timeout SECONDS)."
        late = stopped_late("run", config, self._limit, hint)
        document, failure = await self._make(config, take, self._limit, late)
        if document is None:
            return None, failure
        label_ = self.plan.labels[state.cell]
        return self.ledger.add(
            document,
            source=SOURCE,
            group=self.plan.group,
            repeat=state.repeat,
            label=label_,
            cell=self._keys[state.cell],
        ), None


@contextmanager
def alone(ledger: Path, group: str, kind: str, then: str) -> Iterator[None]:
    """Hold the lock of a group of runs, which is released when the process ends in any way.

    Raises :class:`SweepError` where another process holds it: the words of the error are made of
    ``kind`` and of ``then``, what to do next.
    """
    path = ledger.with_name(f".{group}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _locked(path)
    except OSError as error:
        raise explain(ledger, error) from None
    if file is None:
        raise SweepError(
            f"The {kind} {group} is already running.",
            f"Another process runs it{_holder(path)}.",
            then,
        )
    try:
        file.write(f"{os.getpid()}")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _locked(path: Path) -> IO[str] | None:
    for _ in range(10):
        file = path.open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                return file
        except FileNotFoundError:
            pass
        file.close()  # its holder has just removed it, so the lock is on a file without a name
    return None


def _holder(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii", errors="replace")[:20].strip()
    except OSError:
        return ""
    return f" (pid {text})" if text.isdigit() else ""
