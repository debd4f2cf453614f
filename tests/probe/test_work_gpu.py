"""Steps of real CUDA trainings are counted. Run with ``pytest -m gpu tests/probe``."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest

from gpuscope.model.card_peaks import card_named
from gpuscope.model.useful_work import UsefulWork, read
from gpuscope.wire.frames import Error, Result
from tests.fakes.asking import KEYBOARD, ask, tell
from tests.fakes.probe_client import PLACE_APART, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

GPT = """
import json, sys, time, torch
from tests.fakes.flop_models import Words
torch.manual_seed(0)
model = Words(causal=True, width=WIDTH, layers=LAYERS, again=AGAIN).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ids = torch.randint(0, 211, (BATCH, 1024), device="cuda")
losses = []
modes = []
def step():
    modes.append(torch._C._len_torch_dispatch_stack())
    with torch.autocast("cuda", torch.bfloat16):
        out = model(ids)
    loss = torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
def train(seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step().item()
"""
COUNT = """
import threading
def of_torch():
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()
print(of_torch(), flush=True)
"""
WATCHED = PLACE_APART + "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"


def gpt(width=1024, layers=8, batch=8, again=False):
    sizes = {"WIDTH": width, "LAYERS": layers, "BATCH": batch, "AGAIN": again}
    return "".join(f"{name} = {value}\n" for name, value in sizes.items()) + GPT


def connect(process):
    wait_for(lambda: sockets(process.pid) or process.poll() is not None, 120, "a socket")
    assert process.poll() is None, process.communicate()[1][-3000:]
    made = Reader(sockets(process.pid)[0], 60.0)
    made.until(lambda: (made.value("step") or 0) > 20, 120)
    return made


def counted(reader, number=1) -> tuple[UsefulWork, dict]:
    answer, _, _ = ask(reader, "work", {}, 60.0, number)
    assert isinstance(answer, Result), answer
    card = card_named(torch.cuda.get_device_name(0))
    found = read(answer.value, card, "" if card is not None else "no such card")
    assert found is not None
    return found, answer.value


@pytest.fixture(scope="module")
def trainings():
    """Plain and checkpointed, started together: importing torch takes most of their time."""
    with ExitStack() as stack:
        yield {
            again: stack.enter_context(trainer(gpt(again=again) + COUNT + WATCHED + "train()"))
            for again in (False, True)
        }


@pytest.mark.parametrize("again", [False, True], ids=["plain", "checkpointed"])
def test_the_flops_are_torchs_own_and_the_utilization_is_possible(again, trainings):
    process = trainings[again]
    assert process.stdout is not None
    expected = int(process.stdout.readline())
    reader = connect(process)
    work, value = counted(reader)
    reader.until(lambda: reader.value("step") > value["first_step"] + 10, 60)
    step = reader.value("step_seconds")
    reader.close()
    floor, mfu = work.floor_seconds, work.mfu(step)
    figures = {
        "card": work.card.id if work.card is not None else torch.cuda.get_device_name(0),
        "operators": work.operators,
        "step_seconds": step,
        "floor_seconds": floor,
        "mfu": mfu,
        "hfu": work.hfu(step),
        "hardware_flops": work.hardware_flops,
        "flops_of_torch": expected,
        "model_flops": work.model_flops,
        "recomputed_flops": work.recomputed_flops,
        "counted_seconds": value["seconds"],
        "usual_seconds": value["usual_seconds"],
        "lost_seconds": value["lost_seconds"],
        "rows": [[row.words, row.count, row.floor_seconds] for row in work.rows],
    }
    print(json.dumps(figures, indent=1))
    assert work.complete, work.unknown
    assert work.hardware_flops == pytest.approx(expected, rel=0.03)
    assert work.type == "bf16"
    assert (work.recomputed_flops > 0.15 * work.hardware_flops) == again
    if work.card is None:
        pytest.skip(f"the table has no {torch.cuda.get_device_name(0)}")
    assert mfu is not None
    assert 0 < mfu < 1  # others may train on the same card
    assert floor is not None
    assert floor < step


def test_counting_a_short_step_ten_times_costs_little_and_leaves_no_mode():
    script = gpt(256, 4, 2) + WATCHED + KEYBOARD + "train()"
    with trainer(script) as process:
        reader = connect(process)
        first, _ = counted(reader)
        lost = []
        for number in range(2, 12):
            work, value = counted(reader, number)
            assert work.hardware_flops == first.hardware_flops
            lost.append((value["seconds"], value["usual_seconds"], value["lost_seconds"]))
        print(json.dumps(lost, indent=1))
        time.sleep(0.5)  # and a few steps more
        (modes,) = tell(process, "print(modes[-1], sum(modes))")
        last, under = map(int, modes.split())
        assert last == 0
        assert 11 <= under <= 22  # a step that took long for another reason is counted again
        reader.close()
    per_operator = min(seconds - usual for seconds, usual, _ in lost) / first.operators
    assert per_operator < 200e-6, lost


def test_losses_are_the_same_to_the_bit_and_the_outputs_empty():
    script = (
        gpt(256, 4, 2)
        + WATCHED
        + """
torch.use_deterministic_algorithms(True, warn_only=True)
for kind in ("flash", "mem_efficient", "cudnn"):  # whose backward passes add in any order
    getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
for number in range(1500):
    losses.append(step())
    if number % 50 == 0: torch.cuda.synchronize()
print(json.dumps([float(loss).hex() for loss in losses]))
sys.stdout.flush()
"""
    )
    with ExitStack() as stack:  # all at the same time: importing torch takes most of it
        processes = [
            stack.enter_context(trainer(script, CUBLAS_WORKSPACE_CONFIG=":4096:8"))
            for _ in range(3)
        ]
        reader, taken = connect(processes[1]), 0
        for number in range(1, 7):
            answer, _, _ = ask(reader, "work", {}, 30.0, number)
            taken += isinstance(answer, Result)
            if isinstance(answer, Error):
                break
        written = [process.communicate(timeout=120) for process in processes]
        reader.close()
    assert taken >= 3
    found = []
    for out, errors in written:
        assert errors == "" or "deterministic" in errors
        assert len(out.splitlines()) == 1, out[:2000]
        found.append(json.loads(out))
    assert found[0] == found[2], "this training does not repeat itself"
    assert found[0] == found[1]


def test_a_training_that_replays_a_cuda_graph_is_refused():
    code = """
static = torch.randn(64, 64, device="cuda")
static @ static  # cuBLAS cannot begin in a graph
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    held = static @ static
"""
    with trainer(gpt(256, 4, 2) + code + WATCHED + "train()") as process:
        reader = connect(process)
        answer, _, _ = ask(reader, "work", {}, 30.0)
        reader.close()
    assert isinstance(answer, Error), answer
    assert "CUDA graphs" in answer.reason
