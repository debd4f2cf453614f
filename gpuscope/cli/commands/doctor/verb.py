"""Run ``gpuscope doctor``.

It examines, once, an environment, a log, a script, a trainer or what a trainer left behind.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ....doctor import report as reports
from ....doctor import table
from ....doctor.finding import Pitfall, Report
from ....errors import UsageError
from ....exit_status import FAIL_ON, ExitStatus
from ....missing_file import MissingFile, is_missing_file
from ....wire.clean import clean
from ... import output, remote
from ...args import flag, option
from . import targets as doctor_targets

if TYPE_CHECKING:
    from ....text.styled import Line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = (
        "what to examine: a PID, a script or a folder of scripts, a log (- for standard input), a "
        "snapshot, an out-of-memory record, a black box or a recording; the kind is detected. For "
        "a dead job: one or several folders with its logs and dumps, USER@HOST:DIR, or slurm:JOB; "
        "the answer names the rank that failed first. For another host: USER@HOST or "
        "USER@HOST:PID. Default: this machine's environment and every trainer on it"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=targets)
    output.add_arguments(parser)
    remote.add_arguments(parser)
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="warning",
        help="the lowest severity that sets the exit code: warning (exit code 1) or problem (2) "
        "(default: warning)",
    )
    flag(parser, "--torch", "also import torch in a child process, and ask it (10 s at most)")
    option(
        parser,
        "--predict 'WORDS'",
        "for findings about memory: predict what each fix would free for this model, which "
        "is named as for gpuscope predict",
    )
    option(
        parser,
        "--symptom 'WORDS'",
        "what goes wrong, in your own words: 'loss is nan after 200 steps in fp16'. With or "
        "without a TARGET",
    )
    option(parser, "--bundle FILE", "also write a redacted .zip to share when you ask for help")
    flag(parser, "--list", "list every known pitfall")
    option(
        parser,
        "--explain ID",
        "explain one pitfall: its symptoms, its fixes, and when not to apply them; for words "
        "such as oom, slow or hang, list the pitfalls that have them",
    )


def run(args: argparse.Namespace) -> int:
    known = table.load()
    if args.list or args.explain is not None:
        return _explain(args, known)
    symptom = (args.symptom or "").strip()
    if args.symptom is not None and not symptom:
        raise UsageError("--symptom takes words, such as 'memory grows with every epoch'")
    if len(args.targets) == 1 and is_missing_file(args.targets[0]) and not args.json:
        raise MissingFile(args.targets[0])
    found = reports.finish(
        doctor_targets.examine(args.targets, args.torch, args.timeout, args, symptom), known
    )
    if args.predict:
        from .predicted import with_predictions

        found = with_predictions(found, args.predict)
    code = reports.exit_code(found, args.fail_on)
    if args.bundle is not None:
        found, code = _bundled(args, found, code)
    if args.json:
        print(output.dump(reports.document(found, code)))
    else:
        print_lines(reports.lines(found, code, width()))
    return code


def _explain(args: argparse.Namespace, known: dict[str, Pitfall]) -> int:
    from ....doctor import explain

    if args.targets or args.symptom is not None or (args.list and args.explain is not None):
        raise UsageError("--list and --explain ID take no other arguments")
    if args.list:
        if args.json:
            print(output.dump({"pitfalls": [explain.document(one) for one in known.values()]}))
        else:
            print_lines(explain.listed(known.values(), width()))
        return ExitStatus.OK
    found = explain.matching(known.values(), args.explain)
    row = known.get(args.explain) or (found[0] if len(found) == 1 else None)
    if row is None and found:
        if args.json:
            print(output.dump({"pitfalls": [explain.document(one) for one in found]}))
        else:
            print_lines(explain.found_lines(found, clean(args.explain, 80), width()))
        return ExitStatus.OK
    if row is None:
        from difflib import get_close_matches

        near = get_close_matches(args.explain[:80], known, 3, 0.5)
        suggestion = f" Did you mean: {', '.join(near)}?" if near else ""
        shown = clean(args.explain, 80)
        raise UsageError(
            f"no such pitfall: {shown}.{suggestion}", next="gpuscope doctor --list    shows all"
        )
    if args.json:
        print(output.dump(explain.document(row)))
    else:
        print_lines(explain.explained(row, width()))
    return ExitStatus.OK


def _bundled(args: argparse.Namespace, found: Report, code: int) -> tuple[Report, int]:
    """Writes the bundle. One that cannot be written is said in the report too."""
    from . import bundle as doctor_bundle

    try:
        size = doctor_bundle.write(args.bundle, reports.document(found, code))
    except OSError as error:
        why = f"The bundle {clean(args.bundle, 200)} was not written ({error.strerror or error})."
        found += Report(problems=(why,))
        return found, reports.exit_code(found, args.fail_on)
    summary = (
        f"gpuscope doctor: {clean(args.bundle, 200)}: {size:,} bytes, without names, hosts and "
        "paths. Check it before "
    )
    print(summary + f"you send it:  unzip -p {clean(args.bundle, 200)}", file=sys.stderr)
    return found, code


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def print_lines(lines: list[Line]) -> None:
    """Print a report, without our signs where the encoding lacks them."""
    output.print_lines([(_fitting(text), token) for text, token in line] for line in lines)


def width() -> int:
    """Return how wide a report is."""
    return output.page_width(50, 140)


def _fitting(text: str) -> str:
    encoding: Any = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return reports.in_ascii(text)
    return text
