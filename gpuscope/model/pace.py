"""How fast a training steps now, or for how long it has not: one answer for all surfaces.

A probe keeps the durations of its last steps. While a training hangs these are still there, but
they say how fast it was. So a pace has a present rate only while the training steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.view import TrainerView
from ..text.units import ago_text, duration_text
from .ranks import running
from .stalls import find_stall, is_overdue, is_stalled

MEDIAN_STEPS, PARTS_STEPS = 64, 32
"""How many recent steps give the median step time, and how many measured ones give the mean parts
of a step: ``WINDOW`` of ``probe/steps.py`` and of ``probe/split.py``.
"""
STEP_CELLS = 9
"""Cells of a column of step counts."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The steps of one or more ranks, as far as they are known.

    ``fewest`` and ``most`` are the steps that the ranks have ended; one number for ranks that step
    together, though each was read at another moment. ``usual_seconds`` is the median
    step of the slowest rank and ``mean_seconds`` the mean of the same steps, for what is counted
    per second. Both are the last known ones where the ranks have ``stopped``. ``age_seconds`` is
    how long ago the last step of the rank behind ended.
    """

    fewest: float | None
    most: float | None
    usual_seconds: float | None
    mean_seconds: float | None
    age_seconds: float | None
    stopped: bool

    @property
    def seconds(self) -> float | None:
        """The present step time, None while there is none."""
        return None if self.stopped else self.usual_seconds

    @property
    def steps_text(self) -> str:
        """The steps in words, ``4,012`` or ``50–51`` where ranks differ; "" where unknown."""
        if self.fewest is None or self.most is None:
            return ""
        low, high = f"{self.fewest:,.0f}", f"{self.most:,.0f}"
        between = f"{low}–{high}"
        return low if low == high else between if len(between) <= STEP_CELLS else f"{low}+"

    @property
    def text(self) -> str:
        """The present pace in words that name its basis, "" where it is unknown."""
        if self.stopped and self.age_seconds is not None:
            return f"last step {ago_text(self.age_seconds)}"
        return f"median step {duration_text(self.usual_seconds)}" if self.usual_seconds else ""

    @property
    def text_with_past(self) -> str:
        """The same, and where no step ends how fast they were before."""
        if not self.stopped or not self.usual_seconds or self.age_seconds is None:
            return self.text
        return f"{self.text}, median step {duration_text(self.usual_seconds)} before"


APART_SECONDS = 2.0
"""Of ranks that step together, the readings may be apart by so much: each is of another moment."""


def counts_of(ranks: Sequence[TrainerView], column: str = "step") -> dict[str, float]:
    """Return the steps of each rank by its key, or what else each counts per step.

    Ranks that step together have one count, the least of all: more of it is explained by the
    moments of reading. Where a rank stands, or may, the counts do not move on between two readings:
    a difference is one of the ranks.
    """
    steps = {t.key: n for t in ranks if (n := t.number("step")) is not None}
    counts = {t.key: n for t in ranks if (n := t.number(column)) is not None}
    usual = [n for t in ranks if (n := t.number("step_seconds"))]
    known = len(counts) > 1 and usual and counts.keys() <= steps.keys()
    if not known or any(is_stalled(t) or is_overdue(t) for t in ranks):
        return counts
    reached = [
        steps[t.key]
        + min(1.0, (t.number("step_age_seconds") or 0.0) / (t.number("step_seconds") or usual[0]))
        for t in ranks
        if t.key in steps
    ]
    moments = [t.sampled_seconds for t in ranks if t.sampled_seconds is not None]
    apart = APART_SECONDS + (max(moments) - min(moments) if moments else 0.0)
    if (max(reached) - min(reached)) * max(usual) > apart:
        return counts
    least, most = min(counts.values()), max(counts.values())
    each = max(n / max(steps[key], 1.0) for key, n in counts.items())
    alike = column == "step" or most - least <= (1 + apart / max(usual)) * each
    return dict.fromkeys(counts, least) if alike else counts


LIKE_THE_BAR = 2.0
"""A time left that differs by more from the trainer's own counts other things than steps."""


def seconds_left(trainer: TrainerView) -> float | None:
    """Return how long the rest of a run takes at its median step time, None where unknown.

    The trainer's own estimate jumps with every slow step. It stands where its progress counts
    anything but steps.
    """
    told, step = trainer.number("eta_seconds"), trainer.number("step_seconds")
    done, total = trainer.number("progress_done"), trainer.number("progress_total")
    if told is None or not step or done is None or total is None:
        return told
    own = (total - done) * step
    alike = own > 0 and 1 / LIKE_THE_BAR <= told / own <= LIKE_THE_BAR
    return own if alike else told


def has_stopped(trainer: TrainerView) -> bool:
    """Whether its step times are of the past: its step is long overdue, or it has ended."""
    return trainer.gone is not None or is_stalled(trainer) or is_overdue(trainer)


def pace_of(ranks: Sequence[TrainerView]) -> Pace:
    """Return the pace of these ranks together; of those that run, where any does.

    They have stopped where the job hangs, or where every one of them is overdue.
    """
    living = running(ranks)
    steps = counts_of(living).values()
    usual = [n for t in living if (n := t.number("step_seconds")) is not None]
    means = [n for t in living if (n := t.number("step_seconds_mean")) is not None]
    ages = [n for t in living if t.gone is None and (n := t.number("step_age_seconds")) is not None]
    stopped = find_stall(living) is not None or all(map(has_stopped, living))
    return Pace(
        min(steps, default=None),
        max(steps, default=None),
        max(usual, default=None),
        max(means, default=None),
        max(ages, default=None),
        stopped and bool(living),
    )
