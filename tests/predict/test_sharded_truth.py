"""Sharded trainings are predicted as they were measured on two GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.predict import fsdp_cards
from bench.predict.cards import predicted

ROWS = Path(__file__).parents[1] / "data" / "cards-fsdp_cards-h200.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt-reshard-b2", "gpt-kept-b2", "gated-autocast-b8", "gpt-offload_policy-b2"]
)
def test_fsdp_takes_what_was_measured(name: str) -> None:
    case = next(case for case in fsdp_cards.CASES if case.name == name)
    rows = {row["name"]: row for row in map(json.loads, ROWS.read_text().splitlines())}
    found = predicted(name, case.request)
    assert not found["error"]
    assert found["allocated"]["bytes"] == pytest.approx(
        rows[name]["peak_allocated_bytes"], rel=0.01
    )
    assert found["reserved"]["bytes"] == pytest.approx(rows[name]["peak_reserved_bytes"], rel=0.06)
