"""Simulate what a trace needs under the caching allocator's rules.

The result says how high the peaks are, when they occur, what the memory is used for, and whether
the trace fits.

simulate(trace, settings.read("expandable_segments:True"), capacity_bytes=24 << 30)

Source of the rules: c10/cuda/CUDACachingAllocator.cpp of torch 2.11–2.13 (see
:mod:`.allocator_engine`). With the same requests and the same settings the simulated blocks are
placed like the real ones, except where blocks are equally good and the driver's addresses decide.
The tests measure with recorded traces how much that changes.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..model.allocator_settings import DEFAULT, AllocatorSettings
from .allocator_blocks import LIVE, Block, Shelf, rounded_all
from .allocator_engine import Engine
from .allocator_expandable import page_size
from .allocator_memory import UNLIMITED
from .trace import PhaseMark, Trace

MOST_OOMS = 20
EMPTY_CACHE = "empty_cache"
BETWEEN_LOOKS = 4096
"""How many events are replayed between two checks of the time limit."""


class TooLong(Exception):
    """The simulation did not finish before its deadline."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a trace.

    It is event ``event`` (−1: before the first), in ``step`` and ``phase`` as the trace's marks
    name them.
    """

    event: int
    step: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that failed, and how much memory there was then, in bytes.

    This is after everything that could be freed was freed. ``free`` is what the driver still had,
    and ``cached`` what torch had reserved and not in use, in pieces that are too small or in
    another pool.
    """

    where: Where
    block: int
    requested_bytes: int
    free_bytes: int
    cached_bytes: int
    largest_cached_bytes: int
    """The largest free piece in its pool and stream."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class FreeSpread:
    """How the free bytes are distributed at the end, in the terms of snapshots.

    reserved − active = releasable + split.

    *Releasable* bytes are in whole free segments and pages, *split* bytes share one with live
    blocks. ``percent`` = 100 × (1 − largest free piece ÷ free), None if nothing is free.
    """

    free_bytes: int
    releasable_bytes: int
    split_bytes: int
    free_blocks: int
    largest_free_bytes: int
    percent: float | None


@dataclass(slots=True)
class Simulated:
    """The result of a simulation; sizes are in bytes.

    *Allocated* counts whole blocks, as ``torch.cuda.max_memory_allocated`` does. ``categories`` and
    ``modules`` say to whom the blocks belong that were live at the peak of allocated memory; each
    adds up to that peak.
    """

    settings: AllocatorSettings
    capacity_bytes: int | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_at: Where
    peak_reserved_at: Where
    categories: dict[str, int]
    modules: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    segments: int
    retries: int
    """How often cached memory had to be freed before a request could be served
    (``num_alloc_retries``).
    """
    ooms: list[OutOfMemory]
    fragmentation: FreeSpread
    owners: dict[int, int] = field(default_factory=dict)
    """The same blocks by the number of their owner in the trace's table."""

    @property
    def fits(self) -> bool:
        return not self.ooms

    @property
    def left_bytes(self) -> int | None:
        """The capacity less the peak of reserved memory; None without a capacity."""
        return (
            None if self.capacity_bytes is None else self.capacity_bytes - self.peak_reserved_bytes
        )


def simulate(
    trace: Trace,
    settings: AllocatorSettings = DEFAULT,
    capacity_bytes: int | None = None,
    *,
    allowed_bytes: int | None = None,
) -> Simulated:
    """Replay ``trace`` from an empty allocator.

    ``capacity_bytes``: what the driver can give this process's allocator (None: any amount).
    ``allowed_bytes``: what ``set_per_process_memory_fraction`` allows it. A request that fails ends
    the simulation, as it would end the training. At a mark named ``EMPTY_CACHE`` cached memory is
    freed, as by ``torch.cuda.empty_cache()``.
    """
    engine = Engine(settings, capacity_bytes, allowed_bytes)
    run = TraceRun(trace, engine)
    releases = [(mark.at, engine.empty_cache) for mark in trace.marks if mark.name == EMPTY_CACHE]
    run.go(len(trace.events), releases)
    return run.result()


