"""How much time a chart shows by itself: the shortest of a few that has all that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.standstill import stands_still

if TYPE_CHECKING:
    from ...store.view import TrainerView

WINDOWS = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds, each with an axis that is easily read."""
LONG_WINDOWS = (*WINDOWS, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
"""Those that somebody may choose."""
_BETWEEN = (20.0, 45.0, 90.0, 180.0, 240.0, 450.0, 720.0, 900.0, 1200.0, 2700.0, 5400.0, 7200.0)
FITTED = (*sorted((*LONG_WINDOWS, *_BETWEEN, 3 * 3600.0, 6 * 3600.0, 8 * 3600.0)),)
"""Those that a chart takes by itself: at most a third of one is still blank."""
STEPS_SHARE, LEAST_STEPS_SECONDS = 0.1, 15.0
"""How much of the time of a hang is shown before it: its share of that, and at least so long."""


def shortest_window(span: float, most: float = WINDOWS[-1]) -> float:
    """Return the shortest window that has ``span`` seconds, ``most`` where none has."""
    return min(next((one for one in FITTED if one >= span), most), most)


def window_of_minutes(trainer: TrainerView | None, now: float) -> float:
    """Return how much time the chart of a ledger shows."""
    began = [minute["m"] / 1e9 for minute in trainer.minutes] if trainer is not None else []
    return _with_steps(trainer, now - min(began)) if began else WINDOWS[-1]


def window_of_steps(trainer: TrainerView, known_seconds: float) -> float:
    """Return how much time a chart of steps shows, of which so many seconds are known."""
    return _with_steps(trainer, known_seconds)


def _with_steps(trainer: TrainerView | None, known_seconds: float) -> float:
    """Return the window of what is known, for a trainer that hangs one with its last steps.

    Such a one begins no earlier than what is known: before it there is nothing to see.
    """
    age = trainer.number("step_age_seconds") if trainer is not None else None
    if trainer is None or age is None or not stands_still(trainer):
        return shortest_window(known_seconds)
    least = age + max(STEPS_SHARE * age, LEAST_STEPS_SECONDS)
    if known_seconds > age:
        least = min(least, known_seconds)
    return shortest_window(max(least, min(known_seconds, WINDOWS[-1])), LONG_WINDOWS[-1])
