"""What a symptom is: words that describe it, and the causes it speaks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symptom:
    """A pattern in the flat lower-case text, and the causes it speaks for with their weights."""

    cause: str
    pattern: str
    votes: tuple[tuple[str, str, float], ...]
