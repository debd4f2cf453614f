"""Start a simulation from expandable segments that were recorded in a trainer."""

from __future__ import annotations

from bisect import insort

from .allocator_blocks import UNMAPPED, Block, Shelf
from .allocator_engine import Engine
from .allocator_expandable import SPAN, address_of, page_size


def put_ranges(
    engine: Engine, shelf: Shelf, ranges: list[tuple[int, int, list[tuple[int, int]]]]
) -> list[list[Block]]:
    """Add mapped ranges as they were recorded, as parts of one segment.

    Each has address, size, and live blocks (address, size), all ascending. Returns the live blocks
    of each.
    """
    if not ranges:
        return []
    origin = ranges[0][0]
    first: Block | None = None
    lists: list[list[Block]] = []
    before: Block | None = None
    for address, size, held in ranges:
        live = engine.put_segment(shelf, address, size, held)
        lists.append(live)
        head = _head(shelf, address, live)
        if before is not None:
            gap = Block(before.address + before.size, address - before.address - before.size, shelf)
            _link(before, gap)
            _link(gap, head)
            gap.state = UNMAPPED
            insort(shelf.unmapped, gap, key=address_of)
        first = first or head
        before = head
        while before.next is not None:
            before = before.next
    assert before is not None
    end = before.address + before.size
    rest = Block(end, max(SPAN - (end - origin), page_size(engine, shelf)), shelf)
    rest.state = UNMAPPED
    _link(before, rest)
    insort(shelf.unmapped, rest, key=address_of)
    one: Block | None = first
    while one is not None:
        one.grown = origin
        one = one.next
    engine.segments -= len(ranges) - 1
    return lists


def _head(shelf: Shelf, address: int, live: list[Block]) -> Block:
    """The first block of a range."""
    one = live[0] if live else next(block for block in shelf if block.address == address)
    while one.prev is not None:
        one = one.prev
    return one


def _link(one: Block, other: Block) -> None:
    one.next, other.prev = other, one
