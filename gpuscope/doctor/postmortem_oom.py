"""Judge what caused an out-of-memory error, by what the allocator held and not by the message.

reserved = allocated + cached, and device = reserved by this process + memory outside it + free. A
request fails when neither a free block of the cache nor the free part of the device is large enough
for it in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..text.units import GIB, MIB, bytes_text, percent_text
from . import effects
from .finding import Confidence, Evidence, Finding
from .wordings import Wordings

WORDINGS = Wordings("postmortem")
OUTSIDE_SHARE, OUTSIDE_BYTES = 0.20, 1.5 * GIB
FRAGMENTED, LARGE = 0.10, 0.01
"""Shares of the device: of cached memory, and of the request, of which one is needed to speak of
fragmentation. A small request that fails in a small cache is one of many that would fail next.
"""
PART = 0.35
"""Reducing the optimizer state is advised first where it is this share of the allocated bytes."""
SMALL = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OomFacts(effects.Amounts):
    """The bytes at the moment of the failure; None where they are unknown.

    ``largest_free`` is the largest contiguous free range of the default pool, and ``private_idle``
    is what is free inside private pools. ``settings`` are the settings of the allocator.
    """

    total: float | None = None
    reserved: float | None = None
    settings: str = ""
    where: str = ""
    source: str = ""


def judge(facts: OomFacts) -> list[Finding]:
    """Returns the findings about one error, the likeliest first, and always at least one."""
    if facts.cached is None:
        facts = replace(facts, cached=_difference(facts.reserved, facts.allocated))
    found = [*_causes(facts)] or [_full_card(facts)]
    amounts = replace(facts, outside=_outside_bytes(facts))
    return [effects.of_memory(finding, amounts) for finding in found]


def _difference(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else max(0.0, whole - part)


def _outside_bytes(facts: OomFacts) -> float | None:
    if facts.free is None or not facts.total or facts.reserved is None:
        return None
    return max(0.0, facts.total - facts.free - facts.reserved)


def _causes(facts: OomFacts) -> Iterator[Finding]:
    for rule in (
        _giant_request,
        _memory_of_others,
        _limit_of_process,
        _fragmentation,
        _private_pools,
    ):
        finding = rule(facts)
        if finding is not None:
            yield finding
    if not any((_giant_request(facts), _memory_of_others(facts), _fragmentation(facts))):
        yield _full_card(facts)


def _request_evidence(facts: OomFacts) -> Evidence:
    """Returns the request and the card as one line of evidence."""
    parts = [
        f"{bytes_text(facts.requested)} requested"
        if facts.requested is not None
        else "the request is unknown"
    ]
    if facts.free is not None and facts.total is not None:
        parts.append(f"{bytes_text(facts.free)} of {bytes_text(facts.total)} free on the GPU")
    return Evidence(", ".join(parts), facts.source)


def _allocator_evidence(facts: OomFacts) -> Evidence | None:
    if facts.allocated is None or facts.reserved is None:
        return None
    text = (
        f"this process: {bytes_text(facts.allocated)} allocated, "
        f"{bytes_text(facts.reserved - facts.allocated)} cached"
    )
    if facts.inactive_split is not None:
        text += f", {bytes_text(facts.inactive_split)} of that inactive split"
    return Evidence(text, facts.source)


def _finding(
    facts: OomFacts,
    name: str,
    confidence: Confidence,
    *more: Evidence,
    figures: Mapping[str, object] | None = None,
    rank: float = 1.0,
) -> Finding:
    evidence = tuple(
        one
        for one in (_request_evidence(facts), _allocator_evidence(facts), *more)
        if one is not None
    )
    return WORDINGS.finding(
        name,
        figures,
        severity="problem",
        confidence=confidence,
        evidence=evidence,
        where=facts.where,
        rank=rank,
    )


def _giant_request(facts: OomFacts) -> Finding | None:
    if facts.requested is None or not facts.total or facts.requested <= facts.total:
        return None
    more = Evidence(
        f"one tensor of {bytes_text(facts.requested)} is more than the whole GPU of "
        f"{bytes_text(facts.total)}"
    )
    return _finding(
        facts,
        "oom.giant_request",
        "definite",
        more,
        rank=3.0,
    )


def _memory_of_others(facts: OomFacts) -> Finding | None:
    if facts.free is None or not facts.total or facts.reserved is None:
        return None
    outside = facts.total - facts.free - facts.reserved
    if outside < max(OUTSIDE_SHARE * facts.total, OUTSIDE_BYTES):
        return None
    more = Evidence(
        f"{bytes_text(facts.total)} − {bytes_text(facts.free)} free − "
        f"{bytes_text(facts.reserved)} reserved here = {bytes_text(outside)} "
        f"({percent_text(outside / facts.total)}) outside this allocator: other programs, or "
        "libraries of this one"
    )
    return _finding(
        facts,
        "oom.outside",
        "definite",
        more,
        figures={"outside": bytes_text(outside)},
        rank=2.5,
    )


def _limit_of_process(facts: OomFacts) -> Finding | None:
    if (
        facts.requested is None
        or facts.free is None
        or facts.free < facts.requested * 1.02 + 32 * MIB
    ):
        return None
    more = Evidence("the GPU had room for it: a limit of this process refused it")
    return _finding(
        facts,
        "oom.capped",
        "likely",
        more,
        rank=2.2,
    )


def _fragmentation(facts: OomFacts) -> Finding | None:
    """Returns a finding where enough is free in the cache, but not in one piece."""
    if (
        facts.requested is None
        or facts.cached is None
        or not facts.total
        or "expandable_segments:True" in facts.settings
    ):
        return None
    much = facts.cached >= FRAGMENTED * facts.total
    if facts.cached < facts.requested or not (much or facts.requested >= LARGE * facts.total):
        return None
    if facts.largest_free is not None and facts.largest_free >= facts.requested:
        return None
    share = percent_text(facts.cached / facts.total)
    largest = (
        ""
        if facts.largest_free is None
        else f", the largest piece {bytes_text(facts.largest_free)}"
    )
    more = Evidence(
        f"{bytes_text(facts.cached)} were free in the cache, {share} of the GPU{largest}: "
        f"{bytes_text(facts.requested)} did not fit in one piece"
    )
    return _finding(
        facts,
        "oom.fragmentation",
        "definite" if facts.largest_free is not None else "likely",
        more,
        figures={"cached": bytes_text(facts.cached)},
        rank=2.0,
    )


def _private_pools(facts: OomFacts) -> Finding | None:
    if (
        facts.requested is None
        or not facts.private_idle
        or facts.private_idle < max(facts.requested, SMALL)
    ):
        return None
    more = Evidence(
        f"{bytes_text(facts.private_idle)} idle in private pools (CUDA graphs), which "
        "nothing else can use"
    )
    return _finding(
        facts,
        "oom.private_pools",
        "likely",
        more,
        figures={"idle": bytes_text(facts.private_idle)},
        rank=1.5,
    )


def _full_card(facts: OomFacts) -> Finding:
    """Returns the finding on a card full of live tensors, by the kind that takes most."""
    more = []
    apart = (
        facts.largest_free is not None
        and facts.requested is not None
        and facts.largest_free >= facts.requested
    )
    if apart and facts.largest_free is not None:
        text = (
            f"{bytes_text(facts.largest_free)} were free in the cache in one piece, which belongs "
            "to another stream or pool"
        )
        more.append(Evidence(text, facts.source))
    elif facts.cached is not None and facts.requested is not None and facts.total:
        text = (
            f"free in the cache: {bytes_text(facts.cached)}, "
            f"{percent_text(facts.cached / facts.total)} of the GPU"
        )
        more.append(Evidence(f"{text}: fragmentation is not the cause", facts.source))
    kinds = [
        ("optimizer state", facts.optimizer),
        ("parameters", facts.parameters),
        ("gradients", facts.gradients),
    ]
    known = [(name, value) for name, value in kinds if value]
    if facts.allocated and known:
        rest = facts.allocated - sum(value for _, value in known)
        parts = ", ".join(f"{name} {bytes_text(value)}" for name, value in known)
        more.append(
            Evidence(
                f"live: {parts}, activations and the rest {bytes_text(max(0.0, rest))}",
                facts.source,
            )
        )
        if facts.optimizer and facts.optimizer >= PART * facts.allocated:
            share = percent_text(facts.optimizer / facts.allocated)
            return _finding(facts, "oom.optimizer_state", "likely", *more, figures={"share": share})
        fixed = sum(value for _, value in known)
        if facts.parameters and fixed >= 0.7 * facts.allocated:
            share = percent_text(fixed / facts.allocated)
            return _finding(facts, "oom.model_state", "likely", *more, figures={"share": share})
    sure: Confidence = "prior" if apart or facts.allocated is None else "likely"
    return _finding(facts, "oom.live_tensors", sure, *more)
