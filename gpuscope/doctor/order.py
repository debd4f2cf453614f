"""Ranks findings: the worst and surest first, each only once, and before a symptom its cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from . import table
from .finding import Confidence, Evidence, Finding, Severity

SEVERITIES: dict[Severity, int] = {"problem": 0, "warning": 1, "info": 2}
CONFIDENCES: dict[Confidence, int] = {"definite": 0, "likely": 1, "prior": 2}

_LEAST = (True, len(SEVERITIES))
_PID = re.compile(r"\bpid (\d+)")
One = TypeVar("One")


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Rank findings: problems before warnings before info.

    Among findings of one severity the definite ones come first; then they are ordered by ``rank``,
    then by their order of arrival. A ``prior`` always counts as info, so it comes after every
    finding with evidence. Findings about a trainer that has ended come last. Of several findings
    with the same pitfall and place only the best is kept, and what is said of a trainer is not said
    again of the machine, unless it is graver there. At last :func:`causes_first` puts causes before
    what they lead to, and both say so.
    """
    kept: dict[tuple[str, str], Finding] = {}
    for finding in sorted(map(_bounded, findings), key=_place):
        kept.setdefault((finding.pitfall, finding.where), finding)
    told: dict[tuple[str, str], tuple[bool, int]] = {}
    for finding in kept.values():
        if finding.where:
            told.setdefault((finding.pitfall, finding.title), _place(finding)[:2])
    left = [
        one
        for one in kept.values()
        if one.where or told.get((one.pitfall, one.title), _LEAST) > _place(one)[:2]
    ]
    return [_with_relation(one, left) for one in causes_first(left, lambda one: one)]


def causes_first(ranked: Sequence[One], finding_of: Callable[[One], Finding | None]) -> list[One]:
    """Return these in order, but before each symptom what it comes of in the same training.

    Only that takes another place which is at least likely and no mere info. A training whose loss
    is NaN is the graver news, but what makes it NaN is what there is to mend. ``finding_of``
    returns None for one that keeps its place.
    """
    findings = [finding_of(one) for one in ranked]
    begun: set[int] = set()

    def with_causes(at: int) -> Iterator[int]:
        if at in begun:
            return
        begun.add(at)
        symptom = findings[at]
        for other, finding in enumerate(findings):
            if finding is not None and symptom is not None and _leads_to(finding, symptom):
                yield from with_causes(other)
        yield at

    return [ranked[one] for at in range(len(ranked)) for one in with_causes(at)]


def pid_of(finding: Finding) -> int | None:
    """Return the process that a finding names in ``where``."""
    match = _PID.search(finding.where)
    return int(match[1]) if match else None


def _leads_to(cause: Finding, symptom: Finding) -> bool:
    """Return whether one finding is known to lead to the other, in the same process."""
    row = table.load().get(symptom.pitfall)
    if row is None or cause.cause not in row.comes_of or symptom.cause in row.comes_of:
        return False
    if cause.severity == "info" or cause.confidence == "prior" or cause.past or symptom.past:
        return False
    return not _pids(cause).isdisjoint(_pids(symptom))


def _pids(finding: Finding) -> set[int]:
    named = pid_of(finding)
    return {*finding.pids} if named is None else {named}


def _with_relation(one: Finding, others: Sequence[Finding]) -> Finding:
    """Return a finding with what it leads to and what it comes of as the last of its evidence."""
    told = [f"this can lead to: {two.title}" for two in others if _leads_to(one, two)]
    for two in others:
        if _leads_to(two, one):
            told.append(f"this can come of: {two.title}" + (f" ({two.where})" if two.where else ""))
    return replace(one, evidence=(*one.evidence, *map(Evidence, told))) if told else one


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
