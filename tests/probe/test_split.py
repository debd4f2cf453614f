"""What a step is made of: real trainings on the CPU, and a device that is played."""

from __future__ import annotations

import itertools
import os
import threading
import time
import traceback
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpuscope.probe import marks  # noqa: E402
from gpuscope.probe import split as split_module  # noqa: E402
from gpuscope.probe.hooks import Hooks  # noqa: E402
from gpuscope.probe.split import MAX_FAILURES, Parts, Split  # noqa: E402
from gpuscope.probe.steps import Steps  # noqa: E402
from tests.fakes.probe_client import PLACE_APART, Reader, sockets, trainer, wait_for  # noqa: E402

SLEEP = 0.01


def hooks_that_measure():
    """Return the probe's hooks for this process, their steps and their split of every step."""
    steps, split = Steps(), Split()

    def on_step(optimizer):
        before = steps.total
        steps.stepped(optimizer, time.perf_counter())
        split.optimizer_ended(optimizer, steps.total != before, steps.total, 10.0, True)

    return Hooks(steps, on_step, lambda: None, split), steps, split


@pytest.fixture
def measured():
    """(split, steps) with the hooks in place."""
    hooks, steps, split = hooks_that_measure()
    assert hooks.install()
    yield split, steps
    hooks.remove()


