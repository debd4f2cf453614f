"""``gpuscope tune`` with real workers: it finds what is faster, and goes on where it was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.launch import PYTHON_VARIABLE
from gpuscope.lab.ledger import Entry, RunLedger
from gpuscope.lab.run_facts import RunFacts
from gpuscope.lab.tune.findings import SearchSettings
from gpuscope.lab.tune.goal import Goal
from gpuscope.lab.tune.result import SearchResult
from gpuscope.lab.tune.runner import SearchJob, SearchProgress, SearchRunner, new_job
from gpuscope.lab.tune.search import CannotTune, Search
from gpuscope.lab.tune.space import Limits
from tests.fakes.forking import forking_python

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

FACTORY = """
import time, torch
def factory(batch, device):
    model = torch.nn.Linear(4, 1, bias=False).to(device)
    x = torch.ones(batch, 4, device=device)
    def forward():
        time.sleep(0.005)
        return model(x.neg_()).square().mean()
    return model, torch.optim.SGD(model.parameters(), 0.001), forward
"""
"""A forward pass takes 5 ms however many samples it has, on a busy machine too.

The next one has the samples with the other sign, and so the same loss.
"""
BASE = LabConfig(model="mine:factory", device="cpu", batch=1, accumulate=32)
"""32 forward passes of one sample: with one of 32 samples a step is many times as fast."""


KNOWN_BY_HEART = """
import time, torch
def factory(batch, device):
    model = torch.nn.Linear(8, 1).to(device)
    x, y = torch.randn(batch, 8, device=device), torch.randn(batch, 1, device=device)
    def forward():
        time.sleep(0.005)
        return (model(x) - y).square().mean()
    return model, torch.optim.SGD(model.parameters(), 0.05), forward
