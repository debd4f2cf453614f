"""``gpuscope lab sweep`` runs a matrix of configurations in repeats, and prints one table."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....lab import rules, tables, torch_probe
from ....lab.config import ConfigError, LabConfig, add_toggles
from ....lab.launch import find_python
from ....lab.ledger import Entry, RunLedger
from ....lab.matrix import (
    MAX_REPEATS,
    Matrix,
    combinations,
    label,
    once,
    read_file,
    vary_of,
    varying,
)
from ....lab.sweep import (
    LIMIT_SECONDS,
    REPEATS,
    STEPS,
    Objection,
    State,
    Sweep,
    SweepError,
    SweepOutcome,
    SweepPlan,
    new_plan,
    stored,
    unfinished,
)
from ....model.cuda_devices import visible_in_order
from ....model.occupants import Occupant
from ....text.units import age_text, pace_text
from ....wire.clean import clean, clean_lines
from ... import args as types
from ... import output as cli_output
from ...args import flag, option
from ...progress_line import ProgressLine
from . import devices as lab_devices

MAX_LIMIT_SECONDS = 999_999.0
BAR_CELLS = 20
DRAW_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    matrix = parser.add_argument_group("matrix")
    option(
        matrix,
        "--vary SETTING=A,B,…",
        "try each of these values; repeat it for other settings: every combination is run",
        action="append",
        default=[],
    )
    option(
        matrix,
        "--matrix FILE",
        "read the settings from a TOML file with [base], [vary], [[cell]], repeats",
        Path,
    )
    option(
        matrix,
        "--repeats N",
        f"runs of each configuration, interleaved (default {REPEATS}; 2 or more show the spread)",
        types.whole_between(1, MAX_REPEATS),
    )
    # Options without a help text are rarely needed. The output of a sweep names them where they
    # help.
    going = parser.add_argument_group("resuming")
    option(going, "--resume GROUP", "continue a sweep that was stopped or killed")
    flag(going, "--new", argparse.SUPPRESS)
    flag(going, "--retry-failed", argparse.SUPPRESS)
    lab_devices.add_share(going)
    option(
        going,
        "--timeout SECONDS",
        argparse.SUPPRESS,
        types.seconds_between(1, MAX_LIMIT_SECONDS),
        default=LIMIT_SECONDS,
    )
    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=tables.FORMATS, help=argparse.SUPPRESS)
    option(
        output, "-o --output FILE", "also write the table to this file: .md, .csv or .json", Path
    )
    flag(output, "--json", "a JSON document instead of text")
    flag(output, "--dry-run", "list what would run and what cannot run; run nothing")
    add_toggles(parser)


def run(args: argparse.Namespace) -> int:
    _writable(args.output)
    ledger = RunLedger()
    earlier = stored(ledger, args.resume) if args.resume else None
    if earlier and earlier.searched:
        raise UsageError(
            f"{earlier.group} is a search, no sweep.\n"
            "Next: gpuscope tune ...    with the same words continues it"
        )
    if earlier:
        plan = earlier
    else:
        plan = _plan(args)
        if not plan.cells:
            _say(
                f"Nothing to run: all {len(plan.refused)} configurations are refused.",
                *tables.objections(plan),
            )
            return ExitStatus.PROBLEMS
        if not args.dry_run and not args.new:
            earlier = unfinished(ledger, plan)
            plan = earlier or plan
    if args.dry_run:
        _print_plan(plan)
        return ExitStatus.OK
    others = _others(plan, args.share_gpus)
    before = ledger.entries(limit=None, group=plan.group)
    if args.retry_failed:
        for entry in before:
            if entry.failure:
                ledger.remove(entry.id)
        before = [entry for entry in before if not entry.failure]
    _announce(plan, before, again=earlier is not None)
    bar = SweepBar(sys.stderr)
    try:
        outcome = Sweep(
            plan, ledger, bar.show, args.timeout, lambda: lab_devices.TensorShare(others)
        ).run()
    finally:
        bar.close()
    return _report(args, plan, ledger, outcome)


# ── what is to be run ─────────────────────────────────────────────────────────────────────────────


def _plan(args: argparse.Namespace) -> SweepPlan:
    base = LabConfig.from_arguments(args)
    base = base if base.steps else base.changed("steps", STEPS)
    vary = vary_of(args.vary)
    matrix = read_file(args.matrix, base) if args.matrix else Matrix([])
    cells = matrix.cells
    if vary:
        cells = [cell for start in cells or [base] for cell in combinations(start, vary)]
    cells = once(cells)
    if not cells:
        raise ConfigError(
            "Nothing to sweep: name what to vary, as in --vary amp=off,bf16 --vary batch=8,16."
        )
    repeats = args.repeats or matrix.repeats or REPEATS
    machine = torch_probe.ask(find_python())
    names = varying(cells)
    kept, refused, warnings = [], [], []
    if machine.problem:
        warnings.append(Objection("", "Combinations were not checked", clean(machine.problem)))
    for cell in cells:
        verdicts = [] if machine.problem else rules.check(cell, machine.facts(cell))
        no = next((verdict for verdict in verdicts if verdict.level == "refuse"), None)
        if no:
            refused.append(_objection(label(cell, names), no))
        else:
            kept.append(cell)
            warnings += [_objection(label(cell, names), verdict) for verdict in verdicts]
    return new_plan(kept, repeats, refused, warnings)


def _objection(name: str, verdict: rules.RuleVerdict) -> Objection:
    return Objection(
        name, verdict.what, verdict.why, verdict.nearest.command() if verdict.nearest else ""
    )


def _writable(path: Path | None) -> None:
    """Refuse a file that cannot be written before hours of work, not after them."""
    if path is None:
        return
    folder = path.parent if str(path.parent) else Path(".")
    if (
        path.is_dir()
        or not folder.is_dir()
        or not os.access(path if path.exists() else folder, os.W_OK)
    ):
        raise ConfigError(f"-o {clean(str(path))!r}: cannot write a file there.")


def _announce(plan: SweepPlan, before: Sequence[Entry], again: bool) -> None:
    _say(*tables.objections(plan))
    total = len(plan.cells) * plan.repeats
    if again:
        _say(
            f"Resuming {plan.group}: {len(before)} of its {total} runs are in the ledger "
            "(--new starts over)."
        )
        failed = sum(bool(entry.failure) for entry in before)
        if failed:
            _say(f"{failed} of them failed and are not repeated (--retry-failed runs them again).")
    else:
        shape = f"{len(plan.cells)} configurations × {plan.repeats} repeats"
        _say(f"{plan.group}: {shape} = {total} runs, interleaved, each in a fresh process.")


def _print_plan(plan: SweepPlan) -> None:
    print(
        f"{len(plan.cells)} configurations × {plan.repeats} repeats = "
        f"{len(plan.cells) * plan.repeats} runs"
    )
    cells = max(map(len, plan.labels))
    for cell, name in zip(plan.cells, plan.labels, strict=True):
        print(f"  {name:{cells}}    {cell.command()} --headless")
    print(*tables.objections(plan), sep="\n")


# ── other jobs, and the driver ────────────────────────────────────────────────────────────────────


def _others(plan: SweepPlan, force: bool) -> list[Occupant]:
    """Return the jobs on the GPUs that the sweep would take.

    Raises :class:`SweepError` if there are any, unless ``force`` is set.
    """
    if all(cell.device == "cpu" for cell in plan.cells):
        return []
    picture = lab_devices.look()
    seen = visible_in_order(picture.devices) or []
    taken = {
        id(device): device
        for cell in plan.cells
        for device in lab_devices.devices_of_run(cell, seen)
    }
    found = [
        occupant for device in taken.values() for occupant in lab_devices.occupants(device, picture)
    ]
    if found and not force:
        widest = max(plan.cells, key=lambda cell: len(lab_devices.devices_of_run(cell, seen)))
        failure = lab_devices.refusal(widest, picture)
        assert failure is not None
        again = shlex.join(["gpuscope", *sys.argv[1:]])
        free, _, _ = failure.next.partition(" ")
        what = (
            f"{free} {again}"
            if free.startswith(lab_devices.VISIBLE_VARIABLE)
            else "gpuscope ps    shows who"
        )
        raise SweepError(
            failure.what, failure.why, f"{what}    or    {again} --share-gpus    measures anyway"
        )
    return found


# ── results ───────────────────────────────────────────────────────────────────────────────────


def _report(
    args: argparse.Namespace, plan: SweepPlan, ledger: RunLedger, outcome: SweepOutcome
) -> int:
    if outcome.failure is not None:
        _say(clean_lines(str(outcome.failure)))
        return ExitStatus.UNCHECKED
    found = tables.results(plan, ledger.entries(limit=None, group=plan.group))
    kind = "json" if args.json else args.format
    print(rendered(plan, found, kind), end="")
    if args.output:
        kind = kind_of(args.output, args.format, "json" if args.json else "md")
        again = f"gpuscope lab runs export --group {plan.group} -o FILE"
        write(args.output, rendered(plan, found, kind), again)
        _say(f"Written: {args.output}")
    if not outcome.complete:
        done = sum(len(cell.runs) for cell in found)
        _say(
            f"Stopped by {outcome.stopped}: {done} of {len(plan.cells) * plan.repeats} runs are "
            "in the ledger.",
            f"Next: gpuscope lab sweep --resume {plan.group}",
        )
        return ExitStatus.PROBLEMS
    if not any(cell.good for cell in found):
        return ExitStatus.PROBLEMS
    return (
        ExitStatus.WARNINGS
        if plan.refused or any(cell.failure for cell in found)
        else ExitStatus.OK
    )


def kind_of(path: Path | None, wanted: str | None, otherwise: str = "md") -> str:
    """Return the format of a table: the one that is asked for, else the one that its file names."""
    ending = path.suffix.lower().lstrip(".") if path is not None else ""
    return wanted or (ending if ending in tables.FORMATS else otherwise)


def write(path: Path, text: str, again: str = "") -> None:
    """Write a table to a file. Raises :class:`UserError` with ``again``, what to do then."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{clean(str(path))} cannot be written: {error.strerror}.", "", again
        ) from None


