"""Measures claims: starts the programs of ``claim_measures``, reads what they print, and makes results of it.

No torch here. One program measures several claims; where it dies, hangs or fails, the claim it was at says so, and a
new one goes on with the rest. Nothing a program does stops the others, and none outlives this one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..text.units import bytes_text
from . import launch
from .claim_table import CLAIMS
from .claims import Claim, Note, Result, conclude, judge

MODULE = "gpuscope.lab.claim_measures."
START_SECONDS = 120.0
"""For a program to say that its first claim begins: torch is imported from a cold disk, by several processes."""
GRACE_SECONDS = 5.0
"""For a program that has said all to be gone."""
START_ESTIMATE = {"cuda": 7.0, "cpu": 3.0}
RANKS_ESTIMATE = 12.0
BUSY_BYTES = 3 << 30
"""Memory in use on a GPU before anything is measured: more than the driver and our own context take."""
MAX_LINE = 1 << 16
MAX_VALUES = 10_000
MAX_TEXT = 500
REPEATS = {"full": 8, "quick": 3}
QUICK_SHARE = 0.4
"""What ``--quick`` leaves of the time a claim may take."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the programs found here. ``facts`` is their own document, for the output."""

    python: str
    device: str
    gpus: int
    facts: dict[str, Any]

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


class Unusable(Exception):
    """Nothing can be measured here at all; the message says what happened, why, and the next command."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure. ``limit`` is the longest a single claim may take, in seconds, None for each claim's own."""

    device: str = "auto"
    repeats: int | None = None
    quick: bool = False
    limit: float | None = None
    tiny: bool = False

    @property
    def count(self) -> int:
        return self.repeats or REPEATS["quick" if self.quick else "full"]

    def seconds(self, claim: Claim, device: str) -> float:
        """How long the claim's repeats may take before no more are begun."""
        usual = claim.seconds.get(device, 10.0) * (QUICK_SHARE if self.quick else 1.0)
        if self.repeats:
            usual *= max(1.0, self.repeats / REPEATS["full"])
        return usual if self.limit is None else min(usual, self.limit)

    def hard_limit(self, claim: Claim, device: str) -> float:
        """How long it may take before its program is ended. The least repeats and the warm-up are counted in."""
        return self.limit if self.limit is not None else 30.0 + 2.0 * self.seconds(claim, device)


