"""The rules of the caching allocator, each on a case worked out by hand from its C++ source."""

from __future__ import annotations

import pytest

from gpuscope.model.allocator_settings import DEFAULT, read
from gpuscope.predict.allocator import TraceRun, simulate
from gpuscope.predict.allocator_blocks import rounded, segment_size
from gpuscope.predict.allocator_engine import Engine
from gpuscope.predict.trace import Owner, PhaseMark

from .traces import KIB, MIB, trace_of

EXPANDABLE = read("expandable_segments:True")


@pytest.mark.parametrize(
    ("size", "block"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB, MIB), (1025, 1536)]
)
def test_requests_are_rounded_to_512_bytes(size: int, block: int) -> None:
    assert rounded(size, DEFAULT) == block


@pytest.mark.parametrize(
    ("settings", "size", "block"),
    [
        ("roundup_power2_divisions:4", 1200, 1536),  # not above 512 × 4: to 512 bytes
        # the steps between 1 and 2 MiB have 256 KiB
        ("roundup_power2_divisions:4", 1200 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 1280 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 1024 * KIB, 1024 * KIB),
        ("roundup_power2_divisions:1", 1200 * KIB + 1, 1200 * KIB + 512),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", 33 * MIB + 1, 33 * MIB + 512),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", 600 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", 1100 * MIB, 1280 * MIB),
    ],
)
def test_rounding_to_divisions_of_powers_of_two(settings: str, size: int, block: int) -> None:
    assert rounded(size, read(settings)) == block


