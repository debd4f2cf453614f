"""The parts of ``reserved`` add up.

They do for every state an allocator can be in, and for numbers no allocator has.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.allocator_split import Counters, categories, split

SIZES = st.integers(0, 1 << 40)


@st.composite
def allocators(draw: Any) -> tuple[Counters, dict[str, int]]:
    """Draw a made-up allocator.

    It has blocks in use and awaiting a free, each with its rounding, and idle ones in partly used
    and in empty segments, some of them in private pools. Returned are what it counts, and what is
    really there.
    """
    block = st.tuples(st.integers(1, 1 << 33), st.integers(0, 511))
    live = draw(st.lists(block, max_size=6))
    pending = draw(st.lists(block, max_size=4))
    # size, split, in a pool
    idle = draw(st.lists(st.tuples(SIZES, st.booleans(), st.booleans()), max_size=6))
    sizes = {
        "live": sum(size for size, _ in live),
        "live_rounding": sum(more for _, more in live),
        "pending": sum(size + more for size, more in pending),
        "pending_rounding": sum(more for _, more in pending),
        "split": sum(s for s, part, pool in idle if part and not pool),
        "releasable": sum(s for s, part, pool in idle if not part and not pool),
        "pool_split": sum(s for s, part, pool in idle if part and pool),
        "pool_whole": sum(s for s, part, pool in idle if not part and pool),
    }
    allocated = sizes["live"] + sizes["live_rounding"]
    active = allocated + sizes["pending"]
    idle_split = sizes["split"] + sizes["pool_split"]
    counters = Counters(
        reserved=active + idle_split + sizes["releasable"] + sizes["pool_whole"],
        allocated=allocated,
        active=active,
        requested=sizes["live"] + sizes["pending"] - sizes["pending_rounding"],
        inactive_split=idle_split,
        pool_idle=sizes["pool_split"] + sizes["pool_whole"],
        pool_idle_split=sizes["pool_split"],
    )
    return counters, sizes


@given(allocators())
def test_every_state_of_an_allocator_adds_up_and_each_part_is_the_true_one(state):
    counters, true = state
    parts = split(counters)
    assert parts.total == counters.reserved
    assert min(parts) >= 0
    assert not parts.torn
    assert parts.live + parts.rounding == counters.allocated
    assert parts.awaiting == true["pending"]
    assert parts.inactive_split == true["split"]
    assert parts.releasable == true["releasable"]
    assert parts.pool_idle == true["pool_split"] + true["pool_whole"]
    assert parts.live <= true["live"] <= parts.live + parts.error, (
        "the stated error covers the truth"
    )
    assert parts.rounding - parts.error <= true["live_rounding"] <= parts.rounding


@given(allocators())
def test_with_nothing_pending_live_tensors_are_exact(state):
    counters, true = state
    if true["pending"] == 0:
        parts = split(counters)
        assert (parts.live, parts.rounding, parts.error) == (true["live"], true["live_rounding"], 0)


ANY = st.integers(-(1 << 45), 1 << 45)


@given(st.builds(Counters, ANY, ANY, ANY, ANY, ANY, ANY, ANY))
def test_numbers_that_contradict_each_other_still_add_up_and_never_fall_below_zero(counters):
    parts = split(counters)
    assert parts.total == max(counters.reserved, 0)
    assert min(parts[:7]) >= 0


@given(allocators(), SIZES, SIZES)
def test_a_walk_from_another_moment_changes_no_total(state, idle, idle_split):
    counters, _ = state
    parts = split(counters._replace(pool_idle=idle, pool_idle_split=idle_split))
    plain = split(counters._replace(pool_idle=0, pool_idle_split=0))
    assert parts.total == plain.total == counters.reserved
    assert parts[:3] == plain[:3], "what is in use does not depend on the walk"
    assert min(parts) >= 0


def test_rounding_is_of_active_not_of_allocated():
    # 100 bytes in use in a block of 512; 1000 requested in a block of 1024 that another stream
    # still reads
    counters = Counters(
        reserved=2 << 20,
        allocated=512,
        active=1536,
        requested=1100,
        inactive_split=(2 << 20) - 1536,
    )
    parts = split(counters)
    assert parts.awaiting == 1024
    assert parts.error == 436, (
        "of the 436 bytes of rounding nobody can tell which are the pending block's"
    )
    assert parts.live == 76
    assert parts.live <= 100 <= parts.live + parts.error
    assert counters.allocated - counters.requested < 0, (
        "what the documentation suggests would be negative here"
    )


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_categories_add_up_to_what_is_live(live, parameters, gradients, state, workspaces):
    parts = categories(live, parameters, gradients, state, workspaces)
    assert sum(parts[:5]) == live
    assert min(parts[:5]) >= 0
    assert parts.cut == (parameters + gradients + state + workspaces > live)
    if not parts.cut:
        assert parts[:4] == (parameters, gradients, state, workspaces)


def test_gradients_that_were_freed_meanwhile_are_cut_before_anything_else():
    parts = categories(100, 40, 30, 50, 0)
    assert parts[:5] == (40, 10, 50, 0, 0)
    assert parts.cut
