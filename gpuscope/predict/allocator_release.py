"""Return cached memory to the driver.

This is done before a retry, for garbage collection, and in ``empty_cache()``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from .allocator_blocks import ADDRESS_BITS, Block, Shelf
from .allocator_expandable import unmap

if TYPE_CHECKING:
    from .allocator_memory import DeviceMemory


class Releasing:
    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory

    def cached(self) -> None:
        """Return everything that is free in the default pool.

        These are whole segments, and whole pages of expandable ones.

        The caller must have waited for all streams.
        """
        for shelf in sorted(self._bins(), key=lambda shelf: (shelf.small, shelf.stream)):
            for block in shelf:
                if block.grown:
                    unmap(self.memory, block)
                elif block.prev is None and block.next is None:
                    self.segment(block)

    def _bins(self) -> list[Shelf]:
        return [shelf for shelf in self.memory.shelves.values() if not shelf.private]

    def segment(self, block: Block) -> None:
        """Return a whole segment that consists of one free block."""
        block.shelf.remove(block)
        self.memory.reserved -= block.size
        self.memory.segments -= 1
        self.memory.addresses.give_back(block.address, block.size)

    def oversize(self, shelf: Shelf, size: int) -> bool:
        """Return cached blocks for a request under ``max_split_size_mb``.

        This is one block that would serve the request, or several of the largest until they are as
        large together. Returns whether that was enough.
        """
        limit = self.memory.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        place = bisect_left(shelf.keys, wanted << ADDRESS_BITS)
        if place < len(shelf.keys) and not (block := shelf.blocks[shelf.keys[place]]).grown:
            self.segment(block)
            return True
        released = 0
        for key in reversed(shelf.keys[:place]):
            block = shelf.blocks[key]
            if released >= wanted or block.size < limit:
                break
            if not block.grown:
                released += block.size
                self.segment(block)
        return released >= wanted

    def collect(self) -> None:
        """Return large segments above ``garbage_collection_threshold``.

        Segments that were unused for longest are returned until enough is free again, first those
        that are older than the average.
        """
        memory = self.memory
        limit = int(memory.settings.collect_share * memory.allowed)
        if memory.reserved <= limit:
            return
        target, reclaimed = memory.reserved - limit, 0
        shelves = [shelf for shelf in self._bins() if not shelf.small]
        # torch counts the whole blocks of expandable segments as candidates too, but never frees
        # them here
        candidates = [
            block
            for shelf in shelves
            for block in shelf
            if block.prev is None and block.next is None
        ]
        ages = sum(block.shelf.searches[0] - block.age for block in candidates)
        count = len(candidates)
        candidates = [block for block in candidates if not block.grown]
        freed = True
        while reclaimed < target and freed and count:
            threshold, freed = ages / count, False
            for block in list(candidates):
                age = block.shelf.searches[0] - block.age
                if age >= threshold:
                    freed = True
                    reclaimed += block.size
                    ages -= age
                    count -= 1
                    candidates.remove(block)
                    self.segment(block)
