"""The probe tells a loader that computes from one that waits itself, with and without workers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpuscope.probe import loading
from gpuscope.probe.hooks import Hooks
from gpuscope.probe.loading import Loading
from gpuscope.probe.steps import Steps


class Waits(Dataset):
    def __init__(self, rows: int = 32) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        self.work(0.01)
        return torch.zeros(4)

    def work(self, seconds: float) -> None:
        time.sleep(seconds)


class Computes(Waits):
    def work(self, seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass


def loads_ahead(worker: int, data: Waits) -> None:
    """Wait until a worker has loaded for long, however little of a core it gets on a busy host."""
    began, until = loading._schedule(str(worker)), time.monotonic() + 60
    time.sleep(0.3)
    while isinstance(data, Computes) and loading._schedule(str(worker))[0] < began[0] + 0.3:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_reading_of_workers_that_comes_late_counts_until_then(hooked, monkeypatch):
    """On a busy host the probe's thread may wait for a core after it has looked at the clock."""
    moment = time.perf_counter()
    clock = iter((moment + 10.0, moment + 10.6))
    spent = iter(((1.0, 0.0), (1.3, 0.0)))
    monkeypatch.setattr(loading, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(loading, "_schedule", lambda task: next(spent))
    hooked.workers, hooked._pids = 1, (4711,)
    hooked.tick(moment + 10.0)
    hooked.tick(moment + 10.3)
    assert hooked.facts()["loading_cores"] == pytest.approx(0.5)


@pytest.fixture
def hooked(monkeypatch):
    """Return the measure of the hooked loaders, which measures each batch."""
    monkeypatch.setattr(loading, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(loading, "WORKERS_SECONDS", 0.2)
    measure = Loading()
    hooks = Hooks(Steps(), lambda optimizer: None, lambda: None, loading=measure)
    hooks.install()
    yield measure
    hooks.remove()


@pytest.mark.parametrize(("data", "least", "most"), [(Waits(), 0, 0.4), (Computes(), 0.7, 1.5)])
def test_loading_without_workers_needs_a_core_if_it_computes(hooked, data, least, most):
    assert hooked.facts() == {}
    for _ in DataLoader(data, batch_size=4):
        pass
    facts = hooked.facts()
    assert facts["loader_workers"] == 0
    assert least <= facts["loading_cores"] <= most


@pytest.mark.parametrize(
    ("data", "least", "most"), [(Waits(400), 0, 0.4), (Computes(400), 0.6, 1.5)]
)
def test_each_worker_needs_a_core_if_it_computes(hooked, data, least, most):
    batches = iter(DataLoader(data, batch_size=4, num_workers=1, prefetch_factor=100))
    next(batches)
    assert hooked.facts() == {"loader_workers": 1}, "one reading says nothing"
    hooked.tick(time.perf_counter())
    (worker,) = multiprocessing.active_children()
    loads_ahead(worker.pid, data)
    hooked.tick(time.perf_counter())
    facts = hooked.facts()
    assert facts["loader_workers"] == 1
    assert least <= facts["loading_cores"] <= most
    del batches


def test_waiting_for_a_core_that_others_take_counts_as_need(hooked):
    before = os.sched_getaffinity(0)
    core = min(before)
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    try:
        os.sched_setaffinity(0, {core})
        for _ in DataLoader(Computes(), batch_size=4):
            pass
        assert hooked.facts()["loading_cores"] > 0.7
    finally:
        os.sched_setaffinity(0, before)
        for one in rivals:
            one.kill()
            one.wait()


class BusyHost:
    """A simulated host that takes the core away for 10 ms after each look at a clock."""

    def __init__(self) -> None:
        self.wall = self.computed = self.queued = 0.0

    def read(self, name: str) -> float:
        value = getattr(self, name)
        self.wall += 0.01
        self.queued += 0.01
        return value

    def load(self, computes: float, waits: float) -> None:
        self.computed += computes
        self.wall += computes + waits


@pytest.mark.parametrize(("computes", "waits", "needs"), [(0.001, 0, 1), (0.001, 0.099, 0.01)])
def test_a_core_that_is_lost_while_the_clocks_are_read_counts_as_need(
    monkeypatch, computes, waits, needs
):
    host, measure = BusyHost(), Loading()
    monkeypatch.setattr(loading, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(loading, "perf_counter", lambda: host.read("wall"))
    monkeypatch.setattr(loading, "process_time", lambda: host.read("computed"))
    monkeypatch.setattr(loading, "_queued", lambda task: host.read("queued"))
    batches = iter(DataLoader(Waits(), batch_size=4))
    for _ in range(20):
        began = measure.begins(batches, host.read("wall"))
        host.load(computes, waits)
        measure.ended(began)
    assert measure.facts()["loading_cores"] == pytest.approx(needs, rel=0.5)
