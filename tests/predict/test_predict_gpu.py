"""Predictions against a real GPU. Run with ``pytest -m gpu tests/predict``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.program import program, python

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def call(tmp_path):
    """The command with a cache of its own: exit code, document."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        # a test may have set more meanwhile
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        done = program(*words, "--json", env=environ, timeout=300)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def test_what_lies_outside_torch_is_measured_and_used_from_then_on(call):
    code, measured = call("predict", "--measure")
    assert code == 0, measured
    found = measured["outside"]
    stages = measured["stages"]
    assert 100 * MIB < stages["first"] <= stages["products"] <= stages["kernels"] + MIB
    assert 200 * MIB < found["context_bytes"] < 2000 * MIB
    assert found["error_bytes"] <= 150 * MIB
    code, document = call("predict", "--model", "gpt-small", "--batch", "2")
    assert document["outside"]["source"] == "measured"
    assert document["outside"]["context_bytes"] == found["context_bytes"]
    assert document["capacity"]["gpu"] == measured["gpu"]


@pytest.mark.parametrize("amp", ["off", "bf16"])
@pytest.mark.parametrize("model", ["gpt-small", "mlp-large"])
def test_a_lab_run_lies_within_the_error_of_its_prediction(call, model, amp):
    code, document = call(
        "lab",
        "--model",
        model,
        "--amp",
        amp,
        "--steps",
        "4",
        "--device",
        "cuda",
        "--headless",
        "--predict",
        "--no-ledger",
        "--share-gpus",
    )
    assert code == 0, document
    found = document["predicted"]
    for name in ("peak_allocated", "peak_reserved"):
        assert abs(found[f"{name}_off_percent"]) <= found[f"{name}_error_percent"], (name, found)
        assert found[f"{name}_error_percent"] < 12


def test_the_largest_batch_runs_and_one_more_does_not(call):
    """Under a cap of 6 GiB of the card, as torch's own setting has it."""
    total = torch.cuda.mem_get_info()[1]
    settings = f"per_process_memory_fraction:{6 * (1 << 30) / total:.6f}"
    _, document = call_with(
        settings, call, "predict", "--model", "gpt-small", "--largest-batch", "--gpu", "0"
    )
    best = document["largest_batch"]
    assert best > 1, document
    assert trains(best, 6 << 30)
    assert not trains(best + max(1, round(0.03 * best)) + 1, 6 << 30)


def call_with(settings: str, call: Any, *words: str) -> tuple[int, dict[str, Any]]:
    os.environ["PYTORCH_ALLOC_CONF"] = settings
    try:
        return call(*words)
    finally:
        del os.environ["PYTORCH_ALLOC_CONF"]


def trains(batch: int, cap: int) -> bool:
    """Whether three steps run in a fresh process that may reserve so much."""
    code = f"""
import torch
from gpuscope.lab.config import LabConfig
from gpuscope.lab.parallel import World
from gpuscope.lab.training import Training
torch.cuda.set_per_process_memory_fraction({cap} / torch.cuda.mem_get_info()[1])
world = World(0, 1, 0, "", torch.device("cuda", 0))
training = Training(LabConfig(model="gpt-small", batch={batch}, device="cuda"), world)
for _ in range(3):
    training.step()
torch.cuda.synchronize()
"""
    done = python("-c", code)
    assert done.returncode == 0 or "OutOfMemoryError" in done.stderr, done.stderr
    return done.returncode == 0
