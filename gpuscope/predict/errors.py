"""Compute the error bar of each predicted figure, in bytes and percent.

A prediction is a sum of blocks, and some sizes are better known than others. The sizes of
parameters, gradients and optimizer state are exact. Activations are what autograd keeps, and a
kernel of the GPU may keep more or less than the CPU's. The sizes of temporary blocks and workspaces
are chosen by the kernels. So every byte that is live at the peak has an error rate, which depends
on the category of its block and on the kind of kernel that allocated it:

    allocated: fixed + Σ live bytes × rate                                   + allocated × doubts
    reserved:  error of allocated + reserved × RESERVED                      + reserved × doubts
    demand:    √(error of allocated² + (allocated × DEMAND)²), what the least memory that it runs in may be off
    device:    √(error of reserved² + error of what lies outside torch²)

*Demand* is the least memory that a training runs in. The error of reserved memory is larger than
that of demand: which of two free blocks serves a request decides how many segments there are at the
end, but a training that runs short of memory frees the surplus. How much a training requests, and
how much of the free memory between its blocks cannot be used, are independent of each other, so for
demand their errors add up as squares. For the peaks they simply add up.

The error bars cover the truth in more than nine tenths of 340 trainings of 30 model families on an
H200 (bench/predict/bars.py prints the table, and how a scale fitted on one half of the families
does on the other). The rules for what kernels allocate were derived from the same trainings, so the
bars are about twice as wide as these alone would need: other models may use other kernels.

Where the tracing child is uncertain (an operation without a fake kernel, a value that decides a
shape), it reports a *doubt*, which adds its own percentage. A doubt that is upward, such as scratch
memory that a kernel may or may not take, widens only the upper side of the bar. One about a shape
of which only the largest size is known widens the lower side more. A doubt of the code
``fragmentation`` is about how blocks lie, not about how many there are: only what is reserved
becomes less certain.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..text.units import MIB
from .request import Doubt
from .trace import Trace

FIXED_BYTES = 6 * MIB
"""Small blocks that libraries request once: handles, seeds, scalars."""
RATES: Mapping[str, float] = {
    "parameter": 0.0005,
    "buffer": 0.0005,
    "gradient": 0.001,
    "optimizer": 0.001,
    "cache": 0.001,
    "input": 0.001,
    "activation": 0.01,
    "temporary": 0.02,
    "workspace": 0.03,
    "unknown": 0.03,
}
KINDS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("rnn", "lstm", "gru"), 2.0),
    (("attention", "sdpa"), 1.3),
    (("conv", "batch_norm"), 2.0),
)
"""Words in an operator's name → how much less certain its activations and temporary blocks are."""
RESERVED, RESERVED_CONVOLUTION = 0.02, 0.08
"""Error rates of reserved memory, without convolutions and with many: convolutions have workspaces
of any size, which change what stays cached.
"""
DEMAND, DEMAND_CONVOLUTION = 0.02, 0.04
"""Rates of allocated memory in the error of the demand."""
MANY_CONVOLUTIONS = 0.1
"""From this share of all requested bytes on, a training counts as one with many convolutions.

Their results and workspaces are counted. A transformer that makes its patches with one convolution
has 0.01, a ResNet 0.5.
"""
MOST_PERCENT = 100.0
FRAGMENTATION = "fragmentation"
"""The code of a doubt that is only about reserved memory."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted number of bytes and its error.

    The error is ``error_bytes`` in both directions. If ``below_bytes`` is set, it is the error
    downwards, and ``error_bytes`` is the error upwards.
    """

    bytes: int
    error_bytes: int
    below_bytes: int | None = None

    @property
    def lower_error_bytes(self) -> int:
        """The lower side of the error as it was computed, even where it exceeds the figure."""
        return self.error_bytes if self.below_bytes is None else self.below_bytes

    @property
    def less_bytes(self) -> int:
        """The lower side of the error, in bytes; ``error_bytes`` is the upper one."""
        return min(self.bytes, self.lower_error_bytes)

    @property
    def lopsided(self) -> bool:
        """Whether the two sides differ too much for a single figure with ±."""
        return self.below_bytes is not None and self.below_bytes != self.error_bytes

    @property
    def low(self) -> int:
        """The least that is expected, in bytes."""
        return self.bytes - self.less_bytes

    @property
    def high(self) -> int:
        """The most that is expected, in bytes."""
        return self.bytes + self.error_bytes

    @property
    def error_percent(self) -> float:
        """Return the percentage of the larger side."""
        return (
            round(100 * max(self.error_bytes, self.less_bytes) / self.bytes, 2)
            if self.bytes > 0
            else 0.0
        )


