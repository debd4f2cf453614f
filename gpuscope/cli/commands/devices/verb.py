"""Show the GPUs of this machine once: ``gpuscope devices``.

The output has their readings and what is wrong with them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from ....exit_status import ExitStatus
from ....store.view import DeviceView
from ... import cuda_order, output, remote
from ... import watch as cli_watch
from ...args import flag
from ...local_look import LocalLook, look
from .document import document, find_problems
from .text import device_row, text


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
        return cli_watch.watch(args, lambda: _once(args, look), end=ExitStatus.PROBLEMS)
    seen, there = cli_watch.look_once(args, "devices", look), cli_watch.is_elsewhere(args)
    if isinstance(seen, int):
        return seen
    if not there:
        seen.environments = cuda_order.of_this_machine(seen.host)
    problems = output.with_unanswered(find_problems(seen.host), seen.complete, args.timeout)
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


def _once(args: argparse.Namespace, look: Callable[..., LocalLook]) -> tuple[list[str], int]:
    """Return the lines of one look of ``--watch``, or its document in one line, and its code."""
    seen = look(timeout=args.timeout, want_trainers=False)
    problems = output.with_unanswered(find_problems(seen.host), seen.complete, args.timeout)
    if args.json:
        lines = [json.dumps(document(seen.host, problems), allow_nan=False)]
    else:
        lines = [*map(_line, seen.host.devices), *output.problem_lines(problems)]
    return lines, output.exit_code(problems)


def _line(device: DeviceView) -> str:
    _, name, used, _, total, *rest = device_row(device)
    util, sm, tensor, power, heat, clock, processes = rest
    return (
        f"GPU {device.definition.index} {name} used {used}/{total} GiB util {util} sm {sm} "
        f"tensor {tensor} {power} {heat} {clock} {processes} "
        f"process{'' if processes == '1' else 'es'}"
    )
