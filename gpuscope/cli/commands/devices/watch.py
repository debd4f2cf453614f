"""``gpuscope devices --watch``: a line per device and look, one after the other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ....exit_status import ExitStatus
from ....store.view import HostView
from ... import output
from ... import watch as cli_watch
from ...local_look import LocalLook
from ...output import exit_code
from .document import document, find_problems
from .text import device_row


def watch(
    args: argparse.Namespace, look: Callable[..., LocalLook], rounds: int | None = None
) -> int:
    """Print the devices again and again; with ``--json``, one JSON document per line.

    It returns the exit code of the look that found a problem, or of the last look.
    """

    def once() -> tuple[list[str], int]:
        seen = look(timeout=args.timeout, want_trainers=False)
        problems = find_problems(seen.host)
        problems += [] if seen.complete else output.unanswered(problems, args.timeout)
        if args.json:
            return [json.dumps(document(seen.host, problems), allow_nan=False)], exit_code(problems)
        return _lines(seen.host, problems), exit_code(problems)

    return cli_watch.watch(args, once, rounds, end=ExitStatus.PROBLEMS)


def _lines(host: HostView, problems: list[dict[str, Any]]) -> list[str]:
    lines = []
    for device in host.devices:
        _, name, used, _, total, *rest = device_row(device)
        util, sm, tensor, power, heat, clock, processes = rest
        lines.append(
            f"GPU {device.definition.index} {name} used {used}/{total} GiB util {util} sm {sm} "
            f"tensor {tensor} {power} {heat} {clock} {processes} "
            f"process{'' if processes == '1' else 'es'}"
        )
    for severity, where, reason in output.grouped_problems(problems):
        lines.append(f"{where}{' ' if where else ''}{severity}: {reason}")
    return lines
