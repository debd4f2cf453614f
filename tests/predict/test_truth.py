"""Predictions agree with real trainings on an H200.

Of the committed table a few small rows are predicted here.

All of them: ``python -m bench.predict.score --verdicts``.
"""

from __future__ import annotations

import pytest

from bench.predict import truth_rows
from bench.predict.score import request_of
from gpuscope.predict.allocator import simulate
from gpuscope.predict.child import trace

ROWS = {row["name"]: row for row in truth_rows.rows()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # attention by cuDNN, autocast's cache of weights, a loss over many words
        "gpt_tiny-b64-bf16-adamw-foreach",
        "lstm_lm-b80-fp16-ckpt-sgd",  # a recurrent network computed again, a grad scaler
        "encoder_torch-b64-off-ckpt-adamw-fused",  # torch's own layers and masks
        # convolutions whose kernels take more memory than their tensors
        "conv-large-b64-off-adamw",
    ],
)
def test_a_prediction_is_near_the_truth(name: str) -> None:
    row = ROWS[name]
    found = simulate(trace(request_of(row), 60).trace)
    assert found.peak_allocated_bytes == pytest.approx(row["peak_allocated_bytes"], rel=0.015)
    assert found.peak_reserved_bytes == pytest.approx(row["peak_reserved_bytes"], rel=0.04)
