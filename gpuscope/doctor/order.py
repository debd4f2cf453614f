"""Ranks findings: the worst and surest first, each only once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .finding import Confidence, Finding, Severity

SEVERITIES: dict[Severity, int] = {"problem": 0, "warning": 1, "info": 2}
CONFIDENCES: dict[Confidence, int] = {"definite": 0, "likely": 1, "prior": 2}

_LEAST = (True, len(SEVERITIES))


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Rank findings: problems before warnings before info.

    Among findings of one severity the definite ones come first; then they are ordered by ``rank``,
    then by their order of arrival. A ``prior`` always counts as info, so it comes after every
    finding with evidence. Findings about a trainer that has ended come last. Of several findings
    with the same pitfall and place only the best is kept, and what is said of a trainer is not said
    again of the machine, unless it is graver there.
    """
    kept: dict[tuple[str, str], Finding] = {}
    for finding in sorted(map(_bounded, findings), key=_place):
        kept.setdefault((finding.pitfall, finding.where), finding)
    told: dict[tuple[str, str], tuple[bool, int]] = {}
    for finding in kept.values():
        if finding.where:
            told.setdefault((finding.pitfall, finding.title), _place(finding)[:2])
    return [
        one
        for one in kept.values()
        if one.where or told.get((one.pitfall, one.title), _LEAST) > _place(one)[:2]
    ]


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
