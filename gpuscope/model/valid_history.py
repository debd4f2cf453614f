"""Leave out of histories what was read last and is no longer so."""

from __future__ import annotations

from math import inf

from ..store.view import History
from .stalls import STALL_SECONDS, STEPS_LATE

LONGEST_STEP_SECONDS = 600.0
"""A step is taken for overdue after a few times this long, however long the last ones were."""


def while_it_steps(history: History, steps: History) -> History:
    """Return a history that is unknown wherever no step had ended for long.

    A reading of a stalled trainer is that of its last step: its chart would go on as if it trained.
    A gap of a moment stays as it was.
    """
    values: list[float | None] = []
    last: float | None = None
    moved, before = -inf, None
    at, usual = 0, STALL_SECONDS
    for moment, value in zip(history.seconds, history.values, strict=True):
        while at < len(steps) and steps.seconds[at] <= moment:
            step = steps.values[at]
            if step is not None and step != before:
                if before is not None:
                    apart = (steps.seconds[at] - moved) / max(step - before, 1)
                    usual = max(STALL_SECONDS, STEPS_LATE * min(apart, LONGEST_STEP_SECONDS))
                moved, before = steps.seconds[at], step
            at += 1
        last = value if value is not None else last
        values.append(last if moment - moved <= usual else None)
    return History(history.seconds, tuple(values))


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
