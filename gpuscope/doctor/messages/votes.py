"""Collect the votes of the rules, and choose the best for the report.

Several rules may vote for one pitfall; the report shows the best vote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..finding import Confidence, Evidence, Finding, Severity
from ..order import CONFIDENCES, SEVERITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One possible cause with a weight from 0 to 1.

    The weight orders causes and is not a probability. ``evidence`` are (text, source) pairs.
    """

    pitfall: str
    cause: str
    title: str
    weight: float
    confidence: Confidence = "prior"
    severity: Severity = "problem"
    evidence: tuple[tuple[str, str], ...] = ()
    where: str = ""
    missing: str = ""


MOST_FINDINGS = 8
MOST_PRIORS = 5


def choose_best(votes: Iterable[Vote]) -> list[Vote]:
    """Return one vote per pitfall, best first; of mere priors only the first few are kept.

    Priors are only information, whatever the severity of their message; only their weights order
    them.
    """
    kept: dict[str, Vote] = {}
    for vote in sorted(votes, key=_sort_key):
        kept.setdefault(vote.pitfall, vote)
    result, priors = [], 0
    for vote in kept.values():
        priors += vote.confidence == "prior"
        if vote.confidence != "prior" or priors <= MOST_PRIORS:
            result.append(vote)
    return result[:MOST_FINDINGS]


def _sort_key(vote: Vote) -> tuple[int, int, float]:
    return (
        CONFIDENCES[vote.confidence],
        SEVERITIES["info" if vote.confidence == "prior" else vote.severity],
        -vote.weight,
    )


def finding(vote: Vote) -> Finding:
    """Return the vote as a finding of the report."""
    return Finding(
        pitfall=vote.pitfall,
        cause=vote.cause,
        title=vote.title,
        confidence=vote.confidence,
        severity="info" if vote.confidence == "prior" else vote.severity,
        rank=round(vote.weight, 3),
        where=vote.where,
        evidence=tuple(Evidence(text, source) for text, source in vote.evidence if text),
    )
