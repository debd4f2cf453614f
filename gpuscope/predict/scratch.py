"""Vary the scratch memory of cuDNN's convolutions in a trace.

It shows what a training is like with more of it, with less, and without.

How much a convolution takes is known within a few percent or a MiB for nine in ten. That is little
of what is allocated, but decides what is reserved: a block that is a MiB larger than the free one
it was to lie in takes a segment of its own. So the trace is replayed with all of it somewhat larger
and somewhat smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .trace import Trace

REFUSABLE = "cudnn_convolution"
"""The operation that scratch memory of convolutions is traced as."""
NEAR_BYTES, NEAR_SHARE = 1 << 20, 0.03
"""Within which most of the measured convolutions are predicted."""


def without(trace: Trace) -> Trace:
    """``trace`` as if no convolution asked for scratch memory; itself where none does."""
    return _changed(trace, lambda size: 0)


def varied(trace: Trace) -> list[Trace]:
    """Return ``trace`` with more scratch memory, and with less, than predicted.

    None of these where it has none.
    """
    found = (
        _changed(trace, lambda size: size + max(NEAR_BYTES, int(NEAR_SHARE * size))),
        _changed(trace, lambda size: size - max(NEAR_BYTES, int(NEAR_SHARE * size))),
    )
    return [other for other in found if other is not trace]


def _changed(trace: Trace, change: Callable[[int], int]) -> Trace:
    """What is below a MiB is left alone unless it goes: it lies among the small blocks."""
    theirs = [owner.operation == REFUSABLE for owner in trace.owner_table]
    if not any(theirs):
        return trace
    gone = change(NEAR_BYTES) == 0
    sizes = [
        max(0, change(size)) if theirs[owner] and (gone or size > NEAR_BYTES) else size
        for size, owner in zip(trace.sizes, trace.owners, strict=True)
    ]
    return replace(trace, sizes=sizes)
