"""Transfer the allocator's whole history of one device, for a replay.

The trace's columns are sent in parts that fit into an answer, and the segments with their blocks as
they were at its end. The child packs arrays as base64; the parent unpacks and checks them. Only
integers are transferred.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

from .blocks import DeviceBlocks
from .columns import Columns

PART = 1 << 18
"""Entries per answer, which makes about 6 MB of text."""
MAX_BLOCKS = 400_000
"""The most blocks of a layout, which makes about 10 MB of text."""
LARGE, EXPANDABLE, PRIVATE = 1, 2, 4


@dataclass
class Part:
    """The entries ``begin`` to ``begin + PART`` of ``total`` as packed columns.

    They are those of :class:`.columns.Columns`; ``streams`` are in the order of their positions.
    """

    total: int
    begin: int
    code: str
    addr: str
    size: str
    stream: str
    streams: list[int]


@dataclass
class Layout:
    """The segments at the end of the trace and their blocks in use, packed.

    ``flags`` combine ``LARGE``, ``EXPANDABLE`` and ``PRIVATE``. ``counts`` are the numbers of
    blocks per segment. ``block_pending`` is 1 where the block waits for another stream. ``known``
    says whether the file has all segments.
    """

    known: bool
    address: str
    size: str
    stream: str
    flags: str
    counts: str
    pools: list[str]
    block_address: str
    block_size: str
    block_requested: str
    block_pending: str


@dataclass
class History:
    """The trace and the segments at its end, as :meth:`.reader.Reading.history` returns them.

    ``code`` is a position in ``columns.ACTIONS``, sizes are the requested ones, and ``stream`` is
    the stream's number. :class:`Layout` describes the segments.
    """

    code: bytearray = field(default_factory=bytearray)
    addr: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    known: bool = False
    segments: list[HeldSegment] = field(default_factory=list)


@dataclass
class HeldSegment:
    """A segment at the end of a trace.

    ``blocks`` are tuples of address, size, requested bytes, and whether the block waits for another
    stream, by ascending address.
    """

    address: int
    size: int
    stream: int
    large: bool
    expandable: bool
    pool: str
    """The name of its pool, "" for the default pool."""
    blocks: list[tuple[int, int, int, bool]] = field(default_factory=list)


class BadHistory(ValueError):
    """The child's answer does not fit together."""


# ── in the child ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class SegmentTable:
    """Columns of :class:`Layout`, not packed."""

    address: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    flags: bytearray = field(default_factory=bytearray)
    counts: array[int] = field(default_factory=lambda: array("q"))
    pools: list[str] = field(default_factory=list)
    block_address: array[int] = field(default_factory=lambda: array("q"))
    block_size: array[int] = field(default_factory=lambda: array("q"))
    block_requested: array[int] = field(default_factory=lambda: array("q"))
    block_pending: bytearray = field(default_factory=bytearray)


def table_of(here: DeviceBlocks) -> SegmentTable:
    table = SegmentTable()
    requested = dict(zip(here.live.address, here.live.requested, strict=True))
    for _, segment, active in here.rows:
        table.address.append(segment.address)
        table.size.append(segment.bytes)
        table.stream.append(segment.stream)
        table.flags.append(
            segment.large * LARGE + segment.expandable * EXPANDABLE + segment.private * PRIVATE
        )
        table.counts.append(len(active))
        table.pools.append(segment.pool if segment.private else "")
        for offset, size, pending in active:
            address = segment.address + offset
            table.block_address.append(address)
            table.block_size.append(size)
            table.block_requested.append(size if pending else requested.get(address, size))
            table.block_pending.append(pending)
    return table


def part_of(columns: Columns, begin: int) -> Part:
    end = begin + PART
    return Part(
        total=len(columns),
        begin=begin,
        code=_pack(columns.code[begin:end]),
        addr=_pack(columns.addr[begin:end]),
        size=_pack(columns.size[begin:end]),
        stream=_pack(columns.stream[begin:end]),
        streams=list(columns.streams),
    )


def layout_of(table: SegmentTable, known: bool) -> Layout:
    return Layout(
        known=known,
        address=_pack(table.address),
        size=_pack(table.size),
        stream=_pack(table.stream),
        flags=_pack(table.flags),
        counts=_pack(table.counts),
        pools=table.pools,
        block_address=_pack(table.block_address),
        block_size=_pack(table.block_size),
        block_requested=_pack(table.block_requested),
        block_pending=_pack(table.block_pending),
    )


def _pack(column: array[int] | bytearray) -> str:
    return b64encode(column).decode("ascii")


# ── in the parent ─────────────────────────────────────────────────────────────────────────────────


def add_part(history: History, part: Part) -> None:
    """Appends a part. Raises :class:`BadHistory`."""
    code = _bytes(part.code)
    places = _numbers(part.stream, "H")
    addr, size = _numbers(part.addr), _numbers(part.size)
    if len({len(code), len(places), len(addr), len(size)}) != 1 or max(places, default=0) >= len(
        part.streams
    ):
        raise BadHistory("columns of different length")
    history.code += code
    history.addr += addr
    history.size += size
    history.stream.extend([part.streams[place] for place in places])


def add_layout(history: History, layout: Layout) -> None:
    """Raises :class:`BadHistory`."""
    history.known = layout.known
    address, size, stream = _numbers(layout.address), _numbers(layout.size), _numbers(layout.stream)
    flags, counts = _bytes(layout.flags), _numbers(layout.counts)
    blocks = list(
        zip(
            _numbers(layout.block_address),
            _numbers(layout.block_size),
            _numbers(layout.block_requested),
            map(bool, _bytes(layout.block_pending)),
            strict=False,
        )
    )
    if len({len(address), len(size), len(stream), len(flags), len(counts), len(layout.pools)}) != 1:
        raise BadHistory("segments of different length")
    if sum(counts) != len(blocks):
        raise BadHistory("blocks are missing")
    at = 0
    for number, count in enumerate(counts):
        history.segments.append(
            HeldSegment(
                address=address[number],
                size=size[number],
                stream=stream[number],
                large=bool(flags[number] & LARGE),
                expandable=bool(flags[number] & EXPANDABLE),
                pool=layout.pools[number] if flags[number] & PRIVATE else "",
                blocks=blocks[at : at + count],
            )
        )
        at += count
    history.segments.sort(key=lambda segment: segment.address)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise BadHistory("not base64") from None


def _numbers(text: str, kind: str = "q") -> array[int]:
    column = array(kind)
    try:
        column.frombytes(_bytes(text))
    except ValueError:
        raise BadHistory("a number is truncated") from None
    return column
