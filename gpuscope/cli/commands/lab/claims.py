"""``gpuscope lab claims``: what tutorials claim about GPU training, measured on this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from ....errors import UsageError
from ....exit_status import ExitStatus
from ....lab import claim_report
from ....lab.claim_run import Machine, Options, Runner, expected_seconds, look
from ....lab.claim_table import BY_ID, CLAIMS
from ....lab.claims import WORDS, Claim, Result
from ....lab.launch import find_python
from ....process import atomic_file
from ....text.units import duration_text

FORMATS = ("text", "md", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="ID,…", default="", help="only these claims: " + ", ".join(BY_ID))
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to measure")
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats of each figure, 2 to 100 (default 5)")
    parser.add_argument("--quick", action="store_true", help="3 repeats: wider intervals")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="longest that one claim may take")
    parser.add_argument("--list", action="store_true", help="the claims and their thresholds; measures nothing")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to print the results")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there too, again after each claim")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # to see that every measure works


def run(args: argparse.Namespace) -> int:
    """Exit code 0: each claim is decided or cannot be tested here; 1: some are undecided; 3: no Python with torch, or
    nothing can be measured; 64: no such claim; 130: Ctrl-C, with the results so far."""
    names = [name for name in args.only.split(",") if name]
    wrong = [name for name in names if name not in BY_ID]
    problem = f"there is no claim {wrong[0]!r}. Claims: {', '.join(BY_ID)}" if wrong else _bounds(args)
    if problem:
        raise UsageError(problem)
    claims = [claim for claim in CLAIMS if not names or claim.id in names]
    if args.list:
        print("\n".join(_listed(claim) for claim in claims))
        return ExitStatus.OK
    options = Options(args.device, args.repeats, args.quick, args.limit, args.tiny)
    machine = look(find_python(), args.device)
    return _measure(claims, machine, options, "json" if args.json else args.format, args.output)


def _bounds(args: argparse.Namespace) -> str:
    if args.repeats is not None and not 2 <= args.repeats <= 100:
        return "--repeats takes a whole number from 2 to 100"
    if args.limit is not None and not 1 <= args.limit <= 86_400:
        return "--limit takes a number of seconds from 1 to 86,400"
    return ""


def _measure(claims: list[Claim], machine: Machine, options: Options, form: str, output: Path | None) -> int:
    begun = time.monotonic()
    results: dict[str, Result] = {}

    def say(line: str) -> None:
        print(f"[{len(results) + 1:2}/{len(claims)}] {line}", file=sys.stderr, flush=True)

    def formatted(shape: str) -> str:
        found = [results[claim.id] for claim in claims if claim.id in results]
        if shape == "json":
            document = claim_report.document(found, machine, options, time.monotonic() - begun, len(claims))
            return json.dumps(document, indent=2, allow_nan=False)
        if shape == "md":
            return claim_report.markdown(found, machine)
        width = min(shutil.get_terminal_size((claim_report.WIDTH, 24)).columns, 140)
        return claim_report.text(found, width) + "\n\n" + claim_report.summary(found)

    def done(result: Result) -> None:
        results[result.claim.id] = result
        print(f"        {WORDS[result.verdict]}, {duration_text(result.seconds)}", file=sys.stderr, flush=True)
        if output is not None:
            _write(output, formatted(_shape(output, form)) + "\n")

    expected = expected_seconds(claims, machine, options)
    print(
        f"{machine.name}, torch {machine.facts.get('torch_version')}: {_count(len(claims))}, {options.count} repeats, "
        f"about {duration_text(expected)}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    for warning in machine.warnings:
        print(f"Warning: {warning}.", file=sys.stderr)
    code: int = ExitStatus.OK
    try:
        Runner(machine, options, say, done).run(claims)
    except KeyboardInterrupt:
        print("Stopped: the results so far.", file=sys.stderr)
        code = ExitStatus.INTERRUPTED
    except OSError as error:
        print(
            f"gpuscope lab claims: stopped.\nWhy: {error}\nNext: df -h {output or tempfile.gettempdir()}",
            file=sys.stderr,
        )
        code = ExitStatus.UNCHECKED
    print(formatted(form))
    if code == ExitStatus.OK and any(result.verdict == "undecided" for result in results.values()):
        code = ExitStatus.WARNINGS
    return code


def _count(number: int) -> str:
    return f"{number} claim{'' if number == 1 else 's'}"


def _shape(output: Path, form: str) -> str:
    """The file's own form where its name tells, else that of the output."""
    return {".json": "json", ".md": "md", ".txt": "text"}.get(output.suffix, form)


def _write(path: Path, content: str) -> None:
    """Replaces the file as a whole: what cuts this off leaves the results before."""
    atomic_file.write_text(path, content, mode=0o666)


def _listed(claim: Claim) -> str:
    lines = [f"{claim.id}: {claim.statement} ({claim.stated})"]
    lines += [
        f"  {figure.title}  {figure.threshold}" + ("" if figure.counts else "  (shown only)")
        for figure in claim.figures
        if figure.judged
    ]
    lines += [f"  on {device}: {words}" for device in ("cuda", "cpu") if (words := claim.configuration(device))]
    lines += [f"  on cpu: cannot be tested, {claim.cannot_cpu}"] if claim.cannot_cpu else []
    return "\n".join(lines)
