"""Analyse segments and their blocks: totals, the map, free runs, sizes, live bytes by stack.

In torch's snapshots a block is ``active_allocated`` (a tensor holds it), ``active_pending_free``
(it was freed, but another stream may still use it) or ``inactive``. In expandable segments memory
is mapped in pages of 20 MiB (2 MiB for small blocks), and only whole free pages can be released.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..wire.clean import clean
from .model import (
    FULL_CELL,
    MAX_SEGMENTS,
    Bucket,
    Fragmentation,
    Pool,
    Segment,
    SnapshotDevice,
    Totals,
)
from .stacks import NO_STACK, StackTable

LIVE, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"
PAGE_BYTES = {True: 20 << 20, False: 2 << 20}  # large segment?
SIZE_LIMIT = 1 << 50
RESERVED_LIMIT = 1 << 60
ADDRESS_LIMIT = 1 << 62
FINE_CELLS, COARSE_CELLS, FINE_SEGMENTS = 256, 64, 128
DEFAULT_POOL = "default"


def whole(value: Any, limit: int = SIZE_LIMIT) -> int | None:
    """Return a size or an address that makes sense, or None."""
    return value if type(value) is int and 0 <= value < limit else None


class TooManyBlocks(Exception):
    """The file refers to the same lists again and again, so its blocks have no end."""


@dataclass
class BlockTable:
    """The allocated blocks of one device as columns.

    They are the state at the end of a trace, and what a comparison of two snapshots compares.
    """

    address: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    requested: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    pending_requested: int = 0  # bytes of blocks that wait for another stream


@dataclass
class DeviceBlocks:
    """The figures of one device's segments."""

    device: int
    totals: Totals = field(default_factory=Totals)
    fragmentation: Fragmentation = field(default_factory=Fragmentation)
    pools: dict[str, Pool] = field(default_factory=dict)
    live: BlockTable = field(default_factory=BlockTable)
    sums: dict[int, list[int]] = field(default_factory=dict)  # stack → [bytes, blocks]
    rows: list[tuple[int, Segment, list[tuple[int, int, bool]]]] = field(default_factory=list)
    sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    free_sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    malformed: int = 0
    mismatched: int = 0
    unknown_states: Counter[str] = field(default_factory=Counter)


@dataclass
class _Walk:
    """One segment while its blocks are walked."""

    active: list[tuple[int, int, bool]] = field(default_factory=list)  # offset, size, pending?
    free: list[list[int]] = field(default_factory=list)  # offset, size; adjacent runs are merged
    allocated: int = 0
    pending: int = 0
    requested: int = 0
    blocks: int = 0


def read_segments(segments: Any, stacks: StackTable, budget: int) -> dict[int, DeviceBlocks]:
    """Return the segments by device, in the order of the file.

    Entries that are not a segment or a block are counted in ``malformed`` and left out. ``budget``
    is the most blocks that a file of this size can contain. A pickle may refer to one list many
    times; more blocks than the budget raise :class:`TooManyBlocks`.
    """
    devices: dict[int, DeviceBlocks] = {}
    for one in segments if isinstance(segments, (list, tuple)) else ():
        if not isinstance(one, dict):
            _device(devices, 0).malformed += 1
            continue
        device = one.get("device", 0)
        here = _device(devices, device if type(device) is int and -1 <= device < 4096 else 0)
        blocks = one.get("blocks")
        total = whole(one.get("total_size"))
        if (
            not isinstance(blocks, (list, tuple))
            or total is None
            or here.totals.reserved_bytes > RESERVED_LIMIT
        ):
            here.malformed += 1
            continue
        budget -= len(blocks) + 1
        if budget < 0:
            raise TooManyBlocks
        _add_segment(here, one, blocks, total, stacks)
    return devices


def _device(devices: dict[int, DeviceBlocks], number: int) -> DeviceBlocks:
    found = devices.get(number)
    if found is None:
        found = devices[number] = DeviceBlocks(number)
    return found


