"""Predictions agree with real trainings on an H200.

Of the committed table a few small rows are predicted here.

All of them: ``python -m bench.predict.score --verdicts``.
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from typing import Any

import pytest

from bench.predict import truth_rows, truth_unseen
from bench.predict.score import request_of
from bench.predict.truth_unseen import BLIND, BLIND_FAMILIES, Blind
from gpuscope.predict.allocator import simulate
from gpuscope.predict.child import trace

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


# ── the set that nobody has predicted: here it is only built, never predicted ─────────────────────


def _factory(family: Blind) -> Any:
    return getattr(importlib.import_module(BLIND + family.part), family.name)


def test_the_blind_set_is_whole() -> None:
    configs = list(truth_unseen.blind())
    assert len({config.name for config in configs}) == len(configs) == 144
    assert set(Counter(config.model for config in configs).values()) == {6}
    for family in BLIND_FAMILIES:
        mine = [config for config in configs if config.model == family.model]
        assert {config.batch for config in mine} == set(family.batches)
        assert {config.amp for config in mine} == {"off", "bf16", "fp16"}
        assert any(config.tf32 for config in mine)
        # Its own optimizer; another one takes its place unless it does more than step.
        assert any(config.optimizer is None for config in mine)
        assert any(config.optimizer for config in mine) is not family.hooked
        # The runner gives ``checkpoint`` only to a factory that takes it.
        takes = "checkpoint" in inspect.signature(_factory(family)).parameters
        assert takes == family.checkpoint == any(config.checkpoint for config in mine)
    sought = [config for config, _cap in truth_unseen.bisected_blind()]
    assert len({config.name for config in sought}) == 8
    assert {config.model for config in sought} <= {config.model for config in configs}


def test_no_blind_model_is_left_out() -> None:
    declared = {family.name for family in BLIND_FAMILIES}
    written = set()
    for part in sorted({family.part for family in BLIND_FAMILIES}):
        module = importlib.import_module(BLIND + part)
        for name, found in inspect.getmembers(module, inspect.isfunction):
            if (
                found.__module__ == module.__name__
                and "batch" in inspect.signature(found).parameters
            ):
                written.add(name)
    assert {name for name in written if not name.startswith("_")} == declared


@pytest.mark.parametrize("family", BLIND_FAMILIES, ids=lambda family: family.name)
def test_a_blind_model_is_built(family: Blind) -> None:
    import torch

    if family.part == "_public":
        pytest.importorskip("torchvision" if family.name.startswith("tv_") else "transformers")
    options = {"checkpoint": True} if family.checkpoint else {}
    device = torch.device("meta")  # sizes without memory
    with device:
        model, optimizer, forward = _factory(family)(batch=2, device=device, **options)
    assert callable(forward)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    # The optimizer's hooks are what ``hooked`` tells of.
    hooks = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    assert bool(hooks) is family.hooked