class TraceRun:
    """A trace on its way through an engine.

    :meth:`_slice` replays slices of events. Everything else (completing pending frees,
    ``empty_cache()``) is done between two slices. A request that fails ends the run; with
    ``after_oom`` it continues without that block.
    """

    def __init__(self, trace: Trace, engine: Engine, after_oom: bool = False) -> None:
        self.trace, self.engine, self.after_oom = trace, engine, after_oom
        self.sizes = rounded_all(trace.sizes, engine.settings)
        self.held: list[Block | None] = [None] * len(self.sizes)
        self.ooms: list[OutOfMemory] = []
        self.position = 0
        self.ended = False
        self.pools: dict[int, object] = {}
        """Private pools of the blocks that are not in the default pool."""
        self.before: dict[int, int] = {}
        """Blocks that were live before the first event, and their bytes."""
        self.addresses: list[int] | None = None
        """The address of each block, if requested; 0 if it was not placed."""
        self.deadline: float | None = None
        """A time of ``time.monotonic()``; :class:`TooLong` is raised some thousand events after it.
        """
        self.taken: dict[int, int] = {}
        """The sizes of blocks that are larger than requested."""

    def go(self, end: int, between: Sequence[tuple[int, Callable[[], None]]] = ()) -> None:
        """Replay up to event ``end``.

        ``between`` holds actions, each to be done before the event with its number, in ascending
        order.
        """
        stops = {end, *(at for at, _ in between if at < end)}
        if self.deadline is not None:
            stops.update(range(self.position + BETWEEN_LOOKS, end, BETWEEN_LOOKS))
        done = 0
        for stop in sorted(stops) if not self.ended else ():
            if stop > self.position:
                self.position = self._slice(self.position, stop)
            while done < len(between) and between[done][0] <= stop and not self.ended:
                between[done][1]()
                done += 1
            if self.ended:
                return
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise TooLong

    def _slice(self, begin: int, end: int) -> int:
        """Replay events, and return where it ended."""
        engine, sizes, held = self.engine, self.sizes, self.held
        small, large = engine.shelf(0, True), engine.shelf(0, False)
        allocate, free, addresses = engine.allocate, engine.free, self.addresses
        elsewhere = self.trace.streams
        if self.pools:
            elsewhere = {**dict.fromkeys(self.pools, 0), **elsewhere}
        for number, event in enumerate(self.trace.events[begin:end], begin):
            if event >= 0:
                size = sizes[event]
                if not size:
                    continue
                engine.at = number
                shelf = small if size <= 1048576 else large
                if event in elsewhere:
                    shelf = engine.shelf(elsewhere[event], shelf.small, self.pools.get(event))
                block = allocate(size, shelf)
                if block is None:
                    self._out_of_memory(event, size, shelf)
                    if self.ended:
                        return number
                    continue
                if block.size != size:
                    self.taken[event] = block.size
                held[event] = block
                if addresses is not None:
                    addresses[event] = block.address
            else:
                block = held[~event]
                if block is not None:
                    held[~event] = None
                    if block.state == LIVE:
                        free(block)
                    else:
                        engine.complete(block)
        return end

    def _out_of_memory(self, event: int, size: int, shelf: Shelf) -> None:
        engine = self.engine
        self.ooms.append(
            OutOfMemory(
                where=self.where(engine.at),
                block=event,
                requested_bytes=self.trace.sizes[event],
                free_bytes=max(0, min(engine.capacity, engine.allowed) - engine.reserved),
                cached_bytes=engine.reserved - engine.active,
                largest_cached_bytes=max((block.size for block in shelf), default=0),
                allocated_bytes=engine.allocated,
                reserved_bytes=engine.reserved,
            )
        )
        self.ended = not self.after_oom or len(self.ooms) >= MOST_OOMS

    def where(self, event: int) -> Where:
        """Return the last marks before an event."""
        marks: list[PhaseMark] = self.trace.marks
        step = phase = ""
        for mark in marks[: bisect_right(marks, event, key=lambda mark: mark.at)]:
            if mark.name.startswith("step"):
                step, phase = mark.name, ""
            elif mark.name != EMPTY_CACHE:
                phase = mark.name
        return Where(event, step, phase)

    def result(self) -> Simulated:
        engine = self.engine
        owners = self._owners(engine.peak_allocated_at)
        table = self.trace.owner_table
        categories: dict[str, int] = {}
        modules: dict[str, int] = {}
        for number, size in owners.items():
            owner = table[number]
            categories[owner.category] = categories.get(owner.category, 0) + size
            modules[owner.module] = modules.get(owner.module, 0) + size
        capacity = min(engine.capacity, engine.allowed)
        return Simulated(
            settings=engine.settings,
            capacity_bytes=None if capacity >= UNLIMITED else capacity,
            peak_allocated_bytes=engine.peak_allocated,
            peak_reserved_bytes=engine.peak_reserved,
            peak_allocated_at=self.where(engine.peak_allocated_at),
            peak_reserved_at=self.where(engine.peak_reserved_at),
            categories=_sorted(categories),
            modules=_sorted(modules),
            allocated_bytes=engine.allocated,
            reserved_bytes=engine.reserved,
            segments=engine.segments,
            retries=engine.retries,
            ooms=self.ooms,
            fragmentation=fragmentation(engine),
            owners=owners,
        )

    def _owners(self, event: int) -> dict[int, int]:
        """Return the bytes of the blocks that are live after ``event``, by their owner's number."""
        trace = self.trace
        failed = {one.block for one in self.ooms}
        live = trace.live(event + 1, before=self.before)
        sums: dict[int, int] = {}
        for block in live:
            if block not in failed:
                size = self.before.get(block) or self.taken.get(block, self.sizes[block])
                owner = trace.owners[block]
                sums[owner] = sums.get(owner, 0) + size
        return sums


def _sorted(sizes: dict[str, int]) -> dict[str, int]:
    return dict(
        sorted(((name, size) for name, size in sizes.items() if size), key=lambda item: -item[1])
    )


def fragmentation(engine: Engine) -> FreeSpread:
    """Return the present fragmentation of the default pool."""
    free = releasable = count = largest = 0
    for shelf in engine.shelves.values():
        if shelf.private:
            continue
        page = page_size(engine, shelf)
        for block in shelf:
            free += block.size
            count += 1
            largest = max(largest, block.size)
            if block.grown:
                begin, end = block.address - block.grown, block.address + block.size - block.grown
                releasable += max(0, end // page - -(-begin // page)) * page
            elif block.prev is None and block.next is None:
                releasable += block.size
    percent = round(100 * (1 - largest / free), 2) if free else None
    return FreeSpread(free, releasable, free - releasable, count, largest, percent)
