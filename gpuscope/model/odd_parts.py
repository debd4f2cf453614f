"""Which parts of a step take far longer on one rank than on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .ranks import median
from .step_time import input_wait, split_of

if TYPE_CHECKING:
    from ..store.view import TrainerView

TIMES, LEAST_SHARE = 2.0, 0.05
"""A part stands out that takes so many times the usual of the others, and so much more of a step.
"""
WAITS = "communication"
"""A rank that waits long for the others is not the odd one: they are."""


def parts_of(trainer: TrainerView) -> dict[str, float]:
    """Return the seconds of the parts of a step of one rank; at least of its wait for input."""
    found = split_of(trainer)
    wait = input_wait(trainer)[0]
    if "input" not in found and wait is not None:
        found["input"] = max(wait, 0.0)
    return found


def odd_parts(ranks: Sequence[TrainerView]) -> Mapping[str, frozenset[str]]:
    """Return the parts that stand out on each rank, by its key; ranks without any are left out."""
    known = {rank.key: parts_of(rank) for rank in ranks}
    steps = [seconds for rank in ranks if (seconds := rank.number("step_seconds"))]
    if len(known) < 2 or not steps:
        return {}
    least = median(steps) * LEAST_SHARE
    found: dict[str, frozenset[str]] = {}
    for key, parts in known.items():
        odd = set()
        for name, seconds in parts.items():
            others = [one[name] for other, one in known.items() if other != key and name in one]
            usual = median(others) if others else seconds
            if name != WAITS and seconds > TIMES * usual and seconds - usual >= least:
                odd.add(name)
        if odd:
            found[key] = frozenset(odd)
    return found
