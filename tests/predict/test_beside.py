"""Predictions beside other things: the doctor's findings, a lab run's document, the lab's panel."""

from __future__ import annotations

import argparse

import pytest

from gpuscope.cli.commands.doctor import predicted as doctor_predicted
from gpuscope.cli.commands.doctor import targets as doctor_targets
from gpuscope.cli.commands.lab import predicted as lab_predicted
from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.lab.config import LabConfig
from gpuscope.predict import trainer_what_if
from gpuscope.predict.errors import Estimate
from gpuscope.predict.request import CannotPredict, Request, Traced
from gpuscope.tui.lab.run_facts import facts_of
from gpuscope.tui.runs.run import RunView
from tests.predict.hand_made import traced
from tests.tui import lab_data

OOM = (
    'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
    "capacity of 7.79 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process "
    "has 7.20 GiB memory in use. Of the allocated memory 6.50 GiB is allocated by PyTorch, and "
    "0.30 GiB is reserved by PyTorch but unallocated.\n"
)


@pytest.fixture
def found(tmp_path):
    """The report on a log that ends with the message."""
    path = tmp_path / "train.log"
    path.write_text(OOM)
    words = argparse.Namespace(via=None)
    return reports.finish(doctor_targets.examine([str(path)], False, 5.0, words), table.load())


def test_fixes_of_an_oom_finding_are_ranked_by_what_they_free(found, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = doctor_predicted.with_predictions(
        found, "--model gpt-small --batch 8 --capacity 8GiB", traced
    )
    before = next(one for one in found.findings if one.pitfall == "reduce-batch-size")
    after = next(one for one in told.findings if one.pitfall == "reduce-batch-size")
    assert after.effect.freed_bytes == 4 * (4 * 12 + 3 * 96) << 20
    assert after.effect.bound == "about"
    assert "±" in after.effect.text
    predicted = [one.effect for one in after.fixes if "predicted" in one.effect]
    assert len(predicted) == doctor_predicted.MOST_FIXES
    freed = [float(text.split()[0]) for text in predicted]
    assert freed == sorted(freed, reverse=True)
    assert [one.title for one in after.fixes if "predicted" not in one.effect] == [
        one.title for one in before.fixes
    ]
    assert told.problems == found.problems


def test_what_cannot_be_predicted_leaves_the_report_as_it_was(found):
    def fails(request: Request) -> Traced:
        raise CannotPredict("It cannot be traced.", "no fake kernel", "…", "no_fake_kernel")

    told = doctor_predicted.with_predictions(found, "--model gpt-small", fails)
    assert told.findings == found.findings
    assert "It cannot be traced. no fake kernel" in told.problems[-1]
    told = doctor_predicted.with_predictions(found, "--model no-such-model", fails)
    assert "no-such-model" in told.problems[-1]


def test_a_report_without_memory_findings_starts_no_child():
    def never(request: Request) -> Traced:
        raise AssertionError

    assert (
        doctor_predicted.with_predictions(reports.Report(), "--model gpt", never)
        == reports.Report()
    )


@pytest.mark.slow
def test_a_lab_run_has_its_prediction_in_its_document():
    pytest.importorskip("torch")
    config = LabConfig(model="mlp-tiny")
    on_cpu = {
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": None,
        "world_size": 1,
        "unknown": [],
    }
    found = lab_predicted.with_prediction(on_cpu, config)["predicted"]
    parameters = 256 * 32 + 32 + 32 * 32 + 32 + 32 * 16 + 16
    assert 4 * 4 * parameters < found["peak_allocated_bytes"] < 200 << 20
    assert found["peak_allocated_error_percent"] > 0
    assert "peak_allocated_off_percent" not in found
    truth = {**on_cpu, "peak_allocated_bytes": found["peak_allocated_bytes"] // 2}
    told = lab_predicted.with_prediction(truth, config)
    assert told["predicted"]["peak_allocated_off_percent"] == pytest.approx(100, abs=0.1)
    assert "+100.0 % off" in lab_predicted.in_words(told)


def test_why_a_lab_run_has_no_prediction_is_said(monkeypatch):
    monkeypatch.setenv("GPUSCOPE_LAB_PYTHON", "/nowhere/python")
    document = lab_predicted.with_prediction(
        {"world_size": 1, "unknown": []}, LabConfig(model="mlp-tiny")
    )
    assert document["predicted"] is None
    assert document["unknown"][0]["path"] == "predicted"
    assert "/nowhere/python" in lab_predicted.in_words(document)


def test_the_labs_panel_says_how_far_the_peak_is_from_its_prediction():
    run = RunView(LabConfig(model="gpt"))
    run.begin(lab_data.started(run.config, "cuda"))
    run.heard(lab_data.step(2))
    run.peak_bytes = 5.05 * (1 << 30)
    assert "predicted" not in {name for name, _, _ in facts_of(run)}
    run.predicted = Estimate(5 << 30, (5 << 30) // 50)
    assert ("predicted", "5.00 GiB ± 2 %", "text") in facts_of(run)
    run.heard(lab_data.step(3))
    assert ("predicted", "5.00 GiB ± 2 %, it is +1.0 %", "text") in facts_of(run)
    run.peak_bytes = 5.5 * (1 << 30)
    assert ("predicted", "5.00 GiB ± 2 %, it is +10.0 %", "warn") in facts_of(run)


def test_what_is_measured_allows_ranges_that_hold_the_truth():
    # The training has 2 GiB of parameters, as many gradients, 4 GiB of state and 6 GiB of
    # activations. Its peak is at the beginning of the backward pass (no gradients yet) or at its
    # end (all of them, few activations).
    gib = 1 << 30
    for peak, activations in ((12 * gib, 6 * gib), (12 * gib, 4 * gib)):
        found = {
            one.key: one for one in trainer_what_if.freed_by(peak, 2 * gib, 2 * gib, 4 * gib, 4)
        }
        assert found["batch-half"].low <= activations // 2 <= found["batch-half"].high
        assert found["zero1"].low == found["zero1"].high == 3 * gib
        assert found["fsdp"].high == 6 * gib
    assert trainer_what_if.freed_by(12 * gib, None, None, None, 4) == []
    (tiny,) = trainer_what_if.freed_by(65 << 20, 1 << 19, 0, 0, 1, 64 << 20)
    assert tiny.high == 1 << 18, "workspaces have one size for any micro-batch"
    assert {one.key for one in trainer_what_if.freed_by(12 * gib, 2 * gib, 0, 4 * gib, 1)} == {
        "batch-half"
    }
