"""Compute the trace of any batch size from the traces of two.

A step allocates the same sequence of blocks whatever the batch size is, and the size of each block
is an affine function of the batch size. The constant part is what the weights need, and the slope
is what a sample needs. So two traces are enough to compute every other one without running the
model, and the simulated allocator can replay batch sizes that were never traced. If the two traces
differ in more than sizes (a kernel that is chosen by shape, a loop over samples), there is no such
law, and :func:`family` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .trace import Growth, Trace


@dataclass(frozen=True, slots=True)
class Family:
    """Two traces of one training.

    ``low`` with ``low_batch``, ``high`` with the larger ``high_batch``.
    """

    low: Trace
    low_batch: int
    high: Trace
    high_batch: int

    def at(self, batch: int) -> Trace:
        """Return the trace of ``batch`` (1 and more).

        Sizes are rounded to bytes and never negative.
        """
        span, ahead = self.high_batch - self.low_batch, batch - self.low_batch
        sizes = [
            low if low == high else max(0, low + (high - low) * ahead // span)
            for low, high in zip(self.low.sizes, self.high.sizes, strict=True)
        ]
        low = self.low
        growth = low.growth and self._growth(low.growth, ahead, span)
        return Trace(sizes, low.owners, low.owner_table, low.events, low.marks, low.streams, growth)

    def _growth(self, growth: Growth, ahead: int, span: int) -> Growth:
        """Return the growth, with windows that end sooner the longer the prompt is."""
        high = self.high.growth
        if high is None or growth.windows.keys() != high.windows.keys():
            return growth
        windows = {
            layer: left + (high.windows[layer] - left) * ahead // span
            for layer, left in growth.windows.items()
        }
        return replace(growth, windows=windows)


def family(low: Trace, low_batch: int, high: Trace, high_batch: int) -> Family | None:
    """Combine both traces; None if they are not the same sequence of allocations."""
    if low_batch > high_batch:
        low, low_batch, high, high_batch = high, high_batch, low, low_batch
    alike = (
        low.events == high.events
        and len(low.sizes) == len(high.sizes)
        and low.streams == high.streams
    )
    return Family(low, low_batch, high, high_batch) if alike and low_batch < high_batch else None
