"""Take apart what is inside ``reserved``, so that the parts add up.

It uses one statistics call of torch's caching allocator.

The identities are those of ``CUDACachingAllocator.cpp`` (native backend). ``allocated_bytes`` drops
when a free is asked for, ``active_bytes`` and ``requested_bytes`` when it is done: later, while
another stream still uses the block.

    reserved = active + inactive split + releasable
    active   = allocated + awaiting free on other streams
    rounding = active - requested            (of the blocks in use and of those awaiting free, together)
    live     = allocated - rounding

So ``live`` is exact while nothing awaits a free. Else the rounding of the pending blocks, at most
the smaller of all rounding and all pending bytes, cannot be told from that of the live ones:
:attr:`Split.error`.

Blocks of private pools (CUDA graphs) that are in use are counted as live like all others. Their
idle bytes are in ``inactive split`` or in ``releasable``; a walk over the segments says how many,
and they are taken out there.

All numbers are bytes.
"""  # noqa: E501

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """One row of the allocator.

    The last two come from a walk taken at another moment; 0 where there are no pools.
    """

    reserved: int
    allocated: int
    active: int
    requested: int
    inactive_split: int
    pool_idle: int = 0
    pool_idle_split: int = 0


COLUMNS = (
    "reserved_bytes",
    "allocated_bytes",
    "active_bytes",
    "requested_bytes",
    "inactive_split_bytes",
)
POOL_COLUMNS = ("private_pool_idle_bytes", "private_pool_inactive_split_bytes")
"""The columns of an allocator that :class:`Counters` is made of, in its order."""


class Split(NamedTuple):
    """Parts that add up to ``reserved``, none below 0.

    ``error``: ``live`` may be so much larger and ``rounding`` so much smaller. ``torn``: the
    counters contradict each other, so something was cut to what it can be at most.
    """

    live: int
    rounding: int
    awaiting: int
    inactive_split: int
    releasable: int
    pool_idle: int
    error: int = 0
    torn: bool = False

    @property
    def total(self) -> int:
        """``reserved`` again."""
        return (
            self.live
            + self.rounding
            + self.awaiting
            + self.inactive_split
            + self.releasable
            + self.pool_idle
        )


def split(counters: Counters) -> Split:
    """The parts of ``counters.reserved``.

    For whatever numbers, they add up to it (to 0 where it is below).
    """
    reserved = max(counters.reserved, 0)
    active = _within(counters.active, reserved)
    allocated = _within(counters.allocated, active)
    inactive = _within(counters.inactive_split, reserved - active)
    all_rounding = _within(counters.active - counters.requested, active)
    awaiting = active - allocated
    rounding = min(all_rounding, allocated)
    releasable = reserved - active - inactive
    idle_split = _within(min(counters.pool_idle_split, counters.pool_idle), inactive)
    idle_whole = _within(counters.pool_idle - counters.pool_idle_split, releasable)
    torn = (active, allocated, inactive) != (
        counters.active,
        counters.allocated,
        counters.inactive_split,
    ) or (all_rounding != counters.active - counters.requested)
    return Split(
        allocated - rounding,
        rounding,
        awaiting,
        inactive - idle_split,
        releasable - idle_whole,
        idle_split + idle_whole,
        min(all_rounding, awaiting),
        torn,
    )


class Live(NamedTuple):
    """Categories of ``live``; they add up to it.

    ``cut``: what was counted elsewhere is more than is live now.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    workspaces: int
    rest: int
    cut: bool = False
    other_models: int = 0


def categories(
    live: int,
    parameters: int,
    gradients: int,
    optimizer_state: int,
    workspaces: int,
    other_models: int = 0,
) -> Live:
    """Take ``live`` bytes apart by what was counted from the tensors themselves.

    That was counted right after an optimizer step.

    Between that moment and this one gradients come and go with ``zero_grad``: where all is more
    than ``live``, it is the gradients that are cut first, then the workspaces, which are an
    estimate.
    """
    wanted = parameters + optimizer_state + other_models + workspaces + gradients
    left = max(live, 0)
    sizes = []
    for size in (parameters, optimizer_state, other_models, workspaces, gradients):
        taken = _within(size, left)
        sizes.append(taken)
        left -= taken
    return Live(sizes[0], sizes[4], sizes[1], sizes[3], left, wanted > live, sizes[2])


def _within(value: int, most: int) -> int:
    return min(max(value, 0), most)
