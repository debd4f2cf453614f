"""Say where the time of a training's step goes, and whether steps became slower.

Seconds as in ``wire.frames``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import fsum

from ..store.view import TrainerView
from ..text.units import count_text
from .pace import MEDIAN_STEPS, PARTS_STEPS

SPLIT = ("input", "h2d", "compute", "optimizer", "communication", "other")
"""Where a step's time goes: columns ``*_seconds``, which add up to :func:`measured_step`."""
SPLIT_WORDS = {**{name: name for name in SPLIT}, "h2d": "copy to GPU"}
"""What the parts of a step are called on all screens, in findings and in reports."""
MIXED = "compute and other code"
"""What ``compute`` is called where nothing marks its begin in a step, as without a DataLoader."""
_MIXED_WORDS = {**SPLIT_WORDS, "compute": MIXED}
OWN = ("input", "h2d", "compute", "optimizer", "other")
"""All but waiting for other ranks."""
MIN_STEPS = 30
"""The steps before this one are warm-up: autotuning, the first epoch's files, new workers."""
SLOWER = 1.15
"""A job is reported if its steps take this many times as long as an hour ago."""


def warmed_up(trainer: TrainerView) -> bool:
    """Return whether a trainer has stepped often enough for its times to mean something."""
    step = trainer.number("step")
    return step is not None and step >= MIN_STEPS


def split_of(trainer: TrainerView) -> dict[str, float]:
    """Return the seconds of a step by :data:`SPLIT`, as far as they are known."""
    found = {name: trainer.number(f"{name}_seconds") for name in SPLIT}
    return {name: value for name, value in found.items() if value is not None}


def words_of(parts: Collection[str]) -> Mapping[str, str]:
    """Return what these parts of a step are called.

    Where ``other`` is not among them, the script's own code between two steps is in ``compute``.
    """
    return SPLIT_WORDS if "other" in parts else _MIXED_WORDS


def measured_step(trainers: Iterable[TrainerView]) -> float | None:
    """Return the seconds of a step as the sum of its parts, the mean over these ranks.

    None where the parts are not known.

    Show this step time together with its parts or shares, because it is the
    mean of the same steps. The column ``step_seconds`` is the median of other steps, and says how
    fast a training usually is.
    """
    known = [
        sum(max(0.0, seconds) for seconds in parts.values())
        for t in trainers
        if (parts := split_of(t))
    ]
    return fsum(known) / len(known) if known and any(known) else None


def shares_of(trainers: Iterable[TrainerView]) -> dict[str, float]:
    """Return the mean share of each part of a step over these ranks.

    The shares add up to 1; empty if no part is known.
    """
    sums: dict[str, float] = {}
    for trainer in trainers:
        for name, seconds in split_of(trainer).items():
            sums[name] = sums.get(name, 0.0) + max(0.0, seconds)
    total = sum(sums.values())
    return {name: sums[name] / total for name in SPLIT if name in sums} if total > 0 else {}


def input_share(trainer: TrainerView) -> float | None:
    """Return the share of a step spent waiting for the input pipeline, 0..1.

    It is that of the device where it is measured, else of the thread that trains. None where
    neither is known.
    """
    wait, step = input_wait(trainer)
    return min(1.0, wait / step) if wait is not None and step else None


def input_wait(trainer: TrainerView) -> tuple[float | None, float | None]:
    """Return the seconds that a step waits for its input, and the seconds of the step.

    Both are means over the same steps.
    """
    measured = trainer.number("input_seconds")
    if measured is not None and "compute" in split_of(trainer):
        return max(0.0, measured), measured_step([trainer])
    return trainer.number("loader_wait_seconds"), trainer.number("step_seconds_mean")


def unnamed_share(trainer: TrainerView) -> float:
    """Return the share of a step that is in no part that is known, 0..1.

    It is 0 where the parts of a step are measured, and all but the input wait where no more than
    that is known.
    """
    return 0.0 if measured_step([trainer]) else 1.0 - (input_share(trainer) or 0.0)


def input_window(trainer: TrainerView) -> str:
    """Return over which of its steps :func:`input_wait` is a mean: ``the last 64 steps``."""
    steps, made = input_steps(trainer), trainer.number("step")
    return "the last " + count_text(
        steps if made is None else min(steps, max(1, int(made))), "step"
    )


def input_steps(trainer: TrainerView) -> int:
    """Return of how many steps :func:`input_wait` is a mean, of a trainer that has made as many."""
    parts = trainer.number("input_seconds") is not None and "compute" in split_of(trainer)
    return PARTS_STEPS if parts else MEDIAN_STEPS


def input_columns(trainer: TrainerView) -> tuple[str, tuple[str, ...]]:
    """Return the readings that :func:`input_wait` is made of: the wait, the parts of a step."""
    if trainer.number("input_seconds") is not None and "compute" in split_of(trainer):
        return "input_seconds", tuple(f"{name}_seconds" for name in SPLIT)
    return "loader_wait_seconds", ("step_seconds_mean",)


def slower_than_before(trainers: Iterable[TrainerView]) -> float | None:
    """Return how many times as long as an hour ago a step takes.

    It is that of the rank with the largest change; None if not known.
    """
    found = [
        now / before
        for t in trainers
        if (now := t.number("step_seconds")) is not None
        and (before := t.number("step_seconds_hour_ago"))
    ]
    return max(found) if found else None
