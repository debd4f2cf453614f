"""Ranks findings: the worst and surest first, each only once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .finding import Confidence, Finding, Severity

SEVERITIES: dict[Severity, int] = {"problem": 0, "warning": 1, "info": 2}
CONFIDENCES: dict[Confidence, int] = {"definite": 0, "likely": 1, "prior": 2}


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Rank findings: problems before warnings before info.

    Among equals the definite come first, then they go by ``rank``, then as they came. A ``prior``
    is info whatever it says, so it comes after all that evidence names. What is about a trainer
    that has ended comes last of all. Of one pitfall in one place only the best is kept.
    """
    kept: dict[tuple[str, str], Finding] = {}
    for finding in sorted(map(_bounded, findings), key=_place):
        kept.setdefault((finding.pitfall, finding.where), finding)
    return list(kept.values())


def _bounded(finding: Finding) -> Finding:
    if finding.confidence == "prior" and finding.severity != "info":
        return replace(finding, severity="info")
    return finding


def _place(finding: Finding) -> tuple[bool, int, int, float]:
    return (
        finding.past,
        SEVERITIES[finding.severity],
        CONFIDENCES[finding.confidence],
        -finding.rank,
    )
