"""Show the GPUs of this machine once: ``gpuscope devices``.

The output has their readings and what is wrong with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ... import cuda_order, output, remote
from ... import watch as cli_watch
from ...args import flag
from ...local_look import LocalLook, look
from .document import document, find_problems
from .text import text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help=remote.WHERE)
    flag(parser, "--holders", "also list which processes have each GPU open (/proc/*/fd)")
    cli_watch.add_argument(parser, "GPU", " or until a GPU is lost")
    output.add_arguments(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace, look: Callable[..., LocalLook] = look) -> int:
    """Print the document or the text.

    The exit code says whether all devices are healthy. Tests pass ``look``.
    """
    if args.watch is not None:
        from .watch import watch

        return watch(args, look)
    there = args.target is not None or bool(args.via)
    if there:
        from ...remote_look import look_at_target

        found = look_at_target(args, "devices", want_trainers=False)
        if isinstance(found, int):
            return found
        seen = found
    else:
        seen = look(timeout=args.timeout)
        seen.environments = cuda_order.of_this_machine(seen.host)
    problems = find_problems(seen.host)
    if not seen.complete:
        problems += output.unanswered(problems, args.timeout)
    result = document(seen.host, problems)
    result["cuda_order"] = cuda_order.rows(seen.host, seen.environments)
    result["unknown"] += cuda_order.unknown(result["cuda_order"])
    more = cuda_order.lines(result["cuda_order"])
    more = ["", *more] if more else []
    if args.holders:
        from . import holders as devices_holders

        if not there:
            seen.holders = devices_holders.of_this_machine(seen.host)
        holding = devices_holders.by_device(seen)
        held = devices_holders.lines(seen, holding)
        more += held
        for position, device in enumerate(result["devices"]):
            device["holders"] = holding.get(device["index"])
            result["unknown"] += devices_holders.unknown(
                seen, f"devices[{position}].holders", device["holders"]
            )
    print(
        output.dump(result) if args.json else "\n".join([text(seen.host, problems, there), *more])
    )
    return int(result["exit_code"])
