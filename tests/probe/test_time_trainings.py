"""Real trainings of every shape: the ledger's rows are what the training measures itself.

Each sleeps for some milliseconds in its passes, its optimizer and its pauses, and adds up how long.
The sleeps are long beside the code between them: a look waits until the training thread gives the
interpreter away, so that it books what little of that code there is under the sleep that follows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from gpuscope.wire.frames import Request
from tests.fakes.probe_client import Reader, sockets, trainer, wait_for

LOOKS = 500
TOLERANCE = 0.08
"""Four standard deviations of a share of a half, found by as many looks."""

ROWS = ("forward", "backward", "optimizer", "validation", "checkpoint", "logging")

BEGIN = """
import json, sys, time
from gpuscope.probe import core
core.arm("watch")
import torch
torch.set_num_threads(1)
spent = {}

class booked:
    def __init__(self, row): self.row = row
    def __enter__(self): self.begin = time.perf_counter()
    def __exit__(self, *_):
        spent[self.row] = spent.get(self.row, 0.0) + time.perf_counter() - self.begin

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        with booked("backward"): time.sleep(0.018)
        return gradient

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
    def forward(self, x):
        with booked("forward"):
            time.sleep(0.024)
            return Slow.apply(self.layer(x))

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        with booked("closure"): loss = closure() if closure is not None else None
        with booked("optimizer"):
            time.sleep(0.009)
            super().step()
        return loss

def told():
    print(json.dumps([time.perf_counter(), spent]), flush=True)

x = torch.ones(4, 16)
model = Net()
optimizer = SlowSGD(model.parameters(), lr=1e-6)
def loss_of(x):
    return model(x).square().mean()
"""

TRAININGS = {
    "plain": """
while True:
    optimizer.zero_grad(); loss_of(x).backward(); optimizer.step(); told()
""",
    "closure": """
def closure():
    optimizer.zero_grad()
    loss = loss_of(x)
    loss.backward()
    return loss
while True:
    optimizer.step(closure); told()
""",
    "lbfgs": """
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-6, max_iter=3)
def closure():
    optimizer.zero_grad()
    loss = loss_of(x)
    loss.backward()
    return loss
while True:
    optimizer.step(closure); told()
""",
    "accumulation": """
while True:
    optimizer.zero_grad()
    for _ in range(4): loss_of(x).backward()
    optimizer.step(); told()
""",
    "several optimizers": """
judge = Net()
second = SlowSGD(judge.parameters(), lr=1e-6)
while True:
    second.zero_grad(); judge(model(x).detach()).square().mean().backward(); second.step()
    optimizer.zero_grad(); judge(model(x)).square().mean().backward(); optimizer.step(); told()
""",
    "pauses": """
import io, logging
class Handler(logging.Handler):
    def emit(self, record):
        with booked("logging"): time.sleep(0.012)
log = logging.getLogger("train"); log.addHandler(Handler()); log.setLevel(logging.INFO)
class Storage(io.BytesIO):
    def write(self, data):
        with booked("checkpoint"): time.sleep(0.006)
        return super().write(data)
def evaluate():
    model.eval()
    with torch.no_grad(), booked("validation"):
        for _ in range(3): model(x)
    model.train()
step = 0
while True:
    optimizer.zero_grad(); loss_of(x).backward(); optimizer.step(); step += 1
    log.info("step %d", step)
    if step % 4 == 0:
        before = spent["forward"]; evaluate(); spent["forward"] = before
    if step % 8 == 0: torch.save(model.state_dict(), Storage())
    told()
""",
    "phase": """
step = 0
while True:
    optimizer.zero_grad(); loss_of(x).backward(); optimizer.step(); step += 1
    if step % 2 == 0:
        model.eval()
        before = spent["forward"]
        with torch.no_grad(), booked("validation"): model(x)
        spent["forward"] = before
        model.train()
    told()
""",
}


@dataclass(frozen=True)
class Measured:
    """The seconds of each row as the ledger tells them, and the shares that the training knows."""

    seconds: dict[str, float]
    truth: dict[str, float]


def measure(name: str) -> Measured:
    """Run a training until it was looked at often enough."""
    with trainer(BEGIN + TRAININGS[name], fork=True) as child:
        assert child.stdout is not None
        wait_for(lambda: sockets(child.pid), 60, "a socket")
        (path,) = sockets(child.pid)
        reader = Reader(path)
        reader.answer(Request("time", 1, {"close_seconds": 5.0}))
        clock, first = json.loads(child.stdout.readline())
        looks, number, value = 0, 1, {}
        while looks < LOOKS:
            number += 1
            value = reader.answer(Request("time", number, {"close_seconds": 5.0})).value
            looks = sum(minute["looks"] for minute in value["minutes"])
            until = time.perf_counter() + 0.1
            while time.perf_counter() < until:
                last, spent = json.loads(child.stdout.readline())
        reader.close()
    seconds: dict[str, float] = {}
    for minute in value["minutes"]:
        for row, took, _ in minute["rows"]:
            seconds[row] = seconds.get(row, 0.0) + took
    truth = {row: (spent.get(row, 0.0) - first.get(row, 0.0)) / (last - clock) for row in ROWS}
    return Measured(seconds, truth)


@pytest.fixture(scope="module")
def measured() -> Iterator[dict[str, Future[Measured]]]:
    """All trainings at once, by name: they sleep most of the time, and a test of each waits."""
    with ThreadPoolExecutor(len(TRAININGS)) as pool:
        yield {name: pool.submit(measure, name) for name in TRAININGS}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_rows_are_what_the_training_measures(name, measured):
    found = measured[name].result()
    total = sum(found.seconds.values())
    for row, truth in found.truth.items():
        assert found.seconds.get(row, 0.0) / total == pytest.approx(truth, abs=TOLERANCE), (
            row,
            found,
        )
    assert found.seconds.get("unattributed", 0.0) <= 0.02 * total
