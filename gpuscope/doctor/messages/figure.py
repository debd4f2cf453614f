"""Define a rule on figures: the causes they speak for, and the words of its evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..finding import Confidence, Severity


@dataclass(frozen=True, slots=True)
class FigureVote:
    """One cause that the figures of a rule support.

    It counts only if one of the circumstances ``when`` holds (or ``when`` is empty) and none of
    ``unless`` holds.
    """

    pitfall: str
    title: str
    weight: float
    confidence: Confidence = "prior"
    cause: str = ""
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def counts(self, circumstances: Collection[str]) -> bool:
        """Return whether the cause counts under these circumstances."""
        if self.when and not any(name in circumstances for name in self.when):
            return False
        return not any(name in circumstances for name in self.unless)


@dataclass(frozen=True, slots=True)
class FigureRule:
    """The causes that figures of one kind speak for, and the sentence that shows them."""

    id: str
    votes: tuple[FigureVote, ...]
    cause: str = ""
    says: str = ""
    severity: Severity = "problem"
