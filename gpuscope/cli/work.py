"""Has one step of a trainer counted for a verb, and writes what it comes to."""

from __future__ import annotations

import sys

from ..model.useful_work import (
    UsefulWork,
    cost,
    of_trainer,
    sentence,
    unknown_text,
)
from ..text.units import duration_text
from .look import LEAST_SECONDS, PATIENT
from .watched_host import ProbedTrainer, answer_of

WAITS = f"Next: gpuscope, then 3 and w: {PATIENT}"
SLACK = 1.25
"""The counted step takes so many times the usual time, as its operators are noted one by one."""
PRICE = "Counting the FLOPs of a step makes it some 0.1 s longer, once (--no-look: none)."


def announce() -> None:
    """Say on stderr, before a step is counted, what that costs."""
    print(PRICE, file=sys.stderr, flush=True)


def needed_seconds(found: ProbedTrainer) -> float:
    """Return how long counting takes at most: it begins at the end of a step, and ends with it."""
    return (1 + SLACK) * (found.trainer.number("step_seconds") or 0.0)


async def take(found: ProbedTrainer, seconds: float) -> tuple[UsefulWork | None, str]:
    """Return what a step of the trainer computes, or None and why that is not known.

    ``seconds`` is the time in which a step has to be counted. The probe begins none that would not
    end in it.
    """
    if seconds < SLACK * (found.trainer.number("step_seconds") or 0.0):
        needed = duration_text(needed_seconds(found))
        text = f"a step is counted within {needed}, too long to wait for"
        return None, f"{text}. {WAITS}"
    patience = max(seconds, LEAST_SECONDS)
    late = f"no whole step ended within {duration_text(patience)}. {WAITS}"
    value, problem = await answer_of(found, "work", patience, late)
    if value is None:
        return None, problem
    host = found.store.view().host
    work = of_trainer(value, found.trainer, host) if host is not None else None
    return work, "" if work is not None else "the step had no operators"


def lines(work: UsefulWork | None, problem: str, step_seconds: float | None) -> list[str]:
    """Return the line of the report, the operators without FLOPs, and what counting has cost."""
    if work is None:
        return [f"Useful work: unknown: {problem}."]
    out = [f"Useful work: {sentence(work, step_seconds)} {cost(work)}"]
    if work.recomputed_flops:
        again = work.recomputed_flops / work.hardware_flops
        out.append(
            f"{100 * again:.0f} % of the hardware FLOPs are recomputed by activation checkpointing."
        )
    out += [unknown_text(work)] if not work.complete else []
    return out
