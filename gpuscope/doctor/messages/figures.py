"""Turn figures into votes; ``rules/figures.json`` says for which causes, in which words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...text.units import bytes_text
from . import tables
from .votes import Vote


def votes(
    name: str,
    evidence: tuple[tuple[str, str], ...],
    circumstances: Collection[str] = (),
    **figures: int | str | None,
) -> Iterator[Vote]:
    """Yield the votes of the rule called ``name``.

    ``figures`` fill in the rule's sentence and its titles; numbers are bytes. The sentence is
    appended to the evidence, with the same source as the last piece of evidence.
    """
    rule = tables.figure_rules()[name]
    shown = {
        key: value if isinstance(value, str) else size_text(value) for key, value in figures.items()
    }
    if rule.says:
        evidence = (*evidence, (rule.says.format_map(shown), evidence[-1][1]))
    for vote in rule.votes:
        if vote.counts(circumstances):
            yield Vote(
                pitfall=vote.pitfall,
                cause=vote.cause or rule.cause or rule.id,
                title=vote.title.format_map(shown),
                weight=vote.weight,
                confidence=vote.confidence,
                severity=rule.severity,
                evidence=evidence,
            )


def size_text(size: int | None) -> str:
    """Return a size in words."""
    return bytes_text(size, "an unknown amount")
