"""The views agree with a brute-force reckoning.

That is of totals and maps of hand-made segments, and of lines and moments of traces.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscope.snapshot.difference import compare
from gpuscope.snapshot.drawing import resample
from gpuscope.snapshot.model import MAX_BUCKETS, MAX_MARKS, MAX_SEGMENTS
from gpuscope.snapshot.moments import NoSuchMoment
from gpuscope.snapshot.unpickle import Unreadable
from gpuscope.snapshot.views import Snapshot
from tests.snapshot import synthetic

MIB = 1 << 20
L, P, F = "active_allocated", "active_pending_free", "inactive"


def read(data, tmp_path, top=20, name="a", protocol=4) -> Snapshot:
    """In this process: the child's own code, without the child."""
    path = synthetic.write(data, tmp_path / name, protocol)
    return Snapshot(str(path), top, lambda share: None, lambda: None)


def segment(*blocks, address=0x10000000, total=None, **more):
    rows = [
        {"size": size, "requested_size": size - 100, "state": state, "frames": []}
        for state, size in blocks
    ]
    return {
        "device": 0,
        "address": address,
        "total_size": total or sum(b["size"] for b in rows),
        "blocks": rows,
        **more,
    }


# ── segments ──────────────────────────────────────────────────────────────────────────────────────


def test_inactive_bytes_are_told_apart(tmp_path):
    data = [
        segment((L, 4 * MIB), (F, 6 * MIB), (P, 2 * MIB), (F, 8 * MIB)),  # split
        segment((F, 20 * MIB), address=1 << 32),  # a whole free one
        # expandable: pages of 20 MiB; the free run from 10 to 60 MiB holds two whole ones
        segment(
            (L, 10 * MIB),
            (F, 50 * MIB),
            (L, 40 * MIB),
            address=1 << 33,
            is_expandable=True,
            segment_type="large",
        ),
        # pages of 2 MiB
        segment((L, MIB), (F, 5 * MIB), address=1 << 34, is_expandable=True, segment_type="small"),
    ]
    device = read({"segments": data}, tmp_path).summary.devices[0]
    totals = device.totals
    assert totals.reserved_bytes == 146 * MIB
    assert totals.allocated_bytes == 55 * MIB
    assert totals.pending_bytes == 2 * MIB
    assert totals.inactive_bytes == (14 + 20 + 50 + 5) * MIB
    assert totals.inactive_split_bytes == 14 * MIB
    assert totals.releasable_bytes == (20 + 40 + 4) * MIB
    assert totals.page_bound_bytes == (50 - 40 + 5 - 4) * MIB
    assert (
        totals.inactive_bytes
        == totals.releasable_bytes + totals.inactive_split_bytes + totals.page_bound_bytes
    )
    assert totals.requested_bytes == totals.active_bytes - 500
    assert totals.allocated_requested_bytes == totals.allocated_bytes - 400
    fragmentation = device.fragmentation
    assert fragmentation.largest_free_bytes == 50 * MIB
    assert fragmentation.largest_free_address == (1 << 33) + 10 * MIB
    assert fragmentation.free_blocks == 5
    assert fragmentation.percent == pytest.approx(100 * (1 - 50 / 89), abs=0.01)
    assert (
        sum(bucket.bytes for bucket in fragmentation.by_size)
        == fragmentation.free_bytes
        == totals.inactive_bytes
    )


def test_private_pools_are_apart(tmp_path):
    data = [
        segment((L, 4 * MIB), (F, 16 * MIB)),
        segment((F, 40 * MIB), address=1 << 32, segment_pool_id=(0, 3)),
    ]
    device = read({"segments": data}, tmp_path).summary.devices[0]
    assert [(pool.name, pool.private, pool.reserved_bytes) for pool in device.pools] == [
        ("default", False, 20 * MIB),
        ("0, 3", True, 40 * MIB),
    ]
    # the graph's 40 MiB serve nobody else
    assert device.fragmentation.largest_free_bytes == 16 * MIB
    assert device.fragmentation.private_free_bytes == 40 * MIB


