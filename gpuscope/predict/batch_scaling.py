"""Scale a trace to any batch, from the traces of two.

The same blocks come in the same order, each as large as its law says.

A step allocates the same sequence of blocks whatever the batch is, and the size of each is affine
in the batch: its constant part is what weights need, its slope what a sample needs. So two traces
give every other one, without a model, and the allocator's simulation can be asked about batches
that were never traced. Where the two differ in more than sizes (a kernel that is chosen by shape, a
loop over samples) there is no such law, and :func:`family` gives None.
"""

from __future__ import annotations

from dataclasses import dataclass

from .trace import Trace


@dataclass(frozen=True, slots=True)
class Family:
    """``low`` was traced with ``low_batch``, ``high`` with ``high_batch``, which is larger."""

    low: Trace
    low_batch: int
    high: Trace
    high_batch: int

    def at(self, batch: int) -> Trace:
        """The trace of ``batch`` (1 and more). Sizes are rounded to bytes and never negative."""
        span, ahead = self.high_batch - self.low_batch, batch - self.low_batch
        sizes = [
            low if low == high else max(0, low + (high - low) * ahead // span)
            for low, high in zip(self.low.sizes, self.high.sizes, strict=True)
        ]
        low = self.low
        return Trace(sizes, low.owners, low.owner_table, low.events, low.marks, low.streams)


def family(low: Trace, low_batch: int, high: Trace, high_batch: int) -> Family | None:
    """Both traces as one family; None where they are not the same sequence of allocations."""
    if low_batch > high_batch:
        low, low_batch, high, high_batch = high, high_batch, low, low_batch
    alike = (
        low.events == high.events
        and len(low.sizes) == len(high.sizes)
        and low.streams == high.streams
    )
    return Family(low, low_batch, high, high_batch) if alike and low_batch < high_batch else None
