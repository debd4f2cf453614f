"""Simulate expandable segments.

Each is one long range of addresses per stream and pool, to which memory is mapped page by page.

Pages are 2 MiB for small blocks and ``large_segment_size_mb`` (20 MiB) for large ones. A segment
grows at its lowest unmapped address with enough room, and frees whole free pages anywhere.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from .allocator_blocks import FREE, SMALL_SEGMENT, UNMAPPED, Block, Shelf

if TYPE_CHECKING:
    from .allocator_memory import DeviceMemory

SPAN = 1 << 40
"""The addresses of one segment: more than any device has memory. torch takes 9/8 of it."""


def page_size(memory: DeviceMemory, shelf: Shelf) -> int:
    return SMALL_SEGMENT if shelf.small else memory.settings.large_segment_bytes


def grow(memory: DeviceMemory, shelf: Shelf, size: int) -> Block | None:
    """Return a free block of at least ``size`` bytes at the lowest address with room.

    Memory is mapped as far as this needs, and the block is in no list. None if the driver has no
    memory left; what was mapped until then stays mapped.
    """
    found = _room_for(memory, shelf, size)
    if found is None:
        return None
    block: Block = found
    if block.state == UNMAPPED and not _map(memory, block, min(block.size, size)):
        return None
    while block.size < size:
        after = block.next
        assert after is not None  # room was counted before
        if not _map(memory, after, min(size - block.size, after.size)):
            return None
        block = after
    shelf.remove(block)
    return block


def _room_for(memory: DeviceMemory, shelf: Shelf, size: int) -> Block | None:
    """Return the first of adjacent free and unmapped blocks that are long enough together."""
    for unmapped in shelf.unmapped:
        first = unmapped
        if first.prev is not None and first.prev.state == FREE:
            first = first.prev
        length, one = 0, first
        while one is not None and length < size and one.state in (FREE, UNMAPPED):
            length += one.size
            one = one.next  # type: ignore[assignment]
        if length >= size:
            return first
    page = page_size(memory, shelf)
    span = SPAN // page * page
    if size > span:
        return None
    whole = Block(memory.addresses.take(span, shelf.stream), span, shelf)
    whole.state, whole.grown = UNMAPPED, whole.address
    insort(shelf.unmapped, whole, key=address_of)
    memory.segments += 1
    return whole


def address_of(block: Block) -> int:
    return block.address


def _map(memory: DeviceMemory, block: Block, size: int) -> bool:
    """Map memory to the first ``size`` bytes of an unmapped block.

    The size is rounded up to pages, and the block is merged with free neighbours.
    """
    shelf = block.shelf
    page = page_size(memory, shelf)
    size = -(-size // page) * page
    if memory.reserved + size > memory.capacity:
        return False
    shelf.unmapped.remove(block)
    block.state = FREE
    if size < block.size:
        rest = Block(block.address + size, block.size - size, shelf)
        rest.state, rest.grown = UNMAPPED, block.grown
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next, block.size = rest, size
        insort(shelf.unmapped, rest, key=address_of)
    _merge(block, block.prev)
    _merge(block, block.next)
    shelf.add(block)
    memory.reserve(size)
    return True


def _merge(block: Block, other: Block | None) -> None:
    """Merge with a neighbour if it has the same state and is not in use."""
    if other is None or other.state != block.state:
        return
    if other.state == FREE:
        block.shelf.remove(other)
    else:
        block.shelf.unmapped.remove(other)
    if block.prev is other:
        block.address = other.address
        block.prev = other.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.prev = block
    block.size += other.size


def unmap(memory: DeviceMemory, block: Block) -> None:
    """Unmap the whole pages of a free block; the rest at its ends stays free."""
    shelf = block.shelf
    page = page_size(memory, shelf)
    origin = block.grown
    begin = origin + -(-(block.address - origin) // page) * page
    end = origin + (block.address + block.size - origin) // page * page
    if begin >= end:
        return
    shelf.remove(block)
    if begin > block.address:
        front = Block(block.address, begin - block.address, shelf)
        front.grown = origin
        front.prev, front.next = block.prev, block
        if front.prev is not None:
            front.prev.next = front
        block.prev = front
        shelf.add(front)
    if block.address + block.size > end:
        back = Block(end, block.address + block.size - end, shelf)
        back.grown = origin
        back.prev, back.next = block, block.next
        if back.next is not None:
            back.next.prev = back
        block.next = back
        shelf.add(back)
    block.address, block.size, block.state = begin, end - begin, UNMAPPED
    _merge(block, block.prev)
    _merge(block, block.next)
    memory.reserved -= end - begin
    if block.prev is None and block.next is None:  # the segment is completely unmapped
        memory.segments -= 1
        memory.addresses.give_back(block.address, block.size)
        return
    insort(shelf.unmapped, block, key=address_of)
