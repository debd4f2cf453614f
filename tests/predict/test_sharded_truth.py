"""Sharded trainings are predicted as they were measured on two GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.predict import ddp_cards, deepspeed_cards, fsdp_cards
from bench.predict.cards import predicted
from gpuscope.predict.allocator import simulate
from gpuscope.predict.tracing import steps

DATA = Path(__file__).parents[1] / "data"
CASES = {case.name: case for case in (*ddp_cards.CASES, *fsdp_cards.CASES, *deepspeed_cards.CASES)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("fsdp", "gpt-reshard-b2"),
        ("fsdp", "gpt-kept-b2"),
        ("fsdp", "gated-autocast-b8"),
        ("fsdp", "gpt-offload_policy-b2"),
        ("fsdp", "gpt-zero1-b12"),
        ("ddp", "encoder-default-b16-bf16"),
        ("ddp", "gpt-views-b8-bf16"),
    ],
)
def test_a_rank_takes_what_was_measured(script: str, name: str) -> None:
    allocated, reserved = _measured(script, name)
    found = predicted(name, CASES[name].request)
    assert not found["error"]
    assert found["allocated"]["bytes"] == pytest.approx(allocated, rel=0.01)
    assert found["reserved"]["bytes"] == pytest.approx(reserved, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["held-lstm-views-b48-bf16-no_sync", "held-convnext-views_static-b32-bf16"]
)
def test_what_nccl_kept_or_not_is_one_of_the_replayed_outcomes(name: str) -> None:
    """Whether NCCL's watchdog has looked in time is chance: neither was what is predicted first."""
    allocated, reserved = _measured("ddp", name)
    trace = steps.trace(CASES[name].request).trace
    others = [simulate(trace.freed_instead(moments)) for moments in trace.frees_instead]
    assert simulate(trace).peak_allocated_bytes != pytest.approx(allocated, rel=0.02)
    assert any(
        one.peak_allocated_bytes == pytest.approx(allocated, rel=0.001)
        and one.peak_reserved_bytes == pytest.approx(reserved, rel=0.002)
        for one in others
    )
    found = predicted(name, CASES[name].request)
    for key, bytes_ in (("allocated", allocated), ("reserved", reserved)):
        assert found[key]["low"] <= bytes_ <= found[key]["high"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "zero1-parallel-b6-bf16",
        "zero2-gating-b16-bf16",
        "zero3-latents-b16-bf16",
        "zero2-parallel-b4-off",
    ],
)
def test_a_rank_of_deepspeed_takes_what_was_measured_and_its_error_is_narrow(name: str) -> None:
    found = predicted(name, CASES[name].request)
    assert not found["error"]
    for key, bytes_ in zip(("allocated", "reserved"), _measured("deepspeed", name), strict=True):
        told = found[key]
        assert told["bytes"] == pytest.approx(bytes_, rel=0.002)
        assert told["low"] <= bytes_ <= told["high"]
        assert told["high"] <= 1.065 * told["bytes"]  # 1.05 with the torch that was measured


def _measured(script: str, name: str) -> tuple[int, int]:
    """Return what was allocated and reserved at most, in bytes."""
    lines = (DATA / f"cards-{script}_cards-h200.jsonl").read_text().splitlines()
    row = next(row for row in map(json.loads, lines) if row["name"] == name)
    return row["peak_allocated_bytes"], row["peak_reserved_bytes"]
