"""The lab on a real GPU. Run with ``pytest -m gpu tests/lab``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.program import program

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


def lab(*words: str) -> tuple[int, dict[str, Any]]:
    # By force, because nothing here depends on being alone on the GPU.
    done = program("lab", "--device", "cuda", "--share-gpus", "--json", *words, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
@pytest.mark.parametrize("model", ["mlp", "conv", "gpt"])
def test_it_learns_and_its_peaks_are_known(model: str, amp: str) -> None:
    code, document = lab("--model", model, "--amp", amp, "--steps", "60")
    assert code == 0, document
    assert document["device"] == "cuda"
    assert document["loss_last"] < 0.95 * document["loss_first"]
    assert 0 < document["peak_allocated_bytes"] <= document["peak_reserved_bytes"]
    assert {entry["path"] for entry in document["unknown"]} <= {"tensor_active_percent"}
    step = document["step_seconds"]
    assert 0.001 < step["median"] <= step["p95"] < 5
    micro = document["config"]["batch"]
    assert document["samples_per_second"] == pytest.approx(micro / step["median"], rel=0.3)


def test_accumulation_takes_the_memory_of_one_micro_batch() -> None:
    _, whole = lab("--model", "gpt", "--batch", "16", "--steps", "4")
    _, parts = lab("--model", "gpt", "--batch", "4", "--accumulate", "4", "--steps", "4")
    assert parts["peak_allocated_bytes"] < 0.75 * whole["peak_allocated_bytes"]
    assert parts["loss_first"] == pytest.approx(whole["loss_first"], rel=1e-3)


def test_running_out_of_memory_is_explained() -> None:
    code, document = lab("--model", "gpt-small", "--batch", "65536", "--steps", "2")
    assert code == 2
    assert "ran out of memory at step 1" in document["error"]["what"]
    assert "--batch 32768 --accumulate 2" in document["error"]["next"]
