"""Replay searches of ``gpuscope tune`` on a recorded grid, to judge the policy without a device.

python -m bench.tune.replay DIR... [--budgets 60,110,180,240] [--start 14.5]

Each DIR holds the ``ledger.sqlite`` of ``bench.tune.bars``. A trial that the search asks for is
answered with the recorded run of its configuration, and a clock moves on by the seconds that this
run took. What the grid does not have is answered with the nearest run that it has: it brings
nothing and takes as long. The last column counts these answers.

The runs of a grid share a compiler cache, so most of them compile faster than a first trial does.
So what is compiled for the first time takes as long as the slowest recorded warm-up of its model at
this micro-batch and precision, in any mode. Where a ledger also has runs of bench.tune.bars with an
empty cache, all are longer by the factor by which those were.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, RunLedger
from gpuscope.lab.run_facts import RunFacts
from gpuscope.lab.sweep import cell_key
from gpuscope.lab.toggles import BY_NAME
from gpuscope.lab.tune import judge
from gpuscope.lab.tune.budget import AGAIN_SHARE, TrialParts, graph, parts_of
from gpuscope.lab.tune.findings import CLEARLY_SLOWER, Found, SearchSettings, Trial, label_of
from gpuscope.lab.tune.runner import FEW_STEPS, STEADY_STEPS, window_of
from gpuscope.lab.tune.search import Search
from gpuscope.lab.tune.space import Limits
from gpuscope.text.numbers import number

GRID, TURNS = "bars-grid", "bars-turns"
BUDGETS = (60.0, 110.0, 180.0, 240.0)
START_SECONDS = 14.5
"""From the command to the start of the first trial, on the machines where the grids were made, and
how much longer than others the first trial takes to start.
"""
COMPILER_SECONDS = 4.5
"""How much longer the first trial that compiles takes to start: the compiler is imported."""
AUTOTUNE_TIMES = 5
"""How many times as long as the default mode max-autotune compiles; it was cut at 4 times."""
FRESH = ("bars-again", "bars-turns")
"""Runs of these groups begin with an empty cache."""
WARM_SHARE = 0.5
"""A warm-up of less than this share of the cold one has found its results in the cache."""
END_SECONDS = 2.0
"""So long before its limit a trial is told to end."""
RECORDED_WINDOW = 0.55
"""For how many seconds the steps of the recorded trials were timed."""


ALIKE = 6
"""A run by chance deviates as one of so many recorded runs whose steps varied about as much."""
SMOOTH = 0.5
"""What is added to a deviation varies by this share of them."""
ENDS = ("low", "high")
LEAST_VARIES = 1e-5


class Deviation(NamedTuple):
    """How its steps varied, and the logarithm of how much faster a run was than its like."""

    varies: float
    more: float


class Recorded:
    """The runs of a grid, by configuration."""

    def __init__(
        self,
        entries: Sequence[Entry],
        configurations: int | None = None,
        deviations: Sequence[Deviation] = (),
    ) -> None:
        """``configurations`` is how many the whole grid has, where only a part of it has run.

        ``deviations`` are those of other recordings, for one that has too few of its own.
        """
        self.runs: dict[str, list[Entry]] = {}
        self.configs: dict[str, LabConfig] = {}
        for entry in entries:
            if entry.config is not None and not entry.failure:
                cell = cell_key(entry.config)  # an older ledger has other keys
                self.runs.setdefault(cell, []).append(entry)
                self.configs.setdefault(cell, entry.config)
        runs = [e for e in entries if e.group == GRID and e.config and not e.failure]
        # the newest of each, where a grid was begun anew
        self.grid = list({entry.config: entry for entry in runs}.values())
        self.complete = len(self.grid) >= (configurations or 0)
        ran = sum(number(e.environment.get("tune_seconds")) or 0.0 for e in self.grid)
        self.grid_seconds = ran * (configurations or len(self.grid)) / max(1, len(self.grid))
        self._around = {
            plain: statistics.median(
                parts_of(entry).around
                for entry in self.grid
                if entry.config is not None and (entry.config.compile == "off") is plain
            )
            for plain in (True, False)
        }
        self._longer = self._how_much_longer()
        self.deviations = self._deviations()
        if len(self.deviations) < 4 * ALIKE:
            self.deviations += deviations

    def _deviations(self) -> list[Deviation]:
        """Return how much the runs of a configuration differ from their mean, by process."""
        found = []
        for runs in self.runs.values():
            logs = [math.log(rate) for run in runs if (rate := _rate(run))]
            if len(logs) > 1:
                middle, more = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
                found += [
                    Deviation(_varies(run), more * (value - middle))
                    for run, value in zip(runs, logs, strict=True)
                ]
        return found

    def deviation(self, entry: Entry, luck: random.Random) -> float:
        """Return by what factor a run is faster than the mean of its configuration, by chance.

        It is that of a recorded run whose steps varied about as much. A little is added, and all
        made as much smaller, because the same few values again and again would seem to agree.
        """
        varies = math.log(_varies(entry))
        ranked = sorted(self.deviations, key=lambda one: abs(math.log(one.varies) - varies))
        logs = [one.more for one in ranked[:ALIKE]]
        if len(logs) < 2:
            return 1.0
        middle, little = statistics.fmean(logs), SMOOTH * statistics.stdev(logs)
        drawn = luck.choice(logs) - middle + luck.gauss(0.0, little)
        return math.exp(drawn / math.hypot(1.0, SMOOTH))

    def nearest(self, config: LabConfig) -> str:
        """Return the cell of a configuration, or of the recorded one with the fewest changes."""
        cell = cell_key(config)
        if cell in self.runs:
            return cell
        return min(self.runs, key=lambda other: differences(self.configs[other], config))

    def rate(self, cell: str) -> float:
        """Return the mean samples per second of all runs of a configuration."""
        return judge.figure(self.runs[cell], "samples_per_second") or 0.0

    def best(self) -> str:
        """Return the cell of the fastest configuration."""
        return max({cell_key(e.config) for e in self.grid if e.config}, key=self.rate)

    def parts(self, cell: str) -> TrialParts:
        """Return what a trial of a configuration takes that is compiled for the first time."""
        found = parts_of(self.runs[cell][0])
        plain = self.configs[cell].compile == "off"
        if not plain:
            found = replace(found, warm_up=self.cold(cell))
        return replace(found, around=min(found.around, self._around[plain]))

    def cold(self, cell: str) -> float:
        """Return the seconds of a warm-up whose graph no cache has."""
        in_grid = self._longest(cell) * self._longer
        measured = (parts_of(run).warm_up for run in self._alike(cell))
        return max(in_grid, *measured)

    def warm(self, cell: str) -> float:
        """Return the seconds of a warm-up whose graph is in the compiler's cache."""
        cold = self.cold(cell)
        found = [parts_of(run).warm_up for run in self._alike(cell)]
        found = [seconds for seconds in found if seconds < WARM_SHARE * cold]
        return statistics.median(found) if found else AGAIN_SHARE * cold

    def _alike(self, cell: str) -> list[Entry]:
        """Return the runs with the same graph."""
        key = graph(self.configs[cell])
        return [run for c in self.runs if graph(self.configs[c]) == key for run in self.runs[c]]

    def _longest(self, cell: str) -> float:
        """Return the longest warm-up in the grid of the same graph, in any mode."""
        key = _any_mode(self.configs[cell])
        found = [
            parts_of(entry).warm_up
            for entry in self.grid
            if entry.config and entry.config.compile != "off" and _any_mode(entry.config) == key
        ]
        return max(found, default=0.0)

    def _how_much_longer(self) -> float:
        """Return the factor by which warm-ups with an empty cache are longer than in the grid."""
        factors = [1.0]
        for cell, runs in self.runs.items():
            fresh = [parts_of(run).warm_up for run in runs if run.group.startswith(FRESH)]
            in_grid = self._longest(cell)
            if fresh and in_grid and self.configs[cell].compile != "off":
                factors.append(max(fresh) / in_grid)
        return max(factors)


