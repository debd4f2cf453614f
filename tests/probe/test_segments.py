"""The segments are walked over rightly.

The snapshots are as torch gives them, from an allocator that is played.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpuscope.probe import segments as segments_module
from gpuscope.probe.segments import (
    AGAIN_SECONDS,
    COLUMNS,
    EVERY_SECONDS,
    MAX_BLOCKS,
    Segments,
    private_pools,
    workspace_sizes,
)
from gpuscope.wire.frames import ALLOCATOR_COLUMNS, Unknown

MIB = 1 << 20
HOPPER = 32 * MIB


def segment(address, blocks, pool=(0, 0), device=0, expandable=False):
    """``blocks``: (bytes, state) with the states of torch's snapshots."""
    out, place = [], address
    for size, state in blocks:
        out.append(
            {"address": place, "size": size, "requested_size": size, "state": state, "frames": []}
        )
        place += size
    active = sum(size for size, state in blocks if state != "inactive")
    return {
        "device": device,
        "address": address,
        "total_size": place - address,
        "active_size": active,
        "allocated_size": sum(size for size, state in blocks if state == "active_allocated"),
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": out,
        "stream": 0,
        "segment_type": "large",
    }


LIVE, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"
POOL = (0, 1)


class Memory:
    """Answers what the walk asks, and counts it."""

    def __init__(self, *segments):
        self.segments = list(segments)
        self.snapshots, self.arguments, self.capturing, self.history = 0, [], False, False
        self.moving = 0  # that many snapshots during which something is allocated

    def stats(self, ordinal):
        mine = [s for s in self.segments if s["device"] == ordinal]
        live = sum(b["state"] != FREE for s in mine for b in s["blocks"])
        count = {
            "reserved_bytes": sum(s["total_size"] for s in mine),
            "active_bytes": sum(s["active_size"] for s in mine),
        }
        return {
            name: {"all": {"current": value}} for name, value in {**count, "active": live}.items()
        }

    def snapshot(self, *arguments):
        self.snapshots += 1
        self.arguments.append(arguments)
        if self.moving:
            self.moving -= 1
            self.segments.append(segment(1 << 50, [(MIB, LIVE)]))
        return {"segments": [dict(s) for s in self.segments]}


@pytest.fixture
def played(monkeypatch):
    """Install a :class:`Memory` as torch, and a clock.

    Returns (segments under test, memory, clock).
    """
    clock = [1000.0]
    monkeypatch.setattr(segments_module.time, "monotonic", lambda: clock[0])
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def install(*parts, major=9, traces=True):
        memory = Memory(*parts)
        core = SimpleNamespace(
            _cuda_memoryStats=memory.stats,
            _cuda_memorySnapshot=memory.snapshot,
            _cuda_isCurrentStreamCapturing=lambda: memory.capturing,
            _cuda_isHistoryEnabled=lambda: memory.history,
        )
        properties = SimpleNamespace(major=major)
        torch = SimpleNamespace(
            _C=core, cuda=SimpleNamespace(get_device_properties=lambda ordinal: properties)
        )
        monkeypatch.setitem(sys.modules, "torch", torch)

        def new(mempool_id=None, include_traces=True):
            pass

        def old(mempool_id=None):
            pass

        monkeypatch.setitem(
            sys.modules,
            "torch.cuda.memory",
            SimpleNamespace(memory_snapshot=new if traces else old),
        )
        return Segments(), memory, clock

    return install


def test_private_pools_by_hand():
    found = private_pools(
        [
            segment(0, [(2 * MIB, LIVE), (18 * MIB, FREE)]),  # no private pool
            segment(1 << 30, [(4 * MIB, LIVE), (16 * MIB, FREE)], POOL),
            segment(2 << 30, [(20 * MIB, FREE)], POOL),  # idle as a whole: no split
            segment(3 << 30, [(1 * MIB, PENDING), (1 * MIB, FREE)], (0, 2)),
            segment(4 << 30, [(1 * MIB, LIVE), (9 * MIB, FREE)], (0, 2), expandable=True),
        ]
    )
    assert found == {
        "private_pool_bytes": (20 + 20 + 2 + 10) * MIB,
        "private_pool_idle_bytes": (16 + 20 + 1 + 9) * MIB,
        "private_pool_inactive_split_bytes": (16 + 1) * MIB,
    }


def test_a_torch_that_does_not_tell_pools_apart_is_unknown():
    old = segment(0, [(MIB, LIVE)])
    del old["segment_pool_id"]
    assert all(isinstance(value, Unknown) for value in private_pools([old]).values())


@pytest.mark.parametrize(
    ("env", "major", "expected"),
    [
        ({}, 9, (HOPPER,)),
        ({}, 8, (8_519_680,)),
        ({}, 0, (8_519_680,)),
        (
            {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"},
            9,
            ((4096 + 16) * 1024, (4096 * 2 + 16 * 8) * 1024),
        ),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 8, (16 * 1024, 128 * 1024)),
        ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, 9, ()),
        ({"CUBLASLT_WORKSPACE_SIZE": "1024"}, 8, (MIB, 8_519_680)),
        ({"CUBLAS_WORKSPACE_CONFIG": "nonsense", "CUBLASLT_WORKSPACE_SIZE": "-3"}, 9, (HOPPER,)),
    ],
)
def test_sizes_of_workspaces(env, major, expected):
    assert workspace_sizes(env, major) == tuple(sorted(expected))


