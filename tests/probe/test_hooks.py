"""The hooks inside real torch code: they count, and change nothing else."""

from __future__ import annotations

import copy
import io
import sys
import threading
import time
import traceback

import pytest

torch = pytest.importorskip("torch")

from torch.optim.optimizer import (  # noqa: E402
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpuscope.probe.hooks import Hooks  # noqa: E402
from gpuscope.probe.steps import Steps  # noqa: E402
from tests.probe.test_split import hooks_that_measure  # noqa: E402


@pytest.fixture
def hooked():
    """(steps, hooks): installed into this process's torch for one test."""
    steps = Steps()
    seen = []

    def on_step(optimizer):
        seen.append(optimizer)
        steps.stepped(optimizer, time.perf_counter())

    hooks = Hooks(steps, on_step, lambda: None)
    assert hooks.install()
    hooks.seen = seen
    yield steps, hooks
    hooks.remove()


def make(**options):
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, **options)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_counts_optimizers_made_before_and_after(hooked):
    steps, _ = hooked
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer)
    assert steps.total == 3


def test_installs_once_and_goes_without_a_trace(hooked):
    steps, hooks = hooked
    assert hooks.install()
    model, optimizer = make()
    step(model, optimizer)
    assert steps.total == 1
    hooks.remove()
    assert hooks.install(), "removed for good: a late call hangs nothing in again"
    step(model, optimizer)
    assert steps.total == 1
    assert _global_optimizer_post_hooks == _global_optimizer_pre_hooks == {}


def test_a_step_that_calls_the_step_of_its_base_class_is_one(hooked):
    # torch wraps a class's step when its first instance is made, and then calls the hooks for both.
    steps, _ = hooked

    class Own(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            return super().step(closure)

    model, _ = make()
    optimizer = Own(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
    assert getattr(torch.optim.SGD.step, "hooked", False)
    assert (steps.total, steps.count_of(optimizer)) == (3, 3)


def test_optimizers_pickle_copy_and_schedule_as_before(hooked):
    steps, _ = hooked
    model, optimizer = make(momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(model, optimizer)
    scheduler.step()
    twin = copy.deepcopy(optimizer)
    buffer = io.BytesIO()
    torch.save(optimizer, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert again.state_dict()["param_groups"] == twin.state_dict()["param_groups"]
    for other in (twin, again):
        other.step()
    assert steps.count_of(twin) == steps.count_of(again) == 1


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(4)


def test_the_wait_for_input_is_measured_per_step(hooked):
    steps, _ = hooked
    model, optimizer = make()
    loader = torch.utils.data.DataLoader(Slow(), batch_size=2)
    assert [len(batch) for batch in loader] == [2, 2, 2, 2]
    steps.waits.clear()
    step(model, optimizer)
    steps.waits.clear()
    for number, _ in enumerate(loader):
        if number % 2:  # two micro-batches a step
            step(model, optimizer)
    assert len(steps.waits) == 2
    assert all(0.04 <= wait < 1 for wait in steps.waits)


def test_a_loader_in_another_thread_is_not_the_trainers_wait(hooked):
    steps, _ = hooked
    model, optimizer = make()
    step(model, optimizer)
    thread = threading.Thread(
        target=lambda: list(torch.utils.data.DataLoader(Slow(), batch_size=2))
    )
    thread.start()
    thread.join()
    step(model, optimizer)
    assert not steps.loader_seen
    assert sum(steps.waits) == 0


def test_a_batch_is_handed_on_without_a_look_at_it(hooked):
    steps, _ = hooked

    class Batch(list):
        """As an array: to compare it gives no truth value."""

        def __eq__(self, other):
            raise ValueError("the truth value of an array is ambiguous")

        __hash__ = None

    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, collate_fn=Batch)
    assert [type(batch) for batch in loader] == [Batch, Batch]
    assert len(steps.loads) == 2


def files_of(error):
    """The files of the lines in its traceback, but for this one."""
    return [
        frame.filename
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__
    ]


def test_an_error_in_the_dataset_is_the_users_own(hooked):
    class Broken(Slow):
        def __getitem__(self, index):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as info:
        list(torch.utils.data.DataLoader(Broken()))
    assert all("torch/utils/data" in name for name in files_of(info.value)), (
        "no line of ours between his and torch's"
    )
    assert len(list(torch.utils.data.DataLoader(Slow(), batch_size=4))) == 2


def test_of_a_loader_inside_a_loader_the_wait_is_counted_once(hooked):
    steps, _ = hooked

    class Outer(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.utils.data.DataLoader(Slow(), batch_size=2))

    model, optimizer = make()
    step(model, optimizer)
    begin = time.perf_counter()
    for _ in torch.utils.data.DataLoader(Outer(), batch_size=4):
        pass
    elapsed = time.perf_counter() - begin
    step(model, optimizer)
    assert 0.08 <= steps.waits[-1] <= elapsed


def scaled(optimizer, model, scaler, bad):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 4)).sum() * (float("inf") if bad else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()


def test_skipped_steps_of_the_grad_scaler(hooked):
    steps, _ = hooked
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for bad in (True, False, True, True, False):
        scaled(optimizer, model, scaler, bad)
    assert (steps.total, steps.skipped, steps.scaler_seen) == (2, 3, True)


def test_two_scaled_optimizers_and_one_that_is_not(hooked):
    steps, _ = hooked
    (model, one), (_, plain) = make(), make()
    two = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for bad in (True, False):
        one.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum() * (float("inf") if bad else 1.0)).backward()
        two.param_groups[0]["params"][0].grad = torch.ones(1)
        for optimizer in (one, two):
            scaler.step(optimizer)
        plain.step()
        scaler.update()
    assert steps.skipped == 1
    assert (steps.count_of(one), steps.count_of(two), steps.count_of(plain)) == (1, 2, 2)


def test_an_error_in_a_scaled_step_is_the_users_own(hooked):
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(TypeError) as info:
        scaler.step(optimizer)
    assert all("/torch/" in name for name in files_of(info.value))


def test_without_a_scaler_nothing_is_claimed(hooked):
    steps, _ = hooked
    step(*make())
    assert not steps.scaler_seen


def test_an_optimizer_of_its_own_kind_is_not_called_skipped(hooked):
    """Not a torch.optim class: its step calls no hook, which proves nothing."""
    steps, _ = hooked

    class Own:
        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]

        def zero_grad(self):
            pass

        def step(self):
            pass

    model = torch.nn.Linear(4, 4)
    scaled(Own(model.parameters()), model, torch.amp.GradScaler("cpu", init_scale=4.0), False)
    assert (steps.skipped, steps.scaler_seen) == (0, False)


