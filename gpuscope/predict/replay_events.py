"""Turn a recorded history of the allocator into events that can be replayed.

The events can be replayed under the history's own settings and under others.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.allocator_settings import AllocatorSettings
from ..snapshot.columns import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
)
from ..snapshot.history import History
from .allocator_memory import UNLIMITED
from .replay_before import MappedRange, state_before
from .trace import Owner, PhaseMark, Trace


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """An out-of-memory entry: the request is block ``block`` of the trace, tried at event ``at``.

    ``free_bytes`` is what the driver had free then, ``reserved_bytes`` what the allocator had.
    """

    at: int
    entry: int
    block: int
    free_bytes: int | None
    reserved_bytes: int


@dataclass(slots=True)
class Release:
    """Segments that were returned before event ``at``: address and size.

    ``by_hand`` says that ``empty_cache()`` did it; otherwise the allocator did it for a request
    that would not have fitted.
    """

    at: int
    segments: list[tuple[int, int]]
    reserved_bytes: int
    """Reserved memory before the first of them was returned."""
    wanted_bytes: int = 0
    """The size of the segment that was requested from the driver right after it; 0: none was."""
    by_hand: bool = True


@dataclass(slots=True)
class RecordedTrace:
    """A recorded history as a trace.

    In ``trace``, blocks that were live before it have the first numbers and no alloc event. A free
    is at the position where it was completed. ``between`` holds what happens before event ``at``:
    either the request of such a free (the block's number) or a release, in order.
    """

    trace: Trace
    addresses: list[int]
    """The recorded address of each block; 0 for a request that failed."""
    before: list[MappedRange]
    entries: array[int] = field(default_factory=lambda: array("q"))
    """For each event, its entry in the recorded trace."""
    between: list[tuple[int, int | Release]] = field(default_factory=list)
    failures: list[FailedRequest] = field(default_factory=list)
    pools: dict[int, str] = field(default_factory=dict)
    segments: list[tuple[int, int, int]] = field(default_factory=list)
    """Address, size and stream of each segment that the driver gave, in order."""
    peak_reserved_bytes: int = 0
    end_reserved_bytes: int = 0
    lost: int = 0
    """The number of entries that are inconsistent with the others."""

    @property
    def before_bytes(self) -> int:
        """Return what was reserved before the first entry."""
        return sum(held.size for held in self.before)

    @property
    def before_free_bytes(self) -> int:
        """Return how much of it was free, between and around live blocks."""
        return sum(held.size - sum(block.size for block in held.blocks) for held in self.before)

    @property
    def releases(self) -> list[Release]:
        return [one for _, one in self.between if isinstance(one, Release)]


AT_THE_END = 50
"""How many entries an error in the trace may be away from the error that the record is about."""


def recorded(
    history: History,
    settings: AllocatorSettings,
    free_at: Mapping[int, int | None] | None = None,
    marks: Sequence[PhaseMark] = (),
    failed: tuple[int, int | None] | None = None,
) -> RecordedTrace:
    """Turn entries into events. ``settings`` are those in force then.

    ``free_at``: what the driver had free at each out-of-memory entry. ``marks`` are by entry.
    ``failed``: the size of a request that failed after the last entry, and what was free then.
    """
    before, lost = state_before(history, settings)
    found = RecordedTrace(Trace(owner_table=[Owner("unknown")]), [], before, lost=lost)
    live: dict[int, int] = {}
    for held in before:
        for block in held.blocks:
            block.number = live[block.address] = _block(
                found, block.requested, block.address, held.stream, held.pool
            )
    _walk(history, found, live, free_at or {})
    entry_of = found.entries
    at = 0
    for mark in marks:
        while at < len(entry_of) and entry_of[at] < mark.at:
            at += 1
        found.trace.marks.append(PhaseMark(at, mark.name))
    if failed is not None and not any(
        one.entry >= len(history.code) - AT_THE_END for one in found.failures
    ):
        _fail(found, len(history.code), failed[0], 0, failed[1], found.end_reserved_bytes)
    _judge_releases(found, settings)
    return found


def _fail(
    found: RecordedTrace, entry: int, size: int, stream: int, free: int | None, reserved: int
) -> None:
    """Add a request that failed. If it succeeds in the replay, its block is freed at once."""
    number = _block(found, size, 0, stream, "")
    events = found.trace.events
    found.failures.append(FailedRequest(len(events), entry, number, free, reserved))
    events += (number, ~number)
    found.entries.extend((entry, entry))


def _block(found: RecordedTrace, size: int, address: int, stream: int, pool: str) -> int:
    trace = found.trace
    number = len(trace.sizes)
    trace.sizes.append(size)
    trace.owners.append(0)
    found.addresses.append(address)
    if stream:
        trace.streams[number] = stream
    if pool:
        found.pools[number] = pool
    return number


def _walk(
    history: History, found: RecordedTrace, live: dict[int, int], free_at: Mapping[int, int | None]
) -> None:
    events, entries = found.trace.events, found.entries
    private = _Private(history)
    waiting: dict[int, int] = {}
    reserved = peak = found.before_bytes
    release: Release | None = None
    columns = (history.code, history.addr, history.size, history.stream)
    for entry, (code, address, size, stream) in enumerate(zip(*columns, strict=True)):
        if code == ALLOC:
            if address in live:
                found.lost += 1
            number = _block(
                found, size, address, stream, private.pool(address) if private.begins else ""
            )
            live[address] = number
            events.append(number)
            entries.append(entry)
        elif code == FREE_REQUESTED:
            gone = live.pop(address, None)
            if gone is None:
                found.lost += 1
            else:
                waiting[address] = gone
                found.between.append((len(events), gone))
        elif code == FREE_COMPLETED:
            gone = waiting.pop(address, None)
            if gone is None:
                gone = live.pop(address, None)  # the recording has no free requests
            elif found.between[-1] == (len(events), gone):
                found.between.pop()  # completed at once
            if gone is None:
                found.lost += 1
            else:
                events.append(~gone)
                entries.append(entry)
        elif code in (SEGMENT_ALLOC, SEGMENT_MAP):
            if release is not None:
                release.wanted_bytes = size
            reserved += size
            peak = max(peak, reserved)
            found.segments.append((address, size, stream))
        elif code in (SEGMENT_FREE, SEGMENT_UNMAP):
            if release is None:
                release = Release(len(events), [], reserved)
                found.between.append((len(events), release))
            release.segments.append((address, size))
            reserved -= size
            continue
        elif code == OOM:
            if release is not None:
                release.wanted_bytes = UNLIMITED
            _fail(found, entry, size, stream, free_at.get(entry), reserved)
        release = None
    found.peak_reserved_bytes, found.end_reserved_bytes = peak, reserved


class _Private:
    """Return private pools by address, as far as their segments still exist at the end."""

    def __init__(self, history: History) -> None:
        segments = sorted(
            (one.address, one.address + one.size, one.pool) for one in history.segments if one.pool
        )
        self.begins = [begin for begin, _, _ in segments]
        self._segments = segments

    def pool(self, address: int) -> str:
        place = bisect_right(self.begins, address) - 1
        if place < 0:
            return ""
        _, end, pool = self._segments[place]
        return pool if address < end else ""


def _judge_releases(found: RecordedTrace, settings: AllocatorSettings) -> None:
    """Distinguish releases by ``empty_cache()`` from those that the allocator made itself.

    The allocator frees segments by itself only for a request that would exceed its limit. If a
    release comes before a request that stayed below what was reserved at another time, the program
    must have asked for it. If there was such a release, and no request ever failed, then a release
    at the peak was asked for too, because the limit was never reached.
    """
    doubtful = []
    for release in found.releases:
        if release.wanted_bytes and settings.collect_share:
            release.by_hand = False
        elif (
            release.reserved_bytes + release.wanted_bytes > found.peak_reserved_bytes
            and release.wanted_bytes
        ):
            doubtful.append(release)
    known = (
        len(found.releases) > len(doubtful) and not found.failures and not settings.collect_share
    )
    for release in doubtful:
        release.by_hand = known
