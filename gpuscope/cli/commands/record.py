"""Record a session of this machine, or of another, to a file: ``gpuscope record FILE``.

No screen is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from ...exit_status import ExitStatus
from ...text.units import age_text, bytes_text, duration_text, window_text
from ...wire.clean import clean
from .. import remote
from ..args import flag, option, sample_rate, seconds_between
from ..progress_line import ProgressLine

if TYPE_CHECKING:
    from ...store.recorder import RecordingSummary
    from ...store.view import Link

PROGRESS_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the file to write, usually NAME.gsr"
    )
    option(
        parser,
        "--duration SECONDS",
        "how long to record (default: until Ctrl-C)",
        seconds_between(0.1, 30 * 86400.0),
    )
    option(
        parser, "--hz RATE", "samples per second, 0.1 to 10 (default 2)", sample_rate, default=2.0
    )
    flag(parser, "--redact", "leave out users, host, paths and arguments")
    flag(parser, "--force", "replace the file if it exists")
    where = "[USER@]HOST, slurm:JOB, k8s:NAMESPACE/POD (default: this machine)"
    option(parser, "--from TARGET", where, dest="place")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ...wire.recording import RecordingError

    if args.file.is_dir():
        inside = quote(str(args.file / "run.gsr"))
        print(
            f"gpuscope record: cannot write {_name(args.file)}: Is a directory. Next: gpuscope "
            f"record {clean(inside)}",
            file=sys.stderr,
        )
        return ExitStatus.UNCHECKED
    try:
        with contextlib.ExitStack() as stack:
            summary, why = asyncio.run(_record(args, stack))
    except RecordingError as error:
        if args.file.is_file() and not args.force:
            error.next = (
                f"gpuscope record --force {clean(quote(str(args.file)))}    or another name"
            )
        elif not args.file.parent.is_dir():
            error.next = f"mkdir -p {clean(quote(str(args.file.parent)))}    makes its folder"
        raise
    took, size = duration_text(summary.seconds), bytes_text(summary.size_bytes)
    print(f"{_name(summary.path)}: {took}, {summary.lines:,} lines, {size}", file=sys.stderr)
    if summary.error:
        print(f"It ended early: {summary.error}", file=sys.stderr)
        return ExitStatus.PROBLEMS
    if not summary.lines:
        # An empty file would only get in the way of the next attempt.
        summary.path.unlink(missing_ok=True)
        print(f"The agent sent nothing{': ' + why if why else ''}.", file=sys.stderr)
        return ExitStatus.UNCHECKED
    print(f"Next: gpuscope replay {clean(quote(str(summary.path)))}", file=sys.stderr)
    return ExitStatus.OK


def _name(path: Path) -> str:
    return clean(str(path))


async def _record(
    args: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[RecordingSummary, str]:
    from ...config import load
    from ...store.recorder import record
    from ..one_trainer import source_at

    settings, problems = load()
    for problem in problems:
        print(f"gpuscope record: {problem}", file=sys.stderr)
    place = (
        await asyncio.to_thread(remote.one_place, args, args.place)
        if args.place is not None or args.via
        else None
    )
    source = await source_at(args, place, stack, args.hz, settings)
    last = now = ""

    def on_link(link: Link) -> None:
        nonlocal last, now
        now = link.text if link.state != "live" else ""
        last = now or last

    progress = asyncio.ensure_future(_progress(args.file, args.duration, lambda: now))
    try:
        return await record(
            source, args.file, args.duration, args.redact, args.force, on_link
        ), last
    finally:
        progress.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await progress


async def _progress(path: Path, seconds: float | None, waits: Callable[[], str]) -> None:
    """Print the progress in one line on standard error, updated in place on a terminal.

    ``waits`` says why nothing arrives, "" while data arrives.
    """
    shown = ProgressLine(sys.stderr)
    end = (
        "stops at Ctrl-C" if seconds is None else f"of {window_text(seconds)}, Ctrl-C stops earlier"
    )
    if not shown.live:
        shown.finished(f"gpuscope: recording to {_name(path)} ({end})")
        return
    began = time.monotonic()
    try:
        while True:
            with contextlib.suppress(OSError):
                size = bytes_text(path.stat().st_size)
                line = f"recording {age_text(time.monotonic() - began)} ({end}), {size}"
                shown.draw(f"waiting: {clean(waits(), 400)}" if waits() else line)
            await asyncio.sleep(PROGRESS_SECONDS)
    finally:
        shown.clear()
