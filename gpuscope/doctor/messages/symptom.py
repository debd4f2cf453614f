"""Define a symptom: the words that describe it, and the causes it speaks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SymptomVote:
    """One cause that a symptom speaks for, and how much."""

    pitfall: str
    title: str
    weight: float


@dataclass(frozen=True, slots=True)
class Symptom:
    """A pattern in the flat lower-case text, and the causes it speaks for."""

    cause: str
    pattern: str
    votes: tuple[SymptomVote, ...]
