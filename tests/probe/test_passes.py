"""Trainings whose optimizer is not torch's: counted by their backward passes, with the reason."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from gpuscope.probe import passes as passes_module  # noqa: E402
from gpuscope.probe.hooks import Hooks  # noqa: E402
from gpuscope.probe.steps import Steps  # noqa: E402
from tests.fakes.probe_client import PLACE_APART, Reader, sockets, trainer, wait_for  # noqa: E402


@pytest.fixture
def hooked(monkeypatch):
    """The hooks of the probe in this process; passes are counted at once."""
    monkeypatch.setattr(passes_module, "SETTLED_SECONDS", 0.0)
    steps = Steps()
    hooks = Hooks(steps, lambda o: steps.stepped(o, time.perf_counter()), lambda: None)
    assert hooks.install()
    yield hooks
    hooks.remove()
    assert type(torch.autograd._engine_run_backward).__name__ == "function"


class FastOptimizer:
    """An optimizer of its own kind."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        for parameter in self.parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)


class Learner:
    def __init__(self, batches):
        self.model = torch.nn.Linear(4, 1)
        self.opt = FastOptimizer(self.model.parameters())
        self.batches = batches

    def fit(self, passes_a_batch=1):
        for batch in self.batches:
            for _ in range(passes_a_batch):
                self.model(batch).sum().backward()
            self.opt.step()


def test_each_batch_is_a_step_of_an_optimizer_that_is_not_torchs(hooked):
    loader = torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=2)
    Learner(loader).fit(passes_a_batch=2)
    assert hooked.steps.total == 20, "those before it was clear count too"
    assert hooked.steps.counted_by.startswith("batches: its optimizer is")
    assert "FastOptimizer, not torch's" in hooked.steps.counted_by


def test_without_a_loader_each_backward_pass_is_one(hooked):
    def by_hand():
        weight = torch.ones(4, requires_grad=True)
        for _ in range(12):
            torch.utils.checkpoint.checkpoint(
                lambda w: (w * w).sum(), weight, use_reentrant=True
            ).backward()

    by_hand()
    assert hooked.steps.total == 12
    assert hooked.steps.counted_by == "backward passes: no optimizer was found in the training loop"


def test_of_one_batch_that_is_trained_on_again_and_again_each_pass_is_a_step(hooked):
    (batch,) = torch.utils.data.DataLoader(torch.ones(2, 4), batch_size=2)
    Learner([batch]).fit(passes_a_batch=passes_module.SAME_BATCH)
    assert hooked.steps.total == 0, "its gradients may be accumulated"
    Learner([batch]).fit(passes_a_batch=20)
    assert hooked.steps.total == passes_module.SAME_BATCH + 20
    assert hooked.steps.counted_by.startswith("backward passes: its optimizer is")
    loader = torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=2)
    Learner(loader).fit(passes_a_batch=2)
    assert hooked.steps.total == passes_module.SAME_BATCH + 40, "of others, each batch is one"


def test_an_optimizer_of_torch_that_accumulates_is_waited_for_and_takes_over(hooked):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def accumulate(count, optimizer):
        for _ in range(count):
            model(torch.ones(2, 4)).sum().backward()

    accumulate(3 * passes_module.SETTLED_PASSES, optimizer)
    assert hooked.steps.last is None
    accumulate(20 * passes_module.SETTLED_PASSES, optimizer)
    assert "torch's Adam, was not seen" in hooked.steps.counted_by
    optimizer.step()
    assert (hooked.steps.total, hooked.steps.counted_by) == (1, "")
    accumulate(3, optimizer)
    assert hooked.steps.total == 1


def test_an_error_in_a_backward_pass_is_the_users_own(hooked):
    weight = torch.ones(4, requires_grad=True)
    for _ in range(passes_module.FIRST):
        weight.sum().backward()
    with pytest.raises(RuntimeError) as raised:
        weight.backward()
    assert not any("gpuscope/probe" in str(entry.path) for entry in raised.traceback)
    assert hooked.passes._running == 0


def test_a_trainer_on_a_cpu_with_an_optimizer_of_its_own_is_there_to_be_seen():
    code = f"""{PLACE_APART}
import time, torch, gpuscope.probe, gpuscope.probe.passes
gpuscope.probe.passes.SETTLED_SECONDS = 0.5
gpuscope.probe.arm("run")
def train():
    weight = torch.ones(4, requires_grad=True)
    while True:
        (weight * weight).sum().backward()
        weight.data.add_(weight.grad, alpha=-0.01); weight.grad = None; time.sleep(0.01)
train()
"""
    with trainer(code, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0], 30.0)
        reader.until(lambda: reader.value("step") is not None and reader.value("step_seconds"), 60)
        assert "no optimizer was found" in reader.reasons[1, "compute_seconds"][1]
        assert reader.value("step_seconds") >= 0.01
        reader.close()
