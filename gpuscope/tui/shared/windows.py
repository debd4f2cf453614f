"""How much time a chart shows by itself: the shortest of a few that has all that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.standstill import stands_still

if TYPE_CHECKING:
    from ...store.view import TrainerView

WINDOWS = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds, each with an axis that is easily read."""
FITTED = (*WINDOWS, 20.0, 45.0, 90.0, 180.0, 240.0, 450.0)
"""Those that a chart takes by itself: at most a third of one is still blank."""

LONG_WINDOWS = (*WINDOWS, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
"""Those that somebody may choose, and that reach back to the last steps before a long hang."""
HANG_WINDOWS = sorted({*FITTED, *LONG_WINDOWS, 900.0, 2700.0, 2 * 3600.0, 8 * 3600.0})
"""Those that a chart of a hang takes by itself, so that it is not mostly of the time before."""
STEPS_SHARE, LEAST_STEPS_SECONDS = 0.1, 15.0
"""How much of the time of a hang is shown before it: its share of that, and at least so long."""


def shortest_window(span: float) -> float:
    """Return the shortest window that has ``span`` seconds, the longest where none has."""
    return min((one for one in FITTED if one >= span), default=WINDOWS[-1])


def window_of_minutes(trainer: TrainerView | None, now: float) -> float:
    """Return how much time the chart of a ledger shows."""
    began = [minute["m"] / 1e9 for minute in trainer.minutes] if trainer is not None else []
    return _with_steps(trainer, shortest_window(now - min(began)) if began else WINDOWS[-1])


def window_of_steps(trainer: TrainerView, known_seconds: float) -> float:
    """Return how much time a chart of steps shows, of which so many seconds are known."""
    return _with_steps(trainer, shortest_window(known_seconds))


def _with_steps(trainer: TrainerView | None, window: float) -> float:
    """Return the window, for a trainer that hangs one that also has its last steps."""
    age = trainer.number("step_age_seconds") if trainer is not None else None
    if trainer is None or age is None or not stands_still(trainer):
        return window
    least = age + max(STEPS_SHARE * age, LEAST_STEPS_SECONDS)
    return next((one for one in HANG_WINDOWS if one >= max(least, window)), HANG_WINDOWS[-1])
