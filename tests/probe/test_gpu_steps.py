"""Steps, segments and modules of real CUDA trainings. Run with ``pytest -m gpu tests/probe``."""

from __future__ import annotations

import json

import pytest

from tests.fakes.probe_client import PLACE_APART, trainer

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

TRAINING = """
import json, sys, time, torch
import gpuscope
from gpuscope.probe.core import GUARD
torch.manual_seed(0)
width = 2048
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

class Data(torch.utils.data.Dataset):
    delay = 0.0
    def __len__(self): return 100000
    def __getitem__(self, index):
        time.sleep(self.delay)
        return torch.ones(width)

def train(steps, delay, batch=256, sync=False):
    data = Data(); data.delay = delay
    rows = torch.utils.data.DataLoader(data, batch_size=4)
    spans, last = [], None
    for number, small in enumerate(rows):
        x = small.cuda(non_blocking=True).repeat(batch // 4, 1)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if sync: torch.cuda.synchronize()
        now = time.perf_counter()
        if last is not None: spans.append(now - last)
        last = now
        if number >= steps: break
    return spans

def look():
    probe = getattr(sys, GUARD)  # with somebody looking, for good
    type(probe.ledger).wanted = property(lambda self: True, lambda self, value: None)
    return probe

def means(): return look().gauges.split.means()
"""
"""``width`` and the batch are such that the device has a few milliseconds of work in a step."""


def run(code, **env):
    """The JSON objects that the training prints."""
    with trainer(PLACE_APART + TRAINING + code, **env) as process:
        out, errors = process.communicate(timeout=180)
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert found, errors
    return found


def test_the_parts_add_up_to_the_step_and_a_slow_loader_is_seen():
    (found,) = run(
        """
gpuscope.watch()
look()
from gpuscope.probe import split
split.WATCHED_SECONDS = 1e-6  # each step, so that both sides are means over the same steps
out = {}
for name, delay in (("fast", 0.0), ("slow", 0.01)):
    train(20, delay)
    look().gauges.split.recent.clear()
    spans = train(60, delay, sync=True)
    out[name] = {"parts": list(means()), "measured": len(look().gauges.split.recent), "wall": sum(spans[-32:]) / 32}
out["ordinal"] = look().gauges.split.ordinal
out["problem"] = look().gauges.split.problem
out["wait"] = 4 * 0.01
values = look().sampler._trainer()
out["columns"] = {k: v for k, v in values.items() if isinstance(v, float)}
print(json.dumps(out), flush=True)
"""  # noqa: E501
    )
    assert found["ordinal"] == 0
    assert not found["problem"]
    for name in ("fast", "slow"):
        given, compute, optimizer, other, total = found[name]["parts"]
        assert found[name]["measured"] == 32
        assert given + compute + optimizer + other == pytest.approx(total, rel=1e-6)
        assert total == pytest.approx(found[name]["wall"], rel=0.05)
        assert min(given, compute, optimizer, other) >= 0
        assert compute > 0
        assert optimizer > 0
    assert found["slow"]["parts"][0] >= 0.9 * found["wait"], "the device waits for the loader"
    assert found["fast"]["parts"][0] < 0.5 * found["wait"]
    assert found["columns"]["communication_seconds"] == 0.0


def test_the_hooks_return_while_the_device_is_busy():
    """A kernel that runs for a second is under way: nothing we do in a step may wait for it."""
    (found,) = run(
        """
gpuscope.watch()
look()
from gpuscope.probe import split
split.WATCHED_SECONDS = 1e-6
train(20, 0.0)
torch.cuda.synchronize()
probe = look()
for group in optimizer.param_groups:
    for p in group["params"]: p.grad = torch.zeros_like(p)
torch.cuda.synchronize()
done = torch.cuda.Event()
cycles = int(2e9)
torch.cuda._sleep(cycles)
done.record()
begin = time.perf_counter()
still = []
for _ in range(5):
    optimizer.step()
    still.append(not done.query())
spent = time.perf_counter() - begin
pending = len(probe.gauges.split._pending)
torch.cuda.synchronize()
total = time.perf_counter() - begin
for _ in range(3): optimizer.step(); torch.cuda.synchronize()
problem = probe.gauges.split.problem
print(json.dumps({"still": still, "spent": spent, "total": total, "pending": pending, "problem": problem}), flush=True)
"""  # noqa: E501
    )
    assert found["still"] == [True] * 5, (
        "the sleeping kernel had not ended when the last hook had returned"
    )
    assert found["spent"] < found["total"] / 2
    assert found["pending"] >= 1
    assert not found["problem"]


def test_peaks_are_untouched_and_memory_is_read_at_a_fixed_point():
    (found,) = run(
        """
gpuscope.watch()
probe = look()
train(50, 0.001)
time.sleep(1.1)
optimizer.step()
torch.cuda.synchronize()
stats = torch.cuda.memory_stats(0)
before = torch.cuda.max_memory_allocated(0), torch.cuda.max_memory_reserved(0), stats["num_alloc_retries"]
big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); del big
peak = torch.cuda.max_memory_allocated(0)
at = torch.cuda.memory_allocated(0)
time.sleep(1.1)
optimizer.step()
values = probe.gauges.memory.of(0)
train(30, 0.001)
kept = torch.cuda.max_memory_allocated(0) >= peak >= 1 << 30
contexts = [torch._C._cuda_hasPrimaryContext(ordinal) for ordinal in range(torch.cuda.device_count())]
total = probe.steps.total
print(json.dumps({"kept": kept, "at": at, "values": values, "total": total, "contexts": contexts}), flush=True)
"""  # noqa: E501
    )
    assert found["kept"]
    assert found["values"]["step_allocated_bytes"] == found["at"]
    assert found["values"]["step_allocated_step"] == found["total"] - 31
    assert found["contexts"] == [True] + [False] * (len(found["contexts"]) - 1)


