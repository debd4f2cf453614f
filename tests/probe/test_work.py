"""A step is counted in the training thread, and the training is as it would be without."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from gpuscope.model.card_peaks import cards
from gpuscope.model.useful_work import UsefulWork, read
from gpuscope.probe import work, work_rows
from gpuscope.probe.long_requests import LongRequest, Stopped
from gpuscope.probe.steps import Steps
from gpuscope.probe.work import Counter
from gpuscope.probe.work_rows import added_up
from gpuscope.wire.frames import Request, Result
from tests.fakes.asking import KEYBOARD, ask, tell
from tests.fakes.probe_client import PLACE_APART, TRAINING, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")
from tests.fakes.flop_models import MODELS, Words, step_of, training  # noqa: E402


def steps_of(count, step, steps):
    """Train, with a probe that sees the steps."""
    losses = []
    for _ in range(count):
        losses.append(step())
        steps.passed(time.perf_counter(), "backward")
    return losses


def counted(step) -> UsefulWork:
    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    steps_of(3, step, steps)
    assert (counter.over.is_set(), counter.problem) == (True, "")
    found = read(added_up(counter.noted, lambda: None), cards()["H100 SXM"], "")
    assert found is not None
    return found


def torch_counts(step):
    """FLOPs of a step by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@pytest.fixture(autouse=True)
