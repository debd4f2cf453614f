"""Measures claims with the Lab's own runner, a sweep over each claim's cells, and makes results of what it wrote down.

What no configuration can express is measured by a loop of its own (``claim_loops``), in a program that this one starts.
No torch here. Whatever a run does, the others go on, and none outlives this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..process.child import how_it_ended
from ..text.units import bytes_text
from . import claim_figures, launch, rules, torch_probe
from .claim_table import CLAIMS
from .claims import Claim, Note, Result, conclude, judge
from .config import LabConfig
from .ledger import Entry, Ledger
from .machine import cpu_name
from .measures import number
from .sweep import State, Sweep, cell_key, new_plan

BUSY_BYTES = 3 << 30
"""Memory in use on a GPU before anything is measured: more than the driver and our own context take."""
MAX_TEXT = 500
REPEATS = {"full": 5, "quick": 3}
LEAST_REPEATS = 3
"""With as many, a claim whose time is over is judged."""
LIMIT_SECONDS = 900.0
"""Of a claim where nothing else is asked."""
RUN_SECONDS = {"cuda": 14.0, "cpu": 7.0}
"""About what a run takes, from its start to its end; a run that compiles takes as long again as ``COMPILE_SECONDS``."""
COMPILE_SECONDS = 20.0
LOOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What torch sees here. ``facts`` goes into the output; ``asked`` judges combinations of toggles."""

    python: str
    device: str
    gpus: int
    facts: dict[str, Any]
    asked: torch_probe.Machine = field(default_factory=lambda: torch_probe.Machine({}))

    @property
    def name(self) -> str:
        gpus = self.facts["gpus"]
        if self.device == "cuda":
            return f"{len(gpus)} × {gpus[0].get('name', 'CUDA device')}"
        return f"{self.facts.get('cpu', 'CPU')}, {self.facts.get('cores', '?')} cores"

    @property
    def warnings(self) -> list[str]:
        """What may disturb the figures."""
        return [
            f"GPU {index} has {bytes_text(gpu['total_bytes'] - gpu['free_bytes'])} in use by others: "
            "the figures may be theirs as much as this machine's"
            for index, gpu in enumerate(self.facts["gpus"])
            if self.device == "cuda" and gpu["total_bytes"] - gpu["free_bytes"] > BUSY_BYTES
        ]


class CannotMeasureClaims(UserError):
    """Nothing can be measured here at all; the message says what happened, why, and the next command."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure. ``limit`` is the longest a single claim may take, in seconds."""

    device: str = "auto"
    repeats: int | None = None
    quick: bool = False
    limit: float | None = None
    tiny: bool = False

    @property
    def count(self) -> int:
        return self.repeats or REPEATS["quick" if self.quick else "full"]

    @property
    def seconds(self) -> float:
        return self.limit or LIMIT_SECONDS


def look(python: str, device: str) -> Machine:
    """What this machine has, by a program that imports torch: may take seconds. Raises :class:`CannotMeasureClaims`."""
    asked = torch_probe.ask(python)
    told, again = asked.told, "gpuscope lab claims --device cpu"
    if asked.problem:
        raise CannotMeasureClaims(f"It is not known what can be measured here.\nWhy: {asked.problem}.\nNext: {again}")
    free, total = told.get("free") or [], told.get("total") or []
    gpus = [
        {"name": name, "free_bytes": left, "total_bytes": whole}
        for name, left, whole in zip(told.get("names") or [], free, total, strict=False)
    ]
    if device == "cuda" and not gpus:
        why = f"torch {told.get('torch')} finds no CUDA device here: no driver, all hidden, or a CPU build."
        raise CannotMeasureClaims(f"There is no CUDA device to measure on.\nWhy: {why}\nNext: {again}")
    facts = {
        "torch_version": told.get("torch"), "cuda_version": told.get("cuda"), "python_version": told.get("python"),
        "gpus": gpus, "cpu": cpu_name(), "cores": asked.facts(LabConfig()).cores, "threads": told.get("threads"),
        "compiler": told.get("cxx"),
    }  # fmt: skip
    return Machine(python, device if device != "auto" else "cuda" if gpus else "cpu", len(gpus), facts, asked)


