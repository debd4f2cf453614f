"""``gpuscope devices --watch`` and ``--holders``: lines again and again, and who has a device open."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..agent.oneshot import OneShot
from ..agent.picture import Picture
from ..cli import EXIT_USAGE
from . import plain
from .devices import device_row, document, find_problems
from .plain import exit_code


def held(picture: Picture) -> dict[int, dict[str, Any]]:
    """By device: who has it open, and how many processes could not be looked into."""
    from ..collect.holders import holders

    found = {}
    for device in picture.devices:
        if device.definition.minor is not None:
            pids, hidden = holders(device.definition.minor)
            found[device.definition.index] = {"pids": list(pids), "hidden_processes": hidden}
    return found


def held_lines(found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    lines = []
    for index, one in found.items():
        who = ", ".join(map(str, one["pids"])) or "nobody that can be seen"
        hidden = one["hidden_processes"]
        more = f"; {hidden} processes of others could not be looked into (as root they can)" if hidden else ""
        lines.append(f"GPU {index} is held open by: {who}{more}")
    return ["", *lines] if lines else []


def watch(args: argparse.Namespace, look: Callable[..., OneShot], rounds: int | None = None) -> int:
    """A line per device and look, flushed; JSON documents, one a line, with ``--json``. Ends with the exit code of the
    look that found a problem, or of the last one."""
    if args.target is not None or args.via:
        print("--watch looks at this machine. Over there: gpuscope TARGET, or gpuscope record TARGET", file=sys.stderr)
        return EXIT_USAGE
    code = plain.EXIT_OK
    try:
        while rounds is None or rounds > 0:
            began = time.monotonic()
            shot = look(timeout=args.timeout, want_trainers=False)
            problems = find_problems(shot.picture)
            problems += [] if shot.complete else plain.unanswered(problems, args.timeout)
            code = exit_code(problems)
            clock = time.strftime("%H:%M:%S")
            if args.json:
                print(json.dumps(document(shot.picture, problems), allow_nan=False), flush=True)
            else:
                for line in _watch_lines(shot.picture, problems):
                    print(clock, line, flush=True)
            if code == plain.EXIT_PROBLEMS:
                return code
            rounds = None if rounds is None else rounds - 1
            time.sleep(max(0.0, args.watch - (time.monotonic() - began)))
    except KeyboardInterrupt:
        print()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has seen enough
    return code


def _watch_lines(picture: Picture, problems: list[dict[str, Any]]) -> list[str]:
    lines = []
    for device in picture.devices:
        _, name, used, _, total, *rest = device_row(device)
        util, sm, tensor, power, heat, clock, processes = rest
        lines.append(
            f"GPU {device.definition.index} {name} used {used}/{total} GiB util {util} sm {sm} tensor {tensor} "
            f"{power} {heat} {clock} {processes} processes"
        )
    for row in problems:
        where = "" if row["device"] is None else f"GPU {row['device']} "
        lines.append(f"{where}{row['severity']}: {row['reason']}")
    return lines
