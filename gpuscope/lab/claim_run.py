"""Measure claims with the Lab's own runner: a sweep over the cells of each.

The results of the sweep are then judged. If a run fails, the others continue, and no run outlives
this process. torch is not needed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any

from ..errors import UserError
from ..text.numbers import number
from ..text.units import GIB, bytes_text, count_text
from . import rules, torch_probe
from .claims import Claim, ClaimFigure, ClaimResult, conclude, judge
from .config import LabConfig
from .ledger import Entry, RunLedger
from .machine import cpu_name
from .measures import BY_KEY, loss_at, loss_curve
from .sweep import State, Sweep, cell_key, new_plan

BUSY_BYTES = 3 * GIB
"""A GPU with more memory in use than this is busy: it is more than the driver and our own context
take.
"""
BUSY_CORES = 0.25
"""The share of the cores that may be in use beforehand. With more, threads of a training that wait
for each other also wait for other programs, and steps take several times as long now and then.
"""
MAX_TEXT = 500
REPEATS, QUICK_REPEATS = 5, 3
"""If the time for a claim is over, it is judged if it has as many repeats as with ``--quick``."""
LIMIT_SECONDS = 900.0
"""The longest time for one claim, unless the user sets another."""


class CannotMeasureClaims(UserError):
    """Nothing can be measured on this machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What torch finds on this machine.

    ``facts`` for the output, ``probed`` for the rules on toggles.
    """

    device: str
    gpus: int
    facts: dict[str, Any]
    probed: torch_probe.Machine = field(default_factory=lambda: torch_probe.Machine({}))

    @property
    def name(self) -> str:
        """The device in words, as the head of a report names it."""
        if self.device == "cuda":
            return f"{self.gpus} × {self.facts['gpus'][0]['name']}"
        return f"{self.facts.get('cpu', 'CPU')}, {self.facts.get('cores', '?')} cores"

    @property
    def versions(self) -> str:
        """The versions of torch and Python, for the head of a report."""
        torch, python = (self.facts.get(f"{name}_version") for name in ("torch", "python"))
        return f"torch {torch}, Python {python}"

    @property
    def warnings(self) -> list[str]:
        """The reasons why the figures may be disturbed."""
        gpus = self.facts["gpus"] if self.device == "cuda" else ()
        about = "in use by others: their load may distort the figures"
        found = [
            f"GPU {index} has {bytes_text(used)} {about}"
            for index, gpu in enumerate(gpus)
            if (used := gpu["total_bytes"] - gpu["free_bytes"]) > BUSY_BYTES
        ]
        if self.facts["load"] > BUSY_CORES * self.facts["cores"]:
            average = f"a load average of {self.facts['load']:.1f}"
            found.append(f"{count_text(self.facts['cores'], 'core')} with {average}, {about}")
        return found


def look(python: str, device: str) -> Machine:
    """Return what this machine has. Raises :class:`CannotMeasureClaims`.

    A child that imports torch is asked, which may take seconds.
    """
    probed = torch_probe.ask(python)
    answer, again = probed.answer, "gpuscope lab claims --device cpu"
    if probed.problem:
        what = "What can be measured here is unknown."
        raise CannotMeasureClaims(what, f"{probed.problem}.", again)
    known = zip(*(answer.get(key) or [] for key in ("names", "free", "total")), strict=False)
    gpus = [{"name": name, "free_bytes": free, "total_bytes": total} for name, free, total in known]
    if device == "cuda" and not gpus:
        why = (
            f"torch {answer.get('torch')} finds no GPU here: no driver, all hidden, or a CPU build."
        )
        raise CannotMeasureClaims("There is no GPU to measure on.", why, again)
    facts = {
        "torch_version": answer.get("torch"),
        "cuda_version": answer.get("cuda"),
        "python_version": answer.get("python"),
        "gpus": gpus,
        "cpu": cpu_name(),
        "cores": probed.facts(LabConfig()).cores,
        "load": os.getloadavg()[0],
        "threads": answer.get("threads"),
        "compiler": answer.get("cxx"),
    }
    device = device if device != "auto" else "cuda" if gpus else "cpu"
    return Machine(device, len(gpus), facts, probed)


def why_not(claim: Claim, machine: Machine) -> str:
    """Return why ``claim`` cannot be tested on ``machine``, "" if it can."""
    device = claim.only or machine.device
    if device == "cpu" and claim.cannot_cpu:
        return claim.cannot_cpu
    if device == "cuda" and machine.gpus < claim.gpus:
        return f"needs {claim.gpus} GPUs, {machine.gpus} here"
    for config in claim.configs(device, machine.gpus).values():
        if refused := rules.refusal(config, machine.probed.facts(config)):
            return f"{refused.what} {refused.why}"
    return ""


def measure(
    claim: Claim,
    machine: Machine,
    scratch: Path,
    repeats: int = REPEATS,
    seconds: float = LIMIT_SECONDS,
) -> ClaimResult:
    """Measure a claim: make its runs, interleaved, and judge its figures by them.

    ``scratch`` is the folder for the ledger and for what a killed run leaves behind (such as
    compiled kernels). Raises KeyboardInterrupt if a signal ends it.
    """
    device, gpus, begun = claim.only or machine.device, machine.gpus, time.monotonic()
    if cannot := why_not(claim, machine):
        return ClaimResult(claim, device, "cannot_be_tested", cannot)
    configs = claim.configs(device, gpus)

    def watch(state: State, entry: Entry | None) -> None:
        if time.monotonic() > begun + seconds:
            sweep.stop("time limit")

    environment = {**claim.environment, "TMPDIR": str(scratch)}
    if device == "cpu" and gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # this means a machine without GPUs
    ledger = RunLedger(scratch / f"{claim.id}.sqlite")
    plan = new_plan(list(configs.values()), repeats)
    sweep = Sweep(plan, ledger, watch, seconds, environment=environment)
    outcome = sweep.run()
    if outcome.stopped.startswith("SIG"):
        raise KeyboardInterrupt
    keys = {name: cell_key(config) for name, config in configs.items()}
    entries = ledger.entries(limit=None)
    found = list(rounds(keys, entries, repeats))
    wanted = [figure for figure in claim.figures.values() if not figure.lacks(device, gpus)]
    stopped = "" if len(found) >= QUICK_REPEATS else outcome.stopped
    failed = str(outcome.failure or "") or stopped or failure_of(wanted, keys, entries)
    failed = failed[:MAX_TEXT]
    figures = []
    for figure in claim.figures.values():
        values = [value(figure, runs) for runs in found if figure in wanted]
        figures.append(judge(figure, values, device, gpus, failed))
    verdict, reason = conclude(figures)
    if failed:
        # The figures are shown, but a measurement that did not finish gives no verdict.
        verdict = verdict if verdict == "cannot_be_tested" else "undecided"
        reason = failed
    notes = _notes(wanted, found)
    return ClaimResult(claim, device, verdict, reason, figures, notes, time.monotonic() - begun)


# ── the figures of a claim, from the runs of its cells ───────────────────────────────────────────

Runs = Mapping[str, Entry]
"""The runs of one repeat by the names of their cells."""
ONE_GRAPH = "cannot be compiled as one graph"
"""The message of a run in which ``fullgraph`` raised an error (``advice``)."""


def _final_loss(entry: Entry) -> float | None:
    """Return the mean loss of the last tenth of the steps."""
    losses = [loss for _, loss in loss_curve(entry)]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else None


def _first_step(entry: Entry) -> float | None:
    return number((entry.document.get("compile") or {}).get("first_step_seconds"))


def _graph_refused(entry: Entry) -> float | None:
    """Return 1 where a graph break was an error, 0 where none was, None for another failure."""
    return (1.0 if ONE_GRAPH in entry.failure else None) if entry.failure else 0.0


OF_CLAIMS: dict[str, Callable[[Entry], float | None]] = {
    "final_loss": _final_loss,
    "first_step_seconds": _first_step,
    "graph_refused": _graph_refused,
}
"""The measures that ``CELL.MEASURE`` may name beyond those of all runs.

