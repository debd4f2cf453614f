"""In real jobs over gloo the rank that works longer is named, and nobody where all are alike."""

from __future__ import annotations

import pytest

from gpuscope.model import stragglers

torch = pytest.importorskip("torch")
from bench.stragglers import ROOT, run  # noqa: E402
from tests.fakes import forking  # noqa: E402

pytestmark = pytest.mark.slow


def forked(words, env, errors):
    """Start a rank without another import of torch."""
    code = forking.BEGINS + forking.script("bench.stragglers", *words)
    return forking.Forked(code, env, cwd=ROOT, output=errors)


def test_the_rank_that_works_longer_is_named_and_a_healthy_job_is_left_alone(tmp_path, monkeypatch):
    """With shorter windows and more of a difference than in ``python -m bench.stragglers``.

    Few windows are known by then, so the difference has to be many times their noise, and on busy
    cores a window of sleeps varies by some percent.
    """
    monkeypatch.setattr(stragglers, "MEASURED_SECONDS", 8.0)
    monkeypatch.setattr(stragglers, "QUICK_LATEST", 3)
    slower, healthy = run([2], 2.0, 24.0, tmp_path, forked)
    assert slower.problem() == ""
    assert slower.named
    assert healthy.problem() == ""