@given(
    st.lists(
        st.tuples(st.sampled_from([L, P, F]), st.integers(1, 3_000_000)), min_size=1, max_size=60
    ),
    st.integers(1, 300),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_map_says_what_the_blocks_say(tmp_path, blocks, cells):
    drawn = read({"segments": [segment(*blocks)]}, tmp_path).summary.devices[0].segments[0]
    width = math.ceil(drawn.bytes / 256)
    assert len(drawn.live) == len(drawn.pending) == math.ceil(drawn.bytes / width)
    for row, state in ((drawn.live, L), (drawn.pending, P)):
        offset, exact = 0, [0] * len(row)
        for kind, size in blocks:
            for cell in range(offset // width, -(-(offset + size) // width)):
                if kind == state:
                    exact[cell] += min(offset + size, (cell + 1) * width) - max(
                        offset, cell * width
                    )
            offset += size
        for cell, (share, part) in enumerate(zip(row, exact, strict=True)):
            whole = min(width, drawn.bytes - cell * width)
            assert share == (max(1, 1000 * part // whole) if part else 0)
    again = resample(drawn.live, cells)
    assert sum(again) / cells == pytest.approx(sum(drawn.live) / len(drawn.live))


def test_thousands_of_segments_stay_bounded(tmp_path):
    data = [segment((L, 512), (F, 1024), address=n << 21) for n in range(3000)]
    device = read({"segments": data}, tmp_path).summary.devices[0]
    assert len(device.segments) == MAX_SEGMENTS
    assert (device.folded_segments, device.folded_bytes) == (
        3000 - MAX_SEGMENTS,
        (3000 - MAX_SEGMENTS) * 1536,
    )
    assert device.totals.segments == 3000
    assert "folded" in {note.code for note in device.notes}


def test_sums_that_differ_are_said(tmp_path):
    bad = segment((L, 512), total=4096)
    device = read({"segments": [bad | {"allocated_size": 99}]}, tmp_path).summary.devices[0]
    assert "mismatch" in {note.code for note in device.notes}
    assert device.totals.inactive_bytes == 4096 - 512


# ── traces ────────────────────────────────────────────────────────────────────────────────────────


def brute(entries, before):
    """Allocated and active after every entry, and the live set by address."""
    live = dict(before)
    allocated = active = sum(before.values())
    rows = []
    for entry in entries:
        action, addr, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            live[addr], allocated, active = size, allocated + size, active + size
        elif action == "free_requested":
            allocated -= live.pop(addr)
        elif action == "free_completed":
            active -= size
        rows.append((allocated, active, dict(live)))
    return rows


@pytest.fixture(scope="module", params=[0, 700], ids=["whole", "begins in the middle"])
def traced(request, tmp_path_factory):
    """A training, all of its trace or only what a ring would have kept."""
    allocator = synthetic.Allocator(seed=5)
    synthetic.train(allocator, 5000, synthetic.make_stacks(), leak=2)
    synthetic.settle(allocator)
    data = synthetic.snapshot([allocator])
    entries = data["device_traces"][0]
    rows = brute(entries, {})
    before = rows[request.param - 1] if request.param else (0, 0, {})
    data["device_traces"][0] = entries[request.param :]
    return data, rows[request.param :], before, read(data, tmp_path_factory.mktemp("traced"))


def test_lines_are_exact(traced):
    _, rows, before, snapshot = traced
    trace = snapshot.summary.devices[0].trace
    assert trace.before_bytes == before[0]
    line = trace.timeline
    begin = 0
    for number, end in enumerate(line.index):
        part = ([rows[begin - 1]] if begin else [before]) + rows[begin : end + 1]
        for series, column in ((line.allocated, 0), (line.active, 1)):
            assert series.low[number] == min(row[column] for row in part)
            assert series.high[number] == max(row[column] for row in part)
        begin = end + 1
    assert begin == len(rows)
    assert len(line.index) <= MAX_BUCKETS
    highest = max(row[0] for row in rows)
    assert (trace.peak.allocated_bytes, max(line.allocated.high)) == (highest, highest)
    assert rows[trace.peak.index][0] == highest


def test_any_moment_is_what_a_replay_says(traced):
    data, rows, _, snapshot = traced
    moments = snapshot.moments[0]
    rng = random.Random(1)
    for index in [len(rows) - 1, 0, *rng.sample(range(len(rows)), 25)]:
        at = moments.at(index, 200)
        assert (at.allocated_bytes, at.active_bytes, at.count) == (
            rows[index][0],
            rows[index][1],
            len(rows[index][2]),
        )
        shown = (
            sum(row.bytes for row in at.stacks.rows)
            + at.stacks.other_bytes
            + at.stacks.unknown_bytes
        )
        assert shown == at.allocated_bytes
        assert at.time_us == data["device_traces"][0][index]["time_us"]


def test_ranges_are_what_two_replays_say(traced):
    _, rows, before, snapshot = traced
    rng = random.Random(2)
    for _ in range(12):
        first, last = sorted(rng.sample(range(-1, len(rows)), 2))
        then = rows[first][2] if first >= 0 else before[2]
        found = snapshot.moments[0].between(first, last, 200)
        # an address that was freed and taken again within the range is a new block
        again = {
            entry["addr"]
            for entry in traced[0]["device_traces"][0][first + 1 : last + 1]
            if entry["action"] == "alloc"
        }
        new = {addr: size for addr, size in rows[last][2].items() if addr in again}
        kept = {addr for addr in then if addr in rows[last][2] and addr not in again}
        assert (found.bytes, found.count) == (sum(new.values()), len(new))
        gone = [size for addr, size in then.items() if addr not in kept]
        assert (found.freed_bytes, found.freed_count) == (sum(gone), len(gone))


def test_stacks_at_a_moment_are_those_of_the_allocations(traced):
    data, rows, _, snapshot = traced
    entries = data["device_traces"][0]
    index = len(rows) * 2 // 3
    expected: dict[tuple, int] = {}
    made = {}
    for entry in entries[: index + 1]:
        if entry["action"] == "alloc":
            made[entry["addr"]] = tuple(
                (f["filename"], f["line"], f["name"]) for f in entry["frames"]
            )
    for addr, size in rows[index][2].items():
        expected[made.get(addr, ())] = expected.get(made.get(addr, ()), 0) + size
    found = snapshot.moments[0].at(index, 200).stacks
    shown = {
        tuple((f.file, f.line, f.function) for f in row.frames): row.bytes for row in found.rows
    }
    known = {stack: size for stack, size in expected.items() if stack}
    if () not in expected:
        assert shown == known
    else:  # what was there before may have its stack from its block, or none
        assert found.unknown_bytes <= expected[()]
        assert all(shown[stack] >= size for stack, size in known.items())
    assert [row.bytes for row in found.rows] == sorted(
        (row.bytes for row in found.rows), reverse=True
    )


def test_the_course_of_a_stack_is_what_all_its_moments_say(traced):
    moments = traced[3].moments[0]
    ends = moments.timeline.index
    end = moments.at(ends[-1], 500).stacks.rows
    assert len(end) > 3
    for row in end[:6]:
        course = moments.course(row.number)
        then = [
            sum(one.bytes for one in moments.at(index, 500).stacks.rows if one.number == row.number)
            for index in ends[:: max(1, len(ends) // 12)]
        ]
        picked = slice(None, None, max(1, len(ends) // 12))
        low, high = course.bytes.low[picked], course.bytes.high[picked]
        assert all(a <= b <= c for a, b, c in zip(low, then, high, strict=True))
        assert course.bytes.low[-1] <= row.bytes <= course.bytes.high[-1]
        assert course.allocated - course.freed <= row.count <= course.allocated
    nobody = moments.course(10**6)
    assert (max(nobody.bytes.high), nobody.allocated, nobody.freed) == (0, 0, 0)


def test_who_holds_the_blocks_of_a_size(traced):
    snapshot = traced[3]
    (device,) = snapshot.summary.devices
    for bucket in device.sizes:
        stacks = snapshot.sized(0, bucket.low_bytes, 500)
        held = sum(row.bytes for row in stacks.rows) + stacks.unknown_bytes
        count = sum(row.count for row in stacks.rows) + stacks.unknown_count
        assert (held, count) == (bucket.bytes, bucket.count)


def test_words_for_moments(traced):
    moments = traced[3].moments[0]
    total = len(moments.columns)
    assert moments.resolve("start") == -1
    assert moments.resolve("end") == total - 1
    assert moments.resolve("peak") == moments.peak_index
    assert moments.resolve("#17") == moments.resolve(17) == 17
    assert moments.resolve("50%") == total // 2 - 1
    assert moments.resolve("100%") == total - 1
    half = (moments.columns.time[total // 2] - moments.columns.time[0]) / 1e6
    assert moments.resolve(f"{half:.6f}s") == total // 2
    for wrong in ("oom", str(total), "-2", "later", "", "nan%", "9" * 40):
        with pytest.raises(NoSuchMoment):
            moments.resolve(wrong)
    with pytest.raises(NoSuchMoment):
        moments.between(5, 4, 10)


def test_a_trace_that_does_not_fit_its_segments_is_said(tmp_path):
    entries = [
        {"action": "free_requested", "addr": 4, "size": 1 << 30, "time_us": n} for n in range(3)
    ]
    entries += [{"action": "alloc", "addr": 8, "size": 5 << 30, "time_us": 9}]
    data = {"segments": [segment((L, MIB))], "device_traces": [entries]}
    device = read(data, tmp_path).summary.devices[0]
    assert device.trace.before_bytes is None
    assert "level" in {note.code for note in device.notes}
    assert min(device.trace.timeline.allocated.low) == 0


def test_frees_that_were_not_asked_for_count_when_done(tmp_path):
    """A trace recorded without ``free_requested`` (skip_actions)."""
    entries = [{"action": "alloc", "addr": n, "size": 512, "time_us": n} for n in range(1, 9)]
    entries += [
        {"action": "free_completed", "addr": n, "size": 512, "time_us": 10 + n} for n in range(1, 8)
    ]
    data = {"segments": [segment((L, 612))], "device_traces": [entries]}
    trace = read(data, tmp_path).summary.devices[0].trace
    assert (
        trace.before_bytes,
        max(trace.timeline.allocated.high),
        trace.timeline.allocated.low[-1],
    ) == (0, 4096, 512)


def test_ooms_outlive_other_marks(tmp_path):
    entries = [{"action": "oom", "device_free": 7, "size": 1 << 55, "stream": 0, "time_us": 1}]
    entries += [
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 2 + n}
        for n in range(3 * MAX_MARKS)
    ]
    trace = read({"device_traces": [entries]}, tmp_path).summary.devices[0].trace
    assert len(trace.marks) == MAX_MARKS
    assert trace.dropped_marks == 2 * MAX_MARKS + 1
    assert (trace.marks[0].action, trace.marks[0].size_bytes, trace.marks[0].free_bytes) == (
        "oom",
        1 << 55,
        7,
    )


# ── what may come ─────────────────────────────────────────────────────────────────────────────────

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
SIZES = st.one_of(st.integers(-10, 1 << 22), ANYTHING)
FRAME = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={"filename": st.one_of(st.text(), ANYTHING), "line": ANYTHING, "name": ANYTHING},
    ),
    ANYTHING,
)
FRAMES = st.one_of(st.lists(FRAME, max_size=3), ANYTHING)
BLOCK = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "size": SIZES,
            "requested_size": SIZES,
            "address": SIZES,
            "frames": FRAMES,
            "state": st.one_of(st.sampled_from([L, P, F]), ANYTHING),
        },
    ),
    ANYTHING,
)
SEGMENT = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "device": st.one_of(st.integers(-2, 3), ANYTHING),
            "address": SIZES,
            "total_size": SIZES,
            "stream": ANYTHING,
            "segment_type": ANYTHING,
            "segment_pool_id": st.one_of(st.tuples(st.integers(), st.integers()), ANYTHING),
            "is_expandable": st.one_of(st.booleans(), ANYTHING),
            "blocks": st.one_of(st.lists(BLOCK, max_size=4), ANYTHING),
            "allocated_size": SIZES,
        },
    ),
    ANYTHING,
)
ENTRY = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "action": st.one_of(st.sampled_from([*synthetic.KINDS, "user_defined"]), ANYTHING),
            "addr": SIZES,
            "size": SIZES,
            "device_free": SIZES,
            "time_us": SIZES,
            "frames": FRAMES,
            "user_metadata": ANYTHING,
        },
    ),
    ANYTHING,
)
ROOT = st.fixed_dictionaries(
    {},
    optional={
        "segments": st.one_of(st.lists(SEGMENT, max_size=4), ANYTHING),
        "device_traces": st.one_of(
            st.lists(st.one_of(st.lists(ENTRY, max_size=8), ANYTHING), max_size=3), ANYTHING
        ),
        "allocator_settings": ANYTHING,
        "gpuscope": ANYTHING,
        "other": ANYTHING,
    },
)


