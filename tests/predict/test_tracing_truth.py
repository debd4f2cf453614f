"""Traces agree with what the same trainings took on an H200.

They are replayed through the simulated allocator.

A few small rows of the committed table; ``python -m bench.predict.score`` judges all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope.predict.allocator import simulate
from gpuscope.predict.child import Tracer
from gpuscope.predict.request import Request

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
TABLE = Path(__file__).parent.parent / "data" / "predict-h200.jsonl"
PERCENT = 0.5
"""By which a peak may differ: a fifth of what is promised, so that a kernel that is forgotten
shows.
"""
ROWS = (
    "gpt_tiny-b16-off-adamw-foreach",
    "gpt_tiny-b64-bf16-adamw-foreach",
    "gpt_reentrant-b8-bf16-ckpt-adamw-foreach",
    "llama_like-b2-off-adamw-foreach",
    "bert_base-b8-off-adamw-foreach",
    "mlp_small-b128-off-adamw-foreach",
    "lstm_lm-b20-bf16-ckpt-adamw-foreach",
    "gru_lm-b32-off-adamw-foreach",
    "dlrm_like-b2048-off-adamw-foreach",
    "unet_batch-b8-off-adamw-foreach",
    "resnet50-b16-bf16-ckpt-adamw-foreach",
)
OPTIONS = (
    *("batch", "amp", "accumulate", "checkpoint", "optimizer", "foreach", "fused", "set_to_none"),
    *("tf32", "cudnn_benchmark", "deterministic"),
)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    lines = (json.loads(line) for line in TABLE.read_text().splitlines())
    return {row["name"]: row for row in lines if "name" in row}


@pytest.mark.parametrize("name", ROWS)
def test_the_peak_is_that_of_the_real_training(
    tracer: Tracer, rows: dict[str, dict[str, Any]], name: str
) -> None:
    row = rows[name]
    options = {"tf32": False} | {
        option: row[option] for option in OPTIONS if row.get(option) is not None
    }
    simulated = simulate(tracer.trace(Request(row["model"], **options), 120).trace)
    assert simulated.peak_allocated_bytes == pytest.approx(
        row["peak_allocated_bytes"], rel=PERCENT / 100
    )
