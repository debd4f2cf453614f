"""Looks at real CUDA trainings. Run with ``pytest -m gpu tests/probe``."""

from __future__ import annotations

import json
import time

import pytest

from gpuscope.model.look import read
from gpuscope.wire.frames import Error, Result
from tests.fakes.asking import KEYBOARD, ask, tell
from tests.fakes.probe_client import PLACE_APART, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

TRAINING = """
import json, os, sys, threading, time, torch
torch.manual_seed(0)
width, device = 1024, "cuda:0"
blocks = [torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, width),
                              torch.nn.GELU()) for _ in range(8)]
model = torch.nn.Sequential(*blocks, torch.nn.Linear(width, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(512, width, device=device)
y = torch.randint(0, 512, (512,), device=device)
losses = []
ahead = True
def before(): pass
def after(loss): pass
def step():
    before()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    after(loss)
    return loss
def train(seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
"""
WATCHED = PLACE_APART + "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"


def connect(process):
    wait_for(lambda: sockets(process.pid) or process.poll() is not None, 120, "a socket")
    assert process.poll() is None, process.communicate()[1][-3000:]
    made = Reader(sockets(process.pid)[0], 60.0)
    made.until(lambda: (made.value("step") or 0) > 30, 120)
    return made


def look(reader, number=1, **args):
    answer, _, _ = ask(reader, "look", args, 60.0, number)
    assert isinstance(answer, Result), answer
    return answer.value


def rows(value):
    found = read(value)
    assert found is not None
    shares = {row.name: row.share for row in found.rows}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    assert shares.get("unattributed", 0.0) < 0.02, shares
    return shares


@pytest.fixture(scope="module")
def training():
    with trainer(TRAINING + WATCHED + KEYBOARD + "train()") as process:
        yield process


@pytest.fixture
def reader(training):
    made = connect(training)
    yield made
    made.close()


def test_rows_add_up_and_most_kernels_are_known(reader):
    value = look(reader)
    shares = rows(value)
    print(json.dumps(value, indent=1))
    assert value["steps"] >= 3
    assert value["seconds"] >= 0.02
    assert shares["products-plain"] + shares.get("products-tf32", 0.0) > 0.02, shares
    assert shares.get("other", 0.0) < 0.05, value["kernels"]
    # This GPU waits for the host, whose launches the trace makes slower; that is not told.
    usual = reader.value("step_seconds")
    told = read(value)
    assert told.step_seconds == pytest.approx(usual, rel=0.5), (usual, value["usual_seconds"])
    assert 0.7 * usual < value["seconds"] / value["steps"] < 4 * usual


def test_what_it_costs_is_told(reader):
    look(reader)
    costs = []
    for number in range(2, 8):
        value = look(reader, number)
        costs.append({key: value[key] for key in value if key.endswith("_seconds")})
    print(json.dumps(costs, indent=1))
    assert all(0 < cost["start_seconds"] < 0.5 for cost in costs), costs
    assert all(0 < cost["stop_seconds"] < 0.5 for cost in costs), costs
    assert all(cost["lost_seconds"] is None or cost["lost_seconds"] < 1.0 for cost in costs), costs


def test_twenty_looks_leave_no_thread_and_no_descriptor(training, reader):
    count = "print([len(os.listdir('/proc/self/' + name)) for name in ('task', 'fd')])"
    look(reader)
    time.sleep(0.2)  # the thread of the request ends
    before = tell(training, count)
    for number in range(2, 22):
        look(reader, number)
    time.sleep(0.2)
    assert tell(training, count) == before
    assert tell(training, "print(torch.autograd._profiler_enabled())") == ["False"]


def test_workers_that_start_beside_looks_live():
    """They are forked from a process in which CUPTI works, and in which a look may be running.

    No thread reads the standard input here: a worker closes it, for which it would wait forever.
    """
    code = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(40 * 64, width), torch.randint(0, 512, (40 * 64,)))
loader = DataLoader(data, 64, num_workers=2, pin_memory=True, multiprocessing_context="fork")
def train():
    while True:
        for inputs, targets in loader:
            x.copy_(inputs.repeat(8, 1), non_blocking=True)
            step()
"""
    with trainer(TRAINING + WATCHED + code + "train()", fork=True) as process:
        reader = connect(process)
        for number in range(1, 21):
            look(reader, number)
        seen = reader.value("step")
        reader.until(lambda: reader.value("step") > seen + 120, 120)
        assert process.poll() is None, process.communicate()[1][-3000:]
        reader.close()


def test_losses_are_the_same_to_the_bit_and_the_outputs_empty():
    script = (
        TRAINING
        + WATCHED
        + """
for number in range(5000):
    losses.append(step().detach())
    if number % 50 == 0: torch.cuda.synchronize()
