"""Show who uses the GPUs of this machine: ``gpuscope ps``.

The output lists the trainers that run here, with the ranks of one job together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ... import output, remote
from ... import watch as cli_watch
from ...local_look import LocalLook, look
from .document import document, find_problems
from .text import text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help=remote.WHERE)
    cli_watch.add_argument(parser, "process")
    output.add_arguments(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace, look: Callable[..., LocalLook] = look) -> int:
    """Print the document or the text (``look`` is for tests)."""
    if args.watch is not None:
        from .watch import watch

        return watch(args, look)
    there = args.target is not None or bool(args.via)
    if there:
        from ...remote_look import look_at_target

        found = look_at_target(args, "ps", want_trainers=True)
        if isinstance(found, int):
            return found
        seen = found
    else:
        seen = look(timeout=args.timeout)
    problems = find_problems(seen.host)
    if not seen.complete:
        problems += output.unanswered(problems, args.timeout)
    result = document(seen.host, problems)
    print(output.dump(result) if args.json else text(result))
    if not (args.json or there):
        # Importing the name from the probe would load the whole probe, of which a document needs
        # nothing.
        from ... import dead_trainers

        if left := dead_trainers.line():
            print(f"\n{left}")
    return int(result["exit_code"])
