"""The lab's toggles of precision, optimizer and memory on a real GPU.

Run with ``pytest -m gpu tests/lab``. The other toggles are in ``test_lab_running_gpu.py`` and
``test_lab_compiling_gpu.py``.
"""

from __future__ import annotations

import pytest

from gpuscope.lab.machine import MEMORY_VARIABLE
from tests.lab.gpu_workers import Toggles, document, documents, level, losses, workers

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def test_the_device_is_named_as_the_driver_names_it() -> None:
    found = document(model="mlp-tiny", steps=3)
    (device,) = found["devices"]
    assert device["device"] == "cuda:0"
    assert device["uuid"].startswith(("GPU-", "MIG-"))
    assert found["ranks"][0]["peak_allocated_bytes"] == found["peak_allocated_bytes"]


@pytest.mark.parametrize("model", ["mlp-large", "conv-large", "gpt-small"])
def test_half_precision_follows_the_loss_of_full_precision(model: str) -> None:
    common: Toggles = {"model": model, "steps": 60}
    full, half = documents(common, {**common, "amp": "bf16"})
    assert level(half) == pytest.approx(level(full), rel=0.01)
    assert max(losses(full)) < losses(full)[0] * 1.05, "the loss spikes"


def test_half_precision_follows_full_precision_with_sgd_too() -> None:
    common: Toggles = {"model": "conv-small", "steps": 60, "optimizer": "sgd"}
    full, half = documents(common, {**common, "amp": "bf16"})
    assert level(half) == pytest.approx(level(full), rel=0.01)
    assert full["loss_last"] < losses(full)[0]


@pytest.mark.parametrize("model", ["conv", "gpt"])
def test_tf32_is_faster_and_says_nothing(model: str) -> None:
    """Convolutions and matrix products have a switch each."""
    ((records, errors),) = workers({"model": model, "tf32": True, "steps": 40})
    plain = document(model=model, steps=40)
    assert records[-1]["summary"]["step_seconds"]["median"] < 0.95 * plain["step_seconds"]["median"]
    assert "deprecat" not in errors.lower()
    assert "tf32" not in errors.lower()


@pytest.mark.parametrize(("model", "amp"), [("mlp", "off"), ("conv", "bf16"), ("gpt", "bf16")])
def test_checkpointing_takes_less_memory_and_learns_the_same(model: str, amp: str) -> None:
    common: Toggles = {"model": model, "amp": amp, "steps": 12}
    plain, less = documents(common, {**common, "checkpoint": True})
    assert less["peak_allocated_bytes"] < 0.95 * plain["peak_allocated_bytes"]
    assert less["loss_last"] == pytest.approx(plain["loss_last"], rel=0.05)


def test_sgd_keeps_half_of_what_adamw_keeps() -> None:
    common: Toggles = {"model": "gpt-small", "batch": 1, "steps": 6}
    adamw, sgd = documents(*({**common, "optimizer": name} for name in ("adamw", "sgd")))
    assert adamw["peak_allocated_bytes"] - sgd["peak_allocated_bytes"] > 3 * adamw["parameters"]


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_every_way_of_the_optimizer_learns(amp: str) -> None:
    ways = [{"foreach": True}, {"foreach": False, "fused": False}, {"fused": True}]
    for found in documents(*({"model": "mlp", "amp": amp, "steps": 40, **way} for way in ways)):
        assert found["loss_last"] < 0.95 * found["loss_first"]


def test_the_large_presets_are_as_large_as_they_say_and_learn() -> None:
    millions = {"gpt-medium": 355, "gpt-large": 774, "gpt-1.3b": 1314}
    every = [{"model": name, "amp": "bf16", "batch": 2, "steps": 12} for name in millions]
    for found, expected in zip(documents(*every), millions.values(), strict=True):
        assert found["parameters"] / 1e6 == pytest.approx(expected, rel=0.01)
        assert found["loss_last"] < found["loss_first"]


def test_a_worker_reserves_no_more_than_it_is_allowed() -> None:
    needed = document(model="gpt", steps=20)["peak_reserved_bytes"]
    ((records, _),) = workers({"model": "gpt", "steps": 20}, **{MEMORY_VARIABLE: str(needed // 2)})
    assert records[-1]["kind"] == "error"
    assert "memory" in records[-1]["what"].lower()
