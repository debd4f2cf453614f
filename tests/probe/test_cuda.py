"""torch's nested statistics are read.

They have the recorded shapes of three allocators, on a fake torch without a driver.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from gpuscope.probe import cuda, gauges, segments
from gpuscope.probe.ledger import Ledger
from gpuscope.probe.sampler import Sampler
from gpuscope.probe.steps import Steps
from gpuscope.wire.frames import ALLOCATOR_COLUMNS, NOT_SUPPORTED, Unknown

UUID = "6c5c1d5e-0e3a-7a44-6a3a-3c4d0b6c1a11"


def stat(current, peak=None):
    one = {
        "current": current,
        "peak": current if peak is None else peak,
        "allocated": current,
        "freed": 0,
    }
    return {"all": one, "small_pool": dict(one, current=0), "large_pool": dict(one)}


def native_stats(**changes):
    """The shape of torch 2.13's ``_cuda_memoryStats``."""
    stats = {
        "num_alloc_retries": 2,
        "num_ooms": 1,
        "num_oom_rejections": 0,
        "max_split_size": -1,
        "num_sync_all_streams": 0,
        "num_device_alloc": 9,
        "num_device_free": 0,
        "allocation": stat(120),
        "segment": stat(7),
        "active": stat(121),
        "inactive_split": stat(3),
        "allocated_bytes": stat(1000, 1500),
        "reserved_bytes": stat(4096, 8192),
        "active_bytes": stat(1100),
        "inactive_split_bytes": stat(96),
        "requested_bytes": stat(990),
        "oversize_allocations": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
        "reserved_bytes_by_private_pools": {(0, 1): stat(512), (0, 2): stat(256)},
    }
    stats.update(changes)
    return stats


class FakeCore:
    """Records every call: what is not here must not be called."""

    def __init__(self, contexts=(0,), backend="native", stats=None):
        self.contexts, self.backend, self.calls = contexts, backend, []
        self.stats = native_stats() if stats is None else stats

    def _cuda_hasPrimaryContext(self, ordinal):
        self.calls.append(("context", ordinal))
        return ordinal in self.contexts

    def _cuda_memoryStats(self, ordinal):
        self.calls.append(("stats", ordinal))
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats

    def _cuda_getAllocatorBackend(self):
        return self.backend


