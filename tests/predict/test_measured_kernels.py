"""A prediction says with which torch its kernel rules were measured, and doubts another one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from gpuscope.predict.answer import TracedRequest
from gpuscope.predict.document import document
from gpuscope.predict.measured_kernels import doubts, measured, minor_version, scratch_percent
from gpuscope.predict.report import subject
from gpuscope.predict.request import Request, Traced
from gpuscope.predict.trace import Owner, Trace

MIB = 1 << 20


def trace() -> Trace:
    """Return a trace with 30 of 100 MiB in scratch memory at its peak."""
    return Trace(
        sizes=[70 * MIB, 30 * MIB, 20 * MIB],
        owners=[0, 1, 1],
        owner_table=[Owner("activation", "", "mm"), Owner("workspace", "", "cublas")],
        events=[0, 1, ~1, 2],
    )


def test_another_torch_may_take_none_of_the_scratch_memory_or_twice_as_much() -> None:
    assert scratch_percent(trace()) == 30.0
    assert doubts(f"{measured().torch}.3+cu130", trace()) == []
    (doubt,) = doubts("2.99.0+cpu", trace())
    assert (doubt.percent, doubt.upward) == (30.0, False)
    assert measured().torch in doubt.text
    assert "2.99" in doubt.text


def test_the_version_is_that_of_the_release() -> None:
    assert [minor_version(one) for one in ("2.13.0+cpu", "2.9.0a0", "")] == ["2.13", "2.9", ""]


@pytest.mark.parametrize("torch", [f"{measured().torch}.0", "2.99.0"])
def test_the_answer_names_both_versions_and_is_wider_on_another(torch: str) -> None:
    made = Traced(trace(), batch=1, parameters=1, torch=torch)
    answer = TracedRequest(Request("a:b", 1), lambda _: made, None).answer
    assert document(answer)["kernels_torch"] == measured().torch
    line = subject(answer)
    assert f"torch {torch}" in line
    assert f"kernels measured with torch {measured().torch}" in line
    same = TracedRequest(
        Request("a:b", 1), lambda _: replace(made, torch=measured().torch), None
    ).answer.prediction.allocated
    wider = answer.prediction.allocated.error_bytes - same.error_bytes
    assert wider == pytest.approx(0 if torch.startswith(measured().torch) else 30 * MIB, abs=2)


@pytest.mark.slow
def test_without_a_card_nothing_is_measured(tmp_path: object) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    command = [sys.executable, "-m", "bench.predict.measure_kernels", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3
    assert "sees no GPU" in done.stderr