def rendered(plan: SweepPlan, found: Sequence[tables.CellResult], kind: str | None) -> str:
    """Return the table as ``md``, ``csv``, ``json``, or (None) as text for a terminal."""
    if kind == "md":
        return tables.markdown(plan, found)
    if kind == "csv":
        return tables.as_csv(plan, found)
    if kind == "json":
        return cli_output.dump(tables.as_json(plan, found)) + "\n"
    rows = tables.text_rows(
        found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    )
    lines = cli_output.table(rows, right=[index for index in range(len(rows[0])) if index != 1])
    return "\n".join([*lines, *tables.remarks(plan, found)]) + "\n"


def _say(*lines: str) -> None:
    if lines:
        print(*lines, sep="\n", file=sys.stderr, flush=True)


# ── progress ──────────────────────────────────────────────────────────────────────────────────────


class SweepBar:
    """Shows progress in one line that is drawn over on a terminal.

    If the output is not a terminal, it prints one line for each run that ends, without escape
    sequences.
    """

    def __init__(self, out: TextIO) -> None:
        self._line = ProgressLine(out)
        self._drawn_at = 0.0

    def show(self, state: State, entry: Entry | None) -> None:
        """Show a state; the parameters are those of :data:`~gpuscope.lab.sweep.OnChange`."""
        if entry is not None:
            self._line.finished(f"{state.done}/{state.total}  {_ended(entry)}{_time_left(state)}")
        elif self._line.live and time.monotonic() - self._drawn_at >= DRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._line.draw(_progress(state))

    def close(self) -> None:
        """Leave an empty line behind."""
        self._line.clear()


def _progress(state: State) -> str:
    share = state.step / state.steps if state.steps else 0.0
    filled = round(BAR_CELLS * (state.done + share) / max(1, state.total))
    bar = "█" * filled + "░" * (BAR_CELLS - filled)
    name = state.plan.labels[state.cell]
    step = f"step {state.step}/{state.steps}" if state.step else "starting"
    done = f"{bar} {state.done}/{state.total}{_time_left(state)}"
    return f"{done}  repeat {state.repeat + 1}  {name}  {step}"


def _time_left(state: State) -> str:
    eta = state.eta_seconds()
    if eta is None or state.done >= state.total:
        return ""
    return f"  {age_text(max(eta, 1.0))} left"


def _ended(entry: Entry) -> str:
    what = f"repeat {entry.repeat + 1}  {entry.label}"
    if entry.failure:
        return f"{what}  failed: {entry.failure}"
    pace = entry.document.get("samples_per_second")
    return f"{what}  {pace_text(pace)} samples/s" if isinstance(pace, (int, float)) else what
