"""``gpuscope lab pitfall`` lists the pitfalls, or trains with one of them in it or cured."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ....attach import run as attach_run
from ....errors import UsageError, UserError
from ....exit_status import ExitStatus
from ....lab.launch import find_python
from ....lab.pitfalls import PitfallScripts, find, load
from ....process import child
from ...args import flag
from ...output import dump

ASK_SECONDS = 60.0
"""Seconds allowed for importing torch, which may be on a slow disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    name = "the pitfall to run, by its name here or in the doctor (default: list all)"
    parser.add_argument("name", nargs="?", metavar="NAME", help=name)
    flag(parser, "--cured", "run the same training with the fix")
    flag(parser, "--json", "print the list as one JSON document")
    what = (
        "everything after it goes to the script:  NAME --args --steps 100     (NAME --args "
        "--help: its options)"
    )
    parser.add_argument("--args", dest="arguments", nargs=argparse.REMAINDER, default=[], help=what)


def run(args: argparse.Namespace) -> int:
    """Replace this process by the training, whose exit code becomes this one's.

    The function returns only where no training was started.
    """
    pitfalls = load()
    if args.name is None:
        print(dump(_document(pitfalls)) if args.json else _in_words(pitfalls))
        return ExitStatus.OK
    chosen = find(args.name, pitfalls)
    if chosen is None or args.json:
        what = (
            "--json works only for the list, without a NAME"
            if chosen
            else f"no such pitfall: {args.name[:80]!r}"
        )
        from difflib import get_close_matches

        names = [name for one in pitfalls for name in (one.id, *one.proves)]
        near = get_close_matches(args.name[:80], names, 3, 0.5)
        suggestion = f" Did you mean: {', '.join(near)}?" if near and not chosen else ""
        raise UsageError(f"{what}.{suggestion}", next="gpuscope lab pitfall    lists them")
    return _become(chosen, args.cured, args.arguments)


def _become(pitfall: PitfallScripts, cured: bool, arguments: Sequence[str]) -> NoReturn:
    """Become the training, by the way of ``gpuscope run``. Raises UserError where that fails."""
    python = find_python()
    problem = _too_few_gpus(pitfall, cured, python)
    if problem:
        raise UserError(problem)
    words = pitfall.command(cured, python, arguments)
    print(f"gpuscope: {_about(pitfall, cured)}\ngpuscope: {shlex.join(words)}", file=sys.stderr)
    try:
        attach_run.execute(*attach_run.plan(["--", *words], {**os.environ, **pitfall.variables()}))
    except (UsageError, OSError) as error:
        raise UserError("The training cannot be started.", str(error)) from None


def _about(pitfall: PitfallScripts, cured: bool) -> str:
    if cured:
        return f"{pitfall.id}, fixed: {pitfall.cure}"
    shown = (
        f"ends with the error “{pitfall.expect}”" if pitfall.shows_as == "error" else pitfall.expect
    )
    if pitfall.shows_as == "warning":
        shown = f"warns “{pitfall.expect}”"
    return f"{pitfall.id}: {pitfall.title}. Shows as: {shown}"


def _too_few_gpus(pitfall: PitfallScripts, cured: bool, python: str) -> str:
    """Return why the script cannot run here, "" if it can or that is unknown.

    This is checked beforehand only for torchrun, whose output would bury the script's own message.
    """
    wanted = pitfall.needs_gpus(cured)
    if not wanted or not pitfall.processes(cured):
        return ""
    question = [python, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        there = int(child.ask(question, ASK_SECONDS).output.split()[-1])
    except (OSError, ValueError, IndexError):
        return ""
    if there >= wanted:
        return ""
    found = f"finds {there}" if there else "finds none"
    return f"{pitfall.id} needs {pitfall.needs(cured)}, and the torch of {python} {found} here."


def _document(pitfalls: Sequence[PitfallScripts]) -> dict[str, Any]:
    return {
        "pitfalls": [
            {
                "id": one.id,
                "title": one.title,
                "cure": one.cure,
                "evidence": one.evidence,
                "shows_as": one.shows_as,
                "expect": one.expect,
                "note": one.note or None,
                **{
                    name: {
                        "script": str(one.script(cured)),
                        "gpus": one.needs_gpus(cured),
                        "processes": one.processes(cured) or 1,
                        "environment": one.variables(),
                        "command": one.command(cured, "python"),
                    }
                    for name, cured in (("faulty", False), ("cured", True))
                },
            }
            for one in pitfalls
        ]
    }


def _in_words(pitfalls: Sequence[PitfallScripts]) -> str:
    width = max((len(one.id) for one in pitfalls), default=0)
    lines = [f"{one.id:{width}}  {one.needs():6}  {one.title}" for one in pitfalls]
    lines += [
        "",
        "gpuscope lab pitfall NAME           a training with this mistake, gpuscope's probe inside",
    ]
    lines += ["gpuscope lab pitfall NAME --cured   the same training without it"]
    return "\n".join(lines)
