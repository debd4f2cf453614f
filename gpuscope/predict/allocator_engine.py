"""Simulate the allocator: where each block lies, and which segments are made and freed.

This follows c10/cuda/CUDACachingAllocator.cpp of torch 2.11–2.13: the best fit by size, then
address; blocks are split, and merged with their free neighbours; if the driver has no more memory,
whole free segments are returned and the request is tried again. These things are not simulated:
capture of CUDA graphs (blocks of private pools stay in their pool), memory shared with other
processes, and ``use_on_oom`` pools.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import pairwise

from ..model.allocator_settings import AllocatorSettings
from .allocator_blocks import (
    ADDRESS_BITS,
    FREE,
    LEAST_BLOCK,
    LIVE,
    PENDING,
    SMALL_REQUEST,
    UNMAPPED,
    Block,
    Shelf,
    segment_size,
)
from .allocator_expandable import grow
from .allocator_memory import UNLIMITED, DeviceMemory
from .allocator_release import Releasing


class Engine(DeviceMemory):
    """The state of the allocator: current bytes and their peaks.

    ``allocated`` falls when a free is requested, ``active`` when it is completed.

    ``capacity``: bytes that the driver can give in total (None: any number). ``allowed``: the limit
    of ``set_per_process_memory_fraction``; torch compares it with the size of a whole segment, also
    for expandable segments. ``place(size, stream)`` returns the address of a new segment, or None
    to let the engine choose one.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        capacity: int | None = None,
        allowed: int | None = None,
        place: Callable[[int, int], int | None] | None = None,
    ) -> None:
        super().__init__(settings, capacity, allowed, place)
        self.pending: dict[Block, None] = {}
        self.allocated = self.active = self.peak_allocated = 0
        self.peak_allocated_at = -1
        self.retries = 0
        self._searches: dict[tuple[bool, object], list[int]] = {}
        self._split_limit = (
            UNLIMITED if settings.max_split_bytes is None else settings.max_split_bytes
        )
        self._collects = settings.collect_share > 0 and allowed is not None
        self._plain = (
            not settings.expandable and settings.max_split_bytes is None and not self._collects
        )
        self.releasing = Releasing(self)

    def shelf(self, stream: int, small: bool, pool: object = None) -> Shelf:
        """Return the free blocks of a stream; ``pool`` None is the default pool."""
        found = self.shelves.get((stream, small, pool))
        if found is None:
            searches = self._searches.setdefault((small, pool), [0])
            found = self.shelves[stream, small, pool] = Shelf(
                small, stream, pool is not None, searches
            )
        return found

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def allocate(self, size: int, shelf: Shelf) -> Block | None:
        """Return a live block of at least ``size`` bytes (already rounded), or None.

        Out of memory.
        """
        keys = shelf.keys
        place = bisect_left(keys, size << ADDRESS_BITS)
        block: Block | None = None
        if self._plain:
            if place < len(keys):
                block = shelf.blocks.pop(keys.pop(place))
        else:
            block = self._fitting(shelf, place, size)
        if block is None:
            block = self._obtain(shelf, size)
            if block is None:
                return None
        rest = block.size - size
        if rest >= LEAST_BLOCK and (
            shelf.small
            or self.settings.expandable
            or (rest > SMALL_REQUEST and size < self._split_limit)
        ):
            tail = Block(block.address + size, rest, shelf)
            tail.grown = block.grown
            tail.prev, tail.next = block, block.next
            if tail.next is not None:
                tail.next.prev = tail
            block.next, block.size = tail, size
            tail.age = shelf.searches[0]
            key = rest << ADDRESS_BITS | tail.address
            insort(keys, key)
            shelf.blocks[key] = tail
        else:
            size = block.size
        block.state = LIVE
        self.active += size
        self.allocated = allocated = self.allocated + size
        if allocated > self.peak_allocated:
            self.peak_allocated = allocated
            self.peak_allocated_at = self.at
        return block

    def request_free(self, block: Block) -> None:
        """Free a block whose tensor is gone while other streams may still use it."""
        self.allocated -= block.size
        block.state = PENDING
        self.pending[block] = None

    def free(self, block: Block) -> None:
        """Free a block whose tensor is gone, so that it can serve other requests."""
        self.allocated -= block.size
        self._complete(block)

    def complete(self, block: Block) -> None:
        """Complete the free of a pending block, which no stream uses any more.

        Nothing happens if a retry has already waited for it.
        """
        if block.state == PENDING and self.pending.pop(block, 0) is None:
            self._complete(block)

    def complete_all(self) -> None:
        """Complete all pending frees, after waiting for all streams."""
        for block in list(self.pending):
            self.complete(block)

    def empty_cache(self) -> None:
        """Wait for all streams and free everything that is cached.

        This is ``torch.cuda.empty_cache()``.
        """
        self.complete_all()
        self.releasing.cached()

    def _complete(self, block: Block) -> None:
        size = block.size
        self.active -= size
        shelf = block.shelf
        keys = shelf.keys
        before, after = block.prev, block.next
        if before is not None and before.state == FREE:
            key = before.size << ADDRESS_BITS | before.address
            del keys[bisect_left(keys, key)], shelf.blocks[key]
            size += before.size
            block.address = before.address
            block.prev = earlier = before.prev
            if earlier is not None:
                earlier.next = block
        if after is not None and after.state == FREE:
            key = after.size << ADDRESS_BITS | after.address
            del keys[bisect_left(keys, key)], shelf.blocks[key]
            size += after.size
            block.next = later = after.next
            if later is not None:
                later.prev = block
        block.size = size
        block.state = FREE
        block.age = shelf.searches[0]
        key = size << ADDRESS_BITS | block.address
        insort(keys, key)
        shelf.blocks[key] = block

    # ── slow paths ────────────────────────────────────────────────────────────────────────────────

    def _fitting(self, shelf: Shelf, place: int, size: int) -> Block | None:
        """Return the best free block under all settings, removed from its list."""
        if self._collects:
            shelf.searches[0] += 1
        keys, blocks = shelf.keys, shelf.blocks
        if place >= len(keys):
            return None
        block = blocks[keys[place]]
        if block.grown and self.settings.expandable:
            # a block that can still grow counts with the size that it can grow to
            while block.grown and place + 1 < len(keys):
                following = blocks[keys[place + 1]]
                if _room(following) >= _room(block):
                    break
                place, block = place + 1, following
        elif block.grown:  # a segment from before expandable segments were switched off
            place = next(
                (other for other in range(place + 1, len(keys)) if not blocks[keys[other]].grown),
                -1,
            )
            if place < 0:
                return None
            block = blocks[keys[place]]
        if size < self._split_limit:
            if block.size >= self._split_limit:
                return None
        elif block.size >= size + self.settings.max_rounding_bytes:
            return None
        shelf.blocks.pop(keys.pop(place))
        return block

    def _obtain(self, shelf: Shelf, size: int) -> Block | None:
        """Return a free block in new memory, which is in no list.

        If the driver has too little, cached memory is freed and the request is tried again.
        """
        releasing = self.releasing
        if self._collects:
            releasing.collect()
        block = self._segment(shelf, size)
        if block is None and releasing.oversize(shelf, size):
            block = self._segment(shelf, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._segment(shelf, size)
        return block

    def _segment(self, shelf: Shelf, size: int) -> Block | None:
        wanted = segment_size(size, self.settings)
        if self.reserved + wanted > self.allowed:
            return None
        if self.settings.expandable:
            return grow(self, shelf, size)
        if self.reserved + wanted > self.capacity:
            return None
        block = Block(self.addresses.take(wanted, shelf.stream), wanted, shelf)
        self.segments += 1
        self.reserve(wanted)
        return block

    # ── a state that is there already ─────────────────────────────────────────────────────────────

    def put_segment(
        self, shelf: Shelf, address: int, size: int, held: list[tuple[int, int]]
    ) -> list[Block]:
        """Add a segment as it was recorded, with its live blocks ``held``.

        ``held`` has (address, size), ascending, inside the segment. The parts between them are
        free. Returns the live blocks.
        """
        blocks: list[Block] = []
        live = []
        end = address
        for start, length in [*held, (address + size, 0)]:
            if start > end:
                blocks.append(Block(end, start - end, shelf))
            if length:
                block = Block(start, length, shelf)
                block.state = LIVE
                blocks.append(block)
                live.append(block)
            end = start + length
        for one, other in pairwise(blocks):
            one.next, other.prev = other, one
        for block in blocks:
            if block.state == FREE:
                shelf.add(block)
        taken = sum(block.size for block in live)
        self.allocated += taken
        self.active += taken
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.segments += 1
        self.reserve(size)
        return live


def _room(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)
