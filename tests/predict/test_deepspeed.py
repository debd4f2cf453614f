"""DeepSpeed's JSON file is read, and its engine takes what the real one takes on a CPU.

The figures of :data:`REAL` are from DeepSpeed 0.19.8 with two ranks over gloo
(``python -m bench.predict.deepspeed_cpu``), the largest sum of live tensors in each phase of three
steps: forward, backward, optimizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope.errors import UsageError
from gpuscope.predict import deepspeed, from_switches

REAL = {
    "stage 1": (14156756, 21880364, 42011496, 26160048, 33883652, 42011500),
    "stage 2": (14156756, 20240456, 42011496, 26160048, 32243744, 42011500),
    "stage 2, overlapped": (14156756, 22240456, 42011496, 26160048, 34243744, 42011500),
    "stage 3": (16628817, 18127457, 44011513, 39832601, 34929701, 44011521),
    "stage 3, float32": (27261113, 30253257, 52013153, 61659241, 50573429, 52013161),
    "stage 3, nothing kept": (16628817, 18127457, 44011513, 28632113, 30130749, 44011521),
    "stage 3, little kept": (16628817, 18127457, 44011513, 30209049, 31987213, 44011521),
}
STREAMS = {
    "stage 2": ((0, 0),) * 6,
    "stage 2, overlapped": ((0, 0), (0, 4990440), (0, 3412456)) * 2,
    "stage 3": (
        (1536000, 0), (1536000, 1833960), (0, 0),
        (11972608, 0), (5986304, 1833960), (0, 0),
    ),
}  # fmt: skip
"""What the streams on which is gathered and reduced had of it."""
SCALARS_BYTES = 64
OF_A_PART = 0.015
"""In stage 1, and where few parameters are kept, the order in which some gradients end differs."""
ZERO: dict[str, Any] = {"stage": 2, "reduce_bucket_size": 5e7}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": ZERO, **changes}))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_each_phase_takes_what_the_real_engine_takes(name: str) -> None:
    pytest.importorskip("torch")
    from bench.predict.deepspeed_cpu import traced

    rows = [row[1:] for row in traced(name)]
    sizes = [size for size, *_ in rows]
    room = SCALARS_BYTES if name in STREAMS else OF_A_PART * max(sizes)
    assert sizes[:6] == pytest.approx(REAL[name], abs=room)
    assert rows[6:] == rows[3:6]
    if name in STREAMS:
        assert tuple(streams for _, *streams in rows[:6]) == tuple(map(list, STREAMS[name]))


@pytest.mark.slow
def test_a_stream_takes_from_no_other() -> None:
    """What is cached where gradients are reduced serves nothing else, so more is reserved."""
    pytest.importorskip("torch")
    from dataclasses import replace

    from gpuscope.predict.allocator import simulate
    from gpuscope.predict.request import Request
    from gpuscope.predict.tracing import steps

    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    zero = deepspeed.zero(config, 2)
    request = Request("bench.predict.deepspeed_cpu:factory", 4, deepspeed=zero.text(), ranks=2)
    trace = steps.trace(request).trace
    one = simulate(replace(trace, streams={}))
    several = simulate(trace)
    assert several.peak_allocated_bytes == one.peak_allocated_bytes
    assert several.peak_reserved_bytes > one.peak_reserved_bytes


def test_the_engine_is_built_with_gradients_that_it_drops() -> None:
    """On two H200s a build peaked at what it keeps and once more the float32 copies of a rank."""
    pytest.importorskip("torch")
    from gpuscope.predict.request import Request
    from gpuscope.predict.tracing import steps

    zero = deepspeed.zero({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}, 2)
    request = Request("bench.predict.deepspeed_cpu:factory", 4, deepspeed=zero.text(), ranks=2)
    trace = steps.trace(request).trace
    built = next(mark.at for mark in trace.marks if mark.name == "step 1")
    live = most = 0
    for event in trace.events[:built]:
        live += trace.sizes[event] if event >= 0 else -trace.sizes[~event]
        most = max(most, live)
    copies = next(
        size for block, size in enumerate(trace.sizes) if trace.owner(block).category == "optimizer"
    )
    assert most == pytest.approx(live + copies, abs=SCALARS_BYTES)


@pytest.mark.slow
def test_the_host_holds_what_is_offloaded() -> None:
    pytest.importorskip("torch")
    from gpuscope.predict.request import Request
    from gpuscope.predict.tracing import steps

    def peak(**more: Any) -> int:
        config = {"bf16": {"enabled": True}, "zero_optimization": {**ZERO, "stage": 3, **more}}
        zero = deepspeed.zero(config, 2)
        request = Request(
            "bench.predict.deepspeed_cpu:factory", 4, deepspeed=zero.text(), ranks=2
        )  # fmt: skip
        trace = steps.trace(request).trace
        states = sum(
            trace.sizes[b]
            for b in range(len(trace.sizes))
            if trace.owner(b).category == "optimizer"
        )
        live = most = 0
        for event in trace.events:
            live += trace.sizes[event] if event >= 0 else -trace.sizes[~event]
            most = max(most, live)
        assert (states == 0) is bool(more)
        return most

    whole = peak()
    offloaded = peak(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})
    assert offloaded < whole - 12 * 1_500_000  # master weights and both moments of half the model


def test_a_file_says_batch_accumulation_and_stage(tmp_path: Path) -> None:
    path = write(tmp_path, train_batch_size=32, gradient_accumulation_steps=4)
    request = from_switches.request_of("m:f", {"deepspeed": path, "nproc": 2}, "9.0")
    zero = deepspeed.Zero.of(request.deepspeed)
    assert (request.batch, request.accumulate, request.ranks) == (4, 4, 2)
    assert (zero.stage, zero.kind, zero.reduce_bucket, zero.overlap) == (
        2,
        "bf16",
        50_000_000,
        False,
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"train_micro_batch_size_per_gpu": "auto"}, "put the batch of one GPU"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, "hidden_size squared"),
        ({"zero_optimization": {"stage": 0}}, "must be 1, 2 or 3"),
        ({"zero_optimization": {"stage": 4}}, "must be 1, 2 or 3"),
        ({"zero_optimization": True}, "old form"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "needs stage 3"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "is not predicted"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": -1}}, "at least 0"),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "yes"}}, "true or false"),
        ({"fp16": {"enabled": True}}, "both enabled"),
        ({"train_batch_size": 7, "gradient_accumulation_steps": 2}, "is not micro-batch"),
        ({"optimizer": {"type": "OneBitAdam"}}, "is not predicted"),
    ],
)
def test_what_cannot_be_is_said(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=text):
        deepspeed.read(write(tmp_path, **changes), 2)


def test_switches_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, train_micro_batch_size_per_gpu=4)
    for switches in ({"parallel": "fsdp"}, {"amp": "bf16"}, {"batch": 8}):
        with pytest.raises(UsageError):
            from_switches.request_of("m:f", {"deepspeed": path, **switches}, "9.0")


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name in ("bad.json", "none.json"):
        with pytest.raises(UsageError, match="--deepspeed"):
            deepspeed.read(str(tmp_path / name), 2)