def plain_attention():
    """Torch's own counter has no formula for the fused attention of a CPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_of_torchs_own_counter(name):
    _, _, step = step_of(name)
    step()
    found = counted(step)
    assert found.hardware_flops == pytest.approx(torch_counts(step), rel=0.03)
    assert found.complete, found.unknown
    assert found.floor_seconds


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_fused_attention_has_the_flops_of_torchs_own_counter(name):
    """There is no such kernel on a CPU: its schema is called with tensors that hold nothing."""
    from torch.utils.flop_counter import FlopCounterMode

    from gpuscope.model.operator_work import flops_of

    q = torch.empty(2, 8, 96, 32, device="meta", dtype=torch.bfloat16)
    kv = torch.empty(2, 8, 64, 32, device="meta", dtype=torch.bfloat16)
    ops = torch.ops.aten
    forward = getattr(ops, f"_scaled_dot_product_{name}_attention").default
    args = (q, kv, kv, 0.0, True) if name == "flash" else (q, kv, kv, None, True, 0.0, True)
    with FlopCounterMode(display=False) as counter:
        forward(*args)
    call = {"args": list(args), "kwargs": {}, "out": []}
    text = json.dumps(work_rows._plain(work_rows.shapes_of(call, torch.Tensor)))
    found = flops_of(forward._schema.name, text)
    assert found is not None
    assert found.hardware == counter.get_total_flops()
    assert found.least < found.hardware


def test_an_lstm_and_a_grouped_convolution_are_counted_though_torchs_counter_is_wrong_there():
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(8, 8, 3, groups=4)
    x = torch.randn(2, 8, 10, 10)
    found = counted(lambda: layer(x).sum().backward())
    each = 2 * (2 * 8 * 8 * 8) * (2 * 9)
    assert found.hardware_flops == 2 * each  # x asks for no gradient

    lstm = torch.nn.LSTM(16, 24)
    found = counted(lambda: lstm(torch.randn(7, 4, 16))[0].sum().backward())
    weights = 4 * 24 * (16 + 24)
    assert found.hardware_flops == pytest.approx(3 * 2 * 28 * weights, rel=0.2)
    assert found.complete, found.unknown


@pytest.mark.parametrize("name", ["gpt", "unet", "moe"])
def test_losses_and_weights_are_the_same_to_the_bit(name):
    found = []
    for counts in (False, True):
        model, _, step = step_of(name)
        steps = Steps()
        losses = steps_of(3, step, steps)
        counter = Counter(torch, 0.0)
        if counts:
            steps.on_step = counter
        losses += steps_of(6, step, steps)
        assert counter.over.is_set() == counts
        assert counter.problem == ""
        found.append([*losses, *(p.detach().clone() for p in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_told_apart(reentrant, monkeypatch):
    ids = torch.randint(0, 211, (4, 32))
    plain = counted(training(Words(True), ids)[2])
    if reentrant:
        import torch.utils.checkpoint as module

        usual = module.checkpoint
        monkeypatch.setattr(
            module, "checkpoint", lambda f, x, use_reentrant: usual(f, x, use_reentrant=True)
        )
    again = counted(training(Words(True, again=True), ids)[2])
    assert again.model_flops == plain.model_flops
    assert again.hardware_flops > 1.15 * plain.hardware_flops
    assert again.recomputed_flops == again.hardware_flops - plain.hardware_flops


def test_a_gradient_of_a_gradient_is_no_recomputation():
    net = torch.nn.Linear(8, 8)

    def step():
        x = torch.randn(4, 8, requires_grad=True)
        (grad,) = torch.autograd.grad(net(x).pow(2).sum(), x, create_graph=True)
        grad.pow(2).sum().backward()

    assert counted(step).recomputed_flops == 0.0


def test_a_fourier_transform_and_another_librarys_kernel_are_named():
    with torch.library._scoped_library("gpuscope_test", "DEF") as library:
        library.define("own(Tensor x) -> Tensor")
        library.impl("own", lambda x: x * 2, "CompositeExplicitAutograd")
        x = torch.randn(64)

        def step():
            torch.fft.fft(x)
            torch.ops.gpuscope_test.own(x)

        names = [name for name, _ in counted(step).unknown]
    assert sorted(names) == ["aten::_fft_r2c", "gpuscope_test::own"]


def test_a_subclass_of_tensor_takes_itself_apart_and_is_counted():
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.randn(4, 5), torch.randn(5, 6)
    found = counted(lambda: TwoTensor(a, a) @ TwoTensor(b, b))
    assert found.hardware_flops == 2 * (2 * 4 * 5 * 6)


def test_a_step_that_did_something_else_too_is_not_counted_but_the_next_one_is(monkeypatch):
    monkeypatch.setattr(work, "LONGEST_MORE_SECONDS", 0.2)
    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.01)
    a = torch.randn(8, 8)
    steps_of(1, lambda: a @ a, steps)

    def validates():
        time.sleep(0.3)
        for _ in range(10):
            a @ a

    steps_of(1, validates, steps)
    assert not counter.over.is_set()
    steps_of(1, lambda: a @ a, steps)
    assert counter.over.is_set()
    assert len(counter.noted) == 1


@pytest.mark.parametrize(("left", "counted"), [(1.0, False), (10.0, True)])
def test_no_step_is_begun_that_would_not_end_in_time(left, counted):
    _, _, step = step_of(next(iter(MODELS)))
    steps = Steps()
    steps.on_step = counter = Counter(torch, 2.0, time.monotonic() + left)
    steps_of(3, step, steps)
    assert (counter.over.is_set(), bool(counter.noted)) == (counted, counted)
    counter.give_up()


def test_under_a_mode_of_the_training_or_inside_a_backward_pass_nothing_is_counted():
    from torch.utils.flop_counter import FlopCounterMode

    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    with FlopCounterMode(display=False):
        steps_of(1, lambda: None, steps)
    assert "a dispatch mode of its own" in counter.problem

    counter = steps.on_step = Counter(torch, 0.0)
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: steps.passed(time.perf_counter(), "backward"))
    x.sum().backward()
    assert "inside the backward pass" in counter.problem


def test_a_mode_that_the_training_entered_meanwhile_is_left_alone():
    from torch.utils.flop_counter import FlopCounterMode

    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    steps_of(1, lambda: None, steps)
    a = torch.randn(3, 4)
    with FlopCounterMode(display=False) as own:
        steps_of(1, lambda: a @ a.T, steps)
        assert own.get_total_flops() == 2 * 3 * 4 * 3
        assert not counter.over.is_set()
    steps_of(1, lambda: None, steps)
    assert counter.over.is_set()
    assert "meanwhile" in counter.problem


def test_an_error_of_the_training_is_its_own_and_the_next_step_ends_the_count():
    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    a = torch.randn(3, 4)
    steps_of(1, lambda: None, steps)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        a @ a
    steps_of(1, lambda: a @ a.T, steps)
    assert counter.over.is_set()
    assert counter.problem == ""


def act(seconds=20.0):
    return LongRequest(Request("work", 1, {}, seconds), object(), 0, lambda: None)


def test_a_request_that_is_given_up_leaves_with_the_step_and_not_before():
    steps, asked = Steps(), act()
    counter = Counter(torch, 0.0)
    box = []

    def run():
        try:
            work.follow(asked, counter, steps)
        except Stopped as stopped:
            box.append(stopped)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: steps.on_step is counter, 10, "the hook")
    steps_of(1, lambda: None, steps)
    asked.forget()
    thread.join(0.3)
    assert thread.is_alive()  # the mode is in
    steps_of(1, lambda: None, steps)
    thread.join(10)
    assert (len(box), steps.on_step) == (1, None)


REFUSED = """
import torch
from gpuscope.probe import work, work_rows
def ask():
    try: work.refuse_kinds()
    except work.Refusal as refusal: print(refusal.reason)
    else: print("counted")
