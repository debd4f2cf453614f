"""Leave out of histories what was read last and is no longer so."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import inf

from ..store.view import History, TrainerView
from .stalls import STALL_SECONDS, STEPS_LATE

LONGEST_STEP_SECONDS = 600.0
"""A step is taken for overdue after a few times this long, however long the last ones were."""


def while_it_steps(history: History, steps: History, trainer: TrainerView | None = None) -> History:
    """Return a history that is unknown wherever no step had ended for long.

    A reading of a stalled trainer is that of its last step: its chart would go on as if it trained.
    A gap of a moment stays as it was. What is unknown for longer stays unknown: a loss that is NaN
    would go on as its last finite value. Of a ``trainer`` it is known when its last step ended:
    once the next one is overdue nothing is known from then on, however few readings there are.
    """
    values: list[float | None] = []
    last: float | None = None
    known = -inf
    moved, usual = _before_the_first_end(steps), STALL_SECONDS
    before: float | None = None
    at = 0
    for moment, value in zip(history.seconds, history.values, strict=True):
        while at < len(steps) and steps.seconds[at] <= moment:
            step = steps.values[at]
            if step is not None and before is not None and step != before:
                since = moved if moved > -inf else steps.seconds[0]
                usual = _latest(steps.seconds[at] - since, step - before)
                moved = steps.seconds[at]
            before = step if step is not None else before
            at += 1
        if value is not None:
            last, known = value, moment
        values.append(last if moment - min(moved, known) <= usual else None)
    ended = last_end(trainer) if trainer is not None else None
    if ended is not None and values and history.seconds[-1] - ended > usual:
        told = bisect_left(history.seconds, ended)  # the reading that tells of the last step
        told += history.seconds[told] - ended <= usual
        values[told:] = [None] * (len(values) - told)
    return History(history.seconds, tuple(values))


def last_end(trainer: TrainerView) -> float | None:
    """Return when the last step of a trainer ended, on the clock of its samples."""
    now, age = trainer.sampled_seconds, trainer.number("step_age_seconds")
    return now - age if now is not None and age is not None else None


def _before_the_first_end(steps: History) -> float:
    """Return when the step counts as ended that is the newest at the first reading.

    It may have ended long before that. Only where the next one ends soon did it train all along.
    """
    known = [
        (moment, step)
        for moment, step in zip(steps.seconds, steps.values, strict=True)
        if step is not None
    ]
    if not known:
        return -inf
    begin, end = known[0][0], steps.seconds[-1]
    ends = [
        (later, step - before) for (_, before), (later, step) in pairwise(known) if step != before
    ][:2]
    usual = _latest(ends[1][0] - ends[0][0], ends[1][1]) if len(ends) > 1 else STALL_SECONDS
    return begin if (ends[0][0] if ends else end) - begin <= usual else -inf


def _latest(seconds: float, steps: float) -> float:
    """Return after how long a step is overdue, where so many took so many seconds."""
    apart = seconds / max(steps, 1)
    return max(STALL_SECONDS, STEPS_LATE * min(apart, LONGEST_STEP_SECONDS))


def while_it_answers(history: History, of_device: History) -> History:
    """Return a history that is unknown from the last reading of its device on.

    What torch counts of the memory of a device that is lost is there no more.
    """
    known = zip(of_device.seconds, of_device.values, strict=True)
    last = max((moment for moment, value in known if value is not None), default=-inf)
    both = zip(history.seconds, history.values, strict=True)
    return History(
        history.seconds, tuple(value if moment <= last else None for moment, value in both)
    )
