"""Group findings that say the same of several GPUs or ranks, as a reader wants to see them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from ..text.ranges import ranges_text
from .finding import Evidence, Finding

DEVICE = re.compile(r"GPU (\d+)((?: .+)?)")
"""A place that is a GPU, or a property of one such as its power limit."""
_RANK, _NUMBER = re.compile(r"rank (\d+)\b"), re.compile(r"[\d.]+")


def likeness(finding: Finding) -> tuple[Hashable, ...]:
    """Return what a finding has in common with those that say the same of another place.

    Findings on GPUs must say it in the same words besides their figures.
    """
    device = DEVICE.fullmatch(finding.where)
    words = (_NUMBER.sub("", finding.title), device[2]) if device else ()
    return finding.pitfall, finding.cause, finding.severity, finding.confidence, finding.job, words


def groups(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings in order, with those together that say the same of GPUs or of ranks.

    Which of several runs of a script a rank is of is not known here, so a rank that comes twice
    belongs to another group.
    """
    found: dict[tuple[Hashable, ...], list[list[Finding]]] = {}
    out: list[list[Finding]] = []
    for finding in findings:
        alike = found.setdefault((*likeness(finding), finding.past), [])
        place = _place(finding)
        group = next(
            (one for one in alike if place and place not in map(_place, one) and _place(one[0])),
            None,
        )
        if group is None:
            group = []
            alike.append(group)
            out.append(group)
        group.append(finding)
    return out


def where_of(group: Sequence[Finding]) -> str:
    """Return where a group is: ``on 8 GPUs: 0-7``, or the place of its only finding.

    The job comes before it, where it has a name: ``train.py, rank 3, pid 4711``.
    """
    where = group[0].where
    if len(group) > 1:
        things, numbers = zip(*(place for one in group if (place := _place(one))), strict=True)
        where = f"on {len(group)} {things[0]}s: {ranges_text(numbers)}"
    return ", ".join(filter(None, (group[0].job, where)))


def on_devices(group: Sequence[Finding]) -> bool:
    """Return whether the findings of a group are on GPUs, and differ in their figures alone."""
    return DEVICE.fullmatch(group[0].where) is not None


def evidence_of(group: Sequence[Finding]) -> list[Evidence]:
    """Return the evidence of a group: of ranks that of the first, of GPUs each with the GPU's name.

    What is the same on several GPUs is said once.
    """
    if len(group) == 1 or not on_devices(group):
        return list(group[0].evidence)
    seen: dict[Evidence, list[int]] = {}
    for one in group:
        for evidence in one.evidence:
            place = _place(one)
            seen.setdefault(evidence, []).extend([place[1]] if place else ())
    return [
        Evidence(f"GPU {ranges_text(indices)}: {one.text}", one.source)
        for one, indices in seen.items()
    ]


def _place(finding: Finding) -> tuple[str, int] | None:
    """Return whether a finding is on a GPU or of a rank, and on which; None for another place."""
    if device := DEVICE.fullmatch(finding.where):
        return "GPU", int(device[1])
    rank = _RANK.match(finding.where)
    return ("rank", int(rank[1])) if rank else None
