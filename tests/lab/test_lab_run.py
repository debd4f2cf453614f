"""A whole run in this process: what each toggle measures stands in the document."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig

torch = pytest.importorskip("torch")

from gpuscope.lab.run import Run, TrainingRefused  # noqa: E402


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is tested in processes of their own."""
    monkeypatch.setenv("GPUSCOPE", "0")
    monkeypatch.setenv("GPUSCOPE_ORIGIN", "lab")
    monkeypatch.setattr(sys, "argv", list(sys.argv))


def all_records(**toggles: object) -> tuple[Run, list[metrics.Record]]:
    heard: list[metrics.Record] = []
    run = Run(LabConfig(device="cpu", **toggles), heard.append)  # type: ignore[arg-type]
    run.train()
    return run, heard


def whole_run(**toggles: object) -> tuple[metrics.Started, dict[str, Any]]:
    """What a run said first, and its document."""
    run, (started, *steps) = all_records(**toggles)
    assert isinstance(started, metrics.Started)
    assert all(isinstance(step, metrics.Step) for step in steps)
    return started, run.tally.document()


def test_the_document_tells_the_effective_batch_the_curve_and_the_ranks() -> None:
    started, document = whole_run(model="mlp-tiny", batch=4, accumulate=3, steps=30)
    assert started.samples_per_step == document["samples_per_step"] == 12
    assert (document["world_size"], document["backend"], document["parameters"]) == (
        1,
        None,
        started.parameters,
    )
    assert [point[0] for point in document["loss_curve"]] == [12 * step for step in range(1, 31)]
    assert document["loss_curve"][0][1] == document["loss_first"]
    assert document["loss_curve"][-1][1] == document["loss_last"]
    (rank,) = document["ranks"]
    assert (rank["rank"], rank["device"]) == (0, "cpu")
    assert rank["step_seconds"] == document["step_seconds"]["median"]
    assert (
        document["step_seconds"]["low"]
        <= document["step_seconds"]["median"]
        <= document["step_seconds"]["high"]
    )
    assert document["step_seconds"]["count"] == 25


def test_validation_comes_every_ten_steps_and_is_no_part_of_a_step() -> None:
    _, document = whole_run(model="mlp-tiny", batch=4, validate="no-grad", steps=20)
    assert document["validation_loss"] > 0
    assert document["validation_seconds"] > 0
    assert "validation_loss" not in [entry["path"] for entry in document["unknown"]]
    _, short = whole_run(model="mlp-tiny", batch=4, validate="no-grad", steps=9)
    assert short["validation_loss"] is None
    assert "validation_loss" in [entry["path"] for entry in short["unknown"]]


def test_fp16_tells_its_scale() -> None:
    _, document = whole_run(model="mlp-tiny", batch=4, amp="fp16", steps=6)
    assert (document["scale"], document["skipped_steps"]) == (65536, 0)


def test_the_wait_for_a_slow_loader_is_told() -> None:
    """50 ms for each of two micro-batches, in this process itself."""
    _, document = whole_run(
        model="mlp-tiny", batch=4, accumulate=2, loader="slow", workers=0, steps=4
    )
    assert 0.1 <= document["input_seconds"] <= document["step_seconds"]["p95"]


def test_a_dataloader_with_processes_trains_on_the_same_samples() -> None:
    _, synthetic = whole_run(model="mlp-tiny", batch=4, steps=12)
    _, loaded = whole_run(model="mlp-tiny", batch=4, steps=12, loader="workers")
    assert loaded["loss_curve"] == synthetic["loss_curve"]


def test_a_combination_that_cannot_be_is_refused_before_anything_is_built() -> None:
    with pytest.raises(TrainingRefused, match="--foreach"):
        all_records(model="mlp-tiny", foreach=True, fused=True, steps=2)


def test_what_does_nothing_here_is_said_and_the_run_goes_on() -> None:
    started, document = whole_run(model="mlp-tiny", empty_cache=True, tf32=True, steps=2)
    assert any("--empty-cache does nothing on a CPU" in warning for warning in started.warnings)
    assert document["cache"] is None
    assert "cache" in [entry["path"] for entry in document["unknown"]]


@pytest.mark.parametrize(
    "toggles", [{"cudnn_benchmark": True}, {"deterministic": True}, {"set_to_none": False}]
)
def test_toggles_without_a_figure_of_their_own_train(toggles: dict[str, object]) -> None:
    _, document = whole_run(model="mlp-tiny", steps=3, **toggles)
    assert document["steps"] == 3
    assert document["error"] is None
