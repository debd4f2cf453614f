"""The allocator's history has a compact form that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.predict import recorded
from bench.predict.truth import Search
from bench.predict.truth_table import Config

BASE = 0x7F0000000000


def entry(
    action: str, address: int, size: int, stream: int = 0, frames: Any = ()
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": BASE + address,
        "size": size,
        "stream": stream,
        "frames": list(frames),
    }


HISTORY = [
    entry("segment_alloc", 0, 2 << 20),
    entry("alloc", 0, 100),
    entry("segment_alloc", 2 << 20, 20 << 20, 7),
    entry("alloc", 2 << 20, 5 << 20, 7),
    entry("free_requested", 0, 100),
    entry("free_completed", 0, 100),
    entry("free_requested", 2 << 20, 5 << 20, 7),
    entry("alloc", 0, 512),
    entry("free_completed", 2 << 20, 5 << 20, 7),
    entry("segment_free", 2 << 20, 20 << 20, 7),
]


def test_a_history_keeps_what_the_simulator_needs(tmp_path: Path) -> None:
    for name in ("history.xz", "history.json.gz"):
        path = tmp_path / name
        recorded.write(
            path, recorded.compact(HISTORY, [(0, "step 1"), (1, "forward"), (4, "end")], {"a": 1})
        )
        data = recorded.read(path)
        # a free that completes at once is one event, one that waits is two
        assert data["actions"] == "SaSafracF"
        assert data["addresses"] == [0, 0, 4096, 4096, 0, 4096, 0, 4096, 4096]
        assert data["sizes"] == [2 << 20, 100, 20 << 20, 5 << 20, 0, 0, 512, 0, 20 << 20]
        assert data["streams"] == {"2": 7, "3": 7, "5": 7, "7": 7, "8": 7}
        assert data["live"] == 512
        assert data["marks"] == [[1, "step 1"], [3, "forward"], [6, "end"]]


def test_a_history_becomes_a_trace() -> None:
    trace = recorded.as_trace(recorded.compact(HISTORY, [(0, "step 1"), (3, "forward")], None))
    assert trace.sizes == [100, 5 << 20, 512]
    assert trace.events == [0, 1, ~0, ~1, 2]
    assert [(mark.at, mark.name) for mark in trace.marks] == [(0, "step 1"), (3, "forward")]
    assert trace.streams == {1: 7}


def test_a_label_names_operators_then_functions() -> None:
    frames = [
        {
            "name": "c10::cuda::CUDACachingAllocator::Native::malloc(void**)",
            "filename": "??",
            "line": 0,
        },
        {
            "name": "at::native::(anonymous namespace)::f<float, 3>(at::Tensor const&)",
            "filename": "??",
            "line": 0,
        },
        {"name": "at::_ops::addmm::call(at::Tensor const&)", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/lib/torch/nn/modules/linear.py", "line": 12},
    ]
    data = recorded.compact([entry("alloc", 0, 8, frames=frames)], [], None)
    assert data["label_table"] == [
        "at::native::{anonymous}::f < at::_ops::addmm | modules/linear.py:12 forward",
    ]
    assert recorded.as_trace(data).owner(0).operation == data["label_table"][0]


def test_a_search_ends_at_the_largest_batch_that_fits() -> None:
    for per_sample, static, cap in ((0.3, 2.0, 11.0), (1.0, 3.0, 8.0), (0.02, 0.5, 2.0)):
        search = Search(Config("a:b", 1), int(cap * 2**30))
        while not search.over:
            batch = search.next
            fits = static + per_sample * batch <= search.cap / 2**30
            search.tell({"batch": batch, "out_of_memory": not fits})
        assert search.error is None
        assert 8 <= search.low <= 64
        assert search.low == int((search.cap / 2**30 - static) / per_sample + 1e-9)
