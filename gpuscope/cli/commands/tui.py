"""``gpuscope`` without a verb: the live TUI on this machine."""

from __future__ import annotations

import argparse

from ...errors import UsageError
from ..args import add_theme, flag, option, seconds_between
from ..watch import WATCH_SECONDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--lab", "also start the Lab's demo training, so that there is something to watch")
    flag(parser, "--oneline", "print one line for a status bar (tmux), then exit")
    option(
        parser,
        "--watch SECONDS",
        f"with --oneline: print it every SECONDS ({WATCH_SECONDS:g}) until Ctrl-C",
        seconds_between(0.5, 3600),
        nargs="?",
        const=WATCH_SECONDS,
    )
    flag(parser, "--readonly", "read only: no signal, attach or snapshot")
    add_theme(parser)
    flag(parser, "--debug", "write a log, and print where it is")


def run(args: argparse.Namespace) -> int:
    """The TUI's exit code; without a usable terminal that of ``devices``."""
    if args.oneline:
        from . import oneline

        return oneline.run(args)
    if args.watch is not None:
        raise UsageError(
            "--watch prints the line of --oneline again; the screen is always live",
            next=f"gpuscope --oneline --watch {args.watch:g}",
        )
    from ...tui.app.launch import run_app

    return run_app(
        start_screen="lab" if args.lab else "overview",
        lab_autostart=args.lab,
        debug=args.debug,
        readonly=args.readonly,
        theme=args.theme,
    )