@given(ROOT, st.integers(0, 5))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_stands_in_the_file_it_is_a_view_or_a_refusal(tmp_path, root, protocol):
    import msgspec

    from gpuscope.snapshot import child
    from gpuscope.snapshot.model import Summary

    try:
        snapshot = read(root, tmp_path, protocol=protocol)
    except Unreadable:
        return
    said = msgspec.json.decode(child.encode(snapshot.summary), type=Summary)
    for device in said.devices:
        totals = device.totals
        assert totals.inactive_bytes >= 0
        assert totals.reserved_bytes == totals.active_bytes + totals.inactive_bytes
        assert (
            totals.allocated_bytes
            == sum(row.bytes for row in device.stacks.rows) + device.stacks.unknown_bytes
        )
        if device.trace is not None:
            moments = snapshot.moments[device.device]
            for index in range(-1, device.trace.entries):
                moments.at(index, 3)
            moments.between(-1, device.trace.entries - 1, 3)
            moments.course(0)
    compare(snapshot, snapshot, 3)


# ── differences ───────────────────────────────────────────────────────────────────────────────────


def frames(name):
    return [{"filename": "/home/ada/train.py", "line": 1, "name": name}]


def test_a_leak_is_named_by_its_stack(tmp_path):
    allocator = synthetic.Allocator()
    kept = allocator.alloc(8 * MIB, frames("weights"))
    old = allocator.alloc(3 * MIB, frames("buffer"))
    losses = [allocator.alloc(1000, frames("losses.append")) for _ in range(5)]
    before = read(synthetic.snapshot([allocator]), tmp_path, name="before")
    allocator.release(old)
    losses += [allocator.alloc(1000, frames("losses.append")) for _ in range(20)]
    after = read(synthetic.snapshot([allocator]), tmp_path, name="after")
    (device,) = compare(before, after, 5).devices
    assert device.by == "stack"
    assert [
        (row.frames[0].function, row.after_bytes - row.before_bytes) for row in device.rows
    ] == [
        ("losses.append", 20 * 1024),
        ("buffer", -3 * MIB),
    ]
    assert (device.rows[0].before_count, device.rows[0].after_count) == (5, 25)
    assert (device.survivor_count, device.survivor_bytes) == (6, 8 * MIB + 5 * 1024)
    assert (device.new_count, device.new_bytes) == (20, 20 * 1024)
    assert (device.gone_count, device.gone_bytes) == (1, 3 * MIB)
    assert device.other_rows == 1  # the weights, unchanged
    assert kept in after.live[0].address