net = torch.nn.Linear(3, 3)
net(torch.ones(3)).sum().backward()
torch.optim.Adam(net.parameters()).step()
ask()
parallel = torch.nn.DataParallel(net)
ask()
torch.compile(net, backend="eager")
ask()
"""


def test_a_forked_child_computes_under_no_mode():
    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    steps_of(1, lambda: None, steps)
    assert torch._C._len_torch_dispatch_stack() == 1
    child = os.fork()
    if child == 0:
        work.abandon()
        os._exit(torch._C._len_torch_dispatch_stack())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch._C._len_torch_dispatch_stack() == 1
    steps_of(1, lambda: None, steps)
    assert counter.problem == ""


def test_a_probe_that_is_taken_out_by_the_training_takes_its_mode_along():
    steps = Steps()
    counter = steps.on_step = Counter(torch, 0.0)
    steps_of(1, lambda: None, steps)
    work.leave(5.0)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert counter.over.is_set()


SLOW = """
modes = []
usual = step
def step():
    modes.append(torch._C._len_torch_dispatch_stack())
    time.sleep(0.7)
    usual()
"""


def test_a_probe_that_is_taken_out_in_the_middle_of_the_step_waits_for_its_end():
    watch = "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
    script = TRAINING + PLACE_APART + watch + SLOW + KEYBOARD
    with trainer(script + "train(10**6)", fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: (reader.value("step") or 0) >= 2)
        reader.send(Request("work", 1, {}, 30.0))
        wait_for(lambda: tell(process, "print(modes[-1])") == ["1"], 30, "a mode")
        reader.send(Request("detach", 2, {}, 30.0))
        wait_for(lambda: tell(process, "print(modes[-3:])") == ["[0, 0, 0]"], 30, "no mode")
        assert tell(process, "print(sum(modes))") == ["1"]
        reader.close()


def test_trainings_that_a_mode_would_change_or_not_see_are_refused_and_say_why():
    with trainer(REFUSED, fork=True) as process:
        said, _ = process.communicate(timeout=60)
    assert said.splitlines() == ["counted", work.REPLICAS, work.COMPILED]


def test_a_real_trainer_is_counted_on_request_and_its_outputs_stay_empty():
    watch = "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
    with trainer(TRAINING + PLACE_APART + watch + "train(60)", fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: (reader.value("step") or 0) > 10)
        answer, _, _ = ask(reader, "work", {}, 30.0)
        assert isinstance(answer, Result), answer
        found = read(answer.value, None, "no card")
        assert found is not None
        assert found.model_flops > 0
        assert found.complete, found.unknown
        assert answer.value["cuda"] is False
        before = reader.value("step")
        reader.until(lambda: reader.value("step") > before)
        again, _, _ = ask(reader, "work", {}, 30.0, 2)
        assert read(again.value, None, "").model_flops == found.model_flops
        reader.close()