def look(python: str, device: str) -> Machine:
    """What this machine has, by a program that imports torch: may take seconds. Raises :class:`Unusable`."""
    again = "gpuscope lab claims --device cpu"
    with launch._only_this_package() as folder:
        try:
            done = subprocess.run(
                [python, "-m", MODULE + "facts"],
                env=launch.environment(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unusable(f"{python} could not be asked what this machine has.\nWhy: {error}\nNext: {again}") from None
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
        gpus, cores = list(facts["gpus"]), int(facts["cores"])
        assert all(isinstance(gpu["free_bytes"], int) and isinstance(gpu["total_bytes"], int) for gpu in gpus)
        assert cores > 0
    except (ValueError, KeyError, IndexError, TypeError, AssertionError):
        why = _last(done.stderr.decode(errors="replace").splitlines()) or f"it ended with code {done.returncode}."
        raise Unusable(f"{python} could not say what this machine has.\nWhy: {why}\nNext: {again}") from None
    if device == "cuda" and not gpus:
        why = f"torch {facts.get('torch_version')} finds no CUDA device here: no driver, all hidden, or a CPU build."
        raise Unusable(f"There is no CUDA device to measure on.\nWhy: {why}\nNext: {again}")
    chosen = device if device != "auto" else "cuda" if gpus else "cpu"
    return Machine(python, chosen, len(gpus), facts)


def why_not(claim: Claim, machine: Machine) -> str:
    """Why ``claim`` cannot be tested on ``machine``, "" if it can."""
    device = claim.device(machine.device)
    if device in claim.cannot:
        return claim.cannot[device]
    if device not in claim.configuration:
        return "needs a CUDA device" if device == "cpu" else "is about machines without a GPU"
    if device == "cuda" and machine.gpus < claim.gpus:
        return f"needs {claim.gpus} CUDA devices, {machine.gpus} here"
    return ""


def expected_seconds(claims: Sequence[Claim], machine: Machine, options: Options) -> float:
    """About how long measuring ``claims`` takes."""
    total, programs = 0.0, set()
    for claim in claims:
        if not why_not(claim, machine):
            device = claim.device(machine.device)
            total += options.seconds(claim, device) + 1.0
            programs.add((claim.measure, device))
    starts = (RANKS_ESTIMATE if measure == "parallel" else START_ESTIMATE[device] for measure, device in programs)
    return total + sum(starts)


@dataclass(slots=True)
class _Measured:
    """What a program has said of one claim so far."""

    claim: Claim
    begun: float
    values: dict[str, list[float | None]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    configuration: str = ""
    cannot: str = ""
    failed: str = ""

    def take(self, event: dict[str, Any]) -> bool:
        """One event; whether it ends the claim."""
        kind = event.get("event")
        if kind == "value":
            series = self.values.setdefault(str(event.get("figure"))[:80], [])
            if len(series) < MAX_VALUES:
                series.append(_number(event.get("value")))
        elif kind == "note" and len(self.notes) < 50:
            value = event.get("value")
            text = _number(value) if not isinstance(value, str) else value[:MAX_TEXT]
            self.notes.append(Note(str(event.get("title"))[:MAX_TEXT], text, str(event.get("unit", ""))[:20]))
        elif kind == "configuration":
            self.configuration = str(event.get("text"))[:MAX_TEXT]
        elif kind == "cannot":
            self.cannot = str(event.get("reason"))[:MAX_TEXT] or "no reason given"
        elif kind == "failed":
            self.failed = self.failed or str(event.get("reason"))[:MAX_TEXT] or "no reason given"
        return kind in ("end", "failed")


class Runner:
    """Measures claims on one machine. ``say`` gets a line of progress, ``done`` each result as it is there."""

    def __init__(
        self, machine: Machine, options: Options, say: Callable[[str], None], done: Callable[[Result], None]
    ) -> None:
        self.machine, self.options = machine, options
        self._say, self._done = say, done
        self._folder = ""

    def run(self, claims: Iterable[Claim] = CLAIMS) -> list[Result]:
        """Every claim's result, in the order of ``claims``. On KeyboardInterrupt the program that runs is ended, the
        results so far have been given to ``done``, and the interrupt goes on."""
        wanted = list(claims)
        results: dict[str, Result] = {}

        def keep(result: Result) -> None:
            results[result.claim.id] = result
            self._done(result)

        programs: dict[tuple[str, str], list[Claim]] = {}
        for claim in wanted:
            reason = why_not(claim, self.machine)
            if reason:
                keep(self._result(_Measured(claim, time.monotonic(), cannot=reason)))
            else:
                programs.setdefault((claim.measure, claim.device(self.machine.device)), []).append(claim)
        with launch._only_this_package() as self._folder:
            for (measure, device), group in programs.items():
                left = group
                while left:
                    # What a program that is ended leaves behind, compiled kernels for one, goes with the folder.
                    with tempfile.TemporaryDirectory(prefix="gpuscope-claims-", ignore_cleanup_errors=True) as scratch:
                        left = self._program(measure, device, left, keep, scratch)
        return [results[claim.id] for claim in wanted]

    def _program(
        self, measure: str, device: str, claims: list[Claim], keep: Callable[[Result], None], scratch: str
    ) -> list[Claim]:
        """One program over ``claims``; gives every result to ``keep`` and returns the claims it did not get to."""
        child = _Child(self._command(measure, device, claims), {**self._environment(device), "TMPDIR": scratch})
        left = list(claims)
        current: _Measured | None = None
        deadline = time.monotonic() + START_SECONDS
        why = ""
        try:
            while left:
                try:
                    event = child.next(deadline - time.monotonic())
                except TimeoutError:
                    why = "time limit" if current else f"its program did not begin within {START_SECONDS:.0f} s"
                    break
                if event is None:
                    why = child.ended()
                    break
                if event.get("event") == "begin" and event.get("claim") == left[0].id:
                    current = _Measured(left[0], time.monotonic())
                    deadline = current.begun + self.options.hard_limit(current.claim, device)
                    self._say(f"{current.claim.id}: {current.claim.statement}")
                elif current is not None and current.take(event):
                    keep(self._result(current))
                    left.pop(0)
                    failed, current = bool(current.failed), None
                    deadline = time.monotonic() + START_SECONDS
                    if failed:
                        return left
                elif event.get("event") == "failed" and current is None:
                    why = str(event.get("reason"))[:MAX_TEXT]
                    break
        finally:
            child.close()
        if left:
            stopped = current or _Measured(left[0], time.monotonic())
            if current is None:  # it never came to a claim: the others of this program would fare no better
                for claim in left:
                    keep(self._result(_Measured(claim, time.monotonic(), failed=why)))
                return []
            stopped.failed = why
            keep(self._result(stopped))
            left.pop(0)
        return left

    def _command(self, measure: str, device: str, claims: Sequence[Claim]) -> list[str]:
        seconds = {claim.id: self.options.seconds(claim, device) for claim in claims}
        words = ["--claims", ",".join(claim.id for claim in claims), "--device", device]
        words += ["--repeats", str(self.options.count), "--seconds", json.dumps(seconds), "--stop-on-eof"]
        return [self.machine.python, "-m", MODULE + measure, *words, *(["--tiny"] if self.options.tiny else [])]

    def _environment(self, device: str) -> dict[str, str]:
        environ = launch.environment(self._folder)
        if device == "cpu" and self.machine.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ""  # a machine without GPUs is what is meant
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environ.pop(name, None)
        return environ

    def _result(self, measured: _Measured) -> Result:
        claim = measured.claim
        device = claim.device(self.machine.device)
        took = time.monotonic() - measured.begun
        configuration = measured.configuration or claim.configuration.get(device, "")
        if measured.cannot and not measured.values:
            reason = measured.cannot
            return Result(claim, device, configuration, "cannot_be_tested", reason, [], measured.notes, took)
        figures = [
            judge(figure, measured.values.get(figure.series, []), device, self.machine.gpus, measured.failed)
            for figure in claim.figures
        ]
        verdict, reason = conclude(figures)
        if measured.failed:
            # What is there is shown, but a verdict is not made from a measuring that did not come to its end.
            verdict, reason = ("undecided" if verdict != "cannot_be_tested" else verdict), measured.failed
        return Result(claim, device, configuration, verdict, reason, figures, measured.notes, took)


class _Child:
    """A program in its own process group: its events one by one, its last lines on stderr, and its end."""

    def __init__(self, command: list[str], environ: dict[str, str]):
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.stderr: deque[str] = deque(maxlen=50)
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # ended as a whole; and the terminal's Ctrl-C is for us
        )  # fmt: skip
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._keep)]
        for thread in self._threads:
            thread.start()

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next event, None at the end; raises TimeoutError when there is none for ``seconds``."""
        try:
            return self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError from None

    def ended(self) -> str:
        """How it ended, in words, with what it last said."""
        try:
            code = self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its program closed its output and did not end"
        self._threads[1].join(1.0)
        said = _last(self.stderr)
        return f"its program {launch.how_it_ended(code)}{': ' + said if said else ''}"[:MAX_TEXT]

    def close(self) -> None:
        """Ends it and every process of its group."""
        assert self._process.stdin is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := self._process.stdout.readline(MAX_LINE):
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    self._events.put(event)
        except (OSError, ValueError):
            pass
        self._events.put(None)

    def _keep(self) -> None:
        assert self._process.stderr is not None
        try:
            while line := self._process.stderr.readline(MAX_LINE):
                self.stderr.append(line.decode(errors="replace").rstrip()[:1000])
        except (OSError, ValueError):
            pass


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _last(lines: Iterable[str]) -> str:
    """The last line that says something."""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:MAX_TEXT] if said else ""