def _add_segment(
    here: DeviceBlocks, one: dict[Any, Any], blocks: Any, total: int, stacks: StackTable
) -> None:
    address = whole(one.get("address"), ADDRESS_LIMIT) or 0
    walk = _walk(here, blocks, address, stacks)
    covered = walk.allocated + walk.pending + sum(size for _, size in walk.free)
    if covered > total or any(
        whole(one.get(key)) not in (None, value)
        for key, value in (
            ("allocated_size", walk.allocated),
            ("active_size", walk.allocated + walk.pending),
        )
    ):
        here.mismatched += 1
    # Blocks that could not be read count as free, because nothing is known about them.
    if covered < total:
        here.mismatched += 1
        walk.free.append([covered, total - covered])
    total = max(total, covered)
    expandable = one.get("is_expandable") is True
    large = one.get("segment_type", "large") != "small"
    name, private = _pool_name(one.get("segment_pool_id"))
    stream = one.get("stream", 0)
    segment = Segment(
        address=address,
        bytes=total,
        stream=stream if type(stream) is int and abs(stream) < ADDRESS_LIMIT else 0,
        pool=name,
        private=private,
        large=large,
        expandable=expandable,
        allocated_bytes=walk.allocated,
        pending_bytes=walk.pending,
        largest_free_bytes=max((size for _, size in walk.free), default=0),
        blocks=walk.blocks,
    )
    _add_totals(here, segment, walk)
    here.rows.append((total, segment, walk.active))


def _walk(here: DeviceBlocks, blocks: Any, address: int, stacks: StackTable) -> _Walk:
    walk, live, totals = _Walk(), here.live, here.totals
    offset = 0
    for block in blocks:
        size = whole(block.get("size")) if isinstance(block, dict) else None
        if size is None or offset + size >= SIZE_LIMIT:
            here.malformed += 1
            continue
        state = block.get("state")
        walk.blocks += 1
        if state in (LIVE, PENDING):
            requested = whole(block.get("requested_size"))
            requested = size if requested is None else min(requested, size)
            walk.requested += requested
            walk.active.append((offset, size, state == PENDING))
            if state == LIVE:
                stack = stacks.index(block.get("frames"))
                walk.allocated += size
                live.address.append(whole(block.get("address"), ADDRESS_LIMIT) or address + offset)
                live.size.append(size)
                live.requested.append(requested)
                live.stack.append(stack)
                sums = here.sums.setdefault(stack, [0, 0])
                sums[0] += size
                sums[1] += 1
                _count(here.sizes, size)
                totals.allocated_blocks += 1
                totals.allocated_requested_bytes += requested
            else:
                walk.pending += size
                live.pending_requested += requested
                totals.pending_blocks += 1
        else:
            if state != FREE:
                here.unknown_states[
                    clean(state, 40) if isinstance(state, str) else type(state).__name__
                ] += 1
            if walk.free and sum(walk.free[-1]) == offset:
                walk.free[-1][1] += size
            else:
                walk.free.append([offset, size])
        offset += size
    return walk


def _add_totals(here: DeviceBlocks, segment: Segment, walk: _Walk) -> None:
    totals, fragmentation = here.totals, here.fragmentation
    free = segment.bytes - walk.allocated - walk.pending
    releasable = _releasable(segment, walk, free)
    totals.reserved_bytes += segment.bytes
    totals.allocated_bytes += walk.allocated
    totals.pending_bytes += walk.pending
    totals.active_bytes += walk.allocated + walk.pending
    totals.requested_bytes += walk.requested
    totals.inactive_bytes += free
    totals.releasable_bytes += releasable
    if segment.expandable:
        totals.page_bound_bytes += free - releasable
    else:
        totals.inactive_split_bytes += free - releasable
    totals.segments += 1
    totals.inactive_blocks += len(walk.free)
    pool = here.pools.setdefault(segment.pool, Pool(segment.pool, segment.private))
    pool.reserved_bytes += segment.bytes
    pool.allocated_bytes += walk.allocated
    pool.inactive_bytes += free
    pool.largest_free_bytes = max(pool.largest_free_bytes, segment.largest_free_bytes)
    pool.segments += 1
    if segment.private:
        fragmentation.private_free_bytes += free
        return
    fragmentation.free_bytes += free
    fragmentation.free_blocks += len(walk.free)
    for offset, size in walk.free:
        _count(here.free_sizes, size)
        if size > fragmentation.largest_free_bytes:
            fragmentation.largest_free_bytes = size
            fragmentation.largest_free_address = segment.address + offset
            fragmentation.largest_free_stream = segment.stream


