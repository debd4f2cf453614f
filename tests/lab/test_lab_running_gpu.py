"""The lab's toggles of loading, validation, determinism and the cache on a real GPU."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import loaders  # noqa: E402
from tests.fakes.program import python  # noqa: E402
from tests.lab.gpu_workers import (  # noqa: E402
    Toggles,
    document,
    documents,
    losses,
    plain_environment,
)

pytestmark = pytest.mark.gpu


def test_validation_with_grad_costs_memory_and_none_of_it_step_time() -> None:
    off, without, with_grad = (
        document(model="gpt", validate=mode, steps=30) for mode in ("off", "no-grad", "grad")
    )
    assert (
        with_grad["validation_peak_allocated_bytes"]
        > 1.3 * without["validation_peak_allocated_bytes"]
    )
    assert with_grad["peak_allocated_bytes"] > 1.3 * off["peak_allocated_bytes"]
    assert without["peak_allocated_bytes"] < 1.1 * off["peak_allocated_bytes"]
    assert without["step_seconds"]["median"] == pytest.approx(
        off["step_seconds"]["median"], rel=0.1
    )
    assert without["validation_seconds"] > 0
    assert without["validation_loss"] == pytest.approx(with_grad["validation_loss"], rel=0.01)


def test_empty_cache_tells_what_it_gave_back_and_costs_time() -> None:
    plain, emptied = (document(model="gpt", empty_cache=on, steps=20) for on in (False, True))
    assert plain["cache"] is None
    assert emptied["cache"]["released_bytes"] > 0
    assert 0 < emptied["cache"]["seconds"] < emptied["step_seconds"]["median"]
    assert emptied["step_seconds"]["median"] > plain["step_seconds"]["median"]
    assert emptied["peak_allocated_bytes"] == pytest.approx(plain["peak_allocated_bytes"], rel=0.02)


def test_expandable_segments_are_on_before_cuda_starts() -> None:
    """torch reads the allocator's settings when it is imported, so these are no forks."""
    code = (
        "import sys; from gpuscope.lab import machine; from gpuscope.lab.config import LabConfig\n"
        "machine.prepare(LabConfig(expandable_segments=sys.argv[1] == 'on'))\n"
        "import torch; x = torch.ones(1 << 24, device='cuda')\n"
        "print([segment.get('is_expandable') for segment in torch.cuda.memory_snapshot()])"
    )
    for word in ("on", "off"):
        done = python("-c", code, word, env=plain_environment(), check=True)
        assert done.stdout.strip() == str([word == "on"])
        assert "deprecat" not in done.stderr.lower()
    config = {"device": "cuda", "model": "gpt", "expandable_segments": True, "steps": 4}
    done = python(
        "-m", "gpuscope.lab.worker", "--config", json.dumps(config), env=plain_environment()
    )
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["steps"] == 4, done.stderr


@pytest.mark.parametrize("model", ["mlp", "conv", "gpt"])
def test_deterministic_runs_are_the_same_to_the_bit(model: str) -> None:
    toggles: Toggles = {"model": model, "amp": "bf16", "deterministic": True, "steps": 20}
    one, other = map(losses, documents(toggles, toggles))
    assert len(one) == 20
    assert one == other


def test_cudnn_benchmark_trains() -> None:
    assert document(model="conv", cudnn_benchmark=True, steps=20)["step_seconds"]["median"] > 0


def test_every_loader_trains_on_the_same_samples() -> None:
    common: Toggles = {"model": "conv", "batch": 32, "deterministic": True, "steps": 12}
    ways: list[Toggles] = [
        {"loader": "workers"},
        {"loader": "workers", "pin_memory": True, "non_blocking": True, "prefetch": 4},
        {"loader": "workers", "workers": 0, "pin_memory": True},
    ]
    synthetic, *loaded = documents(common, *({**common, **way} for way in ways))
    for way, found in zip(ways, loaded, strict=True):
        assert losses(found) == losses(synthetic), way
        assert found["input_seconds"] > synthetic["input_seconds"], way


def test_a_slow_loader_is_what_the_steps_wait_for() -> None:
    found = document(model="mlp-tiny", loader="slow", workers=0, steps=12)
    slept = loaders.SLOW_SECONDS
    assert slept <= found["input_seconds"] <= found["step_seconds"]["median"] < 1.5 * slept


def test_reports_do_not_stop_the_device() -> None:
    """Reports do not stop the device.

    The bar on an H200 is 1 %; a shared machine may be slower, but a loop that waits at each step is
    not 5 %.
    """
    words = ["--model", "gpt", "--amp", "bf16", "--seconds", "25"]
    done = python("bench/overhead/lab.py", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["samples"] > 0
    assert found["overhead_share"] < 0.05
