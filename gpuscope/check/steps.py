"""Measure how long a step takes, where the training can run, and compare it with the baseline.

A training is started several times, because two runs of one program differ by more than the steps
within a run do. Each run gives its median. The runs are compared with those in the lock of the same
machine and the same torch, with the Lab's intervals. If the interval contains the budget, the
answer is undecided, which is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..lab import intervals, launch
from ..lab.config import LabConfig
from ..lab.device_selection import cores
from ..lab.ledger import here
from ..lab.toggles import BY_NAME, ConfigError
from ..text.numbers import number
from ..text.units import duration_text, percent_text
from ..wire.clean import clean
from . import lock
from .outcome import BudgetVerdict, Kind
from .settings import CheckedTraining

RUNS = 3
"""How often the training is started. A 95 % interval needs two runs at least."""


class CannotTime(UserError):
    """The steps of a training cannot be measured here."""


class WasStopped(CannotTime):
    """The user, or whoever sends signals, ended a run: no further training is to be started."""


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """The runs of one training on one machine."""

    machine: str
    torch: str
    steps: int
    runs_seconds: tuple[float, ...]
    """The median step of each run."""

    @property
    def timed(self) -> lock.Timed:
        return lock.Timed(lock.version(self.torch), self.steps, self.runs_seconds)


def measure(
    training: CheckedTraining,
    steps: int,
    folder: Path,
    path: Sequence[str],
    hear: Callable[[str], None],
) -> MeasuredRuns:
    """Run the training :data:`RUNS` times. Raises :class:`CannotTime`."""
    config = _config(training, steps)
    found: list[float] = []
    summary: dict[str, Any] = {}
    with _inside(folder, path):
        for count in range(RUNS):
            hear(f"running {training.name}, {count + 1} of {RUNS}")
            run = launch.run_blocking(config, lambda _: None)
            if run.failure is not None:
                what, why, then = run.failure.what, run.failure.why, run.failure.next
                raise CannotTime(clean(what, 300), clean(why, 600), clean(then, 300))
            summary = run.summary or {}
            median = number((summary.get("step_seconds") or {}).get("median"))
            if median is None or median <= 0:
                made = number(summary.get("steps")) or 0
                what = f"{training.name} was not timed."
                if made < steps:
                    raise WasStopped(what, f"It was stopped after {made:g} of {steps} steps.")
                raise CannotTime(what, f"{steps} steps are too few.", "--steps 40")
            found.append(median)
    return MeasuredRuns(machine_of(summary), str(summary["torch_version"]), steps, tuple(found))


def _config(training: CheckedTraining, steps: int) -> LabConfig:
    """Return the Lab's switches for the training. Raises :class:`CannotTime`."""
    other = [name for name in training.switches if name not in BY_NAME]
    if other:
        raise CannotTime(
            f"{training.name} cannot be timed.",
            f"a run of the Lab has no setting {other[0]}.",
            "leave --steps out",
        )
    try:
        return LabConfig.from_mapping(
            {**training.switches, "model": training.model, "steps": steps}
        )
    except ConfigError as error:
        raise CannotTime(f"{training.name} cannot be timed.", error.what, "") from None


@contextmanager
def _inside(folder: Path, path: Sequence[str]) -> Iterator[None]:
    """Let the processes that are started now look for modules where a prediction does."""
    before, theirs = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(folder)
    names = [*path, *([theirs] if theirs else [])]
    if names:
        os.environ["PYTHONPATH"] = os.pathsep.join(names)
    try:
        yield
    finally:
        os.chdir(before)
        if theirs is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = theirs


def machine_of(summary: Mapping[str, Any]) -> str:
    """Return the machine in words: the cards with their driver, or the processor with its cores."""
    name = str(summary.get("device_name") or "unknown")
    if str(summary.get("device") or "cpu").startswith("cuda"):
        many = number(summary.get("world_size")) or 1
        cards = f"{many:.0f} x {name}" if many > 1 else name
        return clean(f"{cards}, driver {here(summary).get('driver', 'unknown')}", 200)
    return clean(f"{name}, {cores()} cores", 200)


# ── the verdicts ──────────────────────────────────────────────────────────────────────────────────


def verdicts(
    training: CheckedTraining, found: MeasuredRuns, known: Mapping[str, lock.Timed]
) -> list[BudgetVerdict]:
    mean = intervals.of_mean(found.runs_seconds)
    measured_text = f"{duration_text(mean.middle)} on {found.machine}"
    rows = []
    if training.step_seconds is not None:
        limit = duration_text(training.step_seconds)
        text = f"a step takes {measured_text}{_span(mean)}; the budget is {limit}"
        rows.append(_decided(training, "step_time", mean, training.step_seconds, text))
    before = known.get(found.machine)
    if training.slower is None:
        if not rows:
            text = f"a step takes {measured_text}{_span(mean)}"
            rows.append(BudgetVerdict("step_time", "info", text, line=training.line()))
        return rows
    line = training.line("slower")
    if before is None or before.torch != lock.version(found.torch):
        why = "of this machine" if before is None else f"of torch {lock.version(found.torch)}"
        text = f"a step takes {measured_text}; {lock.NAME} has no time {why}"
        next_ = f"gpuscope check {training.name} --steps {found.steps} --update"
        rows.append(BudgetVerdict("slower", "warning", text, next_, line))
        return rows
    ratio = intervals.separate(before.runs_seconds, found.runs_seconds)
    text = (
        f"a step takes {measured_text}, {ratio.middle:.3g} times as long as in {lock.NAME}"
        f"{_span(ratio, '')}"
        f"; {percent_text(training.slower)} may be added"
    )
    rows.append(_decided(training, "slower", ratio, 1 + training.slower, text))
    return rows


def _decided(
    training: CheckedTraining, kind: Kind, found: intervals.Interval, limit: float, text: str
) -> BudgetVerdict:
    """Return the verdict if the whole interval lies on one side of the limit, else a warning."""
    line = training.line(kind)
    if found.low is not None and found.low > limit:
        return BudgetVerdict(kind, "problem", text, "gpuscope why says where the time goes", line)
    if found.high is not None and found.high <= limit:
        return BudgetVerdict(kind, "ok", text, line=line)
    next_ = "more steps decide, or a machine that nothing else uses"
    return BudgetVerdict(kind, "warning", f"undecided: {text}", next_, line)


def _span(found: intervals.Interval, unit: str = "s") -> str:
    if found.low is None or found.high is None:
        return ""
    if unit:
        return f" ({duration_text(max(0.0, found.low))} to {duration_text(found.high)})"
    return f" ({found.low:.3g} to {found.high:.3g})"
