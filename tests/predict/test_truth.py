"""Predictions against real trainings on an H200: the committed table, of which a few small rows are predicted here.

All of them: ``python -m tests.predict.score --verdicts``."""

from __future__ import annotations

import pytest

from gpuscope.predict.allocator import simulate
from gpuscope.predict.child import trace
from tests.predict import truth_rows
from tests.predict.score import request_of

ROWS = {row["name"]: row for row in truth_rows.rows()}


def test_the_table_says_what_it_was_measured_on() -> None:
    about = truth_rows.about()
    assert about["device_name"] == "NVIDIA H200"
    assert about["torch"].startswith("2.11.")
    assert about["driver_reserved_bytes"] > 500 << 20


def test_the_table_is_wide_enough() -> None:
    assert len(ROWS) >= 300
    assert len({row["model"] for row in ROWS.values()}) >= 30
    for row in ROWS.values():
        assert 0 < row["peak_allocated_bytes"] <= row["peak_reserved_bytes"]
        # A peak of the steps is one of a phase.
        assert max(row["phase_peaks"]) == row["peak_allocated_bytes"]
        assert 600 << 20 < row["outside_torch_bytes"] < 800 << 20


@pytest.mark.parametrize(
    "name",
    [
        "gpt_tiny-b64-bf16-adamw-foreach",  # attention by cuDNN, autocast's cache of weights, a loss over many words
        "lstm_lm-b80-fp16-ckpt-sgd",  # a recurrent network computed again, a grad scaler
        "encoder_torch-b64-off-ckpt-adamw-fused",  # torch's own layers and masks
        "conv-large-b64-off-adamw",  # convolutions whose kernels take more memory than their tensors
    ],
)
def test_a_prediction_is_near_the_truth(name: str) -> None:
    row = ROWS[name]
    found = simulate(trace(request_of(row), 60).trace)
    assert found.peak_allocated_bytes == pytest.approx(row["peak_allocated_bytes"], rel=0.015)
    assert found.peak_reserved_bytes == pytest.approx(row["peak_reserved_bytes"], rel=0.04)
