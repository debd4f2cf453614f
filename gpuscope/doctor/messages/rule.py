"""Define the rules on messages, figures and symptoms, and apply those on messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..finding import Confidence, Severity
from .scene import MessageContext
from .text import Hit, Log, remove_spaces
from .votes import Vote


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause that a rule speaks for, with a weight from 0 to 1."""

    pitfall: str
    title: str
    weight: float


@dataclass(frozen=True, slots=True)
class CauseWhen(Cause):
    """One that counts only under circumstances.

    One of ``when`` must hold, unless it is empty, and none of ``unless``.
    """

    confidence: Confidence = "prior"
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def counts(self, circumstances: Collection[str]) -> bool:
        """Return whether the cause counts under these circumstances."""
        if self.when and not any(name in circumstances for name in self.when):
            return False
        return not any(name in circumstances for name in self.unless)


@dataclass(frozen=True, slots=True)
class FigureVote(CauseWhen):
    """One cause that the figures of a rule support."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class FigureRule:
    """The causes that figures of one kind speak for, and the sentence that shows them."""

    id: str
    votes: tuple[FigureVote, ...]
    cause: str = ""
    says: str = ""
    severity: Severity = "problem"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A pattern in the flat lower-case text, and the causes it speaks for."""

    cause: str
    pattern: str
    votes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Option(CauseWhen):
    """One cause of a message.

    ``words`` is a pattern that the message or the text near it must match, ``unlike`` one that it
    must not match.
    """

    words: str = ""
    unlike: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A message and its causes. All patterns are searched in the text without its spaces.

    - ``gate``: literal texts in lower case of which one must occur in the log. Checking them first
      makes most rules cost a single search.
    - ``pattern``: the message itself, where the gate is not specific enough.
    - ``unlike``: messages that another rule explains better.
    - ``line``: where prose and settings use the same words, how a program prints the message. A
      single line must match it, with its case and spaces. It does not apply to a user's own words.
    """

    cause: str
    gate: tuple[str, ...]
    options: tuple[Option, ...]
    pattern: str = ""
    unlike: str = ""
    line: str = ""
    severity: Severity = "problem"


NEAR = 2500
"""The neighbourhood of a message: this many characters, not counting spaces, on either side."""


def apply(
    rules: tuple[Rule, ...], log: Log, scene: MessageContext, described: bool = False
) -> Iterator[Vote]:
    """Yield the votes of every rule whose message is in the log.

    ``described`` says that a person wrote the text, and not a program.
    """
    for rule in rules:
        hit = log.first(*rule.gate)
        if hit is not None and rule.pattern:
            hit = log.find(rule.pattern)
        if hit is not None and rule.line and not described:
            hit = log.line_with(re.compile(rule.line))
        if hit is not None and not (rule.unlike and log.find(rule.unlike)):
            yield from _votes(rule, hit, log, scene)


def _votes(rule: Rule, hit: Hit, log: Log, scene: MessageContext) -> Iterator[Vote]:
    """Yield the causes of one message whose words and circumstances fit."""
    near = log.squeezed[max(0, hit.start - NEAR) : hit.end + NEAR]
    quoted = (log.quote(hit), log.where(hit))
    for option in rule.options:
        if option.when and not scene.any(*option.when):
            continue
        if scene.any(*option.unless):
            continue
        if option.words and not re.search(remove_spaces(option.words), near):
            continue
        if option.unlike and re.search(remove_spaces(option.unlike), near):
            continue
        fact = scene.any(*option.when)
        more = ((scene.facts[fact], log.where(hit)),) if fact else ()
        yield Vote(
            pitfall=option.pitfall,
            cause=rule.cause,
            title=option.title,
            weight=option.weight,
            severity=rule.severity,
            confidence=option.confidence,
            evidence=(quoted, *more),
            where=log.rank(hit),
        )