def compiled_graphs(body):
    """(graphs, breaks, recompiles) of a fresh torch.compile of ``body(backend)``."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    body(backend)
    counters = torch._dynamo.utils.counters
    return len(graphs), sum(counters["graph_break"].values()), dict(counters["stats"])


def compiled_model(backend):
    model, optimizer = make()
    model = torch.compile(model, backend=backend)
    for _ in range(4):
        step(model, optimizer)


def compiled_step(backend):
    model, optimizer = make(foreach=True)
    compiled = torch.compile(lambda: optimizer.step(), backend=backend)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        compiled()


def compiled_all(backend):
    model, optimizer = make()

    @torch.compile(backend=backend)
    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    for _ in range(4):
        train()


def compiled_loop(backend):
    model = torch.nn.Linear(4, 4)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    iterator = iter(loader)

    @torch.compile(backend=backend)
    def epoch():
        model(next(iterator)).sum().backward()
        for batch in loader:
            model(batch).sum().backward()

    epoch()


@pytest.mark.slow
@pytest.mark.parametrize("body", [compiled_model, compiled_step, compiled_all, compiled_loop])
def test_compilation_is_the_same_with_and_without(body):
    without = compiled_graphs(body)
    hooks, steps, split = hooks_that_measure()
    hooks.install()
    hooks._on_step(make()[1])
    steps.total = 0
    try:
        within = compiled_graphs(body)
    finally:
        hooks.remove()
    assert within == without
    assert without[0] > 0
    if body is compiled_model:
        assert steps.total == 4
        assert split.recent


@pytest.mark.parametrize(
    ("register", "registered"),
    [
        (register_optimizer_step_pre_hook, _global_optimizer_pre_hooks),
        (register_optimizer_step_post_hook, _global_optimizer_post_hooks),
    ],
    ids=["before", "after"],
)
def test_removing_a_hook_while_others_are_running_does_not_raise_into_the_step(
    hooked, register, registered
):
    # torch iterates over the hooks: a hook removed by another thread in the middle would be its
    # RuntimeError.
    _, hooks = hooked
    inside = threading.Event()

    def user_hook(optimizer, args, kwargs):
        inside.set()
        time.sleep(0.05)

    handles = [register(user_hook), register(lambda *_: None)]
    if registered is _global_optimizer_post_hooks:
        registered.move_to_end(handles[1].id, last=False)
    model, optimizer = make()
    thread = threading.Thread(target=lambda: (inside.wait(10), hooks.remove()))
    thread.start()
    try:
        for _ in range(20):
            step(model, optimizer)
            if not thread.is_alive():
                break
    finally:
        thread.join(10)
        for handle in handles:
            handle.remove()
    assert not thread.is_alive()
    assert registered == {}


def test_a_wrapping_made_on_top_of_ours_survives_and_ours_is_silent(hooked):
    steps, hooks = hooked
    cls = torch.utils.data.dataloader._BaseDataLoaderIter
    inner = cls.__next__
    original = inner.__wrapped__
    calls = []

    def on_top(self):
        calls.append(1)
        return inner(self)

    cls.__next__ = on_top
    try:
        hooks.remove()
        steps.loader_seen = False
        assert len(list(torch.utils.data.DataLoader(Slow(), batch_size=4))) == 2
        assert len(calls) == 3
        assert not steps.loader_seen
    finally:
        cls.__next__ = original


def test_queued_cuda_call(monkeypatch):
    """A queued CUDA call is noticed and taken out.

    On a build with CUDA torch calls back from its lazy initialisation; the queue is clean after
    removal.
    """
    called = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    before = list(torch.cuda._queued_calls)
    hooks = Hooks(Steps(), lambda optimizer: None, lambda: called.append(1))
    hooks.install()
    (added,) = [call for call in torch.cuda._queued_calls if call not in before]
    added[0]()
    assert called == [1]
    hooks.remove()
    assert torch.cuda._queued_calls == before
    added[0]()
    assert called == [1]


def test_without_torch_there_is_nothing_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    assert not Hooks(Steps(), lambda optimizer: None, lambda: None).install()


def test_who_waits_for_a_backward_pass_is_called_in_the_training_thread_alone(hooked):
    steps, _ = hooked
    model, optimizer = make()
    step(model, optimizer)
    calls = []
    steps.on_backward = calls.append
    other = threading.Thread(target=lambda: model(torch.ones(2, 4)).sum().backward())
    other.start()
    other.join()
    assert calls == []
    step(model, optimizer)
    assert calls == [steps]
