"""``gpuscope`` without a verb: the live TUI on this machine."""

from __future__ import annotations

import argparse

from ..args import add_theme, former_names, seconds_between
from ..watch import WATCH_SECONDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lab",
        action="store_true",
        help="also start the Lab's demo training, so that there is something to watch",
    )
    parser.add_argument(
        "--oneline", action="store_true", help="print one line for a status bar (tmux), then exit"
    )
    again = parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds_between(0.5, 3600),
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"with --oneline: print it every SECONDS ({WATCH_SECONDS:g}) until Ctrl-C",
    )
    former_names(parser, again, "--every")
    parser.add_argument(
        "--readonly", action="store_true", help="read only: no signal, attach or snapshot"
    )
    add_theme(parser)
    parser.add_argument("--debug", action="store_true", help="write a log, and print where it is")


def run(args: argparse.Namespace) -> int:
    """The TUI's exit code; without a usable terminal that of ``devices``."""
    if args.oneline:
        from . import oneline

        return oneline.run(args)
    from ...tui.app.launch import run_app

    return run_app(
        start_screen="lab" if args.lab else "overview",
        lab_autostart=args.lab,
        debug=args.debug,
        readonly=args.readonly,
        theme=args.theme,
    )
