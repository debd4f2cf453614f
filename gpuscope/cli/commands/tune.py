"""``gpuscope tune`` searches for the fastest or cheapest settings that fit, and proves them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import UsageError, UserError
from ...exit_status import ExitStatus
from ...lab import torch_probe
from ...lab.config import LabConfig, add_toggles
from ...lab.launch import find_python
from ...lab.ledger import Entry, RunLedger
from ...lab.matrix import vary_of
from ...lab.toggles import EVERY_PRESET, FACTORY, PRESETS, STEPS, Value
from ...lab.tune.findings import Found, SearchSettings
from ...lab.tune.goal import GOALS, WATTS, Goal
from ...lab.tune.price import MOST, an_hour_of, price_of
from ...lab.tune.result import COST_SAMPLES, SearchResult
from ...lab.tune.runner import SearchJob, SearchProgress, SearchRunner, new_job, window_of
from ...lab.tune.search import CannotTune, Search
from ...lab.tune.space import Limits
from ...missing_file import MissingScript, is_missing_file
from ...predict import from_switches
from ...predict.fits import Fits
from ...predict.request import CONFIG, OPTIONS, SEQUENCE, TASK, TASKS, TRANSFORMERS
from ...process.atomic_file import write_output
from ...text.units import MIB, duration_text, pace_text
from ...wire.clean import clean, clean_lines
from .. import args as types
from .. import output
from ..args import flag, option
from ..progress_line import ProgressLine
from ..tune_result import print_result
from .lab import devices as lab_devices

BUDGET_SECONDS = 600.0
KEEP_LOSS = 0.01
DRAW_SECONDS = 0.2
VISIBLE = lab_devices.VISIBLE_VARIABLE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODEL",
        help="your own MODULE:FACTORY, or one of the Lab's models",
    )
    option(
        parser,
        "--hf-config DIR",
        "the model of a transformers config (a folder or a config.json), with random weights",
    )
    option(
        parser,
        "--task TASK",
        f"for --hf-config: the task to train for: {', '.join(TASKS)}",
        choices=tuple(TASKS),
    )
    option(
        parser,
        "--sequence N",
        "for --hf-config: tokens in a sample",
        types.whole_between(1, from_switches.MOST_OF_ANY),
    )
    search = parser.add_argument_group("the search")
    option(
        search,
        "--budget TIME",
        "how long to search, such as 90s, 10m or 2h (default 10m)",
        types.duration_between(10, 7 * 86400),
        default=BUDGET_SECONDS,
    )
    option(
        search,
        "--vary SETTING=A,B,…",
        "try only these values of this setting; repeat it for others (default: all settings "
        "that can make a training faster)",
        action="append",
        default=[],
    )
    flag(
        search,
        "--free-batch",
        "allow another effective batch size; otherwise micro-batch × accumulation stays",
    )
    option(
        search,
        "--keep-loss SHARE",
        "how much higher than the baseline's the loss may be, after the same samples (default 1%%)",
        types.share_between(0, 1),
        default=KEEP_LOSS,
    )
    flag(search, "--new", "start over, even if this search can be continued")
    card = parser.add_argument_group("the GPU")
    option(card, "--gpu N", "train on this GPU of the host", types.whole_between(0, 1023))
    option(
        card,
        "--capacity SIZE",
        "memory that a training may reserve, such as 24GiB (default: what the GPU has free)",
        types.size_of_at_least(64 * MIB),
    )
    lab_devices.add_share(card)
    cost = parser.add_argument_group("cost")
    option(
        cost,
        "--goal GOAL",
        "samples: most samples a second; cost: most samples for what they cost, by the prices "
        "below, or without any by the energy of the GPU (default samples)",
        choices=GOALS,
        default=GOALS[0],
    )
    option(
        cost,
        "--price MONEY|FILE",
        "the price of an hour of this machine, or a TOML file with one for each GPU (h200 = 3.5): "
        "the result then says what training costs",
    )
    option(
        cost,
        "--price-energy MONEY",
        "the price of a kilowatt-hour, for the energy that the GPU takes",
        types.number_between(0, MOST),
    )
    option(
        cost,
        "--samples N",
        f"give the cost of this many samples (default {COST_SAMPLES:,})",
        types.whole_between(1, 10**15),
        default=COST_SAMPLES,
    )
    out = parser.add_argument_group("output")
    flag(out, "--json", "a JSON document instead of text")
    flag(out, "--events", argparse.SUPPRESS)  # for the TUI
    option(out, "-o --output FILE", "also write the JSON document to this file", Path)
    add_toggles(parser, hidden=(STEPS,))  # it is refused with a reason: a run has no such length


def run(args: argparse.Namespace) -> int:
    """Search and print what was found."""
    began = time.monotonic()
    if args.gpu is not None:
        os.environ[VISIBLE] = str(args.gpu)
    if args.hf_config is not None:
        _use_transformers(args)
    elif args.task or args.sequence:
        raise UsageError("--task and --sequence are for a transformers config: --hf-config DIR")
    baseline = _baseline(args)
    vary = vary_of(args.vary)
    if args.output is not None and not args.output.parent.is_dir():
        raise UsageError(f"-o {clean(str(args.output))}: there is no such folder")
    ledger = RunLedger()
    prices = price_of(args.price) if args.price is not None else None
    # which price of a table counts is known once the GPU is
    goal = _goal(args, 1.0 if isinstance(prices, dict) else prices)
    job = new_job(ledger, baseline, _options(args, vary), args.new)
    python = find_python()
    others: list[Any] = []
    capacity: int | None = args.capacity

    def result_of(found: Found) -> SearchResult:
        entries = ledger.entries(limit=None, group=job.group)[::-1]
        return SearchResult(
            job.group, found, entries, runner.spent_seconds, capacity, goal, args.samples
        )

    shown = Events(result_of) if args.events else TrialLines(ProgressLine(sys.stderr))
    window = window_of(args.budget, goal)
    runner = SearchRunner(
        job,
        ledger,
        shown.show,
        window,
        watch=lambda: Driver(others),
        since=began,
    )
    known = len(ledger.entries(limit=None, group=job.group))
    _announce(job, goal, args.hf_config or baseline.model, args.budget, known)
    with ExitStack() as open_parts:

        def begin() -> Search:
            """Look at the machine, which takes seconds, and return the search."""
            nonlocal capacity, goal
            machine = torch_probe.ask(python)
            if machine.problem:
                why = f"{clean(machine.problem)}."
                raise UserError("This Python cannot train.", why, "gpuscope doctor")
            others.extend(_others(baseline, args.share_gpus))
            facts = machine.facts(baseline)
            on_gpu = facts.gpu_name if facts.device_type != "cpu" else None
            goal = _goal(args, an_hour_of(prices, on_gpu) if prices is not None else None)
            if facts.device_type == "cpu":
                _check_no_gpu_is_meant(args)
            if goal.needs_power or goal.kwh:
                _check_power(baseline, facts.device_type, others)
            capacity = args.capacity or (facts.free_bytes[0] if facts.free_bytes else None)
            settings = SearchSettings(
                Limits(vary, args.free_batch),
                args.keep_loss,
                capacity,
                lambda: args.budget - runner.spent_seconds,
                open_parts.enter_context(Fits(facts.capability, capacity)),
                window,
                goal,
            )
            return Search(baseline, machine.facts, settings)

        try:
            outcome = runner.run(begin)
        except CannotTune as error:
            if args.hf_config is not None:  # the Lab's command, which it names, has no config
                error.next = _said_next(ledger.entries(limit=1, group=job.group)) or error.next
            raise
        finally:
            shown.close()
    if outcome.failure is not None:
        print(clean_lines(str(outcome.failure)), file=sys.stderr)
        return ExitStatus.UNCHECKED
    if outcome.found is None:
        print(
            f"Stopped by {outcome.stopped}. What was measured is in the ledger.\n"
            f"Next: the same command {'without --new' if args.new else 'again'} continues here",
            file=sys.stderr,
        )
        return ExitStatus.PROBLEMS
    result = result_of(outcome.found)
    if args.output is not None:
        document = output.dump(result.document()) + "\n"
        write_output(args.output, document.encode())
    if args.events:
        write_event("end", document=result.document())
    else:
        _show_result(result, args)
    early = bool(outcome.found.stopped)
    return ExitStatus.OK if result.changed and not early else ExitStatus.WARNINGS


def _goal(args: argparse.Namespace, hour: float | None) -> Goal:
    return Goal(args.goal == "cost", hour, args.price_energy)


def _check_power(baseline: LabConfig, device_type: str, others: list[Any]) -> None:
    """Raise CannotTune where the energy of a training counts and cannot be measured."""
    if device_type == "cpu":
        why = "It trains on the CPU, whose power is not read."
    else:
        why = lab_devices.power_unknown(baseline, lab_devices.look(), others)
    if why:
        raise CannotTune(
            "The energy of this training cannot be measured.",
            why,
            "gpuscope tune --goal cost --price MONEY    by the hour alone the fastest is cheapest",
        )


def _use_transformers(args: argparse.Namespace) -> None:
    """Let the workers train the model of ``--hf-config``."""
    if args.target is not None or args.model is not None:
        raise UsageError("one model at a time: MODEL, --model or --hf-config")
    path = Path(args.hf_config)
    if not path.exists():
        raise UsageError(f"--hf-config: there is no {clean(str(path))}")
    args.target = TRANSFORMERS
    chosen = {CONFIG: str(path.resolve()), TASK: args.task, SEQUENCE: args.sequence}
    for name, value in chosen.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = str(value)


def _said_next(entries: Sequence[Entry]) -> str:
    """Return what the first of these runs says to do next, as it failed; "" where it does not."""
    error = entries[0].document.get("error") if entries else None
    return str(error.get("next") or "") if isinstance(error, dict) else ""


def _baseline(args: argparse.Namespace) -> LabConfig:
    if args.target is not None:
        known = (*PRESETS, *EVERY_PRESET)
        if is_missing_file(args.target):
            raise MissingScript(args.target)
        if args.target not in known and not FACTORY.fullmatch(args.target):
            raise UsageError(
                f"{clean(args.target, 60)} is neither MODULE:FACTORY nor one of {', '.join(known)}"
            )
        if args.model is not None and args.model != args.target:
            raise UsageError("name the model once: as MODEL or with --model")
        args.model = args.target
    if args.model is None:
        raise _what_to_tune()
    baseline = LabConfig.from_arguments(args)
    if baseline.steps is not None:
        raise UsageError("--steps has no meaning here: a run ends when its speed is known")
    if baseline.parallel != "none":
        raise CannotTune(
            "Trainings in several processes are not searched.",
            f"--parallel is {baseline.parallel}.",
            "gpuscope tune without --parallel    then train with what it has found",
        )
    return baseline


def _check_no_gpu_is_meant(args: argparse.Namespace) -> None:
    """Raise CannotTune where a search on the CPU was asked for a GPU, or for a limit on its memory.

    torch sees no GPU at all where ``--gpu`` has named one that does not exist.
    """
    meant = [
        *(["--gpu"] if args.gpu is not None else []),
        *(["--capacity"] if args.capacity is not None else []),
    ]
    if not meant:
        return
    asked = args.device == "cpu"
    which = "on this machine" if args.gpu is None else f"with the number {args.gpu}"
    raise CannotTune(
        "This search would run on the CPU.",
        "--device cpu was given." if asked else f"torch sees no GPU {which}.",
        f"gpuscope devices    lists the GPUs; without {' and '.join(meant)} the CPU is searched",
    )


def _what_to_tune() -> UsageError:
    """Return the question for a model, with the training of this machine that can be named."""
    from ..tune_offer import offers_here

    command, pid = next(((one, pid) for one, pid in offers_here().items() if one), ("", 0))
    shows = "gpuscope tune gpt-small    searches for one of the Lab's models, at most 10 minutes"
    return UsageError(
        "name what to tune: MODULE:FACTORY, --model gpt-small or another of the Lab's models, or "
        "--hf-config DIR",
        next=f"{command}    searches for what PID {pid} trains" if command else shows,
    )


def _options(args: argparse.Namespace, vary: dict[str, list[Value]]) -> dict[str, Any]:
    """Return what makes two searches different: with other options nothing is continued."""
    return {
        "vary": vary,
        "free_batch": args.free_batch,
        "keep_loss": args.keep_loss,
        "capacity": args.capacity,
        "gpu": args.gpu,
        "hf_config": [args.hf_config, args.task, args.sequence],
        **({"cost": [args.price, args.price_energy]} if args.goal == "cost" else {}),
    }


def _others(baseline: LabConfig, share: bool) -> list[Any]:
    """Return the jobs on the GPUs that are trained on.

    Raises :class:`CannotTune` if there are any, unless the GPUs are to be shared.
    """
    if baseline.device == "cpu":
        return []
    host = lab_devices.look()
    refused = None if share else lab_devices.refusal(baseline, host)
    if refused is not None:
        raise CannotTune(
            refused.what,
            refused.why,
            "gpuscope tune --gpu N    takes another one; --share-gpus measures anyway",
        )
    return lab_devices.occupants_of_run(baseline, host)


def _announce(job: SearchJob, goal: Goal, model: str, budget: float, known: int) -> None:
    """Say what is searched for, by its model, and how long."""
    what = f"the {goal.best} settings of {clean(model, 200)}"
    if known:
        print(
            f"Continuing {job.group}, {what}: {known} of its runs are in the ledger (--new starts "
            "over).",
            file=sys.stderr,
        )
    else:
        print(
            f"{job.group}: {what}, at most {duration_text(budget)}.\n"
            "Each training has a process of its own. Ctrl-C stops; what was measured is kept.",
            file=sys.stderr,
        )


class Driver(lab_devices.TensorShare):
    """A watcher that also asks the driver for the power."""

    def finish(self, document: dict[str, Any]) -> dict[str, Any]:
        return {**super().finish(document), WATTS: self.power_watts}


# ── output ────────────────────────────────────────────────────────────────────────────────────────


class TrialLines:
    """Prints a line for each trial that has ended, and draws the one that runs.

    A failure of the first trial is printed when another one follows. Where none does, the error
    that ends the search gives the reason.
    """

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._drawn_at = 0.0
        self._first = True
        self._held_back = ""

    def show(self, progress: SearchProgress, entry: Entry | None) -> None:
        """Show the progress; the parameters are those of ``OnProgress``."""
        trial = progress.trial
        if trial is None:
            return
        if self._held_back:
            self._line.finished(self._held_back)
            self._held_back = ""
        spent = duration_text(progress.spent_seconds)
        if entry is not None:
            pace = entry.document.get("samples_per_second")
            outcome = (
                f"{pace_text(pace)} samples/s" if isinstance(pace, (int, float)) else entry.failure
            )
            ended = clean(f"{spent}  {progress.label}  {outcome}{progress.purpose}")
            if self._first and entry.failure:
                self._held_back = ended
            else:
                self._line.finished(ended)
            self._first = False
        elif self._line.live and time.monotonic() - self._drawn_at >= DRAW_SECONDS:
            self._drawn_at = time.monotonic()
            best = sum(row.status == "kept" for row in progress.search.rows)
            self._line.draw(
                f"{spent}  run {progress.ran + progress.replayed + 1}  {best} kept  "
                f"{progress.label}  step {progress.step}{progress.purpose}"
            )

    def close(self) -> None:
        self._line.clear()


class Events:
    """Writes the progress as lines of JSON, for a screen that shows it.

    ``trial`` says which run is in progress, and ``rows`` has the document of the search so far,
    whenever a run has ended. ``result_of`` makes a result of what was found.
    """

    def __init__(self, result_of: Callable[[Found], SearchResult]) -> None:
        self._result_of = result_of
        self._written = 0.0

    def show(self, progress: SearchProgress, entry: Entry | None) -> None:
        """Write what has changed; the parameters are those of ``OnProgress``."""
        search = progress.search
        if entry is not None:
            best = next(
                (row.config for row in reversed(search.rows) if row.status == "kept"),
                search.baseline,
            )
            so_far = Found(search.baseline, best, None, search.rows)
            write_event("rows", document=self._result_of(so_far).document())
        elif progress.trial is not None and time.monotonic() - self._written >= DRAW_SECONDS:
            self._written = time.monotonic()
            write_event(
                "trial",
                label=progress.label,
                purpose=progress.trial.purpose,
                run=progress.ran + progress.replayed + 1,
                step=progress.step,
                spent_seconds=progress.spent_seconds,
            )

    def close(self) -> None:
        """Do nothing: there is nothing to tidy up."""


def write_event(kind: str, **values: object) -> None:
    """Write one event as a line of JSON."""
    print(json.dumps({"event": kind, **values}, allow_nan=False), flush=True)


def _show_result(result: SearchResult, args: argparse.Namespace) -> None:
    if args.json:
        print(output.dump(result.document()))
        return
    kept = (f"{name}={shlex.quote(os.environ[name])} " for name in OPTIONS if args.hf_config
            and name in os.environ)  # fmt: skip
    print_result(result, "".join(kept))
