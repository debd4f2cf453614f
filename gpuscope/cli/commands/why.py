"""Say where a training's wall clock goes, and what would make it faster: ``gpuscope why PID``.

The trainer's probe has looked a few times a second at what the training thread does. Unless told
not to, this verb lets it look closer for a few seconds before it answers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from ...errors import UserError
from ...exit_status import ExitStatus
from ...model.time_ledger import Cause, Row, TimeLedger, causes, read
from ...text.units import DASH, duration_text, percent_text
from ...wire.clean import clean
from .. import remote
from ..args import seconds_between

WINDOW_SECONDS = 300.0
LOOK_SECONDS = 4.0
"""How long the probe looks closer: some 200 looks."""
ANSWER_SECONDS = 5.0
MAX_PLACES = 3
BAR_CELLS = 24


class NoAnswer(UserError):
    """The trainer's time is not known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says where the wall clock of a training goes: rows that add up to it, and what would "
        "make a step faster at most. The training thread is looked at from the probe's own "
        "thread; no profiler runs."
    )
    parser.add_argument("target", metavar="PID|USER@HOST:PID", help="a trainer with a probe")
    parser.add_argument("--json", action="store_true", help="a JSON document instead of text")
    parser.add_argument(
        "--no-look",
        action="store_true",
        help=f"answer at once from what is known, without {LOOK_SECONDS:g} s of closer looks",
    )
    parser.add_argument(
        "--window",
        type=seconds_between(60.0, 900.0),
        default=WINDOW_SECONDS,
        metavar="SECONDS",
        help=f"how far to look back (default {WINDOW_SECONDS:g})",
    )
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0 where nothing is worth curing, 1 where something is, 3 where it is not known."""
    import asyncio

    from .. import one_trainer

    with contextlib.ExitStack() as stack:
        answer = asyncio.run(_ask(args, one_trainer.place_of(args, "why"), stack))
    ledger = read(answer, args.window)
    if not ledger.looks:
        problem = clean(str(answer.get("problem") or ""), 200)
        raise NoAnswer(
            "the time of this training is not known yet.",
            problem or "the probe has only begun to look",
            "gpuscope why again, after the first steps",
        )
    found = causes(ledger)
    if args.json:
        print(json.dumps(document(args.target, ledger, found), indent=2))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(text(ledger, found, width)))
    if not ledger.sure:
        return ExitStatus.UNCHECKED
    return ExitStatus.WARNINGS if found else ExitStatus.OK


async def _ask(
    args: argparse.Namespace, place: remote.Target, stack: contextlib.ExitStack
) -> Mapping[str, Any]:
    import asyncio

    from ...store.pending_requests import SourceError
    from .. import one_trainer

    async with one_trainer.at(args, place, stack, "why", NoAnswer) as found:

        async def ask(**more: float) -> Mapping[str, Any]:
            asked = {"trainer": found.number, **more}
            return (await found.source.request("time", asked, ANSWER_SECONDS)).value

        try:
            if args.no_look:
                return await ask()
            await ask(close_seconds=LOOK_SECONDS)
            if not args.json:
                print(f"looking for {LOOK_SECONDS:g} s …", end="\r", file=sys.stderr, flush=True)
            await asyncio.sleep(LOOK_SECONDS)
            return await ask()
        except SourceError as error:
            if error.code == "unsupported":
                raise NoAnswer(
                    "the probe in this trainer is of an older gpuscope and keeps no time.",
                    next="start the trainer with this gpuscope: gpuscope run train.py",
                ) from None
            raise NoAnswer(one_trainer.refusal(error.code, error.what, place.pid or 0)) from None


def document(target: str, ledger: TimeLedger, found: tuple[Cause, ...]) -> dict[str, Any]:
    """Return what ``--json`` prints. Shares are of 1; seconds are wall clock."""
    return {
        "target": target,
        "window_seconds": round(ledger.seconds, 6),
        "steps": ledger.steps,
        "step_seconds": ledger.step_seconds,
        "looks": ledger.looks,
        "enough_looks": ledger.sure,
        "rows": [
            {
                "row": row.name,
                "seconds": round(row.seconds, 6),
                "share": row.share,
                "share_low": row.low,
                "share_high": row.high,
                "places": [
                    {"place": clean(place, 512), "seconds": round(seconds, 6)}
                    for place, seconds in row.places[:MAX_PLACES]
                ],
            }
            for row in ledger.rows
        ],
        "causes": [
            {
                "row": cause.row.name,
                "pitfall": cause.pitfall or None,
                "saves_share_at_most": cause.row.share,
                "step_seconds_at_least": cause.step_seconds,
                "advice": cause.advice,
            }
            for cause in found
        ],
    }


def text(ledger: TimeLedger, found: tuple[Cause, ...], width: int) -> list[str]:
    """Return the report: a sentence, the rows, and what to do."""
    lines = [sentence(ledger, found), ""]
    step = ledger.step_seconds
    head = "ROW".ljust(32) + "SHARE".rjust(8) + "  95 %".ljust(13)
    lines.append(head + ("PER STEP".rjust(9) if step is not None else ""))
    for row in ledger.rows:
        lines.append(_row(row, ledger, width))
        if row.places and row.name in ("input", "read", "checkpoint", "validation", "other"):
            lines += [
                f"    {clean(place, 200)}  {percent_text(seconds / ledger.seconds)}"[: width or 80]
                for place, seconds in row.places[:MAX_PLACES]
                if seconds >= 0.01 * ledger.seconds
            ]
    for cause in found:
        lines += ["", f"{cause.row.words.capitalize()}: {percent_text(cause.row.share)} at most"]
        lines.append(f"  {cause.advice}")
    return [line.rstrip() for line in lines]


def sentence(ledger: TimeLedger, found: tuple[Cause, ...]) -> str:
    """Return what there is to say of a training in one sentence."""
    step = ledger.step_seconds
    seen = f"{duration_text(ledger.seconds)} and {ledger.steps} steps were seen"
    if not ledger.sure:
        return f"{seen}, in {ledger.looks} looks: too few to tell where the time goes."
    if not found:
        each = f" of {duration_text(step)} each" if step is not None else ""
        return f"{seen}{each}: outside of the training itself nothing takes much of the time."
    worst = found[0]
    low, high = percent_text(worst.row.low), percent_text(worst.row.high)
    place = f", at {clean(worst.row.places[0][0], 120)}" if worst.row.places else ""
    rest = ""
    if step is not None and worst.step_seconds is not None:
        rest = (
            f" Without it a step of {duration_text(step)} would take "
            f"{duration_text(worst.step_seconds)} or more."
        )
    return (
        f"{percent_text(worst.row.share)} of the time ({low} to {high}) goes into "
        f"{worst.row.words}{place}.{rest}"
    )


def _row(row: Row, ledger: TimeLedger, width: int) -> str:
    step = ledger.step_seconds
    each = duration_text(step * row.share) if step is not None else DASH
    share = percent_text(row.share)
    between = f"{percent_text(row.low)}–{percent_text(row.high)}"
    line = f"{row.words:<32}{share:>8}  {between:<15}{each:>9}  "
    room = min(BAR_CELLS, max(0, width - len(line)))
    return line + "█" * round(row.share * room)
