"""Run a recorded history through the simulated allocator.

It can run exactly as it was recorded, or under other settings and a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from ..model.allocator_settings import AllocatorSettings
from .allocator import Simulated, TraceRun
from .allocator_blocks import LIVE, SMALL_REQUEST, SMALL_SEGMENT, Block, rounded
from .allocator_engine import Engine
from .allocator_expandable import SPAN
from .allocator_found import put_ranges
from .replay_before import MappedRange
from .replay_events import RecordedTrace, Release

NEAR = 8
"""How many recorded segments are searched for the next one, which is normally the first of them."""


# ── as it was ─────────────────────────────────────────────────────────────────────────────────────


def as_it_was(
    found: RecordedTrace, settings: AllocatorSettings, deadline: float | None = None
) -> tuple[Simulated, float | None]:
    """The result of a replay, with the share of the blocks that got their recorded address."""
    run = played(found, settings, deadline)
    placed = [pair for pair in zip(run.addresses or [], found.addresses, strict=True) if pair[0]]
    same = sum(one == other for one, other in placed) / len(placed) if placed else None
    return run.result(), same


def played(
    found: RecordedTrace, settings: AllocatorSettings, deadline: float | None = None
) -> TraceRun:
    """Replay the history as it was recorded.

    It uses the driver's addresses, makes every release where it was, and has no limit. Requests
    that failed are left out.
    """
    engine = Engine(settings, place=_places(found, settings))
    run = TraceRun(found.trace, engine, after_oom=True)
    run.pools = dict(found.pools)
    run.addresses = [0] * len(run.sizes)
    run.deadline = deadline
    for failed in found.failures:
        run.sizes[failed.block] = 0  # a request that failed
    _put(found.before, engine, run)
    run.go(
        len(found.trace.events),
        between=_actions(found, run, lambda release: _give_back(engine, release)),
    )
    return run


def _places(found: RecordedTrace, settings: AllocatorSettings) -> Callable[[int, int], int | None]:
    """Return a function that gives the driver's addresses.

    It returns the address of the next recorded segment of a size and stream, or None if there is
    none. For an expandable segment this is the address of its first mapped page. Small and large
    pages lie in segments of their own.
    """
    queue = deque(found.segments)
    given: set[tuple[int, bool]] = set()

    def place(size: int, stream: int) -> int | None:
        for number, (address, length, other) in enumerate(islice(queue, NEAR)):
            if length == size and other == stream:
                del queue[number]
                return address
        return None

    def place_range(size: int, stream: int) -> int | None:
        kind = (stream, size == SPAN)
        if kind in given:
            return None
        given.add(kind)
        fitting = (one for one, length, other in queue if (other, length == SMALL_SEGMENT) == kind)
        return next(fitting, None)

    return place_range if settings.expandable else place


def _give_back(engine: Engine, release: Release) -> None:
    """Return the segments that were returned then.

    Under expandable segments, everything that can be.
    """
    if engine.settings.expandable:
        engine.empty_cache()
        return
    engine.complete_all()
    gone = dict(release.segments)
    for shelf in list(engine.shelves.values()):
        for block in shelf:
            if block.prev is None and block.next is None and gone.get(block.address) == block.size:
                engine.releasing.segment(block)


# ── otherwise ─────────────────────────────────────────────────────────────────────────────────────


def otherwise(
    found: RecordedTrace,
    settings: AllocatorSettings,
    own: AllocatorSettings,
    capacity: int | None,
    deadline: float | None = None,
) -> Simulated:
    """Replay under other settings and a limit. The allocator frees its cache only at that limit."""
    engine = Engine(settings, capacity)
    run = TraceRun(found.trace, engine, after_oom=True)
    run.pools = dict(found.pools)
    run.deadline = deadline
    if settings == own:
        _put(found.before, engine, run)
    else:
        _lay_out(found.before, engine, run)
    run.go(
        len(found.trace.events),
        between=_actions(
            found, run, lambda release: engine.empty_cache() if release.by_hand else None
        ),
    )
    return run.result()


def _actions(
    found: RecordedTrace, run: TraceRun, give_back: Callable[[Release], None]
) -> list[tuple[int, Callable[[], None]]]:
    def action(what: int | Release) -> Callable[[], None]:
        if isinstance(what, Release):
            return lambda: give_back(what)
        return lambda: _request(run, what)

    return [(at, action(what)) for at, what in found.between]


def _request(run: TraceRun, number: int) -> None:
    block = run.held[number]
    if block is not None and block.state == LIVE:
        run.engine.request_free(block)


def _put(before: list[MappedRange], engine: Engine, run: TraceRun) -> None:
    """Add segments exactly as they were recorded."""
    ranges: dict[tuple[int, bool, str], list[MappedRange]] = {}
    for held in before:
        if held.expandable:
            ranges.setdefault((held.stream, held.small, held.pool), []).append(held)
            continue
        shelf = engine.shelf(held.stream, held.small, held.pool or None)
        _hold(run, held, engine.put_segment(shelf, held.address, held.size, _blocks(held)))
    for (stream, small, pool), parts in ranges.items():
        shelf = engine.shelf(stream, small, pool or None)
        lists = put_ranges(
            engine, shelf, [(held.address, held.size, _blocks(held)) for held in parts]
        )
        for held, blocks in zip(parts, lists, strict=True):
            _hold(run, held, blocks)


def _blocks(held: MappedRange) -> list[tuple[int, int]]:
    return [(block.address, block.size) for block in held.blocks]


def _hold(run: TraceRun, held: MappedRange, blocks: list[Block]) -> None:
    for found, block in zip(held.blocks, blocks, strict=True):
        run.held[found.number] = block
        run.before[found.number] = block.size


def _lay_out(before: list[MappedRange], engine: Engine, run: TraceRun) -> None:
    """Request the same blocks again, in the order of their addresses."""
    for held in before:
        for one in held.blocks:
            size = rounded(one.requested, engine.settings)
            shelf = engine.shelf(held.stream, size <= SMALL_REQUEST, held.pool or None)
            block = engine.allocate(size, shelf)
            if block is not None:
                run.held[one.number] = block
                run.before[one.number] = block.size
