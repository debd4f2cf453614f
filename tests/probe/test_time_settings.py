"""Settings that make every step slower are read where torch keeps them."""

from __future__ import annotations

import weakref

import pytest
import torch

from gpuscope.probe import cuda
from gpuscope.probe.time_settings import settings


@pytest.fixture
def in_use(monkeypatch):
    monkeypatch.setattr(cuda, "initialised", lambda: True)
    for name in ("CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)


def test_the_search_for_anomalies_is_seen_while_it_is_on():
    assert settings([]) == {}
    with torch.autograd.set_detect_anomaly(True):
        assert settings([]) == {"anomaly_detection": 1}
    assert settings([]) == {}


@pytest.mark.slow
def test_the_search_that_torch_switches_on_while_it_compiles_is_not_told():
    # takes a second, which each worker would spend when it collects the tests
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def traced(graph, inputs):
        seen.append(settings([]))
        return graph

    model = torch.nn.Linear(2, 2)
    step = torch.compile(model, backend=aot_autograd(fw_compiler=traced))
    with torch.autograd.detect_anomaly(check_nan=False):
        assert settings([]) == {}
    step(torch.ones(1, 2)).sum().backward()
    assert {} in seen
    assert {"anomaly_detection": 1} not in seen


def test_variables_count_where_cuda_is_in_use(in_use, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    assert settings([]) == {}
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert settings([]) == {"launch_blocking": 1, "uncached_memory": 1}
    monkeypatch.setattr(cuda, "initialised", lambda: False)
    assert settings([]) == {}


def test_an_optimizer_is_on_the_host_where_all_its_weights_are(in_use):
    here = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    there = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2, device="meta"))], lr=0.1)
    assert settings([weakref.ref(here)]) == {"optimizer_on_host": 1}
    assert settings([weakref.ref(there)]) == {}
    assert settings([weakref.ref(here), weakref.ref(there)]) == {}, "one of several"
    gone = weakref.ref(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1))
    assert settings([gone]) == {}
