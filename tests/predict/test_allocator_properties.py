"""What holds of the simulated allocator for any requests, settings and limits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from gpuscope.model.allocator_settings import AllocatorSettings, read
from gpuscope.predict.allocator import TraceRun, simulate
from gpuscope.predict.allocator_blocks import FREE, LIVE, PENDING, UNMAPPED, Block, rounded
from gpuscope.predict.allocator_engine import Engine
from gpuscope.predict.trace import Trace

from .traces import MIB, trace_of

SETTINGS = st.sampled_from(
    [
        read(text)
        for text in (
            "",
            "expandable_segments:True",
            "max_split_size_mb:20",
            "max_split_size_mb:64",
            "roundup_power2_divisions:8",
            "garbage_collection_threshold:0.6",
            "expandable_segments:True,large_segment_size_mb:64,max_split_size_mb:64",
        )
    ]
)
SIZES = st.one_of(
    st.integers(0, 2 * MIB),
    st.integers(0, 70 * MIB),
    st.sampled_from(
        [512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]
    ),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    steps: list[int | str] = []
    live: list[int] = []
    streams = {}
    for number, size in enumerate(draw(st.lists(SIZES, max_size=40))):
        steps.append(size)
        live.append(number)
        if draw(st.integers(0, 9)) == 0:
            streams[number] = draw(st.integers(1, 2))
        while live and draw(st.booleans()):
            steps.append(f"free {live.pop(draw(st.integers(0, len(live) - 1)))}")
    return trace_of(*steps, streams=streams)


def blocks_of(run: TraceRun) -> list[Block]:
    """All blocks, found from the free and the live ones along their neighbours."""
    seen: dict[int, Block] = {}
    waiting = [block for block in run.held if block is not None] + list(run.engine.pending)
    for shelf in run.engine.shelves.values():
        waiting += [*shelf, *shelf.unmapped]
    while waiting:
        block = waiting.pop()
        if id(block) not in seen:
            seen[id(block)] = block
            waiting += [other for other in (block.prev, block.next) if other is not None]
    return list(seen.values())


def check(run: TraceRun) -> None:
    engine = run.engine
    blocks = sorted(blocks_of(run), key=lambda block: block.address)
    for block, after in pairwise(blocks):
        assert block.address + block.size <= after.address
    for block in blocks:
        for other in (block.prev, block.next):
            if other is not None and block.state == other.state:
                assert block.state in (LIVE, PENDING)  # free neighbours are merged
        assert block.next is None or block.next.prev is block
        assert block.next is None or block.next.address == block.address + block.size
    held = sum(block.size for block in blocks if block.state in (LIVE, PENDING))
    mapped = sum(block.size for block in blocks if block.state != UNMAPPED)
    assert engine.active == held
    assert engine.reserved == mapped
    assert engine.allocated == held - sum(block.size for block in engine.pending)
    assert 0 <= engine.allocated <= engine.active <= engine.reserved <= engine.peak_reserved
    listed = [block for shelf in engine.shelves.values() for block in shelf]
    assert {id(block) for block in listed} == {id(block) for block in blocks if block.state == FREE}
    for shelf in engine.shelves.values():
        assert shelf.keys == sorted(shelf.keys)


@given(traces(), SETTINGS, st.one_of(st.none(), st.integers(2 * MIB, 300 * MIB)), st.booleans())
def test_blocks_tile_their_segments_and_the_sums_are_exact(
    trace: Trace, settings: AllocatorSettings, limit: int | None, allowed: bool
) -> None:
    engine = Engine(settings, None if allowed else limit, limit if allowed else None)
    run = TraceRun(trace, engine, after_oom=True)
    run.go(len(trace.events))
    check(run)
    # there pages are rounded after the check
    if limit is not None and not (allowed and settings.expandable):
        assert engine.peak_reserved <= limit
    found = run.result()
    assert sum(found.categories.values()) == found.peak_allocated_bytes
    assert found.fragmentation.free_bytes == engine.reserved - engine.active
    live = {number for number, block in enumerate(run.held) if block is not None}
    asked = sum(rounded(trace.sizes[number], settings) for number in live)
    assert asked <= engine.allocated <= engine.active
    if settings.expandable:
        assert engine.allocated == asked  # nothing is given that was not asked for
    for number in live:
        run.engine.free(run.held[number])  # type: ignore[arg-type]
        run.held[number] = None
    check(run)
    assert engine.allocated == 0
    run.engine.empty_cache()
    check(run)
    assert engine.reserved == 0  # all that is free can be given back
    # whose addresses stay where mapping has failed
    assert engine.segments == 0 or settings.expandable


@given(traces(), SETTINGS)
def test_limits_only_matter_below_the_peak(trace: Trace, settings: AllocatorSettings) -> None:
    free = simulate(trace, settings)
    assert free.fits
    enough = simulate(trace, settings, capacity_bytes=free.peak_reserved_bytes)
    assert (enough.fits, enough.retries) == (True, 0)
    assert enough.peak_reserved_bytes == free.peak_reserved_bytes
    if free.peak_allocated_bytes:
        least = max(rounded(size, settings) if size else 0 for size in trace.sizes)
        assert not simulate(trace, settings, capacity_bytes=least - 1).fits


@given(traces())
def test_pending_frees_serve_nobody_until_they_are_completed(trace: Trace) -> None:
    """All frees of the trace requested at once, and completed only where the trace says so."""
    engine = Engine(read(""))
    run = TraceRun(trace, engine)
    between = []
    for at, event in enumerate(trace.events):
        if event < 0:

            def request(number: int = ~event) -> None:
                block = run.held[number]
                if block is not None:
                    engine.request_free(block)

            between.append((max(0, at - 1), request))
    run.go(len(trace.events), between=between)
    check(run)
    # as long as nothing waits for room
    assert engine.peak_reserved == simulate(trace).peak_reserved_bytes


@options(max_examples=40, deadline=None)
@given(traces(), SETTINGS, st.integers(1, 50))
def test_slices_change_nothing(trace: Trace, settings: AllocatorSettings, length: int) -> None:
    whole, run = simulate(trace, settings), TraceRun(trace, Engine(settings))
    for end in range(length, len(trace.events), length):
        run.go(end)
    run.go(len(trace.events))
    sliced = run.result()
    assert (whole.peak_reserved_bytes, whole.peak_allocated_bytes) == (
        sliced.peak_reserved_bytes,
        sliced.peak_allocated_bytes,
    )
    assert whole.peak_allocated_at == sliced.peak_allocated_at
    assert whole.fragmentation == sliced.fragmentation
