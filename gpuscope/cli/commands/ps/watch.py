"""``gpuscope ps --watch``: a line per process and look, one after the other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

from ....text import width
from ....text.process_name import shown_command
from ....text.units import DASH
from ... import output
from ... import watch as cli_watch
from ...local_look import LocalLook
from ...output import gib, number, percent, seconds
from .document import document, find_problems
from .text import has_stopped

COMMAND_CHARS = 80


def watch(
    args: argparse.Namespace, look: Callable[..., LocalLook], rounds: int | None = None
) -> int:
    """JSON documents, one a line, with ``--json``. The exit code is that of the last look."""

    def once() -> tuple[list[str], int]:
        seen = look(timeout=args.timeout)
        problems = find_problems(seen.host)
        problems += [] if seen.complete else output.unanswered(problems, args.timeout)
        found = document(seen.host, problems)
        return [json.dumps(found, allow_nan=False)] if args.json else _lines(found), found[
            "exit_code"
        ]

    return cli_watch.watch(args, once, rounds)


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines = [_line(process) for process in found["processes"]]
    if not lines and not found["problems"]:
        lines = ["no process here uses a GPU, and no trainer has a probe"]
    return lines + [
        f"{where}{' ' if where else ''}{severity}: {reason}"
        for severity, where, reason in output.grouped_problems(found["problems"])
    ]


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
        if trainer.get("stall_at"):
            parts.append(f"stuck at {trainer['stall_at']}")
    return " · ".join([*parts, width.cut(shown_command(process["command"] or DASH), COMMAND_CHARS)])
