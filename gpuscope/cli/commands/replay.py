"""``gpuscope replay FILE``: travel through a recording."""

from __future__ import annotations

import argparse
import os
import sys

from ...exit_status import ExitStatus
from ...missing_file import MissingFile
from ..args import add_theme, flag, number_between, option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a recording made by `gpuscope record`, or the black box of a trainer that ended"
    parser.add_argument("file", metavar="FILE", help=what)
    option(
        parser,
        "--speed X",
        "playback speed, 0.1 to 100 (default 1)",
        number_between(0.1, 100),
        default=1.0,
    )
    add_theme(parser)
    flag(parser, "--debug", "write a log, and print where it is")


def run(args: argparse.Namespace) -> int:
    from ...store.replay import ReplaySource

    if not os.path.lexists(args.file):
        raise MissingFile(str(args.file))
    source = ReplaySource(args.file)
    if not source.duration_seconds:
        print(
            f"gpuscope replay: {source.problem or 'the recording is empty'}\n"
            "Next: gpuscope record FILE    makes one;    gpuscope ps    names the black boxes of "
            "trainers that ended",
            file=sys.stderr,
        )
        return ExitStatus.UNCHECKED
    from ...tui.app.launch import run_app

    source.set_speed(args.speed)
    return run_app(replay=source, debug=args.debug, theme=args.theme)
