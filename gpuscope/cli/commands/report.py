"""Write one HTML file of a recording, a snapshot or a result: ``gpuscope report TARGET``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from ...errors import UsageError, UserError
from ...exit_status import ExitStatus
from ...text.units import bytes_text
from ...wire.clean import clean
from ..args import flag, option

TAKES = (
    "a recording, a black box, a snapshot, a ledger of runs, the name of a sweep, or a log, script "
    "or folder that gpuscope doctor examines; or the JSON document of why, doctor, predict, tune, "
    "lab, lab sweep or lab runs (- for standard input). Several targets make one page"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write one self-contained HTML page: what happened, where memory and time went, the "
        "findings with their evidence, and charts over time that zoom. It can be sent, printed and "
        "read without gpuscope."
    )
    parser.add_argument("targets", nargs="+", metavar="TARGET", help=TAKES)
    option(
        parser,
        "-o --output FILE",
        "the file to write, - for standard output (default: the target's name with .html, "
        "in this folder)",
    )
    flag(parser, "--redact", "leave out users, hosts, paths and arguments")
    flag(parser, "--force", "replace the file if it exists")


def run(args: argparse.Namespace) -> int:
    from ... import __version__
    from ...process.atomic_file import write_output
    from ...report import page
    from .. import report_inputs

    to_stdout = args.output == "-"
    path = Path(args.output) if args.output is not None else _name_for(args.targets[0])
    if not to_stdout:
        _refuse_bad_place(path, args.force)
    chapters = [
        one for target in args.targets for one in report_inputs.chapters(target, args.redact)
    ]
    when = time.strftime("%Y-%m-%d %H:%M:%S %z")
    text = page.html(chapters, f"Made by gpuscope {__version__} on {when}.")
    data = text.encode("utf-8", "replace")
    if to_stdout:
        # Another encoding would change the style and the script, which the page allows by hash.
        sys.stdout.buffer.write(data)
    else:
        try:
            write_output(path, data)
        except OSError as error:
            name = clean(str(path), 200)
            raise UserError(
                f"{name} cannot be written: {error.strerror or error}.", "", "-o FILE    elsewhere"
            ) from None
        print(f"{clean(str(path))}: {bytes_text(len(data))}", file=sys.stderr)
    complete = not any(one.problems for one in chapters)
    return ExitStatus.OK if complete else ExitStatus.WARNINGS


def _name_for(target: str) -> Path:
    if target == "-":
        return Path("report.html")
    stem = os.path.basename(target.rstrip("/")) or "report"
    for ending in (".gz", ".gsr", ".box", ".json", ".pickle"):
        stem = stem.removesuffix(ending)
    return Path(f"{stem}.html")


def _refuse_bad_place(path: Path, force: bool) -> None:
    from ...process.atomic_file import is_no_file

    name = clean(str(path), 200)
    if path.is_dir():
        raise UsageError(f"-o {name}: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"-o {name}: there is no such folder")
    if os.path.lexists(path) and not force and not is_no_file(path):
        raise UsageError(f"{name} exists already", next="-o another name, or --force replaces it")
