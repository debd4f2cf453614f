"""Split ``reserved`` memory into parts that add up.

The figures come from one statistics call of torch's caching allocator.

The identities are those of ``CUDACachingAllocator.cpp`` (native backend). ``allocated_bytes`` drops when a free is requested. ``active_bytes`` and ``requested_bytes`` drop
when it is done, which is later if another stream still uses the block.

    reserved = active + inactive split + releasable
    active   = allocated + awaiting free on other streams
    rounding = active - requested            (of the blocks in use and of those awaiting free, together)
    live     = allocated - rounding

So ``live`` is exact while no block awaits its free. Otherwise the rounding of the pending blocks
cannot be told from that of the live ones. It is at most the smaller of all rounding and all pending
bytes, and :attr:`Split.error` holds that bound.

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

    ``error`` says by how much ``live`` may be larger and ``rounding`` smaller. ``torn`` says that
    the counters contradict each other, so a part was cut to the largest value that is possible.
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
    """Return the parts of ``counters.reserved``.

    Whatever the numbers are, the parts add up to it, or to 0 if it is negative.
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
    """Categories that add up to ``live``.

    ``cut`` says that more was counted at another moment than is live now.
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
    """Split ``live`` bytes by what was counted from the tensors themselves.

    The tensors were counted right after an optimizer step. Since then ``zero_grad`` may have freed
    gradients. So if the sum is more than ``live``, the gradients are reduced first, and then the
    workspaces, which are an estimate.
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
