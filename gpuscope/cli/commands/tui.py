"""``gpuscope`` without a verb: the live TUI on this machine."""

from __future__ import annotations

import argparse

from ..args import seconds_between


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lab", action="store_true", help="start the lab's trainer too: something to look at"
    )
    parser.add_argument(
        "--oneline", action="store_true", help="one line for a status bar (tmux), and leave"
    )
    parser.add_argument(
        "--every",
        type=seconds_between(0.5, 3600),
        metavar="SECONDS",
        help="with --oneline: again and again, until Ctrl-C (0.5 to 3600)",
    )
    parser.add_argument(
        "--readonly", action="store_true", help="act on no process: no signal, attach or snapshot"
    )
    parser.add_argument("--debug", action="store_true", help="write a log; where, it says itself")


def run(args: argparse.Namespace) -> int:
    """The TUI's exit code; without a usable terminal that of ``devices``."""
    if args.oneline:
        from . import oneline

        return oneline.run(args)
    from ...tui.shell.launch import run_app

    start = "overview" if args.lab else None
    return run_app(
        start_screen=start, lab_autostart=args.lab, debug=args.debug, readonly=args.readonly
    )