def test_the_walk_over_the_segments_says_what_torchs_own_snapshot_says():
    (found,) = run(
        """
gpuscope.watch()
probe = look()
train(10, 0.0)
static = torch.ones(256, width, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3): model(static)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    out = model(static)
torch.cuda.synchronize()
segments = probe.gauges.segments
for attempt in range(50):
    segments._next = 0.0
    probe.gauges.tick(True)
    optimizer.step()
    torch.cuda.synchronize()
    probe.gauges.tick(True)
    mine = segments.of(0)
    if attempt >= 3 and all(isinstance(v, int) for v in mine.values()): break  # what was there in three walks
    time.sleep(0.1)
truth = torch.cuda.memory_snapshot()
pools = [s for s in truth if tuple(s["segment_pool_id"]) != (0, 0)]
idle = sum(s["total_size"] - s["active_size"] for s in pools)
split = sum(s["total_size"] - s["active_size"] for s in pools if s["active_size"])
reserved = torch.cuda.memory_reserved(0)
before = torch.cuda.memory_allocated(0)
torch._C._cuda_clearCublasWorkspaces()
freed = before - torch.cuda.memory_allocated(0)
stats = torch._C._cuda_memoryStats(0)
print(json.dumps({
    "mine": {k: v if isinstance(v, int) else v.text for k, v in mine.items()},
    "pools": sum(s["total_size"] for s in pools), "idle": idle, "split": split,
    "sum": sum(s["total_size"] for s in truth), "reserved": reserved, "freed": freed, "seconds": segments.seconds,
    "sizes": segments.sizes(0), "split_of_torch": stats["inactive_split_bytes"]["all"]["current"],
}), flush=True)
"""  # noqa: E501
    )
    assert found["pools"] > 0
    assert found["sum"] == found["reserved"]
    mine = found["mine"]
    assert mine["private_pool_bytes"] == found["pools"]
    assert mine["private_pool_idle_bytes"] == found["idle"]
    assert mine["private_pool_inactive_split_bytes"] == found["split"]
    assert found["seconds"] < 0.1
    # Clearing frees the workspaces of all handles and streams, those in a graph's pool as soon as
    # that pool may free.
    assert mine["workspace_bytes"] > 0
    assert 0.7 * found["freed"] <= mine["workspace_bytes"] <= 1.3 * found["freed"], found


def test_a_training_that_is_captured_into_a_graph_goes_on_as_without_us():
    (found,) = run(
        """
gpuscope.watch()
look()
from gpuscope.probe import split
split.WATCHED_SECONDS = 1e-6
capturable = torch.optim.AdamW(model.parameters(), lr=1e-6, capturable=True)
static = torch.ones(64, width, device="cuda")
def step():
    capturable.zero_grad(set_to_none=True)
    loss = model(static).square().mean()
    loss.backward()
    capturable.step()
    return loss
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(5): step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
first = None
for _ in range(20):
    graph.replay()
    first = first if first is not None else loss.item()
print(json.dumps({"first": first, "last": loss.item(), "problem": look().gauges.split.problem}), flush=True)
"""  # noqa: E501
    )
    assert found["last"] < found["first"]
    assert not found["problem"]


def test_modules_of_a_cuda_model_and_the_model_is_found():
    (found,) = run(
        """
gpuscope.watch()
probe = look()
train(100, 0.0)
tree = probe.gauges.tree
tree.request()
result = None
for _ in range(200):
    train(2, 0.0)
    look()
    result = tree.poll()
    if result is not None: break
truth = [sum(t.untyped_storage().nbytes() for t in tensors) for tensors in (
    list(model.parameters()), [p.grad for p in model.parameters()],
    [v for s in optimizer.state.values() for v in s.values()])]
print(json.dumps({"result": result, "truth": truth}), flush=True)
"""
    )
    result = found["result"]
    assert result["source"] == "found in the training loop"
    assert [row[1] for row in result["rows"]] == ["model", *"012345"]
    assert result["rows"][0][3:] == found["truth"]


def test_an_inference_server_has_memory_and_reasons_without_any_step():
    (found,) = run(
        """
gpuscope.watch()
probe = look()
with torch.no_grad(): model(torch.ones(4, width, device="cuda"))
torch.cuda.synchronize()
from gpuscope.wire.frames import ALLOCATOR_COLUMNS
for _ in range(200):  # workspaces are told from temporaries by a second walk, some seconds after the first
    sample, reasons = probe.sampler.tick()
    row = dict(zip(ALLOCATOR_COLUMNS, sample.a[0][1:]))
    if row["workspace_bytes"] is not None: break
    time.sleep(0.05)
print(json.dumps({"row": row, "why": {c: t for (e, c), (_, t) in reasons.items() if e == sample.a[0][0]},
                  "allocated": torch.cuda.memory_allocated(0)}), flush=True)
"""  # noqa: E501
    )
    assert found["row"]["allocated_bytes"] == found["allocated"]
    assert "watch(model)" in found["why"]["parameter_bytes"]
    assert isinstance(found["row"]["workspace_bytes"], int)
    assert found["row"]["private_pool_idle_bytes"] == 0