``loss_apart``, which compares two runs, is separate.
"""


def rounds(keys: Mapping[str, str], entries: Sequence[Entry], repeats: int) -> Iterator[Runs]:
    """Yield each repeat in which all cells are present; ``keys`` are those of the cells.

    A cell that failed once counts as failed in every repeat, because it is not tried again.
    """
    found = {(entry.cell, entry.repeat): entry for entry in entries}
    failed = {entry.cell: entry for entry in entries if entry.failure}
    for repeat in range(repeats):
        runs = {name: found.get((key, repeat)) or failed.get(key) for name, key in keys.items()}
        if None not in runs.values():
            yield runs  # type: ignore[misc]


def failure_of(
    figures: Iterable[ClaimFigure], keys: Mapping[str, str], entries: Iterable[Entry]
) -> str:
    """Return why a run failed, "" for none. If a figure asks whether its cell fails, it may."""
    names, asked = {key: name for name, key in keys.items()}, {figure.over for figure in figures}
    for entry in entries:
        if entry.failure and f"{names[entry.cell]}.graph_refused" not in asked:
            return f"{entry.label}: {entry.failure}"
    return ""


def value(figure: ClaimFigure, runs: Runs) -> float | None:
    """Return the figure of one repeat: a single measure, or the quotient of two.

    None if the repeat has none.
    """
    (cell, _, measure), (other, _, below) = figure.over.partition("."), figure.under.partition(".")
    if measure == "loss_apart":
        return _largest_loss_difference(runs[cell], runs[other])
    over = _measure_of_run(runs[cell], measure)
    under = _measure_of_run(runs[other], below) if other else 1.0
    return over / under if over is not None and under else None


def _measure_of_run(entry: Entry, measure: str) -> float | None:
    if entry.failure and measure != "graph_refused":
        return None
    known = BY_KEY.get(measure)
    return known.take(entry.document) if known else OF_CLAIMS[measure](entry)


def _largest_loss_difference(one: Entry, other: Entry) -> float | None:
    """Return the largest relative difference of two runs' losses after equal samples."""
    curve = loss_curve(other)
    pairs = [(loss, loss_at(curve, samples)) for samples, loss in loss_curve(one)]
    apart = [abs(loss - there) / abs(there) for loss, there in pairs if there]
    return max(apart) if apart and not one.failure and not other.failure else None


def _notes(figures: Iterable[ClaimFigure], repeats: Sequence[Runs]) -> list[dict[str, Any]]:
    """Return the medians of the measures from which the figures were made."""
    made = []
    for name in dict.fromkeys(name for figure in figures for name in (figure.over, figure.under)):
        cell, _, measure = name.partition(".")
        values = [_measure_of_run(runs[cell], measure) for runs in repeats if measure in BY_KEY]
        if known := [value for value in values if value is not None]:
            title = f"{cell}: {measure.replace('_', ' ')}"
            made.append({"title": title, "value": median_high(known), "unit": BY_KEY[measure].unit})
    return made