def test_the_same_address_taken_by_another_is_no_survivor(tmp_path):
    allocator = synthetic.Allocator()
    first = allocator.alloc(1000, frames("a"))
    before = read(synthetic.snapshot([allocator]), tmp_path, name="before")
    allocator.release(first)
    assert allocator.alloc(1000, frames("b")) == first
    (device,) = compare(before, read(synthetic.snapshot([allocator]), tmp_path), 5).devices
    assert (device.survivor_count, device.new_count, device.gone_count) == (0, 1, 1)


def test_without_stacks_rows_are_by_size(tmp_path):
    allocator = synthetic.Allocator()
    allocator.alloc(5000, None)
    before = read(synthetic.snapshot([allocator], history=False), tmp_path, name="before")
    for _ in range(3):
        allocator.alloc(5000, frames("late"))
    mixed = compare(before, read(synthetic.snapshot([allocator]), tmp_path), 5)
    for diff in (
        compare(before, read(synthetic.snapshot([allocator], history=False), tmp_path), 5),
        mixed,
    ):
        (device,) = diff.devices
        assert device.by == "size"
        assert [(row.block_bytes, row.before_count, row.after_count) for row in device.rows] == [
            (5120, 1, 4)
        ]
    assert "no_frames" in {note.code for note in mixed.notes}


def test_growth_and_shrinking_are_both_shown_and_the_rest_summed(tmp_path):
    allocator = synthetic.Allocator()
    shrinking = [allocator.alloc((n + 1) * 1024, frames(f"shrinks{n}")) for n in range(30)]
    before = read(synthetic.snapshot([allocator]), tmp_path, name="before")
    for addr in shrinking:
        allocator.release(addr)
    for n in range(30):
        allocator.alloc((n + 1) * MIB, frames(f"grows{n}"))
    (device,) = compare(before, read(synthetic.snapshot([allocator]), tmp_path), 4).devices
    names = [row.frames[0].function for row in device.rows]
    assert names[:4] == ["grows29", "grows28", "grows27", "grows26"]
    assert names[4:] == ["shrinks28", "shrinks29"]
    shown = sum(row.after_bytes - row.before_bytes for row in device.rows)
    assert (
        shown + device.other_bytes == device.after.allocated_bytes - device.before.allocated_bytes
    )
    assert device.other_rows == 60 - 6