print(json.dumps([float(loss).hex() for loss in losses]))
sys.stdout.flush()
"""
    )
    found = []
    for looks in (0, 6, 0):
        with trainer(script) as process:
            reader = connect(process)
            taken = 0
            for number in range(1, looks + 1):
                answer, _, _ = ask(reader, "look", {}, 30.0, number)
                taken += isinstance(answer, Result)
                if isinstance(answer, Error):
                    break
            out, errors = process.communicate(timeout=300)
            reader.close()
        assert taken >= looks // 2
        assert errors == ""
        assert len(out.splitlines()) == 1, out[:2000]
        found.append(json.loads(out))
    assert found[0] == found[2], "this training does not repeat itself"
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("code", "row", "least"),
    [
        ("def after(loss): loss.item()", "idle-sync", 0.0),
        ("def before(): time.sleep(0.02)", "idle-other", 0.3),
        (
            "rows = iter(torch.utils.data.DataLoader(range(10**12), batch_size=50000))\n"
            "def before(): next(rows)",
            "idle-input",
            0.05,
        ),
        ("import gc\ndef before(): gc.collect()", "idle-collection", 0.3),
        (
            "def after(loss):\n    torch.cuda.synchronize(); torch.cuda.empty_cache()",
            "idle-allocate",
            0.05,
        ),
        (
            "big = torch.randn(4096, 4096, device=device)\ndef after(loss): big.cpu()",
            "copies-out",
            0.05,
        ),
    ],
    ids=["read", "code", "input", "garbage", "allocates", "copies"],
)
def test_idle_time_has_its_cause(code, row, least):
    with trainer(TRAINING + WATCHED + code + "\ntrain(120)") as process:
        reader = connect(process)
        time.sleep(1.0)  # the ledger learns which functions are the training loop
        value = look(reader)
        reader.close()
    shares = rows(value)
    print(json.dumps(value["idle"]))
    assert shares.get(row, 0.0) > least, (shares, value["idle"], value["calls"])


def test_a_step_that_is_replayed_from_a_graph_has_its_kernels():
    code = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3): torch.nn.functional.cross_entropy(model(x), y).backward()
torch.cuda.synchronize()
optimizer.zero_grad(set_to_none=False)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.nn.functional.cross_entropy(model(x), y).backward()
def step():
    graph.replay()
    optimizer.step()
"""
    with trainer(TRAINING + WATCHED + code + "train(120)") as process:
        reader = connect(process)
        values = [look(reader, number) for number in range(1, 6)]
        assert process.poll() is None
        reader.close()
    shares = rows(values[-1])
    assert shares["products-plain"] + shares.get("products-tf32", 0.0) > 0.02, shares


def test_a_step_of_many_kernels_is_looked_at_alone():
    code = """
small = torch.zeros(8, device=device)
def before():
    for _ in range(3000): small.add_(1)
"""
    with trainer(TRAINING + WATCHED + code + "train(120)") as process:
        reader = connect(process)
        values = [look(reader, number) for number in (1, 2)]
        reader.close()
    for value in values:
        rows(value)
        assert value["steps"] == 1
        assert 6000 < value["events_a_step"] < 9000
        # the next step up to its backward pass is in the trace, and not all of it
        assert value["events"] < 2.2 * value["events_a_step"]


def test_a_profiler_that_runs_refuses_the_look():
    code = """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as own:
    train(8)
"""
    with trainer(TRAINING + WATCHED + code) as process:
        reader = connect(process)
        answer, _, _ = ask(reader, "look", {}, 30.0)
        assert isinstance(answer, Error), answer
        assert "another profiler runs" in answer.reason
        reader.close()
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_a_profiler_that_the_training_starts_meanwhile_has_its_own_events():
    code = """
def own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(5): step()
        torch.cuda.synchronize()
    return len(profiler.events())
counts, end = [], time.monotonic() + 15
while time.monotonic() < end:
    for _ in range(20): step()
    counts.append(own())
print(min(counts) > 50, flush=True)
"""
    with trainer(TRAINING + WATCHED + code) as process:
        reader = connect(process)
        for number in range(1, 20):
            ask(reader, "look", {}, 20.0, number)
            if process.poll() is not None:
                break
        reader.close()
        out, errors = process.communicate(timeout=120)
    assert (out, process.returncode) == ("True\n", 0), errors[-3000:]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_look_at_the_second_card_opens_no_context_on_the_first():
    moved = TRAINING.replace("cuda:0", "cuda:1")
    with trainer(moved + WATCHED + KEYBOARD + "train()") as process:
        reader = connect(process)
        context = "print([torch._C._cuda_hasPrimaryContext(n) for n in range(2)])"
        before = tell(process, context)
        rows(look(reader))
        assert tell(process, context) == before
        reader.close()
