"""Show who uses the GPUs of this machine: ``gpuscope ps``.

The output lists the trainers that run here, with the ranks of one job together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from ....text import width
from ....text.process_name import shown_command
from ....text.units import DASH
from ... import output, remote
from ... import watch as cli_watch
from ...local_look import LocalLook, look
from ...output import gib, number, percent, seconds
from .document import document, find_problems
from .text import has_stopped, text

COMMAND_CHARS = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help=remote.WHERE)
    cli_watch.add_argument(parser, "process")
    output.add_arguments(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace, look: Callable[..., LocalLook] = look) -> int:
    """Print the document or the text (``look`` is for tests)."""
    if args.watch is not None:
        return cli_watch.watch(args, lambda: once(args, look))
    seen = cli_watch.look_once(args, "ps", look)
    if isinstance(seen, int):
        return seen
    result = _document(args, seen)
    print(output.dump(result) if args.json else text(result))
    if not (args.json or cli_watch.is_elsewhere(args)):
        # Importing the name from the probe would load the whole probe, of which a document needs
        # nothing.
        from ... import dead_trainers

        if left := dead_trainers.line():
            print("\n" + "\n".join(output.on_terminal(left)))
    return int(result["exit_code"])


def _document(args: argparse.Namespace, seen: LocalLook) -> dict[str, Any]:
    problems = output.with_unanswered(find_problems(seen.host), seen.complete, args.timeout)
    return document(seen.host, problems)


def once(args: argparse.Namespace, look: Callable[..., LocalLook]) -> tuple[list[str], int]:
    """Return the lines of one look of ``--watch``, or its document in one line, and its code."""
    found = _document(args, look(timeout=args.timeout))
    if args.json:
        return [json.dumps(found, allow_nan=False)], found["exit_code"]
    lines = [_line(process) for process in found["processes"]]
    if not lines and not found["problems"]:
        lines = ["no process here uses a GPU, and no trainer has a probe"]
    return lines + output.problem_lines(found["problems"]), found["exit_code"]


def _line(process: Mapping[str, Any]) -> str:
    trainer = process["trainer"] or {}
    parts = [f"pid {process['pid']} {process['user'] or DASH}"]
    for device in process["devices"]:
        parts.append(
            f"GPU {device['index']} {gib(device['used_bytes'])} GiB sm "
            f"{percent(device['sm_percent'])}"
        )
    if trainer.get("rank") is not None:
        parts.append(f"rank {trainer['rank']}/{trainer.get('world_size') or '?'}")
    if trainer:
        each = "" if has_stopped(trainer) else f" {seconds(trainer.get('step_seconds'))}"
        parts.append(f"step {number(trainer.get('step'))}{each}")
        parts.append(f"allocated {gib(trainer.get('allocated_bytes'))} GiB")
        if trainer.get("stands"):
            parts.append(trainer["stands"])
    if process["loss_not_finite"]:
        parts.append(process["loss_not_finite"])
    return " · ".join([*parts, width.cut(shown_command(process["command"] or DASH), COMMAND_CHARS)])