def _releasable(segment: Segment, walk: _Walk, free: int) -> int:
    """Return the bytes of a segment that ``empty_cache()`` would release.

    This is the whole segment, or the whole free pages of an expandable one.
    """
    if not walk.active:
        return free
    if not segment.expandable:
        return 0
    page = PAGE_BYTES[segment.large]
    return sum(
        max(0, (offset + size) // page - -(-offset // page)) * page for offset, size in walk.free
    )


def _pool_name(value: Any) -> tuple[str, bool]:
    """Return the name of a pool.

    ``segment_pool_id`` is (0, 0) for the default pool, else the id of the pool of a CUDA graph or
    of the user.
    """
    if (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(type(part) is int for part in value)
    ):
        name = f"{value[0]}, {value[1]}"[:40]
        return (DEFAULT_POOL, False) if tuple(value) == (0, 0) else (name, True)
    return DEFAULT_POOL, False


def _count(sizes: dict[int, list[int]], size: int) -> None:
    bucket = sizes[max(size, 1).bit_length() - 1]
    bucket[0] += 1
    bucket[1] += size


def buckets(sizes: dict[int, list[int]]) -> list[Bucket]:
    return [Bucket(1 << power, count, size) for power, (count, size) in sorted(sizes.items())]


def device_view(here: DeviceBlocks, stacks: StackTable, top: int) -> SnapshotDevice:
    """Return the view of one device without its trace."""
    found = here.fragmentation
    if found.free_bytes:
        found.percent = round(100.0 * (1 - found.largest_free_bytes / found.free_bytes), 2)
    found.by_size = buckets(here.free_sizes)
    here.rows.sort(key=lambda row: (-row[0], row[1].address))
    kept, folded = here.rows[:MAX_SEGMENTS], here.rows[MAX_SEGMENTS:]
    for number, (_, segment, active) in enumerate(kept):
        _draw(segment, active, FINE_CELLS if number < FINE_SEGMENTS else COARSE_CELLS)
    return SnapshotDevice(
        device=here.device,
        totals=here.totals,
        pools=sorted(here.pools.values(), key=lambda pool: (pool.private, -pool.reserved_bytes))[
            :MAX_SEGMENTS
        ],
        fragmentation=found,
        segments=[segment for _, segment, _ in kept],
        folded_segments=len(folded),
        folded_bytes=sum(size for size, _, _ in folded),
        sizes=buckets(here.sizes),
        stacks=stacks.top(here.sums, top),
    )


def _draw(segment: Segment, active: list[tuple[int, int, bool]], cells: int) -> None:
    """Fills the segment's map: shares of each cell, rounded down but never to 0."""
    width = max(1, -(-segment.bytes // cells))
    cells = -(-segment.bytes // width)
    live, pending = [0] * cells, [0] * cells
    for offset, size, waits in active:
        for cell, part in _split(offset, min(offset + size, segment.bytes), width):
            (pending if waits else live)[cell] += part
    last = segment.bytes - width * (cells - 1)
    for row in (live, pending):
        for cell, part in enumerate(row):
            if part:
                row[cell] = max(1, FULL_CELL * part // (last if cell == cells - 1 else width))
    segment.live, segment.pending = live, pending


def _split(begin: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes of [begin, end) in each cell that they touch."""
    while begin < end:
        cell = begin // width
        stop = min(end, (cell + 1) * width)
        yield cell, stop - begin
        begin = stop


def has_stacks(devices: dict[int, DeviceBlocks]) -> bool:
    return any(stack != NO_STACK for here in devices.values() for stack in here.sums)