def rate(category: str, operation: str) -> float:
    """Return the error rate of one live byte, before scaling."""
    basic = RATES.get(category, RATES["unknown"])
    if category not in ("activation", "temporary", "workspace"):
        return basic
    name = operation.lower()
    for words, factor in KINDS:
        if any(word in name for word in words):
            return basic * factor
    return basic


def doubtful(trace: Trace, at: int) -> float:
    """Return Σ bytes × rate over the blocks that are live after event ``at``."""
    table = trace.owner_table
    return sum(
        size * rate(table[owner].category, table[owner].operation)
        for owner, size in _live(trace, at).items()
    )


def category_errors(trace: Trace, at: int) -> dict[str, float]:
    """Return the terms of :func:`doubtful` by the category of the blocks, in bytes."""
    found: dict[str, float] = {}
    for number, size in _live(trace, at).items():
        owner = trace.owner_table[number]
        found[owner.category] = found.get(owner.category, 0.0) + size * rate(
            owner.category, owner.operation
        )
    return found


def _live(trace: Trace, at: int) -> dict[int, int]:
    """Return the bytes of the blocks that are live after event ``at``, by owner number."""
    sums: dict[int, int] = {}
    sizes, owners = trace.sizes, trace.owners
    for block in trace.live(at + 1):
        owner = owners[block]
        sums[owner] = sums.get(owner, 0) + sizes[block]
    return sums


def convolutions(trace: Trace) -> float:
    """Return the share of the requested bytes that belongs to convolutions, on a scale.

    0 is none, 1 is :data:`MANY_CONVOLUTIONS` or more.
    """
    theirs = ["conv" in owner.operation.lower() for owner in trace.owner_table]
    if not any(theirs):
        return 0.0
    scratch_bytes = sum(
        size for size, owner in zip(trace.sizes, trace.owners, strict=True) if theirs[owner]
    )
    return min(1.0, scratch_bytes / max(1, sum(trace.sizes)) / MANY_CONVOLUTIONS)


def _between(none: float, many: float, convolutions: float) -> float:
    return none + (many - none) * convolutions


def allocated_error(peak: int, doubtful_bytes: float, doubts: Sequence[Doubt]) -> int:
    """Return the error of the peak of allocated memory, in bytes."""
    return int(FIXED_BYTES + doubtful_bytes + peak * _share(_of_blocks(doubts)))


def reserved_error(
    peak: int, error_of_allocated: int, doubts: Sequence[Doubt], allocated: int, conv: float
) -> int:
    """Return the error of the peak of reserved memory, in bytes.

    ``conv`` is from :func:`convolutions`.
    """
    plain = error_of_allocated - allocated * _share(_of_blocks(doubts))
    return int(plain + fragmentation_error(peak, conv) + peak * _share(doubts))


def fragmentation_error(reserved: int, conv: float) -> float:
    """Return the error of what is reserved beyond the blocks.

    ``reserved`` is the peak. In bytes.
    """
    return _between(RESERVED, RESERVED_CONVOLUTION, conv) * reserved


def demand_error(allocated: int, error_of_allocated: int, conv: float) -> int:
    """Return the error of the least memory in which a training runs, in bytes."""
    return int(
        math.hypot(error_of_allocated, _between(DEMAND, DEMAND_CONVOLUTION, conv) * allocated)
    )


def device_error(error_of_reserved: int, error_of_outside: int) -> int:
    """Return the error of the whole card's peak, whose two parts are independent, in bytes."""
    return int(math.hypot(error_of_reserved, error_of_outside))


def downward(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Return the doubts that count for the lower side of the bar too, with what they add to it."""
    return [
        doubt if doubt.less_percent is None else replace(doubt, percent=doubt.less_percent)
        for doubt in doubts
        if not doubt.upward
    ]


def _of_blocks(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Return the doubts about what is allocated."""
    return [doubt for doubt in doubts if doubt.code != FRAGMENTATION]


def _share(doubts: Sequence[Doubt]) -> float:
    """Return the share that all doubts add up to; it has no limit."""
    both = sum(doubt.percent for doubt in doubts if not doubt.upward)
    return (min(MOST_PERCENT, both) + sum(doubt.percent for doubt in doubts if doubt.upward)) / 100
