"""Predict one training, with the lines of the project that allocated what is live at the peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..predict.answer import Answer, TracedRequest
from ..predict.report import joined
from ..predict.request import Request, Traced
from ..predict.trace import Owner
from .settings import CheckedTraining

NO_CACHE = Path(os.devnull)
"""What this machine has measured of a card's context is not used: a check has the same result on
every machine.
"""
K = TypeVar("K", bound=Hashable)
Tracer = Callable[[Request], Traced]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction, and which owners' blocks are live at the peak of allocated memory."""

    answer: Answer
    owners: tuple[tuple[Owner, int], ...]
    source: str
    """The file and line at which the factory is defined."""

    @property
    def allocated_bytes(self) -> int:
        return self.answer.prediction.allocated.bytes

    @property
    def torch(self) -> str:
        return self.answer.torch

    @property
    def modules(self) -> dict[str, int]:
        """Return the bytes by module, where modules that differ in numbers only are one."""
        return _summed((joined(owner.module), size) for owner, size in self.owners)

    @property
    def parts(self) -> dict[tuple[str, str], int]:
        """Return the bytes by module and category."""
        return _summed(
            ((joined(owner.module), owner.category), size) for owner, size in self.owners
        )


def predicted(
    training: CheckedTraining, tracer: Tracer, project: str = "", seconds: float = 300.0
) -> Predicted:
    """Return the prediction of a training. Raises :class:`CannotPredict`."""
    asking = TracedRequest(
        training.request(project),
        tracer,
        training.card,
        training.settings(),
        seconds,
        cache=NO_CACHE,
    )
    table = asking.traced.trace.owner_table
    owners = tuple((table[number], size) for number, size in asking.simulated.owners.items())
    return Predicted(asking.finish(), owners, asking.traced.source)


def _summed(pairs: Iterable[tuple[K, int]]) -> dict[K, int]:
    sums: dict[K, int] = {}
    for key, size in pairs:
        sums[key] = sums.get(key, 0) + size
    return sums
