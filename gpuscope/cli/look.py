"""Takes a look at the device of one trainer for a verb, and writes what it has found."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import TypeVar

from ..doctor.finding import Evidence, Finding, Fix
from ..doctor.live_causes import fix_of
from ..model.look import PRICE, Look, LookRow, cost, notes, read
from ..text.units import count_text, duration_text, percent_text
from ..wire.clean import clean
from .time_document import known_pair
from .watched_host import ProbedTrainer, answer_of

Seen = TypeVar("Seen")
LEAST_SECONDS = 1.0
"""With less time left, no look is begun."""
RECORDED_SHARE = 0.75
"""For this share of its time a look records, and then it reads what it has."""
NO_TIME = "the trainer answered so late that no time was left for it"
PATIENT = "the Time tab waits for slow steps"
WAITS = f"gpuscope    then 3 and l: {PATIENT}"
NEXT: tuple[tuple[str, str], ...] = (
    ("another profiler", "the same again, when that profiler has ended"),
    ("a profiler of its own", "the same again, when that profiler has ended"),
    ("Nsight", "the same again, in a run without Nsight"),
    ("CUPTI", "python -c 'import torch; print(torch.profiler.supported_activities())' has CUDA "
     "where torch can trace it; no other profiler may run on the GPU"),
    ("another thread", "import torch in the thread that trains"),
    ("in time", WAITS),
    ("was not done within", WAITS),
    ("no step", "the same again, after the first steps"),
)  # fmt: skip
"""Words of a reason why a look was not possible, and what to do next."""
BAR_CELLS = 24
LEAST_SHARE = 0.001
"""The lower levels of the stack that are shown as one row."""


STANDS_STILL = "the training stands still, so that no step ends"


def in_a_hang(known: tuple[Seen | None, str] | None) -> tuple[Seen | None, str] | None:
    """Return the answer of a trainer that hangs: no patience leads to its next step."""
    if known is None or known[0] is not None:
        return known
    patient = PATIENT in known[1] or PATIENT in _next_step(known[1])
    return (None, STANDS_STILL) if patient else known


def announce(found: ProbedTrainer) -> None:
    """Say on stderr, before a look, what it costs; nothing where there is no device to look at."""
    if found.trainer.definition.cuda:
        print(f"The GPU trace costs {PRICE} (--no-look: none).", file=sys.stderr, flush=True)


def one_step_seconds(found: ProbedTrainer) -> float:
    """Return in what time a step is traced for sure: after the end of another, and read then.

    Where the loss is read at the end of each step, the device is a step behind what is queued.
    """
    step = found.trainer.number("step_seconds") or 0.0
    return LEAST_SECONDS + 3 * step / RECORDED_SHARE


async def take(found: ProbedTrainer, seconds: float) -> tuple[Look | None, str]:
    """Return a look at the trainer's device within so long, or None and why there is none."""
    if seconds < LEAST_SECONDS:
        return None, NO_TIME
    answer, problem = await answer_of(found, "look", seconds)
    if answer is None:
        return None, problem
    found.store.remember(found.source.key, found.trainer.id, "look", answer)
    look = read(answer)
    return look, "" if look is not None else "no complete step was traced"


def lines(look: Look | None, problem: str, width: int) -> list[str]:
    """Return the rows of the device, and what the look has cost."""
    if look is None:
        then = _next_step(problem)
        refusal = [f"No GPU trace was taken: {problem}."]
        return [*refusal, f"Next: {then}"] if then else refusal
    each = duration_text(look.step_seconds)
    steps = count_text(look.steps, "step")
    out = [
        f"GPU trace of {steps} of {each}: busy for {percent_text(look.busy_share)} of the time.",
        "",
        "ROW".ljust(46) + "SHARE".rjust(8) + "PER STEP".rjust(11),
    ]
    shown = [row for row in look.rows if row.share >= LEAST_SHARE]
    for row in shown:
        out.append(_row(row, look, width))
        if row.place:
            out.append(f"    at {clean(row.place, 200)}"[: width or 80])
    small = sum(row.seconds for row in look.rows if row.share < LEAST_SHARE)
    if small > 0:
        row = LookRow("", "less than 0.1 % each", "rest", small, small / look.seconds, 0)
        out.append(_row(row, look, width))
    out += ["", cost(look), *notes(look)]
    return [line.rstrip() for line in out]


def _next_step(problem: str) -> str:
    return next((then for part, then in NEXT if part in problem), "")


# ── what to do ──


class Copied(str):
    """A line that is to be copied: it is not broken."""

    __slots__ = ()


def finding_lines(number: int, one: Finding, told: Container[Evidence], gain: bool) -> list[str]:
    """Return a cause: what its cure brings, what was seen, the fix, how to reproduce it.

    What is ``told`` above is not repeated, and neither is the gain if it is, so ``gain`` False.
    """
    out = ["", f"{number}. {clean(one.title, 200)}"]
    if one.effect is not None and gain:
        out.append(f"   Gain: {clean(one.effect.text, 300)}")
    for part in one.evidence:
        source = f" ({part.source})" if part.source else ""
        if part not in told:
            out.append(f"   Seen: {clean(part.text, 300)}{source}")
    fix = fix_of(one)
    out += fix_lines("   Fix", fix) if fix is not None else []
    known = known_pair(one)
    if known and not known.startswith("gpuscope why"):  # which ends the page
        out.append(f"   Repro: {known}")
    return out


def fix_lines(label: str, fix: Fix) -> list[str]:
    """Return a fix with its code under it, as a diff where it replaces some."""
    code = [sign + text for sign, text in fix.signed_code()]
    code = code or [text for text in (fix.environment or fix.command,) if text]
    lines = (Copied(" " * (len(label) + 2) + line) for line in code)
    return [f"{label}: {fix.title.rstrip('.')}", *lines]


def _row(row: LookRow, look: Look, width: int) -> str:
    share, each = percent_text(row.share), duration_text(row.seconds / look.steps)
    line = f"{row.words:<46}{share:>8}{each:>11}  "
    room = min(BAR_CELLS, max(0, width - len(line)))
    return line + "█" * round(row.share * room)
