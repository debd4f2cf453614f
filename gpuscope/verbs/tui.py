"""``gpuscope`` without a verb: the live TUI on this machine."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lab", action="store_true", help="start the lab's trainer too: something to look at")
    parser.add_argument("--debug", action="store_true", help="write a log; where, it says itself")


def run(args: argparse.Namespace) -> int:
    """The TUI's exit code; without a usable terminal that of ``devices``."""
    from ..tui.launch import run_app

    return run_app(start_screen="overview" if args.lab else None, lab_autostart=args.lab, debug=args.debug)