def _any_mode(config: LabConfig) -> tuple[object, ...]:
    return graph(config.changed("compile", "default"))


def _rate(entry: Entry) -> float:
    return number(entry.document.get("samples_per_second")) or 0.0


def _varies(entry: Entry) -> float:
    """Return how wide the interval of a run's median step is, as a share of it."""
    steps = entry.document.get("step_seconds")
    low, high = (number(steps.get(end)) if isinstance(steps, dict) else None for end in ENDS)
    return max(LEAST_VARIES, high / low - 1) if low and high else LEAST_VARIES


def step_of(entry: Entry) -> float:
    """Return the seconds of an optimizer step."""
    return (number(entry.document.get("samples_per_step")) or 1.0) / (_rate(entry) or 1.0)


def differences(one: LabConfig, other: LabConfig) -> int:
    """Count the switches in which two configurations differ."""
    return sum(getattr(one, name) != getattr(other, name) for name in BY_NAME)


class Replay:
    """Answers the trials of one search, and counts its seconds."""

    def __init__(
        self, recorded: Recorded, window: float, start: float, luck: random.Random | None = None
    ) -> None:
        self.seconds = start
        self._luck = luck
        self.trials = self.stand_ins = 0
        self._recorded, self._window = recorded, window
        self._compiled: set[tuple[object, ...]] = set()

    def answer(self, trial: Trial) -> Entry:
        """Return the entry of a trial, after the time that it takes."""
        config, recorded = trial.config, self._recorded
        cell = recorded.nearest(config)
        self.trials += 1
        self.stand_ins += cell != cell_key(config)
        runs = recorded.runs[cell]
        entry = self._by_chance(cell) if self._luck else runs[trial.repeat % len(runs)]
        parts = self._parts(trial, cell, entry)
        spent = parts.whole
        batch = config.batch or recorded.configs[cell].batch  # of a preset the run says it
        document = {
            **entry.document,
            "config": {**config.to_mapping(), "batch": batch},
            "warmup_seconds": parts.warm_up,
        }
        if trial.seconds is not None and spent > trial.seconds - END_SECONDS:
            spent = trial.seconds
            document = {
                "config": config.to_mapping(),
                "error": {"what": "The trial was stopped.", "why": "it took too long"},
            }
        self.seconds += spent
        environment = {
            "trial_seconds": spent,
            "tune_seconds": spent,
            "start_seconds": parts.around,
        }
        return replace(entry, config=config, document=document, environment=environment)

    def _by_chance(self, cell: str) -> Entry:
        """Return a run as another day could have had it."""
        assert self._luck is not None
        recorded = self._recorded
        entry = self._luck.choice(recorded.runs[cell])
        rate = recorded.rate(cell) * recorded.deviation(entry, self._luck)
        steps, slower = entry.document["step_seconds"], _rate(entry) / rate
        times = {key: slower * value for key, value in steps.items() if key != "count"}
        document = {
            **entry.document, "samples_per_second": rate, "step_seconds": {**steps, **times}
        }  # fmt: skip
        return replace(entry, document=document)

    def _parts(self, trial: Trial, cell: str, entry: Entry) -> TrialParts:
        parts, config = self._recorded.parts(cell), trial.config
        step = step_of(entry)
        key = graph(config)
        if config.compile != "off" and key in self._compiled:
            parts = replace(parts, warm_up=self._recorded.warm(cell))
        elif config.compile == "max-autotune":
            parts = replace(parts, warm_up=AUTOTUNE_TIMES * parts.warm_up)
        if config.compile != "off" and not self._compiled:
            parts = replace(parts, around=parts.around + COMPILER_SECONDS)
        if config.compile != "off":
            self._compiled.add(key)
        rate = _rate(entry)
        slow = trial.rival is not None and rate < CLEARLY_SLOWER * trial.rival
        before = max(RECORDED_WINDOW, STEADY_STEPS * step)
        now = max(self._window * trial.windows, STEADY_STEPS * step)
        timed = FEW_STEPS * step if slow else now
        return replace(parts, timed=max(0.0, parts.timed - before) + timed)


