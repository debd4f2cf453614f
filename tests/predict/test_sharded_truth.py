"""Sharded trainings are predicted as they were measured on two GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.predict import ddp_cards, fsdp_cards
from bench.predict.cards import predicted

DATA = Path(__file__).parents[1] / "data"
CASES = {case.name: case for case in (*ddp_cards.CASES, *fsdp_cards.CASES)}


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
    lines = (DATA / f"cards-{script}_cards-h200.jsonl").read_text().splitlines()
    rows = {row["name"]: row for row in map(json.loads, lines)}
    found = predicted(name, CASES[name].request)
    assert not found["error"]
    assert found["allocated"]["bytes"] == pytest.approx(
        rows[name]["peak_allocated_bytes"], rel=0.01
    )
    assert found["reserved"]["bytes"] == pytest.approx(rows[name]["peak_reserved_bytes"], rel=0.06)
