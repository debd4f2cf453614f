"""Blocks, the lists of free ones, and the sizes that requests are rounded to.

This follows c10/cuda/CUDACachingAllocator.cpp of torch 2.11–2.13. There all free blocks are in one
set that is ordered by stream, size and address. Here each stream has a list of its own (``Shelf``)
that is ordered by size and address, which gives the same results.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from ..model.allocator_settings import INTERVALS, AllocatorSettings
from ..text.units import MIB

LEAST_BLOCK = 512
SMALL_REQUEST = 1 * MIB
"""The largest request that is served from the small pool."""
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB
"""Requests from this size on get a segment of their own size."""
LARGE_ROUNDING = 2 * MIB
ADDRESS_BITS = 62
FREE, LIVE, PENDING, UNMAPPED = range(4)
"""The states of a block. *Pending*: freed, but another stream may still use it. *Unmapped*:
addresses in an expandable segment without memory behind them.
"""


class Block:
    """A piece of a segment; ``prev`` and ``next`` are its neighbours there.

    ``grown`` is the first address of the expandable segment that it belongs to; 0 in an ordinary
    one.
    """

    __slots__ = ("address", "age", "grown", "next", "prev", "requested", "shelf", "size", "state")

    prev: Block | None
    next: Block | None

    def __init__(self, address: int, size: int, shelf: Shelf) -> None:
        self.address, self.size, self.shelf = address, size, shelf
        self.prev = self.next = None
        self.state = FREE
        self.requested = self.grown = self.age = 0


class Shelf:
    """The free blocks of one stream in one pool.

    ``keys`` are ``size << ADDRESS_BITS | address``, ascending.

    ``searches`` counts the searches and is shared by the streams of a pool. Garbage collection
    computes the age of a block from it.
    """

    __slots__ = ("blocks", "keys", "private", "searches", "small", "stream", "unmapped")

    def __init__(self, small: bool, stream: int, private: bool, searches: list[int]) -> None:
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.small, self.stream, self.private = small, stream, private
        self.searches = searches
        self.unmapped: list[Block] = []
        """Unmapped blocks of expandable segments, by address."""

    def add(self, block: Block) -> None:
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block
        block.age = self.searches[0]

    def remove(self, block: Block) -> None:
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def __iter__(self) -> Iterator[Block]:
        """Iterate by size and address; the list may change meanwhile."""
        return iter([self.blocks[key] for key in self.keys])


def rounded(size: int, settings: AllocatorSettings) -> int:
    """Return the size in bytes of the smallest block that serves a request of ``size`` bytes."""
    if size < LEAST_BLOCK:
        return LEAST_BLOCK
    # from 1 MiB = 2 ** 20 on
    divisions = settings.divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)]
    if divisions > 1 and size > LEAST_BLOCK * divisions:
        return _to_division(size, divisions)
    return -(-size // LEAST_BLOCK) * LEAST_BLOCK


def _to_division(size: int, divisions: int) -> int:
    """Round up to the next of ``divisions`` equal steps between two powers of 2."""
    floor = 1 << (size.bit_length() - 1)
    if floor == size:
        return size
    step = floor >> (divisions.bit_length() - 1)
    return -(-size // step) * step if step else floor << 1


def rounded_all(sizes: list[int], settings: AllocatorSettings) -> list[int]:
    """Apply :func:`rounded` to each size; 0 stays 0, which is not a request."""
    if not any(number > 1 for number in settings.divisions):
        return [(size + 511) & -512 for size in sizes]
    return [rounded(size, settings) if size else 0 for size in sizes]


def segment_size(size: int, settings: AllocatorSettings) -> int:
    """Return the size of the segment requested from the driver for a block of ``size`` bytes."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return settings.large_segment_bytes
    return -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