def test_workspaces_are_what_stays_and_nobody_owns(played):
    parameter, workspace, other = 1 << 30, 2 << 30, 3 << 30
    found, memory, clock = played(
        segment(parameter, [(HOPPER, LIVE)]),
        segment(workspace, [(HOPPER, LIVE)]),
        segment(other, [(HOPPER, LIVE)]),
        segment(4 << 30, [(HOPPER + 512, LIVE)]),
        segment(5 << 30, [(HOPPER, FREE)]),
        segment(6 << 30, [(HOPPER, LIVE)], device=1),
    )
    found.tick([0, 1], None, {(0, parameter)})
    assert "second walk" in found.of(0)["workspace_bytes"].text
    memory.segments[2]["blocks"][0]["state"] = FREE  # a temporary after all
    clock[0] += AGAIN_SECONDS
    found.tick([0, 1], None, {(0, parameter)})
    assert found.of(0)["workspace_bytes"] == HOPPER
    assert found.of(1)["workspace_bytes"] == HOPPER
    memory.segments[2]["blocks"][0]["state"] = LIVE  # another thread makes its own, and keeps it
    for seconds, count in ((AGAIN_SECONDS, 1), (AGAIN_SECONDS, 2), (AGAIN_SECONDS, 2)):
        clock[0] += seconds
        found.tick([0, 1], None, {(0, parameter)})
        assert found.of(0)["workspace_bytes"] == count * HOPPER
    assert memory.snapshots == 4, "nothing new in the last two: the next is half a minute away"


def test_before_the_first_step_there_are_no_workspaces_and_that_does_not_last(played):
    found, memory, clock = played(segment(0, [(MIB, LIVE)]))
    for _ in range(3):
        found.tick([0], None, set())
        clock[0] += AGAIN_SECONDS
    assert found.of(0)["workspace_bytes"] == 0
    memory.segments.append(segment(1 << 30, [(HOPPER, LIVE)]))
    for _ in range(2):
        found.tick([0], None, set())
        clock[0] += AGAIN_SECONDS
    assert found.of(0)["workspace_bytes"] == HOPPER


def test_the_history_never_comes_along(played, monkeypatch):
    monkeypatch.setattr(segments_module.symbols, "loaded", lambda: True)
    found, memory, clock = played(segment(0, [(MIB, LIVE)]))
    memory.history = True
    found.tick([0], None, set())
    assert memory.arguments == [((0, 0, False),)], "where torch can leave it out"
    found, memory, clock = played(segment(0, [(MIB, LIVE)]), traces=False)
    memory.history = True
    found.tick([0], None, set())
    assert memory.snapshots == 0
    assert "history" in found.of(0)["workspace_bytes"].text
    memory.history = False
    clock[0] += EVERY_SECONDS
    found.tick([0], None, set())
    assert memory.arguments == [(None,)]
    assert found.of(0)["private_pool_idle_bytes"] == 0


def test_a_walk_during_which_something_moved_is_thrown_away(played):
    found, memory, clock = played(segment(0, [(MIB, LIVE)]))
    memory.moving = 1
    found.tick([0], None, set())
    assert isinstance(found.of(0)["workspace_bytes"], Unknown)
    assert "changed" in found.of(0)["workspace_bytes"].text
    for _ in range(2):
        clock[0] += AGAIN_SECONDS
        found.tick([0], None, set())
    assert found.of(0)["workspace_bytes"] == 0


def test_in_a_training_it_is_made_right_after_a_step(played):
    found, memory, clock = played(segment(0, [(MIB, LIVE)], POOL))
    found.after_step()
    assert memory.snapshots == 0, "nobody asked"
    found.tick([0], 0.5, set())
    assert memory.snapshots == 0
    memory.capturing = True
    found.after_step()
    assert memory.snapshots == 0, "not into a graph that is being captured"
    memory.capturing = False
    clock[0] += AGAIN_SECONDS
    found.tick([0], 0.5, set())
    found.after_step()
    found.after_step()
    assert memory.snapshots == 1
    found.tick([0], 0.5, set())
    assert found.of(0)["private_pool_bytes"] == MIB
    for _ in range(10):
        found.tick([0], 0.5, set())
        found.after_step()
    assert memory.snapshots == 1


def test_it_costs_no_more_than_a_thousandth_of_the_time(played):
    found, memory, clock = played(segment(0, [(MIB, LIVE)]))
    quick = sys.modules["torch"]._C._cuda_memorySnapshot

    def slow(*arguments):
        clock[0] += 0.1
        return quick(*arguments)

    sys.modules["torch"]._C._cuda_memorySnapshot = slow
    found.tick([0], None, set())
    assert found.seconds == pytest.approx(0.1)
    clock[0] += 99.0
    found.tick([0], None, set())
    assert memory.snapshots == 1
    clock[0] += 2.0
    found.tick([0], None, set())
    assert memory.snapshots == 2


def test_an_allocator_of_many_blocks_or_of_another_kind_is_unknown_with_the_reason(played):
    found, memory, _ = played(segment(0, [(512, LIVE)] * (MAX_BLOCKS + 1)))
    found.tick([0], None, set())
    assert memory.snapshots == 0
    assert "blocks" in found.of(0)["workspace_bytes"].text
    found, memory, _ = played()
    sys.modules["torch"]._C._cuda_memorySnapshot = lambda *_: (_ for _ in ()).throw(
        RuntimeError("async allocator")
    )
    found.tick([0], None, set())
    assert "RuntimeError" in found.of(0)["private_pool_idle_bytes"].text


def test_every_column_is_one_of_the_wire():
    assert set(COLUMNS) < set(ALLOCATOR_COLUMNS)
