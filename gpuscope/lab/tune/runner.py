"""Run a search: each trial in a process of its own, for as long as its speed needs to be known.

Every trial is written to the ledger when it has ended. A search that was killed is repeated from
its beginning with the entries of the ledger in place of runs, so that it continues where it was.
Only the standard library is needed.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import metrics
from ..config import LabConfig
from ..launch import STOP_SECONDS
from ..ledger import Entry, RunLedger
from ..machine import MEMORY_VARIABLE
from ..run_series import RunSeries, Watcher, stopped_late
from ..sweep import SEARCH, alone, cell_key, digest_of, new_group
from .findings import CLEARLY_SLOWER, Found, Trial, label_of
from .goal import SPEED, Goal
from .search import CannotTune, Search

WINDOW_SECONDS = 3.0
"""How long the steps of a trial are timed after its warm-up, unless the budget is small."""
SHORTEST_WINDOW_SECONDS = 0.5
WINDOW_SHARE = 0.0075
"""The share of the budget that one window may take."""
STEADY_STEPS = 12
"""The fewest steps that are timed, however long they take."""
FEW_STEPS = 6
"""The fewest steps that give an interval. They are enough for a trial that is clearly slower."""
LIMIT_SECONDS = 900.0
"""The longest time for one trial, with what it compiles."""


@dataclass(slots=True)
class SearchProgress:
    """How far a search is, for display. ``ran`` counts runs of this process."""

    search: Search
    trial: Trial | None = None
    label: str = ""
    step: int = 0
    ran: int = 0
    replayed: int = 0
    spent_seconds: float = 0.0

    @property
    def purpose(self) -> str:
        """What the trial is for, behind its label; "" where the label says it."""
        told = self.trial is None or self.trial.purpose in (self.label, f"the {self.label}")
        return "" if self.trial is None or told else f"  ({self.trial.purpose})"


def window_of(budget: float, goal: Goal = SPEED) -> float:
    """Return how many seconds of steps are timed in a trial of a search with this budget."""
    if goal.needs_power:  # the driver takes a second to report it
        return WINDOW_SECONDS
    return min(WINDOW_SECONDS, max(SHORTEST_WINDOW_SECONDS, WINDOW_SHARE * budget))


OnProgress = Callable[[SearchProgress, Entry | None], None]
"""A function that is called after a change; with the entry when a trial has ended."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """How a search ended: with what it found, stopped by a signal, or unable to run anything."""

    found: Found | None
    stopped: str = ""
    failure: metrics.RunFailure | None = None


@dataclass(frozen=True, slots=True)
class SearchJob:
    """What is searched, for the ledger: the same job has the same digest on the same host."""

    group: str
    baseline: LabConfig
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        options = json.dumps(dict(self.options), sort_keys=True)
        return digest_of(platform.node(), self.baseline.to_json(), options)

    def to_mapping(self) -> dict[str, Any]:
        return {
            "kind": SEARCH,
            "baseline": self.baseline.to_mapping(),
            "options": dict(self.options),
            "host": platform.node(),
            "digest": self.digest,
        }


def new_job(
    ledger: RunLedger, baseline: LabConfig, options: Mapping[str, Any], anew: bool
) -> SearchJob:
    """Return the job of a search: the unfinished one of the same work, or a new one if ``anew``.

    One that was stopped before its first run has nothing to continue, and a name with its old time.
    """
    job = SearchJob(new_group(SEARCH), baseline, options)
    found = None if anew else ledger.unfinished_work(job.digest)
    begun = found is not None and ledger.entries(limit=1, group=found[0])
    return SearchJob(found[0], baseline, options) if found and begun else job


class SearchRunner(RunSeries):
    """Makes the trials of one search. ``spent_seconds`` is known to the search's budget.

    With ``fork`` each trial is forked from a process that has imported torch. ``environment`` holds
    more variables for the trials. ``since`` is the monotonic time from which seconds are counted,
    where work was done before the first trial.
    On a GPU no trial may reserve more than the search's capacity. One that a prediction was wrong
    about fails by itself, and takes nothing from other processes on the card.
    """

    def __init__(
        self,
        job: SearchJob,
        ledger: RunLedger,
        on_progress: OnProgress = lambda progress, entry: None,
        window_seconds: float = WINDOW_SECONDS,
        watch: Callable[[], Watcher] | None = None,
        fork: bool = True,
        environment: Mapping[str, str] | None = None,
        since: float | None = None,
    ) -> None:
        super().__init__(watch, environment, fork)
        self.job = job
        self.ledger = ledger
        self._spent = 0.0
        self._since = since
        """When the newest trial ended: what has passed since then belongs to the next one."""
        self._on_progress = on_progress
        self._window = window_seconds

    @property
    def spent_seconds(self) -> float:
        """Seconds of the whole search until now, also of what an earlier process has run."""
        passed = 0.0 if self._since is None else time.monotonic() - self._since
        return self._spent + passed

    def run(self, begin: Callable[[], Search]) -> SearchOutcome:
        """Run a search to its end, or until SIGINT, SIGTERM or SIGHUP stops it.

        ``begin`` returns the search, and may ask for seconds what machine this is. Meanwhile the
        process that forks imports torch.

        Raises :class:`~gpuscope.lab.sweep.SweepError` if another process runs the same search,
        :class:`~gpuscope.lab.tune.search.CannotTune` and ``LedgerError``.
        """
        again = "the same command again once that has ended; --new starts another search"
        with alone(self.ledger.path, self.job.group, "search", again):
            self.ledger.keep_plan(self.job.group, self.job.to_mapping())
            try:
                outcome = asyncio.run(self._until_signal(begin))
            except CannotTune:  # what is repaired meanwhile must not fail again from the ledger
                self.ledger.finish_plan(self.job.group)
                raise
            if outcome.found is not None:
                self.ledger.finish_plan(self.job.group)
            return outcome

    async def _until_signal(self, begin: Callable[[], Search]) -> SearchOutcome:
        if self._since is None:
            self._since = time.monotonic()
        self._stop_on_signals()
        starting = asyncio.create_task(self._prepare(self.job.baseline))
        try:
            search = await asyncio.to_thread(begin)
            await starting
        except BaseException:
            await starting
            await self._close()
            raise
        if search.capacity is not None:
            self._set(MEMORY_VARIABLE, str(search.capacity))
        return await self.follow(search)

    async def follow(self, search: Search) -> SearchOutcome:
        """Make the trials that a search asks for, and end what they have left running."""
        if self._since is None:
            self._since = time.monotonic()
        try:
            return await self._all(search)
        finally:
            self._spent, self._since = self.spent_seconds, None
            await self._close()

    async def _all(self, search: Search) -> SearchOutcome:
        known = {
            (entry.cell, entry.repeat): entry
            for entry in self.ledger.entries(limit=None, group=self.job.group)
        }
        progress = SearchProgress(search)
        steps = search.run()
        try:
            trial = next(steps)
            while True:
                progress.trial, progress.step = trial, 0
                progress.label = label_of(trial.config, self.job.baseline)
                entry = known.get((cell_key(trial.config), trial.repeat))
                if entry is not None:
                    progress.replayed += 1
                elif self._stopped:
                    return SearchOutcome(None, self._stopped)
                else:
                    entry, failure = await self._one(trial, progress)
                    if failure is not None:
                        return SearchOutcome(None, "", failure)
                    if entry is None:
                        return SearchOutcome(None, self._stopped)
                    progress.ran += 1
                self._spent += float(entry.environment.get("tune_seconds") or 0.0)
                self._since = time.monotonic()
                progress.spent_seconds = self.spent_seconds
                self._on_progress(progress, entry)
                await asyncio.sleep(0)  # a signal may be waiting
                trial = steps.send(entry)
        except StopIteration as end:
            return SearchOutcome(end.value)

    async def _one(
        self, trial: Trial, progress: SearchProgress
    ) -> tuple[Entry | None, metrics.RunFailure | None]:
        """Make one trial and return its entry, or the failure with which no run can succeed."""
        begun = time.monotonic() if self._since is None else self._since
        await self._prepare(trial.config)
        window = Steady(self._window * trial.windows, trial.rival)
        began = time.monotonic()
        started: list[float] = []

        def take(record: metrics.Record) -> None:
            if isinstance(record, metrics.Started):
                started.append(time.monotonic() - began)
            if isinstance(record, metrics.Step):
                progress.step = record.step
                self._on_progress(progress, None)
                window.take(record)

        limit = LIMIT_SECONDS
        if trial.seconds is not None:  # with the time in which it ends
            limit = min(limit, max(1.0, trial.seconds - STOP_SECONDS))
        late = stopped_late("trial", trial.config, limit, "it had not made enough steps by then.")
        document, failure = await self._make(trial.config, take, limit, late, window.enough)
        if document is None:
            return None, failure
        ended = time.monotonic()
        environment = {
            # with the predictions before it, and for the first one the import of torch
            "tune_seconds": ended - begun,
            "trial_seconds": ended - began,
            "start_seconds": started[-1] if started else None,
            "end_seconds": ended - window.ended if window.ended else None,
        }
        entry = self.ledger.add(
            document,
            source=SEARCH,
            group=self.job.group,
            repeat=trial.repeat,
            label=progress.label,
            environment=environment,
            cell=cell_key(trial.config),
        )
        return entry, None


class Steady:
    """Sets ``enough`` when the steady steps of a trial have lasted long enough.

    A trial that is clearly slower than ``rival``, in samples per second, needs only a few steps.
    """

    def __init__(self, seconds: float, rival: float | None) -> None:
        self.enough = asyncio.Event()
        self.ended: float | None = None
        self._seconds, self._rival = seconds, rival
        self._began: tuple[float, int] | None = None
        self._fastest = 0.0

    def take(self, record: metrics.Step) -> None:
        """Take a report of the trial's steps."""
        now = time.monotonic()
        if record.warming_up:
            return
        if self._began is None:
            self._began = now, record.step
            return
        steps = record.step - self._began[1]
        self._fastest = max(self._fastest, record.samples_per_second or 0.0)
        whole = now - self._began[0] >= self._seconds and steps >= STEADY_STEPS
        slow = self._rival is not None and 0 < self._fastest < CLEARLY_SLOWER * self._rival
        if not self.enough.is_set() and (whole or (slow and steps >= FEW_STEPS)):
            self.ended = now
            self.enough.set()
