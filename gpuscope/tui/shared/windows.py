"""How much time a chart shows by itself, and where it ends.

It is the shortest of a few windows that has all that is known, so that an axis changes seldom. The
charts of one page show the same time. Only those of the steps of a training that hangs end with its
last step: how its steps went is then seen, and not how long nothing has come since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ...model.standstill import stands_still
from ...text.units import window_text

if TYPE_CHECKING:
    from ...store.view import History, HostView, TrainerView
    from ..shell.session import Session

WINDOWS = (15.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0)
"""Seconds, each with an axis that is easily read."""
LONG_WINDOWS = (*WINDOWS, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
"""Those that somebody may choose."""


class Span(NamedTuple):
    """The time that a chart shows: so many seconds up to its end on the clock of samples."""

    seconds: float
    end: float
    over: str
    """The end of a title that names this time: `` over 2 min``."""


def shortest_window(span: float, most: float = WINDOWS[-1]) -> float:
    """Return the shortest window that has ``span`` seconds, ``most`` where none has."""
    return min(next((one for one in WINDOWS if one >= span), most), most)


def window_of(session: Session, host: HostView, trainer: TrainerView | None) -> float:
    """Return how much time the charts about a trainer, or a host, show by themselves."""
    now, entity, column = host.sampled_seconds or 0.0, host.id, "cpu_percent"
    if trainer is not None:
        entity, column = trainer.id, "step"
    began = [*session.history(entity, column, WINDOWS[-1]).seconds[:1]]
    began += [minute["m"] / 1e9 for minute in (trainer.minutes if trainer is not None else ())]
    return shortest_window(now - min(began, default=now))


def window_of_load(
    session: Session, host: HostView, trainer: TrainerView | None, window: float
) -> float:
    """Return how much of ``window`` the readings of devices and processes of a trainer show.

    While it hangs no step of before is drawn beside them: they begin with what was read here.
    """
    if trainer is None or not stands_still(trainer):
        return window
    now, columns = host.sampled_seconds or 0.0, [(host.id, "cpu_percent")]
    columns += [(device.id, "utilization_percent") for device in host.devices]
    firsts = [session.history(*one, window).seconds[:1] for one in columns]
    return shortest_window(now - min((one[0] for one in firsts if one), default=now), window)


def reach_of(trainer: TrainerView, window: float) -> float:
    """Return how far back from now a chart of so many seconds of its steps may go."""
    age = trainer.number("step_age_seconds") if stands_still(trainer) else None
    return window + (age or 0.0)


def span_of_steps(
    trainer: TrainerView, courses: Iterable[History], window: float, now: float
) -> Span:
    """Return the time that a chart of these courses of a trainer's steps shows.

    For one that hangs it is the last of ``window`` seconds at most that have steps.
    """
    known = [
        moment
        for course in courses
        for moment, value in zip(course.seconds, course.values, strict=True)
        if value is not None
    ]
    if not known or not stands_still(trainer):
        return Span(window, now, f" over {window_text(window)}")
    seconds = shortest_window(max(known) - min(known), window)
    return Span(seconds, max(known), f", last {window_text(seconds)} of steps")
