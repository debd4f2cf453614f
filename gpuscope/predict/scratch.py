"""Vary the scratch memory of cuDNN's convolutions in a trace: more of it, less of it, or none.

For nine of ten convolutions this memory is predicted within a few percent or one MiB. That is
little compared with all allocated memory, but it can decide how much is reserved: a block that is
one MiB larger than the free block in which it was placed needs a segment of its own. So the trace
is replayed with all of this memory somewhat larger and somewhat smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .trace import Trace

REFUSABLE = "cudnn_convolution"
"""The operation under which the scratch memory of convolutions is traced."""
NEAR_BYTES, NEAR_SHARE = 1 << 20, 0.03
"""The deviation within which most of the measured convolutions are predicted."""


def without(trace: Trace) -> Trace:
    """Return ``trace`` without scratch memory of convolutions; the same trace if it has none."""
    return _changed(trace, lambda size: 0)


def varied(trace: Trace) -> list[Trace]:
    """Return ``trace`` with more scratch memory, and with less, than predicted.

    Nothing is returned if it has none.
    """
    found = (
        _changed(trace, lambda size: size + max(NEAR_BYTES, int(NEAR_SHARE * size))),
        _changed(trace, lambda size: size - max(NEAR_BYTES, int(NEAR_SHARE * size))),
    )
    return [other for other in found if other is not trace]


def _changed(trace: Trace, change: Callable[[int], int]) -> Trace:
    """Return the trace with ``change`` applied to the sizes of convolutions' scratch memory.

    Sizes up to ``NEAR_BYTES`` are only removed, never varied, because they are small blocks.
    """
    theirs = [owner.operation == REFUSABLE for owner in trace.owner_table]
    if not any(theirs):
        return trace
    gone = change(NEAR_BYTES) == 0
    sizes = [
        max(0, change(size)) if theirs[owner] and (gone or size > NEAR_BYTES) else size
        for size, owner in zip(trace.sizes, trace.owners, strict=True)
    ]
    return replace(trace, sizes=sizes)
