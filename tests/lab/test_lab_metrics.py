"""The records between worker and viewer, and the arithmetic of a run."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.lab import metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.run_statistics import SETTLED_STEPS, WARMUP_STEPS, LossCurve, Tally, Window


def started(samples_per_step: int = 10, device: str = "cuda") -> metrics.Started:
    return metrics.Started({}, "mlp-small", device, "a device", "2.13", 100, samples_per_step)


@pytest.mark.parametrize(
    "record",
    [
        started(),
        metrics.Step(3, 0.5, 100.0, 0.01, 65536.0, 1, True),
        metrics.RunEnded({"steps": 3}),
        metrics.RunFailure("what", "why", "next", {"steps": 0}),
    ],
)
def test_a_record_survives_its_line(record: metrics.Record) -> None:
    line = metrics.encode(record)
    assert line.count(b"\n") == 1
    assert metrics.decode(line) == record


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_a_line_that_is_no_record_is_none(line: bytes) -> None:
    assert metrics.decode(line) is None or line.startswith(b"{")


def test_what_only_looks_like_a_record_is_none() -> None:
    assert metrics.decode(b'{"kind": "weather"}') is None
    assert metrics.decode(b'{"kind": "step", "step": 1}') is None
    assert metrics.decode(b'{"kind": "ended", "summary": {}, "mood": 1}') is None
    assert metrics.decode(b"[" * 100_000) is None


def run_of(seconds: list[float], events: list[int] | None = None, **toggles: object) -> Tally:
    """A run whose steps take ``seconds``, 10 samples each, reported when due.

    ``events``: what torch.compile has made by each step.
    """
    tally = Tally(LabConfig(**toggles))  # type: ignore[arg-type]
    now = 100.0
    tally.begin(started(), now)
    unreported: list[float] = []
    warm = True
    for count, took in enumerate(seconds, 1):
        now += took
        unreported.append(took)
        happened = events[min(count, len(events)) - 1] if events else 0
        if tally.stepped(count, now, happened) or count == len(seconds):
            losses = [1 / step for step in range(count - len(unreported) + 1, count + 1)]
            tally.report(Window(count, losses, unreported, [0.001] * len(unreported), warm, count))
            now += 7.0  # what a report costs is no part of a step
            tally.closed(now)
            unreported, warm = [], tally.warming_up
    return tally


def test_the_slow_start_is_apart_from_the_steady_figures() -> None:
    document = run_of([2.0] + [1.0] * (WARMUP_STEPS - 1) + [0.1] * 20).document()
    assert document["step_seconds"]["median"] == pytest.approx(0.1)
    assert document["step_seconds"]["p95"] == pytest.approx(0.1)
    assert document["samples_per_second"] == pytest.approx(100)
    assert document["step_seconds"]["count"] == 20
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
            tally.closed(now)
    assert 40 <= due <= 10 * metrics.RATE_HZ + 2


def test_one_step_is_warm_up_and_says_so() -> None:
    document = run_of([1.0], steps=1).document()
    assert document["step_seconds"] is None
    assert {
        "path": "step_seconds",
        "code": "not_measured",
        "reason": "only warm-up steps: 1",
    } in (document["unknown"])


def test_a_short_run_still_has_steady_steps() -> None:
    assert run_of([1.0, 0.5], steps=2).document()["step_seconds"]["median"] == pytest.approx(0.5)


def test_a_loss_that_is_not_finite_is_unknown_and_the_document_stays_json() -> None:
    tally = Tally(LabConfig(steps=1))
    tally.begin(started(), 0.0)
    tally.stepped(1, 1.0)
    step = tally.report(Window(1, [math.nan], [1.0], [], True, 1))
    assert step.loss is None
    document = tally.document()
    assert document["loss_last"] is None
    assert ("loss_last", "not_finite") in [
        (entry["path"], entry["code"]) for entry in document["unknown"]
    ]
    json.dumps(document, allow_nan=False)


def test_every_null_has_a_reason_and_every_reason_a_null() -> None:
    for document in (Tally(LabConfig()).document(), run_of([1.0] * 3, steps=3).document()):
        nulls = {
            key
            for key in (*metrics.MEASURED, *metrics.BY_TOGGLE, "device")
            if document[key] is None
        }
        nulls -= set(metrics.BY_TOGGLE)  # their toggles are off
        assert nulls == {entry["path"] for entry in document["unknown"]}


def test_warm_up_lasts_until_compilation_has_settled() -> None:
    seconds = [9.0, 0.1, 0.1, 5.0, 0.1, 0.1, 0.1, 0.1, 0.1]
    document = run_of(seconds, events=[1, 1, 1, 2], compile="default").document()
    assert document["step_seconds"]["count"] == len(seconds) - 4 - SETTLED_STEPS
    assert document["step_seconds"]["p95"] == pytest.approx(0.1)


def test_a_run_that_never_settles_says_so() -> None:
    document = run_of([1.0] * 12, events=list(range(1, 13)), compile="default", steps=12).document()
    assert document["step_seconds"] is None
    (reason,) = [
        entry["reason"] for entry in document["unknown"] if entry["path"] == "step_seconds"
    ]
    assert "torch.compile was still compiling" in reason


def test_the_median_has_its_interval_and_few_steps_have_none() -> None:
    step = run_of([1.0] * WARMUP_STEPS + [0.1, 0.2] * 50).document()["step_seconds"]
    assert (step["low"], step["high"]) == (pytest.approx(0.1), pytest.approx(0.2))
    step = run_of([1.0] * WARMUP_STEPS + [0.1] * 5).document()["step_seconds"]
    assert (step["low"], step["high"]) == (None, None)


def test_the_pace_is_that_of_the_steps_and_not_of_what_lies_between() -> None:
    tally = Tally(LabConfig())
    tally.begin(started(), 0.0)
    tally.stepped(1, 50.0)
    record = tally.report(Window(1, [1.0], [0.5], [0.2], False, 1))
    assert record.samples_per_second == pytest.approx(20)
    assert (record.step_seconds, record.input_seconds) == (0.5, 0.2)


@given(st.integers(1, 3000))
def test_a_curve_has_the_first_and_the_last_step_and_is_even(steps: int) -> None:
    curve = LossCurve()
    for step in range(1, steps + 1):
        curve.add(step, float(step))
    points = curve.points(10)
    assert 1 <= len(points) <= metrics.CURVE_POINTS
    assert points[0] == [10, 1.0]
    assert points[-1] == [10 * steps, float(steps)]
    assert all(samples == 10 * loss for samples, loss in points)
    assert len({right[0] - left[0] for left, right in pairwise(points[:-1])}) <= 1


def test_validation_and_cache_are_medians_and_the_peak_is_the_largest() -> None:
    tally = run_of([1.0] * 12, validate="grad", empty_cache=True)
    for seconds in (0.3, 0.1, 0.2):
        tally.validated(1.5, seconds, 100)
        tally.released(int(seconds * 100), seconds)
    tally.peaks(10, 20)
    tally.peaks(5, 30)
    document = tally.document()
    assert (document["validation_loss"], document["validation_seconds"]) == (1.5, 0.2)
    assert document["validation_peak_allocated_bytes"] == 100
    assert document["cache"] == {"released_bytes": 20, "seconds": 0.2}
    assert (document["peak_allocated_bytes"], document["peak_reserved_bytes"]) == (10, 30)


def test_a_toggle_that_measured_nothing_says_why() -> None:
    tally = Tally(LabConfig(validate="grad", empty_cache=True))
    tally.begin(started(device="cpu"), 0.0)
    reasons = {entry["path"]: entry["reason"] for entry in tally.document()["unknown"]}
    assert "before its first validation" in reasons["validation_loss"]
    assert "no caching allocator" in reasons["cache"]
    tally = Tally(LabConfig(model="a:b"))
    tally.begin(started(), 0.0)
    reasons = {entry["path"]: entry["reason"] for entry in tally.document()["unknown"]}
    assert "loads its own" in reasons["input_seconds"]
    assert "driver" in reasons["tensor_active_percent"]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], percent: float) -> None:
    assert min(values) <= metrics.percentile(values, percent) * (1 + 1e-12)
    assert metrics.percentile(values, percent) <= max(values) * (1 + 1e-12)
