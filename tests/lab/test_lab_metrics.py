"""The records between worker and viewer, and the arithmetic of a run."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.tally import WARMUP_STEPS, Tally


def started(samples_per_step: int = 10, device: str = "cuda") -> metrics.Started:
    return metrics.Started({}, "mlp-small", device, "a device", "2.13", 100, samples_per_step)


@pytest.mark.parametrize(
    "record",
    [
        started(),
        metrics.Step(3, 0.5, 100.0, 0.01, 65536.0, 1, True),
        metrics.Ended({"steps": 3}),
        metrics.Failure("what", "why", "next", {"steps": 0}),
    ],
)
def test_a_record_survives_its_line(record: metrics.Record) -> None:
    line = metrics.encode(record)
    assert line.count(b"\n") == 1
    assert metrics.decode(line) == record


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_a_line_that_is_no_record_is_none(line: bytes) -> None:
    assert metrics.decode(line) is None or line.startswith(b"{")


def test_newer_kinds_and_fields_are_no_error() -> None:
    assert metrics.decode(b'{"kind": "weather"}') is None
    assert metrics.decode(b'{"kind": "step", "step": 1}') is None
    assert metrics.decode(b'{"kind": "ended", "summary": {}, "mood": 1}') == metrics.Ended({})
    assert metrics.decode(b"[" * 100_000) is None


def run_of(seconds: list[float], steps: int | None = None) -> Tally:
    """A run whose steps take ``seconds``, 10 samples each, reported when due."""
    tally = Tally(LabConfig(steps=steps))
    now = 100.0
    tally.begin(started(), now)
    unreported: list[float] = []
    for count, took in enumerate(seconds, 1):
        now += took
        unreported.append(took)
        if tally.stepped(count, now) or count == len(seconds):
            tally.report(1 / count, unreported, None, now)
            now += 7.0  # what a report costs is no part of a step
            tally.resume(now)
            unreported = []
    return tally


def test_the_slow_start_is_apart_from_the_steady_figures() -> None:
    document = run_of([2.0] + [1.0] * (WARMUP_STEPS - 1) + [0.1] * 20).document()
    assert document["step_seconds"]["median"] == pytest.approx(0.1)
    assert document["step_seconds"]["p95"] == pytest.approx(0.1)
    assert document["samples_per_second"] == pytest.approx(100)
    assert document["warmup_seconds"] >= 2.0 + WARMUP_STEPS - 1
    assert document["loss_first"] == 1
    assert document["loss_last"] == pytest.approx(1 / (WARMUP_STEPS + 20))


def test_reports_come_at_most_five_times_a_second() -> None:
    tally = Tally(LabConfig())
    tally.begin(started(), 0.0)
    due = 0
    for count in range(1, 1001):
        now = count * 0.01
        if tally.stepped(count, now):
            due += 1
            tally.report(1.0, [0.01], None, now)
            tally.resume(now)
    assert 40 <= due <= 10 * metrics.RATE_HZ + 2


def test_one_step_is_warm_up_and_says_so() -> None:
    document = run_of([1.0], steps=1).document()
    assert document["step_seconds"] is None
    assert {"path": "step_seconds", "code": "not_measured", "reason": "there were only warm-up steps, 1 of them"} in (
        document["unknown"]
    )


def test_a_short_run_still_has_steady_steps() -> None:
    assert run_of([1.0, 0.5], steps=2).document()["step_seconds"]["median"] == pytest.approx(0.5)


def test_a_loss_that_is_not_finite_is_unknown_and_the_document_stays_json() -> None:
    tally = Tally(LabConfig(steps=1))
    tally.begin(started(), 0.0)
    tally.stepped(1, 1.0)
    step = tally.report(math.nan, [1.0], None, 1.0)
    assert step.loss is None
    document = tally.document()
    assert document["loss_last"] is None
    assert ("loss_last", "not_finite") in [(entry["path"], entry["code"]) for entry in document["unknown"]]
    json.dumps(document, allow_nan=False)


def test_every_null_has_a_reason_and_every_reason_a_null() -> None:
    for document in (Tally(LabConfig()).document(), run_of([1.0] * 3, steps=3).document()):
        nulls = {key for key in (*metrics.MEASURED, "device") if document[key] is None}
        assert nulls == {entry["path"] for entry in document["unknown"]}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    assert min(values) <= metrics.percentile(values, percent) * (1 + 1e-12)
    assert metrics.percentile(values, percent) <= max(values) * (1 + 1e-12)
