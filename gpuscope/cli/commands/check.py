"""Check the trainings of a project against their budgets, without a GPU.

``gpuscope check`` predicts each, compares it with the committed baseline, and says which module and
which changed line brought the bytes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ...errors import UserError
from ...exit_status import FAIL_ON, of_severities
from .. import output
from ..args import flag, option, seconds_between, whole_between
from ..progress_line import ProgressLine

if TYPE_CHECKING:
    from ...check.outcome import Checked

SECONDS = 300.0
MIN_WIDTH, MAX_WIDTH = 60, 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="the trainings to check (default: all)"
    )
    option(
        parser,
        "--base REVISION",
        "compare with this git revision, and name the changed lines that added memory",
    )
    flag(parser, "--update", "write the baseline to gpuscope-check.lock")
    option(
        parser,
        "--config FILE",
        "the budgets (default: gpuscope.toml or pyproject.toml, here or in a folder above)",
        Path,
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default="warning",
        help="the lowest severity that sets the exit code: warning (exit code 1) or problem (2) "
        "(default: warning)",
    )
    option(
        parser,
        "--timeout SECONDS",
        f"start no further training after this long (default {SECONDS:g})",
        seconds_between(1, 86400),
        default=SECONDS,
    )
    option(
        parser,
        "--steps N",
        "also run each training here three times for N steps, to check its time budgets",
        whole_between(1, 1_000_000),
    )
    printed = parser.add_argument_group("output")
    flag(printed, "--json", "a JSON document instead of text")
    option(printed, "--junit FILE", "also write JUnit XML, a test for each budget", Path)
    option(printed, "--sarif FILE", "also write SARIF 2.1.0", Path)
    printed.add_argument(
        "--github",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also print annotations for GitHub (default: in a GitHub workflow)",
    )


def run(args: argparse.Namespace) -> int:
    from ...check import run
    from ...check.document import document
    from ...check.text import lines
    from .doctor.verb import print_lines

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    progress = ProgressLine(sys.stderr, not args.json)
    request = run.CheckRequest(
        args.names, args.base, args.update, args.timeout, args.config, args.steps, progress.say
    )
    try:
        checked = run.run(Path.cwd(), request)
    finally:
        progress.clear()
    code = of_severities(checked.severities(), args.fail_on)
    _write(args, checked)
    if args.json:
        print(output.dump(document(checked, code)))
    else:
        print_lines(lines(checked, code, output.page_width(MIN_WIDTH, MAX_WIDTH)))
    return code


def _write(args: argparse.Namespace, checked: Checked) -> None:
    """Write what is meant for other programs. Raises :class:`UserError`."""
    from ...check import github, junit, sarif

    if args.junit is not None:
        _file(args.junit, junit.document(checked))
    if args.sarif is not None:
        _file(args.sarif, (output.dump(sarif.document(checked)) + "\n").encode())
    if github.wanted(os.environ) if args.github is None else args.github:
        # With --json, standard output holds the document alone; a workflow reads both.
        stream = sys.stderr if args.json else sys.stdout
        for command in github.commands(checked):
            print(command, file=stream)


def _file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path} could not be written.", str(error.strerror), "df -h .") from None


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    """End as by an exception, so that temporary folders and children are cleaned up."""
    sys.exit(128 + number)
