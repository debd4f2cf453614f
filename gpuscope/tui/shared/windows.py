"""How much time a chart shows by itself: the shortest of a few that has all that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.view import TrainerView

WINDOWS = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds, each with an axis that is easily read."""


def shortest_window(span: float) -> float:
    """Return the shortest window that has ``span`` seconds, the longest where none has."""
    return next((one for one in WINDOWS if one >= span), WINDOWS[-1])


def window_of_minutes(trainer: TrainerView | None, now: float) -> float:
    """Return how much time the chart of a ledger shows."""
    began = [minute["m"] / 1e9 for minute in trainer.minutes] if trainer is not None else []
    return shortest_window(now - min(began)) if began else WINDOWS[-1]
