"""Judge complaints without an error message: slow, idle, growing, hanging.

Nothing here is ``definite``: a description only narrows the causes down, and a measurement decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Confidence
from . import tables
from .text import Log
from .votes import Vote


def votes(log: Log, described: bool) -> Iterator[Vote]:
    """Yield the votes of a description, or of the readings that a log prints.

    ``described`` says that a person wrote the text to describe what happens.
    """
    yield from _votes(log, tables.DESCRIBED if described else tables.PRINTED, described)


def plain_votes(described: Log) -> Iterator[Vote]:
    """Yield the votes of a user's words that only say that it is slow."""
    yield from _votes(described, tables.PLAIN, described=True)


def _votes(log: Log, files: tuple[str, ...], described: bool) -> Iterator[Vote]:
    for symptom in tables.symptoms(files):
        found = log.words(symptom.pattern)
        if found is None:
            continue
        words = log.flat[max(0, found.start() - 40) : found.end() + 60].strip()
        for one in symptom.votes:
            yield Vote(
                pitfall=one.pitfall,
                cause=symptom.cause,
                title=one.title,
                weight=one.weight,
                confidence=_confidence(one.weight, described),
                severity="warning" if described else "info",
                evidence=((words, log.source),),
            )


def _confidence(weight: float, described: bool) -> Confidence:
    return "likely" if described and weight >= 0.7 else "prior"
