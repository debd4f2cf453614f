"""Reconstruct the segments and live blocks before the first entry of a recorded trace.

The segments in a snapshot are those at the end of its trace. Undoing the trace entry by entry, from
its end backwards, gives the segments at its beginning. The blocks that were live at the beginning
are those that the trace frees without having allocated them, and those that it never mentions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from ..model.allocator_settings import AllocatorSettings
from ..snapshot.columns import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
)
from ..snapshot.history import History
from .allocator_blocks import SMALL_REQUEST, SMALL_SEGMENT, rounded

_SEGMENTS = (SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP)
_IS_SEGMENT = bytes(code in _SEGMENTS for code in range(256))
_NAMES = bytes(code in (ALLOC, FREE_REQUESTED, FREE_COMPLETED) for code in range(256))


@dataclass(slots=True)
class HeldBlock:
    """A block that was live before the first entry.

    ``size`` is its size in the segment, ``requested`` the requested size, and ``number`` its number
    in the trace.
    """

    address: int
    size: int
    requested: int
    number: int = -1


@dataclass(slots=True)
class MappedRange:
    """A segment, or a mapped range of an expandable one, with its live blocks, ascending."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False
    pool: str = ""
    blocks: list[HeldBlock] = field(default_factory=list)


def state_before(history: History, settings: AllocatorSettings) -> tuple[list[MappedRange], int]:
    """Return the state before the first entry by address, and how many entries were inconsistent.

    ``settings`` are those in force then. It is empty if the file does not have all segments.
    """
    if not history.known:
        return [], 0
    segments, lost = _undone(history)
    order = sorted(segments)
    for block in sorted(_live(history, settings), key=lambda block: block.address):
        place = bisect_right(order, block.address) - 1
        held = segments[order[place]] if place >= 0 else None
        if held is None or block.address + block.size > held.address + held.size:
            lost += 1
            continue
        if held.blocks and held.blocks[-1].address + held.blocks[-1].size > block.address:
            lost += 1
            continue
        held.blocks.append(block)
    for held in segments.values():
        _widen(held)
    return [segments[address] for address in order], lost


def _undone(history: History) -> tuple[dict[int, MappedRange], int]:
    segments: dict[int, MappedRange] = {}
    ranges = _Ranges()
    for one in history.segments:
        held = MappedRange(
            one.address, one.size, one.stream, not one.large, one.expandable, one.pool
        )
        if held.expandable:
            ranges.add(held)
        else:
            segments[one.address] = held
    lost = 0
    marked = history.code.translate(_IS_SEGMENT)
    entry = marked.rfind(1)
    while entry >= 0:
        code, address, size = history.code[entry], history.addr[entry], history.size[entry]
        stream = history.stream[entry]
        if code == SEGMENT_ALLOC:
            lost += segments.pop(address, None) is None
        elif code == SEGMENT_FREE:
            lost += address in segments
            segments[address] = MappedRange(address, size, stream, size == SMALL_SEGMENT)
        elif code == SEGMENT_MAP:
            lost += not ranges.cut(address, size)
        else:
            ranges.join(address, size, stream)
        entry = marked.rfind(1, 0, entry)
    return {**segments, **ranges.held}, lost


class _Ranges:
    """The mapped ranges of expandable segments, by address."""

    def __init__(self) -> None:
        self.held: dict[int, MappedRange] = {}
        self._order: list[int] = []

    def add(self, held: MappedRange) -> None:
        if held.address not in self.held:
            insort(self._order, held.address)
        self.held[held.address] = held

    def _take(self, held: MappedRange) -> None:
        del self.held[held.address]
        del self._order[bisect_left(self._order, held.address)]

    def _before(self, address: int) -> MappedRange | None:
        """Return the last range that begins at or before ``address``."""
        place = bisect_right(self._order, address) - 1
        return self.held[self._order[place]] if place >= 0 else None

    def cut(self, address: int, size: int) -> bool:
        """Remove pages from the range that contains them. Returns whether there was one."""
        held = self._before(address)
        if held is None or address + size > held.address + held.size:
            return False
        self._take(held)
        for begin, end in ((held.address, address), (address + size, held.address + held.size)):
            if begin < end:
                self.add(MappedRange(begin, end - begin, held.stream, held.small, True, held.pool))
        return True

    def join(self, address: int, size: int, stream: int) -> None:
        """Add pages, and merge them with adjacent ranges."""
        # pages of the small pool have 2 MiB, those of the large one 20 MiB unless set otherwise
        whole = MappedRange(address, size, stream, size % (20 << 20) != 0, True)
        before, after = self._before(address - 1), self.held.get(address + size)
        for near in (before, after):
            touches = near is after or (near is not None and near.address + near.size == address)
            if near is not None and touches and near.stream == stream:
                self._take(near)
                whole.address, whole.size = min(whole.address, near.address), whole.size + near.size
                whole.small, whole.pool = near.small, whole.pool or near.pool
        self.add(whole)


def _live(history: History, settings: AllocatorSettings) -> list[HeldBlock]:
    named: set[int] = set()
    live: list[HeldBlock] = []
    marked = history.code.translate(_NAMES)
    entry = marked.find(1)
    columns = (history.code, history.addr, history.size)
    for entry, (code, address, size) in enumerate(zip(*columns, strict=True)):
        if address not in named and marked[entry]:
            named.add(address)
            if code != ALLOC and size:
                live.append(HeldBlock(address, rounded(size, settings), size))
    for segment in history.segments:
        for address, size, requested, _ in segment.blocks:
            if address not in named and size:
                live.append(HeldBlock(address, size, requested))
    return live


def _widen(held: MappedRange) -> None:
    """Add gaps of at most 1 MiB in a segment of the large pool to the block before.

    The allocator never splits off so little.
    """
    if held.small or held.expandable or not held.blocks:
        return
    ends = [block.address for block in held.blocks[1:]] + [held.address + held.size]
    for block, end in zip(held.blocks, ends, strict=True):
        if end - block.address - block.size <= SMALL_REQUEST:
            block.size = end - block.address
