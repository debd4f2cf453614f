"""Predict by a message's own arithmetic what the cures of a refusal bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import effects
from ..finding import Finding
from .oom import OutOfMemory


def add_effects(
    findings: Iterable[Finding], refusals: Sequence[OutOfMemory]
) -> tuple[Finding, ...]:
    """Return the findings with effects, by the last refusal of a device with figures."""
    known = [
        one
        for one in refusals
        if one.backend not in ("cpu", "mps") and one.requested_bytes is not None
    ]
    if not known:
        return tuple(findings)
    last = known[-1]
    amounts = effects.Amounts(
        requested=last.requested_bytes,
        free=last.free_bytes,
        allocated=last.allocated_bytes,
        cached=last.unallocated_bytes,
        outside=last.outside_bytes,
        others=sum(held for _, held in last.others) or None,
        private_idle=last.private_pool_bytes,
    )
    return tuple(effects.of_memory(finding, amounts) for finding in findings)
