"""Say in one sentence where the time of a training goes."""

from __future__ import annotations

from math import fsum

from ..text.process_name import short_place
from ..text.units import count_text, duration_text, percent_text
from ..wire.clean import clean
from .time_cause import Cause
from .time_ledger import TimeLedger

NEARLY_ALL = 0.995
"""From this share on, what is shown as 100 % is called all of the time."""
PASSES = frozenset(("forward", "backward", "optimizer"))
"""The rows of the clock that a training is for: its thread launches what the GPU computes."""
NO_WARNING = "Nothing to warn of; the most to gain: "


MOST_OF_IT = 0.5
"""From this share of the time on, the line of the forward pass that takes it is named."""


def step_left(step: float, saves: float) -> str:
    """Return how long a step would take at best, once this share of it is saved; "" if all is."""
    return f"{duration_text(step * (1 - saves))} or more" if saves < NEARLY_ALL else ""


def _slow_forward(ledger: TimeLedger) -> str:
    """Return the line of the forward pass that takes most of the time; "" where none does."""
    for row in ledger.rows:
        place, spent = row.places[0] if row.places else ("", 0.0)
        if row.name == "forward" and spent >= MOST_OF_IT * ledger.seconds:
            return f", {percent_text(spent / ledger.seconds)} at {clean(place, 120)}"
    return ""


def sentence(
    ledger: TimeLedger,
    found: tuple[Cause, ...],
    brief: bool = False,
    calm: bool = False,
    besides: str = "",
    gains: bool = True,
) -> str:
    """Return what there is to say of a training in one sentence.

    A ``brief`` one leaves out what a table of the ledger has too, and the folder of a file. One
    that is ``calm`` begins with the word that nothing here is a warning. ``besides`` is the best
    that was found elsewhere than in the clock, told where the clock has no cause. Without
    ``gains`` it promises no shorter step: this rank waits for another one.
    """
    step = ledger.step_seconds
    steps, seconds = count_text(ledger.steps, "step"), duration_text(ledger.seconds)
    if not found and not ledger.sure:
        return (
            f"Too few samples to tell where the time goes: {ledger.looks} in {seconds} ({steps})."
        )
    if not found:
        each = f"{duration_text(step)} each on average" if step is not None else f"in {seconds}"
        own = fsum(row.share for row in ledger.rows if row.name in PASSES)
        all_of_it = "All" if own >= NEARLY_ALL else percent_text(own)
        said = f"{all_of_it} of the time is forward, backward and optimizer ({steps}, {each})"
        if besides:
            return f"{besides}. {said}."
        return f"{said}{'' if brief else _slow_forward(ledger)}; no other row is worth fixing."
    worst = found[0]
    row = worst.clock
    # A share that comes from the clock is shown with the clock's interval, as in its row. The
    # interval of the cause is wider: it also says what a cure may win.
    evened = worst.usual_share is not None
    about = row if row is not None and (row.share == worst.share or evened) else worst
    low, high = percent_text(about.low), percent_text(about.high)
    between = f" ({low} to {high})" if low != high and not brief else ""
    where = clean(worst.place, 120)
    if brief:
        where = short_place(where)
    place = f", at {where}" if where else ""
    rest = ""
    if step is not None and gains:
        left = step_left(step, worst.saves)
        now = "" if brief else f" instead of {duration_text(step)}"
        cured = "At the other ranks' pace" if evened else "Without it"
        if worst.cured_by:
            cured = worst.cured_by[:1].upper() + worst.cured_by[1:]
        rest = f" {cured} a step would take {left}{now}." if left else ""
    begin = NO_WARNING if calm else ""
    share = f"{begin}{percent_text(about.share)} of the time{between}"
    return f"{share} goes into {worst.words}{place}.{rest}"