def facts(config: LabConfig) -> RunFacts:
    """Return what a search knew of the card of the grids."""
    return RunFacts("cuda", 1, "NVIDIA H200", (9, 0), None, "2.11.0", 16, True)


def replay(
    recorded: Recorded,
    base: LabConfig,
    budget: float,
    start: float,
    trace: bool = False,
    luck: random.Random | None = None,
) -> tuple[Found, Replay]:
    """Search once with this budget; with ``luck`` as on another day."""
    played = Replay(recorded, window_of(budget), start, luck)
    left: Callable[[], float] = lambda: budget - played.seconds  # noqa: E731  # it is one value
    settings = SearchSettings(Limits({}), time_left=left, window_seconds=window_of(budget))
    steps = Search(base, facts, settings).run()
    try:
        trial = next(steps)
        while True:
            entry = played.answer(trial)
            if trace:
                rate = _rate(entry)
                words = f"{label_of(trial.config, base)}  ({trial.purpose})"
                print(f"  {played.seconds:6.1f} s  {rate:9,.1f}  {words}")
            trial = steps.send(entry)
    except StopIteration as end:
        return end.value, played


def main() -> None:
    """Print a line for each grid and budget."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("grids", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--budgets", default=",".join(f"{one:.0f}" for one in BUDGETS))
    parser.add_argument("--start", type=float, default=START_SECONDS, metavar="SECONDS")
    parser.add_argument("--trace", action="store_true", help="also print the trials")
    args = parser.parse_args()
    print("model       budget   used  of the grid's time  of its best  trials  stand-ins  found")
    for folder in args.grids:
        ledger = RunLedger(folder / "ledger.sqlite")
        recorded = Recorded(entries_of(ledger))
        base = base_of(ledger)
        best = recorded.rate(recorded.best())
        for budget in map(float, args.budgets.split(",")):
            found, played = replay(recorded, base, budget, args.start, args.trace)
            if args.trace:
                for row in found.rows:
                    print(f"          {label_of(row.config, base)}: {row.status} {row.reason}")
            share = recorded.rate(recorded.nearest(found.best)) / best
            print(
                f"{folder.name:11} {budget:6.0f} {played.seconds:6.0f}  "
                f"{played.seconds / recorded.grid_seconds:18.1%}  {share:11.1%}  "
                f"{played.trials:6}  {played.stand_ins:9}  {label_of(found.best, base)}"
            )


def entries_of(ledger: RunLedger) -> list[Entry]:
    """Return the runs of a ledger, oldest first."""
    return sorted(ledger.entries(limit=None), key=lambda entry: entry.id)


def base_of(ledger: RunLedger) -> LabConfig:
    """Return the configuration from which the recorded search began."""
    plan = ledger.plan(GRID)
    if plan is None:
        raise SystemExit(f"{ledger.path} has no grid of bench.tune.bars")
    return LabConfig.from_mapping(plan["baseline"])


if __name__ == "__main__":
    main()
