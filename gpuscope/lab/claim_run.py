"""Measure claims with the Lab's own runner: a sweep over the cells of each.

The results of the sweep are then judged. What no configuration can express is measured by a
separate loop (``claim_loops``), in a process that this one starts. If a run fails, the others
continue, and no run outlives this process. torch is not needed here.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..process import child
from ..text.numbers import number
from ..text.units import GIB, bytes_text
from . import claim_figures, launch, rules, torch_probe
from .claim_figures import Measured
from .claims import CLAIMS, Claim, MeasuredFigure, Result, Verdict, conclude, judge
from .config import LabConfig
from .ledger import Entry, Ledger
from .machine import cpu_name
from .sweep import State, Sweep, cell_key, new_plan

BUSY_BYTES = 3 * GIB
"""A GPU with more memory in use than this is busy: it is more than the driver and our own context
take.
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

    python: str
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
        return [
            f"GPU {index} has {bytes_text(used)} {about}"
            for index, gpu in enumerate(gpus)
            if (used := gpu["total_bytes"] - gpu["free_bytes"]) > BUSY_BYTES
        ]


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
            f"torch {answer.get('torch')} finds no CUDA device here: no driver, all hidden, or a "
            "CPU build."
        )
        raise CannotMeasureClaims("There is no CUDA device to measure on.", why, again)
    facts = {
        "torch_version": answer.get("torch"),
        "cuda_version": answer.get("cuda"),
        "python_version": answer.get("python"),
        "gpus": gpus,
        "cpu": cpu_name(),
        "cores": probed.facts(LabConfig()).cores,
        "threads": answer.get("threads"),
        "compiler": answer.get("cxx"),
    }
    device = device if device != "auto" else "cuda" if gpus else "cpu"
    return Machine(python, device, len(gpus), facts, probed)


def why_not(claim: Claim, machine: Machine) -> str:
    """Return why ``claim`` cannot be tested on ``machine``, "" if it can."""
    device = claim.device(machine.device)
    if device == "cpu" and claim.cannot_cpu:
        return claim.cannot_cpu
    if device == "cuda" and machine.gpus < claim.gpus:
        return f"needs {claim.gpus} CUDA devices, {machine.gpus} here"
    for config in claim.configs(device, machine.gpus).values():
        if refused := rules.refusal(config, machine.probed.facts(config)):
            return f"{refused.what} {refused.why}"
    return ""


@dataclass(frozen=True, slots=True)
class Runner:
    """Measures claims on one machine, each with a number of repeats and a time limit.

    ``say`` is called with a line of progress, ``done`` with each result.
    """

    machine: Machine
    say: Callable[[str], None]
    done: Callable[[Result], None]
    repeats: int = REPEATS
    seconds: float = LIMIT_SECONDS

    def run(self, claims: Iterable[Claim] = CLAIMS) -> list[Result]:
        """Measure every claim and return the results.

        On KeyboardInterrupt the run in progress is ended and the interrupt is raised again; the
        results so far have already been given to ``done``.
        """
        results = []
        # This folder is removed afterwards, with everything that a killed run leaves behind (such
        # as compiled kernels).
        with tempfile.TemporaryDirectory(
            prefix="gpuscope-claims-", ignore_cleanup_errors=True
        ) as scratch:
            for claim in claims:
                begun = time.monotonic()
                measured = Measured(cannot=why_not(claim, self.machine))
                if not measured.cannot:
                    self.say(f"{claim.id}: {claim.statement}")
                    measured = (self._loop if claim.loop else self._sweep)(claim, Path(scratch))
                results.append(self._result(claim, measured, time.monotonic() - begun))
                self.done(results[-1])
        return results

    def _environment(self, claim: Claim, scratch: Path) -> dict[str, str]:
        # this means a machine without GPUs
        hidden = claim.device(self.machine.device) == "cpu" and self.machine.gpus
        return {
            **claim.environment,
            **({"CUDA_VISIBLE_DEVICES": ""} if hidden else {}),
            "TMPDIR": str(scratch),
        }

    def _sweep(self, claim: Claim, scratch: Path) -> Measured:
        """Run the claim's cells, interleaved, in a ledger of their own."""
        configs = claim.configs(claim.device(self.machine.device), self.machine.gpus)
        ends = time.monotonic() + self.seconds

        def watch(state: State, entry: Entry | None) -> None:
            if time.monotonic() > ends:
                sweep.stop("time limit")

        ledger = Ledger(scratch / f"{claim.id}.sqlite")
        environment = self._environment(claim, scratch)
        plan = new_plan(list(configs.values()), self.repeats)
        sweep = Sweep(plan, ledger, watch, self.seconds, environment=environment)
        outcome = sweep.run()
        if outcome.stopped.startswith("SIG"):
            raise KeyboardInterrupt
        keys = {name: cell_key(config) for name, config in configs.items()}
        measured = claim_figures.from_entries(claim, keys, ledger.entries(limit=None), self.repeats)
        judgeable = outcome.complete or any(
            len(values) >= QUICK_REPEATS for values in measured.values.values()
        )
        stopped = "" if judgeable else outcome.stopped
        measured.failed = (str(outcome.failure or "") or stopped or measured.failed)[:MAX_TEXT]
        return measured

    def _loop(self, claim: Claim, scratch: Path) -> Measured:
        """Run the claim's own loop, a program that prints a JSON object for each repeat."""
        words = f"--device {claim.device(self.machine.device)} --repeats {self.repeats}".split()
        program = [self.machine.python, "-m", "gpuscope.lab.claim_loops", claim.loop, *words]
        with launch.only_this_package() as folder:
            environment = {**launch.environment(folder), **self._environment(claim, scratch)}
            output = child.ask(program, self.seconds, environment)
        measured = Measured()
        for line in output.output.splitlines():
            _take(line, measured)
        if output.code is None:
            measured.failed = "time limit"
        elif output.code:
            measured.failed = f"its program {output.failure}: {output.last_words}"[:MAX_TEXT]
        return measured

    def _result(self, claim: Claim, measured: Measured, took: float) -> Result:
        device, gpus, failed = claim.device(self.machine.device), self.machine.gpus, measured.failed
        figures: list[MeasuredFigure] = []
        verdict: Verdict = "cannot_be_tested"
        reason = measured.cannot
        if measured.values or not measured.cannot:
            for figure in claim.figures:
                values = measured.values.get(figure.key, [])
                figures.append(judge(figure, values, device, gpus, failed))
            verdict, reason = conclude(figures)
        if failed and figures:
            # The figures are shown, but a measurement that did not finish gives no verdict.
            verdict = verdict if verdict == "cannot_be_tested" else "undecided"
            reason = failed
        return Result(claim, device, verdict, reason, figures, measured.notes, took)


def _take(line: bytes, measured: Measured) -> None:
    """Note one line of a loop's output: the figures of a repeat, or why there are none."""
    try:
        record = json.loads(line)
    except ValueError:
        return  # printed by something else, before the loop took its standard output
    if isinstance(record, dict):
        measured.cannot = str(record.pop("cannot", ""))[:MAX_TEXT]
        for key, value in record.items():
            measured.values.setdefault(key, []).append(number(value))
