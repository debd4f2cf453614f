"""Look at a host once, or print lines of this one again and again: ``--watch``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..exit_status import ExitStatus
from .args import option, seconds_between

if TYPE_CHECKING:
    from .local_look import LocalLook

WATCH_SECONDS = 2.0


def add_argument(parser: argparse.ArgumentParser, what: str, or_until: str = "") -> None:
    """The option. ``what`` is what a line is about; ``or_until`` says what else ends it."""
    option(
        parser,
        "--watch SECONDS",
        f"print a line per {what} every SECONDS ({WATCH_SECONDS:g}) until Ctrl-C{or_until}",
        seconds_between(0.1, 600),
        nargs="?",
        const=WATCH_SECONDS,
    )


def look_once(
    args: argparse.Namespace, verb: str, look: Callable[..., LocalLook]
) -> LocalLook | int:
    """Look at this machine, or at the place of the arguments; return an exit code if that fails."""
    if not is_elsewhere(args):
        return look(timeout=args.timeout)
    from .remote_look import look_at_target

    return look_at_target(args, verb, want_trainers=verb == "ps")


def is_elsewhere(args: argparse.Namespace) -> bool:
    """Say whether the arguments of a verb name another host."""
    return args.target is not None or bool(args.via)


def watch(
    args: argparse.Namespace,
    once: Callable[[], tuple[list[str], int]],
    rounds: int | None = None,
    end: int | None = None,
) -> int:
    """Print the lines of ``once`` every ``args.watch`` seconds, flushed.

    Each output begins with the time, unless it is JSON. The loop ends when the exit code of
    ``once`` equals ``end``, at Ctrl-C, when the reader has gone, or after ``rounds``. It returns
    the last exit code.
    """
    if is_elsewhere(args):
        raise UsageError(
            "--watch works on this machine only. For another host: gpuscope TARGET, or gpuscope "
            "record TARGET"
        )
    code: int = ExitStatus.OK
    try:
        while rounds is None or rounds > 0:
            began = time.monotonic()
            lines, code = once()
            clock = "" if args.json else time.strftime("%H:%M:%S ")
            for line in lines:
                print(f"{clock}{line}", flush=True)
            if code == end:
                return code
            rounds = None if rounds is None else rounds - 1
            time.sleep(max(0.0, args.watch - (time.monotonic() - began)))
    except KeyboardInterrupt:
        print()
    except BrokenPipeError:
        # The reader has seen enough and closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
