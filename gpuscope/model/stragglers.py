"""Find the rank of a job whose own work takes longer than that of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..store.view import HistoryOf, TrainerView, no_history
from .ranks import median, name_of
from .step_time import OWN, SPLIT, split_of

STRAGGLES = 1.15
"""A rank that works this many times as long as the others makes them wait.

This holds if each rank has a GPU of its own.
"""
STRAGGLES_ON_CPU = 1.5
"""The same where no rank uses CUDA. There the ranks share cores, and what they wait for each other
is not steady.

Measured with ``demos/ddp_train.py``, two healthy ranks over gloo on two busy cores, eight runs of
70 to 100 s: one rank worked 1.15 times as long as the other or longer in 81 of 139 readings, 1.5
times in 18, up to 4.2 times and for up to 25 s at a stretch; in all of :data:`WINDOWS` windows in
none of 59. With twice the work on one rank: in 15 of 20.
"""
WINDOWS, WINDOW_SECONDS = 3, 20.0
"""A straggler must be one in this many windows, this far apart.

Parts are means of 32 measured steps, two of them a second.
"""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own work takes longer than that of the others.

    ``usual_seconds`` is what the others take; ``text`` is for people.
    """

    trainer: TrainerView
    own_seconds: float
    usual_seconds: float
    text: str


def straggler(ranks: Iterable[TrainerView], history: HistoryOf = no_history) -> Straggler | None:
    """Return the rank whose own work takes much longer than that of the others.

    It must do so now and in each earlier window; None otherwise.

    One window can mislead: measured steps are few, and no two ranks measure the same ones. Windows
    of which nothing is known do not count, but for ranks on a CPU, where the noise is such that all
    of them have to be known.
    """
    living = [trainer for trainer in ranks if trainer.gone is None]
    on_cpu = not any(trainer.definition.cuda for trainer in living)
    least = _least(living)
    parts = [split_of(trainer) for trainer in living]
    own = _own_seconds(parts)
    worst = _longest(own, least)
    if worst is None:
        return None
    for number in range(1, WINDOWS):
        then = _own_seconds(
            [_split_before(trainer, history, number * WINDOW_SECONDS) for trainer in living]
        )
        known = worst in then and len(then) > 1
        if _longest(then, least) != worst if known else on_cpu:
            return None
    others = [number for number in own if number != worst]
    usual = median(own[number] for number in others)
    excess = {
        part: parts[worst].get(part, 0.0) - median(parts[n].get(part, 0.0) for n in others)
        for part in OWN
    }
    most = max(OWN, key=excess.__getitem__)
    words = f"{name_of(living[worst])} works {_ms(own[worst])} per step, the others {_ms(usual)}"
    return Straggler(
        living[worst], own[worst], usual, f"{words}: mostly {most} (+{_ms(excess[most])})"
    )


def one_works_longest(ranks: Sequence[TrainerView]) -> bool:
    """Tell whether, by the present readings alone, one rank works much longer than the others."""
    return (
        _longest(_own_seconds([split_of(trainer) for trainer in ranks]), _least(ranks)) is not None
    )


def _least(ranks: Iterable[TrainerView]) -> float:
    return STRAGGLES if any(trainer.definition.cuda for trainer in ranks) else STRAGGLES_ON_CPU


def _own_seconds(splits: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """Return the step time without the wait for other ranks, by rank.

    If the wait of a rank is not known, it is contained in its compute time. So if it is known for
    some ranks, only those are returned, because the others would seem as slow as the slowest.
    """
    whole = {number: parts for number, parts in enumerate(splits) if "compute" in parts}
    apart = {number: parts for number, parts in whole.items() if "communication" in parts}
    return {
        number: sum(parts.get(name, 0.0) for name in OWN)
        for number, parts in (apart or whole).items()
    }


def _longest(own: Mapping[int, float], least: float) -> int | None:
    """Return who works longest.

    None unless that is at least ``least`` times as long as the others usually do.
    """
    if len(own) < 2:
        return None
    worst = max(own, key=own.__getitem__)
    usual = median(seconds for number, seconds in own.items() if number != worst)
    return (
        worst if usual > 0 and own[worst] >= least * usual and own[worst] - usual >= 1e-3 else None
    )


def _split_before(trainer: TrainerView, history: HistoryOf, seconds: float) -> dict[str, float]:
    """:func:`split_of` as it was so many seconds before the last sample."""
    found = {}
    for name in SPLIT:
        course = history(trainer.id, f"{name}_seconds", seconds + WINDOW_SECONDS)
        now = (
            trainer.sampled_seconds
            if trainer.sampled_seconds is not None
            else max(course.seconds, default=0.0)
        )
        place = bisect_right(course.seconds, now - seconds) - 1
        if place >= 0 and (value := course.values[place]) is not None:
            found[name] = value
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