def why_not(claim: Claim, machine: Machine) -> str:
    """Why ``claim`` cannot be tested on ``machine``, "" if it can."""
    device = claim.device(machine.device)
    if device == "cpu" and claim.cannot_cpu:
        return claim.cannot_cpu
    if device == "cuda" and machine.gpus < claim.gpus:
        return f"needs {claim.gpus} CUDA devices, {machine.gpus} here"
    for config in claim.configs(device, machine.gpus).values():
        for verdict in rules.check(config, machine.asked.facts(config)):
            if verdict.level == "refuse":
                return f"{verdict.what} {verdict.why}"
    return ""


def expected_seconds(claims: Sequence[Claim], machine: Machine, options: Options) -> float:
    """About how long measuring ``claims`` takes."""
    total = 0.0
    for claim in claims:
        device = claim.device(machine.device)
        if why_not(claim, machine):
            continue
        runs = claim.configs(device, machine.gpus).values()
        each = sum(RUN_SECONDS[device] + (COMPILE_SECONDS if run.compile != "off" else 0.0) for run in runs)
        total += min(options.seconds, options.count * each if runs else LOOP_SECONDS)
    return total


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Measured:
    """What has been found of one claim so far."""

    values: dict[str, list[float | None]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    cannot: str = ""
    failed: str = ""


class Runner:
    """Measures claims on one machine. ``say`` gets a line of progress, ``done`` each result as it is there."""

    def __init__(
        self, machine: Machine, options: Options, say: Callable[[str], None], done: Callable[[Result], None]
    ) -> None:
        self.machine, self.options = machine, options
        self._say, self._done = say, done

    def run(self, claims: Iterable[Claim] = CLAIMS) -> list[Result]:
        """Every claim's result. On KeyboardInterrupt the run in progress is ended, the results so far have been given
        to ``done``, and the interrupt goes on."""
        results = []
        # What a run that is ended leaves behind, compiled kernels for one, goes with the folder.
        with tempfile.TemporaryDirectory(prefix="gpuscope-claims-", ignore_cleanup_errors=True) as scratch:
            for claim in claims:
                begun = time.monotonic()
                cannot = why_not(claim, self.machine)
                if not cannot:
                    self._say(f"{claim.id}: {claim.statement}")
                with _variables({**self._variables_of(claim), "TMPDIR": scratch}):
                    if cannot:
                        measured = _Measured(cannot=cannot)
                    else:
                        measured = self._loop(claim) if claim.loop else self._sweep(claim, Path(scratch))
                results.append(self._result(claim, measured, time.monotonic() - begun))
                self._done(results[-1])
        return results

    def _variables_of(self, claim: Claim) -> dict[str, str]:
        hidden = claim.device(self.machine.device) == "cpu" and self.machine.gpus  # a machine without GPUs is meant
        return {**claim.environment, **({"CUDA_VISIBLE_DEVICES": ""} if hidden else {})}

    def _sweep(self, claim: Claim, scratch: Path) -> _Measured:
        """The claim's cells, interleaved, in a ledger of their own."""
        configs = claim.configs(claim.device(self.machine.device), self.machine.gpus)
        if self.options.tiny:
            configs = {name: _tiny(config) for name, config in configs.items()}
        keys = {name: cell_key(config) for name, config in configs.items()}
        ledger = Ledger(scratch / f"{claim.id}.sqlite")
        ends = time.monotonic() + self.options.seconds

        def watch(state: State, entry: Entry | None) -> None:
            if time.monotonic() > ends:
                sweep.stop("time limit")

        sweep = Sweep(new_plan(list(configs.values()), self.options.count), ledger, watch, self.options.seconds)
        outcome = sweep.run()
        if outcome.stopped.startswith("SIG"):
            raise KeyboardInterrupt
        entries = ledger.entries(limit=None)[::-1]
        rounds = list(claim_figures.rounds(keys, entries, self.options.count))
        measured = _Measured(failed=str(outcome.failure or ""))
        if not outcome.complete and len(rounds) < LEAST_REPEATS:
            measured.failed = measured.failed or outcome.stopped
        for figure in claim.figures:
            if figure.cells <= keys.keys():
                measured.values[figure.key] = [claim_figures.value_of(figure, found) for found in rounds]
        measured.notes = claim_figures.notes(
            [figure for figure in claim.figures if figure.cells <= keys.keys()], rounds
        )
        to_fail = {keys[cell] for cell in claim_figures.cells_to_fail(claim)}
        failed = [f"{entry.label}: {entry.failure}" for entry in entries if entry.failure and entry.cell not in to_fail]
        measured.failed = measured.failed or "".join(failed[:1])[:MAX_TEXT]
        return measured

    def _loop(self, claim: Claim) -> _Measured:
        """A loop of its own: a program that prints a JSON object for each repeat."""
        words = [claim.loop, "--device", claim.device(self.machine.device), "--repeats", str(self.options.count)]
        words += ["--tiny"] if self.options.tiny else []
        theirs, ours = os.pipe()  # nothing is written: it ends where this process does
        late = False
        with launch._only_this_package() as folder:
            process = subprocess.Popen(
                [self.machine.python, "-m", "gpuscope.lab.claim_loops", *words], env=launch.environment(folder),
                stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            try:
                out, err = process.communicate(timeout=self.options.seconds)
            except subprocess.TimeoutExpired:
                late = True
                _kill(process)
                out, err = process.communicate()
            finally:
                _kill(process)
                os.close(theirs)
                os.close(ours)
        measured = _Measured()
        for line in out.splitlines():
            _take(line, measured)
        if late:
            measured.failed = "time limit"
        elif process.returncode:
            said = [line for line in err.decode(errors="replace").splitlines() if line.strip()][-1:]
            measured.failed = f"its program ended with {how_it_ended(process.returncode)}: {''.join(said)}"[:MAX_TEXT]
        return measured

    def _result(self, claim: Claim, measured: _Measured, took: float) -> Result:
        device = claim.device(self.machine.device)
        words = claim.configuration(device)
        if measured.cannot and not measured.values:
            return Result(claim, device, words, "cannot_be_tested", measured.cannot, [], measured.notes, took)
        figures = [
            judge(figure, measured.values.get(figure.key, []), device, self.machine.gpus, measured.failed)
            for figure in claim.figures
        ]
        verdict, reason = conclude(figures)
        if measured.failed:
            # What is there is shown, but a verdict is not made from a measuring that did not come to its end.
            verdict, reason = ("undecided" if verdict != "cannot_be_tested" else verdict), measured.failed
        return Result(claim, device, words, verdict, reason, figures, measured.notes, took)


def _tiny(config: LabConfig) -> LabConfig:
    """Small enough to see that it works, no more."""
    small = {"conv-large": "conv-small", "gpt-small": "gpt-tiny", "gpt-large": "gpt-tiny", "mlp-large": "mlp-small"}
    steps = min(config.steps or 8, 8)
    name = small.get(config.preset(config.device), config.preset(config.device))
    return config.changed("model", name).changed("batch", 2).changed("steps", steps)


def _take(line: bytes, measured: _Measured) -> None:
    """One line of a loop: its figures of one repeat, or why it cannot be tested here."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict):
        return
    if isinstance(said.get("cannot"), str):
        measured.cannot = said["cannot"][:MAX_TEXT]
        return
    for key, value in said.items():
        measured.values.setdefault(key[:80], []).append(number(value))


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the programs that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends it and every process of its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