class SlowData(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(SLEEP)
        return torch.ones(4)


class SlowOptimizer(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        time.sleep(SLEEP)
        return super().step(closure)


class SlowModel(torch.nn.Linear):
    def forward(self, x):
        time.sleep(SLEEP)
        return super().forward(x)


def adds_up(split):
    assert split.recent
    for parts in split.recent:
        assert min(parts) >= 0
        assert parts.input + parts.compute + parts.optimizer + parts.other == pytest.approx(
            parts.total
        )
    means = split.means()
    assert sum(means[:4]) == pytest.approx(means.total)


def test_every_part_is_where_the_time_was_spent(measured):
    split, steps = measured
    model = SlowModel(4, 4)
    optimizer = SlowOptimizer(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(SlowData(), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(SLEEP)  # logging and the like
    adds_up(split)
    assert len(split.recent) == 11, "from the end of the first step on, each"
    for parts in split.recent:
        assert parts.input >= 2 * SLEEP
        assert parts.compute >= SLEEP
        assert parts.optimizer >= SLEEP
        assert parts.other >= SLEEP
    # the same spans, seen as whole steps
    assert sum(parts.total for parts in split.recent) == pytest.approx(
        sum(steps.durations), rel=0.02
    )


def test_accumulation_has_several_batches_in_a_step(measured):
    split, steps = measured
    model = SlowModel(4, 4)
    optimizer = SlowOptimizer(model.parameters(), lr=0.1)
    for number, batch in enumerate(torch.utils.data.DataLoader(SlowData(), batch_size=2), 1):
        model(batch).sum().backward()
        if number % 4 == 0:
            optimizer.step()
    adds_up(split)
    assert (steps.total, len(split.recent)) == (3, 2)
    for parts in split.recent:
        assert parts.input >= 8 * SLEEP
        assert parts.compute >= 4 * SLEEP
        assert SLEEP <= parts.optimizer < parts.input


def test_two_optimizers_are_added_and_computing_between_them_is_compute(measured):
    split, _ = measured
    first, second = SlowModel(4, 4), SlowModel(4, 4)
    one, two = SlowOptimizer(first.parameters(), lr=0.1), SlowOptimizer(second.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(SlowData(), batch_size=4):
        first(batch).sum().backward()
        one.step()
        second(batch).sum().backward()
        two.step()
    adds_up(split)
    assert split.recent
    for parts in split.recent:
        assert parts.optimizer >= 2 * SLEEP
        assert parts.compute >= 2 * SLEEP


def test_without_a_loader_everything_else_is_compute(measured):
    split, _ = measured
    model = SlowModel(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    adds_up(split)
    for parts in split.recent:
        assert (parts.input, parts.other) == (0.0, 0.0)
        assert parts.compute >= SLEEP


def test_the_end_of_an_epoch_and_an_error_in_the_dataset_leave_no_open_batch(measured):
    split, _ = measured
    model = SlowModel(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Broken(SlowData):
        def __getitem__(self, index):
            raise KeyError(index)

    for _ in range(3):
        for batch in torch.utils.data.DataLoader(SlowData(), batch_size=12):
            model(batch).sum().backward()
            optimizer.step()
        with pytest.raises(KeyError):
            next(iter(torch.utils.data.DataLoader(Broken())))
    adds_up(split)
    for parts in split.recent:
        assert 12 * SLEEP <= parts.input < parts.total - SLEEP


def test_a_loader_inside_a_loader_counts_once(measured):
    split, _ = measured
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Outer(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.utils.data.DataLoader(SlowData(), batch_size=2))

    for batch in torch.utils.data.DataLoader(Outer(), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
    adds_up(split)
    assert all(parts.input >= 4 * SLEEP for parts in split.recent)


def test_a_loader_of_another_thread_is_not_the_trainings(measured):
    split, _ = measured
    model = SlowModel(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    thread = threading.Thread(
        target=lambda: list(torch.utils.data.DataLoader(SlowData(), batch_size=2))
    )
    optimizer.step()
    thread.start()
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    thread.join()
    assert split.recent
    assert all(parts.input == 0 for parts in split.recent)


def test_a_closure_is_no_part_of_its_optimizers_time(measured):
    """LBFGS calls it several times in one step."""
    split, _ = measured
    model, calls = SlowModel(4, 1), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 4)).pow(2).sum()
        loss.backward()
        calls.append(1)
        return loss

    for _ in range(3):
        optimizer.step(closure)
    adds_up(split)
    assert len(calls) >= 9
    assert all(parts.compute >= 3 * SLEEP for parts in split.recent)
    assert min(parts.optimizer for parts in split.recent) < SLEEP


def test_what_a_closure_loads_is_input_and_the_optimizer_keeps_its_own_time(measured):
    split, _ = measured
    model = SlowModel(4, 1)
    optimizer = SlowOptimizer(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(SlowData(), batch_size=2))

    def closure(factor=1.0):
        (model(next(batches)).sum() * factor).backward()

    for _ in range(4):
        optimizer.step(closure=closure)
    adds_up(split)
    for parts in split.recent:
        assert parts.input >= 2 * SLEEP
        assert parts.compute >= SLEEP
        assert SLEEP <= parts.optimizer < parts.total - 2.9 * SLEEP


def test_an_error_in_a_closure_is_the_users_own_and_ends_its_time(measured):
    split, _ = measured
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.step()

    def failing():
        raise StopIteration("of the user's own")

    try:
        optimizer.step(failing)
    except StopIteration as error:
        frames = traceback.extract_tb(error.__traceback__)
    assert [
        frame.filename for frame in frames if "gpuscope" + os.sep + "probe" in frame.filename
    ] == []
    assert frames[-1].name == "failing"
    assert split.open.calls == {}


class Around(torch.optim.Optimizer):
    """Steps another optimizer, as Lookahead, SAM and ZeroRedundancyOptimizer do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        time.sleep(SLEEP)
        self.inner.step(closure)
        time.sleep(SLEEP)


@pytest.mark.parametrize("closure", [False, True])
def test_an_optimizer_that_steps_another_one_is_taken_apart(measured, closure):
    split, steps = measured
    model = SlowModel(4, 1)
    optimizer = Around(SlowOptimizer(model.parameters(), lr=0.1))

    def forward_backward():
        model(torch.ones(4, 4)).sum().backward()

    for _ in range(4):
        if closure:
            optimizer.step(forward_backward)
        else:
            forward_backward()
            optimizer.step()
    adds_up(split)
    assert steps.total == 4
    assert len(split.recent) == 3
    for parts in split.recent:
        assert parts.optimizer >= 3 * SLEEP
        assert parts.compute >= SLEEP


def test_a_step_with_an_evaluation_in_it_is_left_out():
    model, data = torch.nn.Linear(4, 1), SlowData()
    split = Split(lambda: "train" if model.training else "eval")
    number = itertools.count(5)
    hooks = Hooks(
        Steps(),
        lambda o: split.optimizer_ended(o, True, next(number), 10.0, True),
        lambda: None,
        split,
    )
    assert hooks.install()
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
        model.eval()
        for _ in torch.utils.data.DataLoader(data, batch_size=4):
            pass
        model.train()
        optimizer.step()
        assert split.means() is None
        assert "evaluation" in split.spoiled
        optimizer.step()
        optimizer.step()
        assert split.means().input == 0
    finally:
        hooks.remove()


def test_few_of_many_fast_steps_are_measured_and_nobody_looking_makes_them_fewer():
    def share(wanted):
        split, optimizer = Split(), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        opened = 0
        for total in range(1, 20001):
            split.optimizer_begins(optimizer)
            split.optimizer_ended(optimizer, True, total, 0.01, wanted)
            opened += split.open is not None
        return opened

    assert 250 <= share(True) <= 600, "a step of 10 ms: one in 50, two a second"
    assert 8 <= share(False) <= 40, "one in 1000"


def test_picking_begins_anew_when_somebody_looks():
    split, optimizer = Split(), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    split.optimizer_ended(optimizer, True, 1, 1e-6, False)
    for total in range(2, 10):
        split.optimizer_begins(optimizer)
        split.optimizer_ended(optimizer, True, total, 0.5, True)
    assert len(split.recent) >= 4


def test_a_client_sees_the_parts_the_phase_and_when_it_changes():
    code = f"""{PLACE_APART}
import sys, time, torch, gpuscope
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, index): time.sleep(0.005); return torch.ones(8)
def main():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    gpuscope.watch()
    for number, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4)):
        model(batch).sum().backward()
        optimizer.step()
        if number % 40 == 39:
            model.eval()
            while sys._gpuscope_probe.sampler._phase != "eval": time.sleep(0.01)
            model.train()
main()
"""
    with trainer(code, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0], 30.0)
        names = (
            "input_seconds",
            "compute_seconds",
            "optimizer_seconds",
            "communication_seconds",
            "other_seconds",
        )
        reader.until(lambda: all(reader.value(name) is not None for name in names), 60)
        assert reader.value("input_seconds") >= 0.02
        assert reader.value("communication_seconds") == 0.0
        assert 0.02 <= reader.value("loader_wait_seconds") <= reader.value("step_seconds_mean")
        reader.until(lambda: reader.value("phase") == "train", 60)
        told = {"phase": "eval"}
        reader.until(
            lambda: any(getattr(f, "e", "") == "phase" and f.data == told for f in reader.frames),
            60,
        )
        assert reader.reasons[1, "h2d_seconds"][0] == "not_supported"
        assert "hour" in reader.reasons[1, "step_seconds_hour_ago"][1]
        reader.close()


# ── a device that is played ───────────────────────────────────────────────────────────────────────


class Device:
    """A device that runs its stream on a clock of its own.

    Nothing may wait for it, or ask an event that it has not passed.
    """

    def __init__(self):
        self.time, self.queue, self.passed = 0.0, 0.0, 0.0
        self.capturing = False
        self.events = 0

    def torch(self):
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                device.events += 1

            def record(self, stream):
                assert not device.capturing
                assert stream == "stream of 3"
                self.at = max(device.queue, device.time)

            def query(self):
                assert not device.capturing
                return self.at <= device.passed

            def elapsed_time(self, other):
                assert self.at <= device.passed
                assert other.at <= device.passed
                return (other.at - self.at) * 1e3

        return SimpleNamespace(
            cuda=SimpleNamespace(
                Event=Event, current_stream=lambda ordinal: f"stream of {ordinal}"
            ),
            _C=SimpleNamespace(_cuda_isCurrentStreamCapturing=lambda: device.capturing),
        )

    def launch(self, seconds):
        self.queue = max(self.queue, self.time) + seconds


class Parameter:
    is_cuda = True
    device = SimpleNamespace(index=3)


@pytest.fixture
def device(monkeypatch):
    played = Device()
    monkeypatch.setitem(marks.sys.modules, "torch", played.torch())
    return played


class Optimizer:
    param_groups = [{"params": [Parameter()]}]  # noqa: RUF012


def play(device, split, count, load=0.0, compute=0.01, update=0.002, lag=1.0):
    """``count`` steps: the CPU waits ``load`` for a batch and launches the rest.

    ``lag`` s the device is behind in being asked.
    """
    optimizer = Optimizer()
    for total in range(1, count + 1):
        begun = split.load_begins() if split.open else None
        device.time += load
        if begun:
            split.load_ended(begun)
        device.launch(compute)
        if split.open:
            split.optimizer_begins(optimizer)
        device.launch(update)
        device.passed = device.time - lag
        split.optimizer_ended(optimizer, True, total, 10.0, True)
        device.time += 0.001


def test_on_a_device_input_is_the_time_it_had_nothing_to_do(device):
    fast, slow = Split(), Split()
    # the loader is quicker than the device: never waited for
    play(device, fast, 200, load=0.004, lag=0.0)
    means = fast.means()
    assert means.input == pytest.approx(0.0, abs=1e-9)
    assert means.compute == pytest.approx(0.01)
    assert means.optimizer == pytest.approx(0.002)
    device.time = max(device.time, device.queue)
    play(device, slow, 200, load=0.030, lag=0.0)  # 12 ms of work, 31 ms until the next
    means = slow.means()
    assert means.input == pytest.approx(0.030 - 0.012 + 0.001, abs=2e-3)
    assert means.total == pytest.approx(0.031)
    assert slow.ordinal == 3
    adds_up(slow)


def test_nothing_is_asked_before_the_device_has_passed_it_and_events_are_used_again(device):
    split = Split()
    play(device, split, 60, lag=1000.0)
    assert not split.recent
    assert device.events <= (split_module.MAX_PENDING + 1) * 6
    before = device.events
    device.passed = device.time
    play(device, split, 60, lag=0.0)
    assert split.recent
    assert device.events <= before + 6
    adds_up(split)


def test_a_step_that_is_captured_into_a_graph_is_left_alone(device):
    split = Split()
    play(device, split, 3, lag=0.0)
    device.capturing = True
    play(device, split, 20, lag=0.0)
    count = len(split.recent)
    device.capturing = False
    play(device, split, 20, lag=0.0)
    assert len(split.recent) > count
    assert not split.problem


def test_a_device_that_fails_is_not_asked_for_ever(device, monkeypatch):
    split = Split()

    def fail(ordinal):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(marks.sys.modules["torch"].cuda, "current_stream", fail)
    play(device, split, MAX_FAILURES + 20, lag=0.0)
    assert "RuntimeError" in split.problem
    assert split.open is None
    assert split.means() is None


def test_parts_of_marks_by_hand():
    clock = marks.Moments()
    load, update = 0, 1
    spans = [
        (1, 2, load, 1.0, 3.0),
        (3, 6, update, 5.0, 6.0),
        (4, 5, update, 5.2, 5.4),
        (7, 8, load, 7.0, 8.0),
    ]
    spans.append((9, 10, update, 10.0, 11.0))
    assert split_module.parts(clock, 0.0, spans, 11.0) == Parts(
        input=3.0, compute=4.0, optimizer=2.0, other=2.0, total=11.0
    )
    closure = 2
    spans = [
        (1, 8, update, 1.0, 8.0),
        (2, 5, closure, 1.5, 5.5),
        (3, 4, load, 2.0, 3.0),
        (6, 7, closure, 6.0, 7.5),
    ]
    assert split_module.parts(clock, 0.0, spans, 8.0) == Parts(
        input=1.0, compute=5.5, optimizer=1.5, other=0.0, total=8.0
    )
