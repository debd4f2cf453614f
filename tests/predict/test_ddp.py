"""Under DistributedDataParallel a trace takes what the real wrapper takes on the CPU."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from gpuscope.predict.request import Request
from gpuscope.predict.tracing import ddp, steps
from tests.fakes.program import python

from .ddp_truth import peaks

pytestmark = pytest.mark.slow
SMALL_BYTES = 1024
"""The bits that say which parameters were used, and counters."""


def test_each_phase_takes_what_the_real_wrapper_takes() -> None:
    done = python("-W", "ignore", "-m", "tests.predict.ddp_truth")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) >= 10, done.stderr
    for row in rows:
        assert row["traced"] == pytest.approx(row["real"], abs=SMALL_BYTES), row["case"]


def test_nccl_may_keep_the_first_bucket_until_the_second_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = Request("gpt-tiny", batch=64, sharding="ddp", ranks=2)
    monkeypatch.setattr(ddp, "torch_keeps", lambda: False)
    without = steps.trace(request)
    monkeypatch.setattr(ddp, "torch_keeps", lambda: True)
    found = steps.trace(request)
    peak = max(peaks(found.trace))
    assert peak == max(peaks(without.trace))  # its watchdog has usually looked by then
    assert not [doubt for doubt in without.doubts if doubt.operation.startswith("nccl")]
    (doubt,) = [doubt for doubt in found.doubts if doubt.operation.startswith("nccl")]
    assert doubt.upward
    gradients = 4 * found.parameters  # the first bucket holds all of them
    assert doubt.percent == pytest.approx(100 * gradients / peak, abs=0.1)
