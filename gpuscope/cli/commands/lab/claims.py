"""``gpuscope lab claims`` measures on this machine what tutorials claim about GPU training."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from ....exit_status import ExitStatus
from ....lab import claim_report
from ....lab.claim_run import LIMIT_SECONDS, QUICK_REPEATS, REPEATS, Machine, look, measure
from ....lab.claims import BY_ID, CLAIMS, Claim, ClaimResult, in_words
from ....lab.launch import find_python
from ....process import atomic_file
from ....text.units import count_text, duration_text
from ... import args as types
from ...args import flag, option
from ...output import dump

FORMATS = ("text", "md", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "--only ID,…", "only these claims: " + ", ".join(BY_ID), _claims, default=CLAIMS)
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to measure"
    )
    option(
        parser,
        "--repeats N",
        f"repeats of each figure, 2 to 100 (default {REPEATS})",
        types.whole_between(2, 100),
    )
    flag(parser, "--quick", f"only {QUICK_REPEATS} repeats, so wider intervals")
    option(
        parser,
        "--timeout SECONDS",
        f"give up on a claim after this long (default {LIMIT_SECONDS:g})",
        types.seconds_between(1, 86_400),
        default=LIMIT_SECONDS,
    )
    flag(parser, "--list", "list the claims and their thresholds, and measure nothing")
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="how to print the results"
    )
    flag(parser, "--json", "the same as --format json")
    option(
        parser, "-o --output FILE", "also write the results to this file, after each claim", Path
    )


def _claims(text: str) -> tuple[Claim, ...]:
    """Return the claims that are named, in the order of the table."""
    names = [name for name in text.split(",") if name]
    wrong = [name for name in names if name not in BY_ID]
    if wrong:
        raise argparse.ArgumentTypeError(
            f"there is no claim {wrong[0]!r}. Claims: {', '.join(BY_ID)}"
        )
    return tuple(claim for claim in CLAIMS if not names or claim.id in names)


def run(args: argparse.Namespace) -> int:
    if args.list:
        if args.json or args.format == "json":
            listed = {"claims": [_listed_document(claim) for claim in args.only]}
            print(dump(listed))
        else:
            print("\n".join(_listed(claim) for claim in args.only))
        return ExitStatus.OK
    machine = look(find_python(), args.device)
    return _measure(args, machine, args.repeats or (QUICK_REPEATS if args.quick else REPEATS))


def _measure(args: argparse.Namespace, machine: Machine, repeats: int) -> int:
    claims, form, output = args.only, "json" if args.json else args.format, args.output
    begun = time.monotonic()
    results: list[ClaimResult] = []

    def formatted(shape: str) -> str:
        if shape == "json":
            document = claim_report.document(
                results, machine, repeats, time.monotonic() - begun, len(claims)
            )
            return dump(document)
        if shape == "md":
            return claim_report.markdown(results, machine)
        width = min(shutil.get_terminal_size((claim_report.WIDTH, 24)).columns, 140)
        return claim_report.text(results, width) + "\n\n" + claim_report.summary(results)

    count = count_text(len(claims), "claim")
    _say(f"{machine.name}, {machine.versions}: {count}, {repeats} repeats")
    _say(*(f"Warning: {warning}." for warning in machine.warnings))
    code: int = ExitStatus.OK
    try:
        with tempfile.TemporaryDirectory(
            prefix="gpuscope-claims-", ignore_cleanup_errors=True
        ) as scratch:
            for number, claim in enumerate(claims, 1):
                _say(f"[{number:2}/{len(claims)}] {claim.id}: {claim.statement}")
                result = measure(claim, machine, Path(scratch), repeats, args.timeout)
                _say(f"        {in_words(result.verdict)}, {duration_text(result.seconds)}")
                results.append(result)
                if output is not None:
                    # It is replaced in one step, so that an interruption leaves the results so far.
                    text = formatted(_shape(output, form)) + "\n"
                    atomic_file.write_output(output, text.encode())
    except KeyboardInterrupt:
        _say("Stopped: the results so far.")
        code = ExitStatus.INTERRUPTED
    except OSError as error:
        place = output or tempfile.gettempdir()
        _say(f"gpuscope lab claims: stopped.\nWhy: {error}\nNext: df -h {place}")
        code = ExitStatus.UNCHECKED
    print(formatted(form))
    if code == ExitStatus.OK and any(result.verdict == "undecided" for result in results):
        code = ExitStatus.WARNINGS
    return code


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _shape(output: Path, form: str) -> str:
    """Return the file's own form where its name tells, else that of the output."""
    return {".json": "json", ".md": "md", ".txt": "text"}.get(output.suffix, form)


def _listed_document(claim: Claim) -> dict[str, object]:
    """Return a claim and its thresholds; null where a figure has no bound on that side."""
    return {
        "id": claim.id,
        "statement": claim.statement,
        "stated": claim.stated,
        "cannot_cpu": claim.cannot_cpu or None,
        "figures": [
            {
                "key": figure.key,
                "title": figure.title,
                "unit": figure.unit,
                **figure.ends,
                "counts": figure.counts,
            }
            for figure in claim.figures.values()
            if figure.judged
        ],
    }


def _listed(claim: Claim) -> str:
    lines = [f"{claim.id}: {claim.statement} ({claim.stated})"]
    lines += [
        f"  {figure.title}  {figure.threshold}" + ("" if figure.counts else "  (shown only)")
        for figure in claim.figures.values()
        if figure.judged
    ]
    lines += [
        f"  on {device}: {words}"
        for device in ("cuda", "cpu")
        if (words := claim.configuration(device))
    ]
    lines += [f"  on cpu: cannot be tested, {claim.cannot_cpu}"] if claim.cannot_cpu else []
    return "\n".join(lines)