def test_segments_are_2_mib_20_mib_or_the_size_itself() -> None:
    sizes = {
        512: 2,
        MIB: 2,
        MIB + 512: 20,
        10 * MIB - 512: 20,
        10 * MIB: 10,
        10 * MIB + 512: 12,
        31 * MIB: 32,
    }
    assert {size: segment_size(size, DEFAULT) // MIB for size in sizes} == sizes
    assert segment_size(2 * MIB, read("large_segment_size_mb:64")) == 64 * MIB


def test_small_requests_share_segments_and_large_ones_do_not_use_them() -> None:
    found = simulate(trace_of(MIB, MIB, 1, 2 * MIB))
    assert found.peak_reserved_bytes == (2 + 2 + 20) * MIB
    assert found.peak_allocated_bytes == 4 * MIB + 512
    assert found.segments == 3


def test_a_request_of_nothing_takes_nothing() -> None:
    found = simulate(trace_of(0, "free 0"))
    assert (
        found.peak_allocated_bytes,
        found.peak_reserved_bytes,
        found.peak_allocated_at.event,
    ) == (0, 0, -1)


def test_a_large_block_is_not_split_for_a_rest_of_1_mib() -> None:
    whole = simulate(trace_of(20 * MIB, "free 0", 19 * MIB))
    assert (whole.allocated_bytes, whole.reserved_bytes) == (20 * MIB, 20 * MIB)
    split = simulate(trace_of(20 * MIB, "free 0", 19 * MIB - 512))
    assert split.allocated_bytes == 19 * MIB - 512
    assert split.fragmentation.free_bytes == MIB + 512


def test_the_smallest_block_that_fits_serves_and_of_equal_ones_the_lowest() -> None:
    engine = Engine(DEFAULT)
    shelf = engine.shelf(0, False)
    large, first, second = (engine.allocate(size * MIB, shelf) for size in (40, 30, 30))
    assert large is not None
    assert first is not None
    assert second is not None
    for block in (second, large, first):
        engine.free(block)
    served = engine.allocate(29 * MIB + 512, shelf)
    assert served is not None
    assert served.address == min(first.address, second.address)


def test_free_neighbours_become_one_block() -> None:
    found = simulate(
        trace_of(5 * MIB, 5 * MIB, 5 * MIB, "free 0", "free 2", "free 1", 19 * MIB + 512)
    )
    assert found.reserved_bytes == 20 * MIB
    assert found.allocated_bytes == 20 * MIB  # what is left is below 1 MiB


def test_streams_do_not_share_blocks() -> None:
    steps = (4 * MIB, "free 0", 4 * MIB)
    assert simulate(trace_of(*steps)).peak_reserved_bytes == 20 * MIB
    assert simulate(trace_of(*steps, streams={1: 7})).peak_reserved_bytes == 40 * MIB


def test_at_the_limit_cached_segments_go_back_and_the_request_is_tried_again() -> None:
    found = simulate(trace_of(30 * MIB, "free 0", 40 * MIB), capacity_bytes=60 * MIB)
    assert found.fits
    assert found.retries == 1
    assert (found.peak_reserved_bytes, found.reserved_bytes) == (40 * MIB, 40 * MIB)
    assert found.left_bytes == 20 * MIB
    assert simulate(trace_of(30 * MIB, "free 0", 40 * MIB)).peak_reserved_bytes == 70 * MIB


def test_a_request_that_fails_says_what_there_was() -> None:
    # 20 MiB with a live block in the middle: 15 free in pieces of 10 and 5
    steps = (10 * MIB - 512, 5 * MIB, "free 0", 14 * MIB)
    found = simulate(trace_of(*steps), capacity_bytes=30 * MIB)
    assert not found.fits
    (failed,) = found.ooms
    assert failed.block == 2
    assert failed.where.event == 3
    assert failed.requested_bytes == 14 * MIB
    assert failed.free_bytes == 10 * MIB
    assert failed.cached_bytes == 15 * MIB
    assert failed.largest_cached_bytes == 10 * MIB - 512
    assert found.allocated_bytes == 5 * MIB
    assert found.retries == 1


def test_it_ends_at_the_first_failure_unless_told_to_go_on() -> None:
    steps = (10 * MIB, 40 * MIB, "free 1", 2 * MIB)
    stopped = simulate(trace_of(*steps), capacity_bytes=32 * MIB)
    assert (stopped.allocated_bytes, len(stopped.ooms)) == (10 * MIB, 1)
    run = TraceRun(trace_of(*steps), Engine(read(""), 32 * MIB), after_oom=True)
    run.go(4)
    onwards = run.result()
    assert (onwards.allocated_bytes, len(onwards.ooms)) == (12 * MIB, 1)
    assert sum(onwards.categories.values()) == onwards.peak_allocated_bytes


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def test_oversize_blocks_are_neither_split_nor_lent_to_smaller_requests() -> None:
    settings = read("max_split_size_mb:32")
    lent = trace_of(40 * MIB, "free 0", 4 * MIB)
    assert simulate(lent).peak_reserved_bytes == 40 * MIB
    assert simulate(lent, settings).peak_reserved_bytes == 60 * MIB
    # an oversize request takes a block of less than 20 MiB more, whole
    near = simulate(trace_of(50 * MIB, "free 0", 34 * MIB), settings)
    assert (near.reserved_bytes, near.allocated_bytes) == (50 * MIB, 50 * MIB)
    far = simulate(trace_of(60 * MIB, "free 0", 34 * MIB), settings)
    assert far.reserved_bytes == 94 * MIB


def test_with_max_split_size_only_as_much_is_given_back_as_the_request_needs() -> None:
    steps = (32 * MIB, 40 * MIB, 48 * MIB, "free 0", "free 1", "free 2", 80 * MIB)
    settings = read("max_split_size_mb:32")
    found = simulate(trace_of(*steps), settings, capacity_bytes=120 * MIB)
    # the largest first: 48 + 40 ≥ 80, the block of 32 stays; the retry that counts is the other one
    assert (found.reserved_bytes, found.retries, found.fits) == (112 * MIB, 0, True)
    assert simulate(trace_of(*steps), capacity_bytes=120 * MIB).reserved_bytes == 80 * MIB


def test_a_single_oversize_block_that_would_do_is_given_back_alone() -> None:
    steps = (100 * MIB, 34 * MIB, "free 0", "free 1", 60 * MIB)
    found = simulate(trace_of(*steps), read("max_split_size_mb:32"), capacity_bytes=140 * MIB)
    assert (found.reserved_bytes, found.retries) == (94 * MIB, 0)


def test_garbage_collection_frees_the_oldest_cached_segments_above_the_threshold() -> None:
    settings = read("garbage_collection_threshold:0.5")
    steps = (20 * MIB, 30 * MIB, "free 0", 40 * MIB, "free 2", "free 1", 41 * MIB)
    # without a fraction there is nothing that the threshold is a share of
    assert simulate(trace_of(*steps), settings).peak_reserved_bytes == (20 + 30 + 40 + 42) * MIB
    # 41 is the fourth search: the free blocks of 20, 40 and 30 are 2, 1 and 1 searches old, 4/3 on
    # average. 20 above half of 140: the one older than the average is enough
    found = simulate(trace_of(*steps), settings, allowed_bytes=140 * MIB)
    assert (found.reserved_bytes, found.retries) == ((30 + 40 + 42) * MIB, 0)
    # 40 above half of 100: the first pass frees 20; in the second the others are as old as the
    # average, and both go
    found = simulate(trace_of(*steps), settings, allowed_bytes=100 * MIB)
    assert (found.reserved_bytes, found.retries) == (42 * MIB, 0)


def test_the_fraction_that_torch_allows_itself_counts_whole_segments() -> None:
    assert simulate(trace_of(2 * MIB), allowed_bytes=20 * MIB).fits
    assert not simulate(trace_of(2 * MIB), allowed_bytes=19 * MIB).fits
    # though it maps 20
    assert simulate(trace_of(15 * MIB), EXPANDABLE, allowed_bytes=16 * MIB).fits


# ── expandable segments ───────────────────────────────────────────────────────────────────────────


def test_expandable_segments_grow_page_by_page() -> None:
    found = simulate(trace_of(15 * MIB, 15 * MIB, 15 * MIB, 100), EXPANDABLE)
    assert found.peak_reserved_bytes == (60 + 2) * MIB
    assert found.segments == 2
    native = simulate(trace_of(15 * MIB, 15 * MIB, 15 * MIB, 100))
    assert native.peak_reserved_bytes == (3 * 16 + 2) * MIB


def test_expandable_blocks_are_split_to_the_last_512_bytes() -> None:
    found = simulate(trace_of(20 * MIB, "free 0", 20 * MIB - 512, 512 * KIB + 1, 1), EXPANDABLE)
    assert found.fragmentation.free_blocks == 2
    assert found.allocated_bytes == 20 * MIB - 512 + 512 * KIB + 512 + 512


def test_what_fragments_segments_does_not_fragment_expandable_ones() -> None:
    steps = [40 * MIB, "free 0", 44 * MIB, "free 1", 48 * MIB, "free 2", 52 * MIB]
    assert simulate(trace_of(*steps)).peak_reserved_bytes == (40 + 44 + 48 + 52) * MIB
    assert simulate(trace_of(*steps), EXPANDABLE).peak_reserved_bytes == 60 * MIB


def test_at_the_limit_whole_free_pages_are_unmapped_and_used_elsewhere() -> None:
    # large pool: 60 MiB mapped, the middle free from 10 to 50: one page of 20 to 40 can go; small
    # pool needs 2
    steps = (10 * MIB, 40 * MIB, 10 * MIB, "free 1", *(MIB,) * 6)
    found = simulate(trace_of(*steps), EXPANDABLE, capacity_bytes=60 * MIB)
    assert found.fits
    assert found.retries == 1
    assert found.reserved_bytes == (40 + 6) * MIB
    # the hole is the lowest address with room: what comes next is mapped there, not at the end
    again = simulate(trace_of(*steps, 40 * MIB), EXPANDABLE, capacity_bytes=80 * MIB)
    assert again.fits
    assert again.reserved_bytes == (60 + 6) * MIB


def test_a_failed_mapping_leaves_what_was_mapped_before() -> None:
    found = simulate(trace_of(10 * MIB, 45 * MIB), EXPANDABLE, capacity_bytes=50 * MIB)
    assert not found.fits
    assert found.reserved_bytes == 20 * MIB
    assert found.ooms[0].cached_bytes == 10 * MIB


# ── what it says ──────────────────────────────────────────────────────────────────────────────────


def test_the_peak_has_its_place_and_its_owners() -> None:
    trace = trace_of(4 * MIB, 100, 6 * MIB, "free 2", 2 * MIB)
    trace.owner_table = [
        Owner("parameter", "layer"),
        Owner("gradient", "layer"),
        Owner("activation", "head"),
    ]
    trace.owners = [0, 1, 2, 2]
    trace.marks = [
        PhaseMark(0, "step 1"),
        PhaseMark(1, "forward"),
        PhaseMark(3, "backward"),
        PhaseMark(4, "step 2"),
    ]
    found = simulate(trace)
    assert found.peak_allocated_bytes == 10 * MIB + 512
    assert (found.peak_allocated_at.event, found.peak_allocated_at.step) == (2, "step 1")
    assert found.peak_allocated_at.phase == "forward"
    assert found.categories == {"activation": 6 * MIB, "parameter": 4 * MIB, "gradient": 512}
    assert found.modules == {"head": 6 * MIB, "layer": 4 * MIB + 512}
    assert found.peak_reserved_at.event == 1
