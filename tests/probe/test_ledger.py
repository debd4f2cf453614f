"""The bytes of parameters, gradients and optimizer state are exact.

The truth is a walk that takes its time.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpuscope.probe import ledger as ledger_module  # noqa: E402
from gpuscope.probe.ledger import CPU, Bytes, Ledger  # noqa: E402


def brute(optimizers, models=()):
    """Every storage once, by data pointer, the obvious way."""
    totals, seen = [0, 0, 0], set()

    def add(tensor, kind):
        storage = tensor.untyped_storage()
        if storage.nbytes() and (storage.data_ptr(), kind if kind == 1 else 0) not in seen:
            seen.add((storage.data_ptr(), kind if kind == 1 else 0))
            totals[kind] += storage.nbytes()

    def nested(value):
        if isinstance(value, torch.Tensor):
            add(value, 2)
        elif isinstance(value, dict):
            [nested(v) for v in value.values()]
        elif isinstance(value, (list, tuple)):
            [nested(v) for v in value]

    parameters = [p for o in optimizers for g in o.param_groups for p in g["params"]]
    parameters += [p for m in models for p in m.parameters()]
    for p in parameters:
        add(p, 0)
        if p.grad is not None:
            add(p.grad, 1)
    for o in optimizers:
        nested(dict(o.state))
    return Bytes(*totals)


def counted(ledger, *optimizers, tries=2000):
    """Step hooks of ``optimizers`` in turn until the count is complete."""
    for _ in range(tries):
        for optimizer in optimizers:
            ledger.after_step(optimizer, time.perf_counter())
        if ledger.bytes is not None and ledger._walk is None:
            return ledger.bytes.get(CPU, Bytes(0, 0, 0))
    raise AssertionError("never complete")


def wanted() -> Ledger:
    ledger = Ledger()
    ledger.wanted = True
    return ledger


def step(model, optimizer, x=None):
    optimizer.zero_grad()
    model(torch.randn(4, 8) if x is None else x).sum().backward()
    optimizer.step()


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = (
            torch.nn.Linear(8, 8),
            torch.nn.Linear(8, 8),
            torch.nn.Linear(8, 8),
        )
        self.second.weight = self.first.weight
        self.unused = torch.nn.Parameter(torch.randn(33))

    def forward(self, x):
        return self.out(self.second(self.first(x)))


OPTIMIZERS = {
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_exact_for_shared_weights_and_missing_gradients(name):
    model = Tied()
    optimizer = OPTIMIZERS[name](model.parameters())
    step(model, optimizer)
    found = counted(wanted(), optimizer)
    assert found == brute([optimizer])
    assert model.unused.grad is None
    assert found.gradients < found.parameters


def test_exact_for_lbfgs_whose_state_is_lists():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure)
    assert counted(wanted(), optimizer) == brute([optimizer])


def test_exact_for_sparse_gradients():
    model = torch.nn.Embedding(100, 8, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    model(torch.tensor([1, 5, 5])).sum().backward()
    optimizer.step()
    gradient = model.weight.grad
    expected = (
        gradient._indices().untyped_storage().nbytes()
        + gradient._values().untyped_storage().nbytes()
    )
    assert counted(wanted(), optimizer).gradients == expected


def test_a_group_added_later_is_noticed():
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(first.parameters())
    ledger = wanted()
    step(first, optimizer)
    before = counted(ledger, optimizer)
    optimizer.add_param_group({"params": list(second.parameters())})
    step(torch.nn.Sequential(first, second), optimizer)
    after = counted(ledger, optimizer)
    assert after == brute([optimizer])
    assert after.parameters == 2 * before.parameters


def test_a_watched_model_counts_frozen_parameters_once():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[1].parameters())
    ledger = wanted()
    ledger.add_model(model)
    step(model, optimizer)
    found = counted(ledger, optimizer)
    assert found == brute([optimizer], [model])
    assert found.parameters == 2 * (8 * 8 + 8) * 4


def test_gradients_that_share_a_bucket_count_once():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bucket = torch.zeros(8 * 8 + 8)
    model.weight.grad, model.bias.grad = bucket[:64].view(8, 8), bucket[64:]
    optimizer.step()
    assert counted(wanted(), optimizer).gradients == bucket.numel() * 4


@pytest.mark.slow
def test_many_tensors_are_counted_in_slices_over_several_steps():
    parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(3000)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    for p in parameters:
        p.grad = torch.ones(3)
    optimizer.step()
    ledger = wanted()
    slices = 0
    while ledger.bytes is None:
        ledger.after_step(optimizer, time.perf_counter())
        slices += 1
        # as zero_grad() and the next backward do: gradients move between slices
        for p in parameters:
            p.grad = torch.ones(3)
        assert slices < 5000
    assert ledger.bytes[CPU] == brute([optimizer])
    assert slices > 5


@pytest.mark.parametrize(
    ("count", "most", "usual"),
    [(291, 20, 0.02), pytest.param(2000, 60, 0.1, marks=pytest.mark.slow)],
)
def test_a_real_models_tensors_are_counted_within_a_few_steps(count, most, usual, monkeypatch):
    """Though its state comes while they are being counted, and the model is found only then."""
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: 7e-6 * next(looks))  # what one parameter takes
    monkeypatch.setattr(ledger_module, "time", clock)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(3)) for _ in range(count)])
    frozen = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(7))])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    both = torch.nn.ModuleList([model, frozen])
    ledger = wanted()
    for steps in range(1, most + 1):
        for p in model.parameters() if steps > 3 else list(model)[: count // 2]:
            p.grad = torch.ones(3)
        optimizer.step()
        if steps == 4:
            ledger.add_found(both)
        ledger.after_step(optimizer, clock.perf_counter(), True, usual)
        if ledger.bytes is not None and steps > 4 and ledger._walk is None:
            break
    assert ledger.bytes is not None
    assert ledger.bytes[CPU] == brute([optimizer], [both])


def test_a_slice_follows_the_step():
    shares = [ledger_module.slice_seconds(seconds) for seconds in (0.0, 0.001, 0.1, 1.0, 20.0)]
    assert shares == pytest.approx([200e-6, 200e-6, 500e-6, 5e-3, 20e-3])


def test_other_models_count_by_name_and_nothing_that_is_trained_does():
    student, teacher = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(100)
    tied = torch.nn.Sequential(student, torch.nn.Linear(8, 4))
    average = EMAModel([p.detach().clone() for p in student.parameters()])
    optimizer = torch.optim.AdamW(student.parameters())
    ledger = wanted()
    ledger.add_other(teacher, "teacher")
    ledger.add_other(tied, "tied")
    ledger.add_other(average, "ema")
    step(student, optimizer)
    found = counted(ledger, optimizer)
    held = [
        *teacher.parameters(),
        *teacher.buffers(),
        *tied[1].parameters(),
        *average.shadow_params,
    ]
    assert found.others == sum(tensor.untyped_storage().nbytes() for tensor in held)
    assert found[:3] == brute([optimizer])[:3]
    assert ledger.other_models[CPU] == {"teacher": 400 * 4 + 8, "tied": 36 * 4, "ema": 72 * 4}


class EMAModel:
    def __init__(self, shadow_params):
        self.shadow_params = shadow_params


def test_nothing_is_walked_while_nobody_looks():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = Ledger()
    for _ in range(5):
        step(model, optimizer)
        ledger.after_step(optimizer, time.perf_counter())
    assert ledger.bytes is None
    ledger.wanted = True
    assert counted(ledger, optimizer) == brute([optimizer])


def test_counts_again_only_on_change_or_after_the_refresh(monkeypatch):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = wanted()
    step(model, optimizer)
    counted(ledger, optimizer)
    model.half()  # the same tensors' number, other bytes: only the refresh can see it
    now = time.perf_counter()
    stale = ledger.bytes[CPU].parameters
    ledger.after_step(optimizer, now)
    assert ledger.bytes[CPU].parameters == stale
    for _ in range(50):
        ledger.after_step(optimizer, now + ledger_module.REFRESH_SECONDS + 1)
    assert ledger.bytes[CPU].parameters == stale // 2


def test_a_walk_in_progress_keeps_no_tensor_alive_and_a_dead_optimizer_voids_the_count():
    parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(2000)]
    optimizer = torch.optim.AdamW(parameters)
    for p in parameters:
        p.grad = torch.ones(3)
    optimizer.step()
    ledger = wanted()
    ledger.after_step(optimizer, time.perf_counter() - ledger_module.SLICE_SECONDS + 20e-6)
    assert ledger._walk is not None
    refs = [weakref.ref(p) for p in parameters]
    ledger.bytes = {CPU: Bytes(1, 1, 1)}
    del optimizer, parameters, p
    gc.collect()
    assert [ref() for ref in refs if ref() is not None] == []
    assert ledger.bytes is None


def test_state_is_never_created_by_looking():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    before = len(optimizer.state)
    counted(wanted(), optimizer)
    assert len(optimizer.state) == before


def test_a_wrapper_counts_what_it_wraps_and_a_dtensor_its_local_shard(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch is built without torch.distributed")
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        local = torch.randn(6, 4)
        parameter = torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)]))
        optimizer = torch.optim.AdamW([parameter], foreach=True)
        parameter.grad = DTensor.from_local(torch.ones(6, 4), mesh, [Shard(0)])
        optimizer.step()
        found = counted(wanted(), optimizer)
    finally:
        dist.destroy_process_group()
    assert found == Bytes(6 * 4 * 4, 6 * 4 * 4, 2 * 6 * 4 * 4 + 4)


def test_a_count_between_steps_needs_neither_a_step_nor_somebody_who_watches():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = Ledger()
    ledger.count_now(10.0)
    assert ledger.bytes is None, "nothing is known that could be counted"
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    ledger.after_step(optimizer, time.perf_counter())
    assert ledger.bytes is None, "nobody watches"
    ledger.count_now(10.0)
    assert ledger.bytes == {CPU: brute([optimizer])}
    optimizer.zero_grad(set_to_none=True)
    ledger.count_now(10.0)
    assert ledger.bytes[CPU].gradients == 0


def test_what_was_counted_before_the_first_step_is_counted_again_after_it(monkeypatch):
    monkeypatch.setattr(ledger_module, "SLICE_SECONDS", 0.0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    ledger = wanted()
    ledger.add_model(model)
    for _ in range(2):  # the container and a layer, whose gradients are still to come
        ledger.without_steps(time.perf_counter())
    assert ledger.bytes is None
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    for _ in range(3):
        ledger.after_step(optimizer, time.perf_counter(), usual=10.0)
    assert ledger.bytes == {CPU: brute([optimizer])}
