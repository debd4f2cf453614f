"""``gpuscope lab runs`` lists, compares, exports and removes the runs in the ledger.

Recordings can be compared with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....lab import tables
from ....lab.compare import Comparison, compare
from ....lab.comparison_row import ComparisonRow
from ....lab.intervals import noise_text, ratio_figures
from ....lab.ledger import Entry, RunLedger
from ....lab.measures import MEASURES
from ....lab.sweep import NoSuchSweep, SweepPlan, stored
from ....text import width
from ....text.units import DASH
from ....wire.clean import clean
from ... import args as types
from ... import output
from ...args import option
from ...main import sentence
from .sweep import kind_of, rendered, write

LISTED = 30
MAX_NUMBER = 10**15 - 1

COMPARANDS = """What can be compared:
  12              a run of the ledger, by its id
  12,15,18        several runs of one configuration
  GROUP:2         all runs of a sweep's second configuration
  FILE.gsr        a recording of your own trainer (FILE.gsr:PID if of several)"""


class NoSuchRun(UserError):
    """The ledger has no such run, or a file is not there."""

    exit_status = ExitStatus.PROBLEMS


ACTIONS = {
    "list": "list the newest runs (the default action)",
    "show": "show everything about a run, or the table of a sweep",
    "compare": "show ratios with their 95 % intervals, and what differs",
    "export": "write runs, or a sweep's table, as Markdown, CSV or JSON",
    "remove": "remove runs from the ledger",
    "set-aside": "rename an unusable ledger; the next run starts a new one",
}
"""What can be done with the ledger, in the order of the help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def add(action: str, **more: Any) -> argparse.ArgumentParser:
        text = ACTIONS[action]
        listed = text.replace("%", "%%")  # a description is printed as it is
        return actions.add_parser(action, help=listed, description=sentence(text), **more)

    listing = add("list")
    showing = add("show")
    showing.add_argument(
        "what", metavar="ID|GROUP", help="the number of a run, or the name of a sweep"
    )
    comparing = add(
        "compare",
        epilog=COMPARANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    comparing.add_argument("sides", nargs="+", metavar="A B", help="compare each B with A")
    option(
        comparing,
        "--samples-per-step N",
        "for recordings, so that samples/s and the loss at equal samples can be compared",
        types.whole_between(1, MAX_NUMBER),
    )
    exporting = add("export")
    an_id = types.whole_between(1, MAX_NUMBER)
    exporting.add_argument(
        "ids", nargs="*", type=an_id, metavar="ID", help="only these runs (default: all)"
    )
    exporting.add_argument("--group", help="write the table of this sweep")
    exporting.add_argument(
        "--format", choices=tables.FORMATS, help="default: by the name of FILE, else md"
    )
    option(exporting, "-o --output FILE", "the file to write (default: standard output)", Path)
    removing = add("remove")
    removing.add_argument("ids", nargs="*", type=an_id, metavar="ID", help="remove these runs")
    removing.add_argument("--group", help="remove all runs of this sweep")
    add("set-aside")
    # Options before the action must not be overwritten by the defaults of the action's parser.
    many = types.whole_between(1, MAX_NUMBER)
    for one, default in ((parser, LISTED), (listing, argparse.SUPPRESS)):
        option(one, "--limit N", f"show this many (default {LISTED})", many, default=default)
    for one, off in (
        (parser, False),
        *((one, argparse.SUPPRESS) for one in (listing, showing, comparing)),
    ):
        one.add_argument(
            "--json", action="store_true", default=off, help="a JSON document instead of text"
        )


def run(args: argparse.Namespace) -> int:
    actions = {
        "show": _show,
        "compare": _compare,
        "export": _export,
        "remove": _remove,
        "set-aside": _set_aside,
    }
    return actions.get(args.action, _list)(args, RunLedger())


# ── list and show ─────────────────────────────────────────────────────────────────────────────────


def _list(args: argparse.Namespace, ledger: RunLedger) -> int:
    entries = ledger.entries(limit=args.limit)
    if args.json:
        runs = [tables.run_mapping(entry) for entry in entries]
        print(output.dump({"ledger": str(ledger.path), "runs": runs}))
    elif not entries:
        print(
            f"The ledger {clean(str(ledger.path))} has no runs yet.\n"
            "Next: gpuscope lab --headless --steps 100"
        )
    else:
        rows = tables.runs_rows(entries)
        print(
            "\n".join(
                output.table(
                    [[width.cut(cell, 60) for cell in row] for row in rows],
                    right=[0, 4, 5, 6, 7, 8],
                )
            )
        )
    return ExitStatus.OK


def _show(args: argparse.Namespace, ledger: RunLedger) -> int:
    if not _is_id(args.what):
        plan = _plan(ledger, args.what)
        found = tables.results(plan, ledger.entries(limit=None, group=plan.group))
        print(rendered(plan, found, "json" if args.json else None), end="")
        return ExitStatus.OK
    entry = _entry(ledger, int(args.what))
    if args.json:
        print(output.dump(tables.run_mapping(entry, whole=True)))
        return ExitStatus.OK
    print("\n".join(_in_words(entry)))
    return ExitStatus.OK


def _in_words(entry: Entry) -> list[str]:
    rows = [["run", f"{entry.id}  {tables.described(entry)}"], ["when", tables.when(entry)]]
    rows += [["sweep", f"{entry.group}, repeat {entry.repeat + 1}"]] if entry.group else []
    rows += [["command", entry.config.command() + " --headless"]] if entry.config else []
    rows += [
        ["device", f"{entry.device_name or '–'} ({entry.device or '–'})"],
        ["torch", entry.torch_version or "–"],
    ]
    rows += [[str(name), str(value)] for name, value in entry.environment.items()]
    steps, skipped = entry.document.get("steps"), entry.document.get("skipped_steps")
    rows += (
        [["steps", f"{steps:,}" + (f", {skipped} skipped" if skipped else "")]]
        if isinstance(steps, int)
        else []
    )
    for measure in MEASURES:
        value = measure.take(entry.document)
        if value is not None:
            rows.append([measure.title, tables.figure(measure.key, value)])
    for key in ("loss_first", "loss_last"):
        if isinstance(entry.document.get(key), (int, float)):
            rows.append([key.replace("_", ", "), tables.figure("loss", entry.document[key])])
    for row in entry.document.get("unknown") or []:
        if isinstance(row, dict):
            rows.append([str(row.get("path")), f"unknown: {row.get('reason')}"])
    for key in ("failure", "problem"):
        if getattr(entry, key):
            rows.append([key, getattr(entry, key)])
    return output.table(rows)


def _entry(ledger: RunLedger, number: int) -> Entry:
    entry = ledger.get(number)
    if entry is None:
        raise NoSuchRun(f"The ledger has no run {number}.", "", "gpuscope lab runs    lists them")
    return entry


def _plan(ledger: RunLedger, group: str) -> SweepPlan:
    """Return the plan of a sweep. Raises NoSuchRun where the ledger has none of this name."""
    try:
        return stored(ledger, group)
    except NoSuchSweep as error:
        raise NoSuchRun(error.what, error.why, error.next) from None


def _is_id(word: str) -> bool:
    """Say whether a word that may mean several things is the id of a run."""
    try:
        return types.whole_between(1, MAX_NUMBER)(word) > 0
    except argparse.ArgumentTypeError:
        return False


# ── compare ───────────────────────────────────────────────────────────────────────────────────────


def _compare(args: argparse.Namespace, ledger: RunLedger) -> int:
    if len(args.sides) < 2:
        raise UsageError(f"compare needs two or more sides.\n{COMPARANDS}")
    sides = [side(ledger, word, args.samples_per_step) for word in args.sides]
    compared = [compare(sides[0], other) for other in sides[1:]]
    if args.json:
        rows = [
            comparison_mapping(one, args.sides[0], word)
            for one, word in zip(compared, args.sides[1:], strict=True)
        ]
        print(output.dump({"comparisons": rows}))
    else:
        print("\n\n".join("\n".join(comparison_lines(one)) for one in compared))
    return ExitStatus.OK


def side(ledger: RunLedger, word: str, samples: int | None = None) -> list[Entry]:
    """Return the entries that an argument of ``compare`` means.

    Raises UsageError, NoSuchRun, LedgerError, SweepError and RecordedError.
    """
    name, colon, last = word.rpartition(":")
    for path, pid in ((Path(word), None), (Path(name), last)):
        if path.suffix and path.is_file() and (pid is None or pid.isdigit()):
            return [_recorded(path, None if pid is None else int(pid[:15]), samples)]
    if all(map(_is_id, word.split(","))):
        return [_entry(ledger, int(part)) for part in word.split(",")]
    if word.partition(":")[0].endswith((".gsr", ".box")):
        raise NoSuchRun(f"There is no file {word}.")
    plan = _plan(ledger, name if colon else word)
    if not colon or not last.isdigit() or not 1 <= int(last[:6]) <= len(plan.cells):
        cells = "\n".join(
            f"  {plan.group}:{number}    {label}" for number, label in enumerate(plan.labels, 1)
        )
        raise UsageError(
            f"{word} is a sweep of {len(plan.cells)} configurations: name one.\n{cells}"
        )
    found = tables.results(plan, ledger.entries(limit=None, group=plan.group))[int(last[:6]) - 1]
    if not found.runs:
        raise NoSuchRun(
            f"{word} has not been run yet.\nNext: gpuscope lab sweep --resume {plan.group}"
        )
    return found.runs


def _recorded(path: Path, pid: int | None, samples: int | None) -> Entry:
    # This imports the decoder of frames, which the ledger does not need.
    from .recorded import comparand

    return comparand(path, pid, samples).entry


def comparison_mapping(one: Comparison, a: str, b: str) -> dict[str, Any]:
    return {
        "a": {"name": clean(a), "runs": [tables.run_mapping(entry) for entry in one.a]},
        "b": {"name": clean(b), "runs": [tables.run_mapping(entry) for entry in one.b]},
        "differing": [
            {"name": c.name, "a": c.a, "b": c.b, "toggle": c.toggle} for c in one.changes
        ],
        "rows": tables.comparison_rows(one),
        "break_even_step": one.break_even_step,
        "break_even_reason": one.break_even_reason or None,
        "notes": one.notes,
    }


def comparison_lines(one: Comparison) -> list[str]:
    """Return for a terminal what is compared, what differs, the figures and the notes."""
    lines = [f"{letter}  {_heading(entries)}" for letter, entries in (("A", one.a), ("B", one.b))]
    toggles = [f"{c.name} {c.a} → {c.b}" for c in one.changes if c.toggle]
    others = [f"{c.name} {c.a} → {c.b}" for c in one.changes if not c.toggle]
    configs_known = all(entries[0].config for entries in (one.a, one.b))
    if toggles or configs_known:
        lines.append(f"differing settings: {', '.join(toggles) or 'none'}")
    lines += [f"other differences: {', '.join(others)}"] if others else []
    rows = [["", "A", "B", "B / A", "95 %", "", "from"]]
    for row in one.rows:
        figures = [tables.figure(row.key, value) for value in (row.a, row.b)]
        rows.append(
            [
                row.title,
                *figures,
                *_ratio_cells(row),
                "" if row.verdict == "undecided" else row.verdict,
                row.basis or f"unknown: {row.reason}",
            ]
        )
    lines += ["", *output.table(rows, right=[1, 2, 3, 4]), ""]
    if one.break_even_step is not None:
        lines.append(
            f"The compiled one makes up for its longer warm-up {one.break_even_step:,} steps "
            "after it."
        )
    elif not one.break_even_reason.startswith(("both", "neither")):
        lines.append(f"No break-even: {one.break_even_reason}.")
    lines += [f"Note: {note}." for note in one.notes]
    return lines


def _ratio_cells(row: ComparisonRow) -> tuple[str, str]:
    if row.ratio is None:
        return DASH, DASH
    ratio, *ends = ratio_figures(row.ratio, row.low, row.high)
    return f"{ratio} ×", noise_text(row.low, row.high) if row.wide else " … ".join(ends) or DASH


def _heading(entries: Sequence[Entry]) -> str:
    first = entries[0]
    which = (
        f"run{'s' if len(entries) > 1 else ''} {', '.join(str(e.id) for e in entries)}: "
        if first.id
        else ""
    )
    torch = f", torch {first.torch_version}" if first.torch_version else ""
    return (
        f"{which}{tables.described(first)}    "
        f"{first.device_name or first.device or 'unknown device'}{torch}"
    )


# ── export, remove, set aside ─────────────────────────────────────────────────────────────────────


def _export(args: argparse.Namespace, ledger: RunLedger) -> int:
    kind = kind_of(args.output, args.format)
    if args.group:
        plan = _plan(ledger, args.group)
        text = rendered(
            plan, tables.results(plan, ledger.entries(limit=None, group=plan.group)), kind
        )
    else:
        entries = (
            [_entry(ledger, number) for number in args.ids]
            if args.ids
            else ledger.entries(limit=None)
        )
        text = _exported(entries, kind)
    if args.output is None:
        print(text, end="")
    else:
        write(args.output, text)
    return ExitStatus.OK


def _exported(entries: Sequence[Entry], kind: str) -> str:
    if kind == "csv":
        return tables.runs_csv(entries)
    if kind == "json":
        runs = [tables.run_mapping(entry, whole=True) for entry in entries]
        return output.dump({"runs": runs}) + "\n"
    return tables.runs_markdown(entries)


def _remove(args: argparse.Namespace, ledger: RunLedger) -> int:
    if bool(args.ids) == bool(args.group):
        raise UsageError("remove takes ids, or --group GROUP.")
    if args.group:
        count = ledger.remove_group(args.group)
        if not count:
            raise NoSuchRun(f"The ledger has no runs of {args.group}.")
        print(f"Removed: {count} runs of {clean(args.group)}.")
        return ExitStatus.OK
    missing = [str(number) for number in args.ids if not ledger.remove(number)]
    if len(missing) < len(args.ids):
        print(f"Removed: {', '.join(str(n) for n in args.ids if str(n) not in missing)}.")
    if missing:
        raise NoSuchRun(f"The ledger has no run {', '.join(missing)}.")
    return ExitStatus.OK


def _set_aside(args: argparse.Namespace, ledger: RunLedger) -> int:
    new = ledger.set_aside()
    print(
        f"Renamed to {clean(str(new))}. The next run starts a new ledger."
        if new
        else "No ledger yet."
    )
    return ExitStatus.OK