@pytest.fixture
def fake(monkeypatch):
    def install(initialised=True, count=4, name="NVIDIA H200", uuid=UUID, **core):
        properties = SimpleNamespace(name=name, **({"uuid": uuid} if uuid else {}))
        torch = SimpleNamespace(
            __version__="2.13.0+cu130",
            _C=FakeCore(**core),
            cuda=SimpleNamespace(
                is_initialized=lambda: initialised,
                device_count=lambda: count,
                get_device_properties=lambda ordinal: properties,
            ),
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_native_statistics_become_columns(fake):
    fake()
    found = cuda.Allocators().read(0)
    assert found.pop("statistics_seconds") < 1
    assert found == {
        "allocated_bytes": 1000,
        "reserved_bytes": 4096,
        "active_bytes": 1100,
        "inactive_split_bytes": 96,
        "requested_bytes": 990,
        "peak_allocated_bytes": 1500,
        "peak_reserved_bytes": 8192,
        "alloc_retries": 2,
        "ooms": 1,
        "allocation_count": 120,
        "segment_count": 7,
        "private_pool_bytes": 768,
    }


def test_every_column_of_the_wire_has_a_source():
    ours = {
        *cuda.STATISTICS,
        "parameter_bytes",
        "gradient_bytes",
        "optimizer_state_bytes",
        *segments.COLUMNS,
    }
    ours.update(("other_model_bytes", "other_models"), gauges.StepMemory(cuda.Allocators()).of(0))
    assert ours == set(ALLOCATOR_COLUMNS)


def test_an_older_torch_without_a_key_is_unknown_and_not_zero(fake):
    stats = native_stats()
    del stats["reserved_bytes_by_private_pools"], stats["requested_bytes"]
    fake(stats=stats)
    found = cuda.Allocators().read(0)
    assert found["private_pool_bytes"].code == NOT_SUPPORTED
    assert found["requested_bytes"].code == NOT_SUPPORTED
    assert found["allocated_bytes"] == 1000


def test_the_async_allocator_leaves_zeros_that_mean_nothing(fake):
    fake(backend="cudaMallocAsync", stats=native_stats(inactive_split_bytes=stat(0), num_ooms=0))
    found = cuda.Allocators().read(0)
    assert found["allocated_bytes"] == 1000
    for column in (
        "inactive_split_bytes",
        "ooms",
        "alloc_retries",
        "segment_count",
        "private_pool_bytes",
        "requested_bytes",
    ):
        assert isinstance(found[column], Unknown), column


def test_an_allocator_that_raises_is_a_reason(fake):
    fake(stats=RuntimeError("pluggable allocator has no statistics\nstack"))
    found = cuda.Allocators().read(0)
    assert set(found) == set(cuda.STATISTICS)
    assert all("pluggable" in value.text and "\n" not in value.text for value in found.values())


def test_only_devices_with_a_context_are_asked(fake):
    torch = fake(contexts=(0, 2))
    allocators = cuda.Allocators()
    assert allocators.ordinals() == [0, 2]
    torch._C.contexts = (0, 1, 2)
    assert allocators.ordinals() == [0, 2]
    assert [call for call in torch._C.calls if call[0] == "stats"] == []


def test_a_slow_read_is_followed_by_a_pause(fake, monkeypatch):
    torch = fake()
    clock = [100.0]

    def slow(ordinal):
        clock[0] += 0.010
        return native_stats()

    monkeypatch.setattr(cuda.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cuda.time, "thread_time", lambda: clock[0])
    torch._C._cuda_memoryStats = slow
    allocators = cuda.Allocators()
    assert allocators.read(0)["statistics_seconds"] == pytest.approx(0.010)
    clock[0] += 1.0
    assert allocators.read(0) is None
    assert allocators.read(1) is not None
    clock[0] += 1.0
    assert allocators.read(0) is not None


@pytest.mark.parametrize(("waited", "pause"), [(0.107, 2.1), (5.0, 4.0)])
def test_a_read_that_only_waited_for_the_training_is_soon_followed_by_the_next(
    fake, monkeypatch, waited, pause
):
    """On two H200s the first read waited 107 ms, and the next one came 21 s later."""
    torch = fake()
    clock = [100.0]

    def waits(ordinal):
        clock[0] += waited
        return native_stats()

    monkeypatch.setattr(cuda.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cuda.time, "thread_time", lambda: 1.0)
    torch._C._cuda_memoryStats = waits
    allocators = cuda.Allocators()
    assert allocators.read(0) is not None
    clock[0] = 100.0 + max(pause, waited) - 0.1
    assert (allocators.read(0) is None) == (pause > waited)
    clock[0] = 100.0 + pause + waited
    assert allocators.read(0) is not None


@pytest.mark.parametrize(
    ("options", "visible", "expected"),
    [
        ({}, None, "GPU-" + UUID),
        ({"uuid": UUID.upper()}, "1,0", "GPU-" + UUID),
        ({"uuid": None}, "GPU-" + UUID, "GPU-" + UUID),
        ({"uuid": None}, "GPU-6c5c", None),
        ({"uuid": None}, None, None),
        ({"name": "NVIDIA H200 MIG 1g.18gb"}, "MIG-" + UUID, "MIG-" + UUID),
        ({"name": "NVIDIA H200 MIG 1g.18gb"}, None, None),
    ],
)
def test_ordinal_to_uuid(fake, monkeypatch, options, visible, expected):
    fake(**options)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = cuda.uuid(0)
    if expected is None:
        assert isinstance(found, Unknown)
        assert found.text
    else:
        assert found == expected


def test_nothing_of_cuda_is_touched_before_it_is_initialised(fake):
    torch = fake(initialised=False)
    torch.cuda.get_device_properties = torch.cuda.device_count = lambda *_: pytest.fail("touched")
    sample, reasons = Sampler("watch", Steps(), Ledger()).tick()
    assert torch._C.calls == []
    assert sample.a == []
    assert reasons[1, "step"][0] == "not_initialised"


def test_rows_of_an_initialised_trainer(fake):
    fake(contexts=(1,))
    sampler = Sampler("run", Steps(), Ledger())
    sample, reasons = sampler.tick()
    assert sampler.definitions[1].trainer.cuda is True
    assert sampler.definitions[1].trainer.backend == "native"
    assert (sampler.definitions[2].alloc.ordinal, sampler.definitions[2].alloc.uuid) == (
        1,
        "GPU-" + UUID,
    )
    row = dict(zip(ALLOCATOR_COLUMNS, sample.a[0][1:], strict=True))
    assert (row["allocated_bytes"], row["parameter_bytes"]) == (1000, None)
    assert reasons[2, "parameter_bytes"][0] == "not_initialised"
    assert set(sampler.tick()[0].a[0][:1]) == {2}
