"""Say in one sentence where the time of a training goes."""

from __future__ import annotations

from ..text.units import duration_text, percent_text
from ..wire.clean import clean
from .time_ledger import Cause, TimeLedger

NEXT_TO_NOTHING = 0.05
"""Of a step: less than this share is no length that a cure could be promised to leave."""


def sentence(ledger: TimeLedger, found: tuple[Cause, ...]) -> str:
    """Return what there is to say of a training in one sentence."""
    step = ledger.step_seconds
    seen = f"{duration_text(ledger.seconds)} and {ledger.steps:,} steps"
    if not ledger.sure:
        return f"{seen} were seen, in {ledger.looks} looks: too few to tell where the time goes."
    if not found:
        each = f" of {duration_text(step)} each" if step is not None else ""
        return f"{seen}{each} were seen: nothing but the training itself takes much of the time."
    worst = found[0]
    low, high = percent_text(worst.row.low), percent_text(worst.row.high)
    place = f", at {clean(worst.row.places[0][0], 120)}" if worst.row.places else ""
    rest = ""
    if step is not None and worst.step_seconds is not None:
        left = (
            "next to nothing"
            if worst.step_seconds < NEXT_TO_NOTHING * step
            else f"{duration_text(worst.step_seconds)} or more"
        )
        rest = f" Without it a step of {duration_text(step)} would take {left}."
    return (
        f"{percent_text(worst.row.share)} of the time ({low} to {high}) goes into "
        f"{worst.row.words}{place}.{rest}"
    )