"""
"""The loss of one sample, drawn once, soon is 0; that of 32 samples in 8 dimensions cannot be."""


@pytest.fixture(autouse=True, scope="module")
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The process that forks a search's trials is itself a fork of one that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON_VARIABLE, forking_python(tmp_path_factory.mktemp("python")))
        yield


def search(runner: SearchRunner) -> Search:
    limits = Limits({"batch": [1, 32]})
    settings = SearchSettings(
        limits, keep_loss=0.01, time_left=lambda: 600.0 - runner.spent_seconds
    )
    return Search(BASE, lambda config: RunFacts("cpu", cores=2), settings)


def test_it_finds_the_faster_batch_proves_it_and_continues_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    ledger = RunLedger(tmp_path / "lab.sqlite")
    job = new_job(ledger, BASE, {"vary": {"batch": [1, 32]}}, anew=False)

    def stop(progress: SearchProgress, entry: Entry | None) -> None:
        if entry is not None and progress.ran == 2:
            first.stop("a test")

    first = SearchRunner(job, ledger, stop, window_seconds=0.3)
    assert first.run(lambda: search(first)).stopped == "a test"
    written = ledger.entries(limit=None, group=job.group)
    assert len(written) == 2

    again = new_job(ledger, BASE, job.options, anew=False)
    assert again.group == job.group
    second = SearchRunner(again, ledger, window_seconds=0.3)
    outcome = second.run(lambda: search(second))
    assert outcome.found is not None
    entries = ledger.entries(limit=None, group=job.group)
    assert {entry.id for entry in written} < {entry.id for entry in entries}
    assert {entry.source for entry in entries} == {"tune"}
    assert outcome.found.best == LabConfig(
        model="mine:factory", device="cpu", batch=32, accumulate=1
    )
    assert outcome.found.speed is not None
    assert outcome.found.speed.low is not None
    assert outcome.found.speed.low > 3

    spent, goal = second.spent_seconds, Goal(hour=2.0)
    result = SearchResult(job.group, outcome.found, entries[::-1], spent, goal=goal)
    document = json.loads(json.dumps(result.document(), allow_nan=False))
    assert "Use batch=32 accumulate=1" in document["sentence"]
    assert [switch["name"] for switch in document["switches"]] == ["batch+accumulate"]
    assert document["best"]["cost"]["money"] < document["baseline"]["cost"]["money"]
    assert abs(document["loss"]["excess"]) < 0.01
    assert any("batch_size = 32" in line for line in document["lines"])
    # A search that has ended is not continued.
    assert new_job(ledger, BASE, job.options, anew=False).group != job.group


def test_a_search_that_was_stopped_before_its_first_run_is_not_continued(tmp_path: Path):
    ledger = RunLedger(tmp_path / "lab.sqlite")
    job = new_job(ledger, BASE, {}, anew=False)
    ledger.keep_plan(job.group, job.to_mapping())
    assert new_job(ledger, BASE, {}, anew=False).group != job.group, "its name has an old time"
    ledger.add({"samples_per_second": 1.0}, source="tune", group=job.group, repeat=0)
    assert new_job(ledger, BASE, {}, anew=False).group == job.group
    assert new_job(ledger, BASE, {}, anew=True).group != job.group


def test_a_search_whose_baseline_cannot_run_is_begun_anew_once_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text("raise ImportError('a part is missing')")
    monkeypatch.chdir(tmp_path)
    ledger = RunLedger(tmp_path / "lab.sqlite")
    job = new_job(ledger, BASE, {}, anew=False)
    runner = SearchRunner(job, ledger, window_seconds=0.3)
    with pytest.raises(CannotTune, match="does not run"):
        runner.run(lambda: search(runner))
    assert new_job(ledger, BASE, {}, anew=False).group != job.group


def test_a_trial_that_cannot_run_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def factory(batch, device):\n"
        "    if batch > 4:\n"
        "        raise RuntimeError('no more than four')\n"
        "    model = torch.nn.Linear(4, 4).to(device)\n"
        "    x = torch.ones(batch, 4, device=device)\n"
        "    def forward():\n"
        "        return model(x).square().mean()\n"
        "    return model, torch.optim.SGD(model.parameters(), 0.01), forward\n"
    )
    monkeypatch.chdir(tmp_path)
    base = LabConfig(model="mine:factory", device="cpu", batch=4, accumulate=2)
    ledger = RunLedger(tmp_path / "lab.sqlite")
    runner = SearchRunner(SearchJob("tune-test", base), ledger, window_seconds=0.2)
    settings = SearchSettings(Limits({"batch": [8]}))
    outcome = runner.run(lambda: Search(base, lambda config: RunFacts("cpu", cores=2), settings))
    assert outcome.found is not None
    assert outcome.found.best == base
    failed = [row for row in outcome.found.rows if row.status == "failed"]
    assert len(failed) == 1
    assert "no more than four" in failed[0].reason


def test_a_change_that_learns_worse_is_measured_and_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A batch of 32 is many times as fast, and its loss is 3 % higher."""
    worse = ".mean() * 0 + (1.03 if batch == 32 else 1.0)"
    (tmp_path / "mine.py").write_text(FACTORY.replace(".mean()", worse))
    monkeypatch.chdir(tmp_path)
    ledger = RunLedger(tmp_path / "lab.sqlite")
    runner = SearchRunner(SearchJob("tune-test", BASE), ledger, window_seconds=0.2)
    settings = SearchSettings(Limits({"batch": [32]}), keep_loss=0.01)
    outcome = runner.run(lambda: Search(BASE, lambda config: RunFacts("cpu", cores=2), settings))
    assert outcome.found is not None
    assert outcome.found.best == BASE
    (row,) = outcome.found.rows[1:]
    assert row.status == "loss"
    assert row.loss is not None
    assert row.loss.excess == pytest.approx(0.03, abs=1e-4)
    fast = ledger.entries(limit=1)[0]
    assert fast.config == row.config
    assert fast.document["samples_per_second"] > 0


def test_the_loss_of_other_samples_is_no_reason_against_a_larger_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(KNOWN_BY_HEART)
    monkeypatch.chdir(tmp_path)
    ledger = RunLedger(tmp_path / "lab.sqlite")
    job = new_job(ledger, BASE, {"vary": {"batch": [1, 32]}}, anew=False)
    runner = SearchRunner(job, ledger, window_seconds=0.3)
    found = runner.run(lambda: search(runner)).found
    assert found is not None
    assert (found.best.batch, found.best.accumulate) == (32, 1)
    assert found.loss is not None
    assert found.loss.excess is None
    assert "the same batch in each step" in found.loss.reason
