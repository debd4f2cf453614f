"""The bytes of each module are exact against all live tensors.

They are so whatever stands around the model.
"""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuscope.probe import modules  # noqa: E402
from gpuscope.probe.ledger import Ledger  # noqa: E402
from gpuscope.probe.modules import MAX_JSON_BYTES, MAX_ROWS, ModuleTree  # noqa: E402
from tests.fakes.forking import Forked  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


def walk(ledger, steps=True):
    tree = ModuleTree(ledger)
    tree.request()
    for _ in range(20000):
        if steps:
            tree.after_step()
        found = tree.poll()
        if found is not None:
            return found
    raise AssertionError("never ready")


def known(models=(), optimizers=(), watched=True):
    ledger = Ledger()
    for model in models:
        (ledger.add_model if watched else ledger.add_found)(model)
    for optimizer in optimizers:
        ledger.add_optimizer(optimizer)
    return ledger


def total(found):
    """Of the rows of depth 0."""
    return [sum(row[what] for row in found["rows"] if row[0] == 0) for what in (3, 4, 5)]


def live(before, models, optimizers):
    """What all tensors that were made since ``before`` hold, by kind, each storage once.

    Not by following the model: by going through all objects that Python knows.
    """
    parameters = set()
    for model in models:
        parameters |= {id(p) for p in model.parameters()}
    for optimizer in optimizers:
        parameters |= {id(p) for group in optimizer.param_groups for p in group["params"]}
    found = [
        o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and id(o) not in before
    ]
    kinds = ({}, {}, {})
    grads = {id(o.grad): o.grad for o in found if id(o) in parameters and o.grad is not None}
    for tensor in found:
        kind = 0 if id(tensor) in parameters else 1 if id(tensor) in grads else 2
        kinds[kind][tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    for tensor in grads.values():
        kinds[1][tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    return [sum(kind.values()) for kind in kinds]


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = (
            torch.nn.Linear(width, 2 * width),
            torch.nn.Linear(2 * width, width, bias=False),
        )

    def forward(self, x):
        return x + self.down(self.up(x))


class Tied(torch.nn.Module):
    """A model with a frozen input, a tied output and one block used twice.

    It also has a parameter of its own, and one without gradient.
    """

    def __init__(self, width=16):
        super().__init__()
        self.embed = torch.nn.Embedding(32, width)
        self.blocks = torch.nn.ModuleList([Block(width), Block(width)])
        self.blocks.append(self.blocks[0])
        self.head = torch.nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(7))
        self.unused = torch.nn.Parameter(torch.ones(9))

    def forward(self, index):
        x = self.frozen(self.embed(index))
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale.sum()


def train(model, optimizer):
    model(torch.arange(8)).sum().backward()
    optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "sgd momentum", "amsgrad"])
def test_exact_against_every_live_tensor(kind):
    gc.collect()
    before = {id(o) for o in gc.get_objects() if issubclass(type(o), torch.Tensor)}
    # their ids stay theirs
    keep = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    model = Tied()
    optimizer = {
        "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        "sgd momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "amsgrad": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    }[kind]([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer)
    gc.collect()
    found = walk(known([model], [optimizer]))
    assert total(found) == live(before, [model], [optimizer])
    assert found["source"] == "watch"
    assert found["complete"]
    assert keep is not None


def test_rows_of_a_tied_model():
    model = Tied()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer)
    rows = walk(known([model], [optimizer]))["rows"]
    names = [(row[0], row[1], row[2]) for row in rows]
    assert names == [
        (0, "model", "Tied"),
        (1, "embed", "Embedding"),
        (1, "blocks", "ModuleList"),
        (2, "0", "Block"),
        (3, "up", "Linear"),
        (3, "down", "Linear"),
        (2, "1", "Block"),
        (3, "up", "Linear"),
        (3, "down", "Linear"),
        (1, "head", "Linear"),
        (1, "frozen", "Linear"),
    ], "a module that is used twice is where it came first"
    by_name = {(row[0], row[1]): row[3:] for row in rows}
    embed = 32 * 16 * 4
    assert by_name[1, "embed"] == [embed, embed, 2 * embed + 4]
    assert by_name[1, "head"] == [0, 0, 0], "tied: counted at its first owner"
    assert by_name[1, "frozen"] == [(16 * 16 + 16) * 4, 0, 0]
    assert by_name[1, "blocks"][0] == sum(by_name[2, name][0] for name in "01")
    assert by_name[0, "model"][0] == sum(row[3] for row in rows if row[0] == 1) + (7 + 9) * 4


def test_it_says_the_same_as_the_ledger():
    model = Tied()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    train(model, optimizer)
    ledger = known([model], [optimizer])
    ledger.wanted = True
    for _ in range(1000):
        ledger.after_step(optimizer, time.perf_counter())
        if ledger.bytes is not None:
            break
    assert total(walk(ledger)) == list(ledger.bytes[-1][:3])


def test_compiled_modules_are_folded_into_what_they_compile():
    model = torch.compile(Tied(), backend="eager")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    train(model, optimizer)
    rows = walk(known([model], [optimizer], watched=False))["rows"]
    assert rows[0][:3] == [0, "model", "Tied (compiled)"]
    assert rows[1][:3] == [1, "embed", "Embedding"]


def test_what_no_model_holds_and_no_model_at_all():
    model, loose = Tied(), torch.nn.Parameter(torch.ones(100))
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.requires_grad]}, {"params": [loose]}]
    )
    model(torch.arange(8)).sum().backward()
    loose.sum().backward()
    optimizer.step()
    with_model = walk(known([model], [optimizer]))
    assert [row[1] for row in with_model["rows"]][-2:] == ["in no known model", "group 1"]
    assert with_model["rows"][-1][3:] == [400, 400, 804]
    alone = walk(known([], [optimizer]))
    assert alone["source"] == "optimizers only"
    assert [row[:2] for row in alone["rows"]] == [[0, "optimizer"], [1, "group 0"], [1, "group 1"]]
    frozen = (16 * 16 + 16) * 4
    assert [a - b for a, b in zip(total(with_model), total(alone), strict=True)] == [frozen, 0, 0]


def test_state_of_no_parameter_is_counted():
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state["whole"] = {"buffer": torch.ones(50)}

    model = torch.nn.Linear(4, 4)
    optimizer = Odd(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    found = walk(known([model], [optimizer]))
    assert next(row for row in found["rows"] if row[1] == "state of no parameter")[5] == 200


def test_views_of_one_storage_are_counted_where_they_belong_and_the_rest_once():
    flat = torch.ones(100)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 5, bias=False)
    )
    model[0].weight = torch.nn.Parameter(flat[:16].view(4, 4))
    model[1].weight = torch.nn.Parameter(flat[20:40].view(5, 4))
    rows = walk(known([model]))["rows"]
    assert [row[3] for row in rows] == [400, 64 + 400 - 64 - 80, 80]


def test_deep_levels_are_folded_until_the_rows_fit():
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(1, 1)) for _ in range(MAX_ROWS // 2)]
    )
    model.add_module("x" * 300, torch.nn.Linear(2, 2))
    found = walk(known([model]))
    assert not found["complete"]
    assert len(found["rows"]) == MAX_ROWS // 2 + 2
    assert max(row[0] for row in found["rows"]) == 1
    assert len(json.dumps(found["rows"])) < MAX_JSON_BYTES
    assert total(found)[0] == (MAX_ROWS // 2 * 2 + 6) * 4
    assert found["rows"][1][3] == 8, "folded levels are in their parents"


def test_a_process_that_does_not_step_is_walked_by_the_probe(monkeypatch):
    monkeypatch.setattr(modules, "PATIENCE_SECONDS", 0.0)
    model = Tied()
    found = walk(known([model]), steps=False)
    assert "own thread" in found["walked"]
    assert total(found)[1:] == [0, 0]
    assert "error" in walk(known(), steps=False)


def test_a_slice_is_short_and_holds_nothing_in_between():
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(20)])
    tree = ModuleTree(known([model]))
    tree.request()
    for _ in range(5):
        tree.after_step(0.0)
    assert tree.wanted
    ref = weakref.ref(model)
    del model
    gc.collect()
    assert ref() is None
    for _ in range(100):
        tree.after_step(0.0)
    assert tree.poll()["rows"][0][2] == "Sequential"


DISTRIBUTED = """
import json, os, sys, time
import torch, torch.distributed as dist
from gpuscope.probe.ddp_exposed_comm import Exposed
from gpuscope.probe.ledger import Ledger
from gpuscope.probe.modules import ModuleTree
from torch.distributed.fsdp import fully_shard
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
out = {}

class Net(torch.nn.Module):
    def __init__(self, frozen=True):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.frozen = torch.nn.Linear(16, 3, bias=False)
        self.frozen.requires_grad_(not frozen)
    def forward(self, x):
        return self.second(self.first(x)).sum() + self.frozen(x).sum()

def run(model, name, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    exposed = Exposed()
    parallel = [lambda: model] if name == "ddp" else []
    for total in range(steps):
        optimizer.zero_grad()
        if rank == 1 and name == "ddp":
            time.sleep(0.05)  # the straggler: the other waits for it
        model(torch.ones(4, 16)).backward()
        optimizer.step()
        exposed._next = 0.0
        exposed.after_step(parallel, total, time.perf_counter())
    ledger = Ledger()
    ledger.add_found(model)
    ledger.add_optimizer(optimizer)
    ledger.wanted = True
    while ledger.bytes is None:
        ledger.after_step(optimizer, time.perf_counter())
    tree = ModuleTree(ledger)
    tree.request()
    while True:
        tree.after_step()
        found = tree.poll()
        if found is not None:
            break
    def local(t):
        return t.to_local() if hasattr(t, "to_local") else t
    def size(tensors):
        seen = {local(t).untyped_storage()._cdata: local(t).untyped_storage().nbytes() for t in tensors}
        return sum(seen.values())
    truth = [
        size(model.parameters()),
        size([p.grad for p in model.parameters() if p.grad is not None]),
        size([v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]),
    ]
    reading = exposed.reading()
    out[name] = {
        "rows": found["rows"], "truth": truth, "ledger": list(ledger.bytes[-1][:3]),
        "exposed": reading if isinstance(reading, float) else reading.text,
    }

run(torch.nn.parallel.DistributedDataParallel(Net(), gradient_as_bucket_view=True), "ddp", 9)
sharded = Net()
fully_shard(sharded.first); fully_shard(sharded)
run(sharded, "fsdp2")
from torch.distributed.fsdp import FullyShardedDataParallel
for original in (False, True):
    flat = FullyShardedDataParallel(Net(False), use_orig_params=original, device_id=torch.device("cpu"))
    run(flat, f"fsdp1 {original}")
print(json.dumps(out), flush=True)
dist.barrier()
os._exit(0)
"""  # noqa: E501


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """What two ranks over gloo say."""
    store = tmp_path_factory.mktemp("store") / "file"
    quiet = "import sys, warnings; warnings.simplefilter('ignore')\n"
    ranks = [
        Forked(
            f"{quiet}sys.argv += {[str(rank), str(store)]!r}\n{DISTRIBUTED}",
            dict(os.environ),
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    out = []
    try:
        for process in ranks:
            text, errors = process.communicate(timeout=120)
            assert text, errors
            out.append(json.loads(text.splitlines()[-1]))
    finally:
        for process in ranks:
            process.kill()
    return out


@pytest.mark.slow
def test_ddp_is_folded_and_its_gradient_buckets_are_shared_out(distributed):
    for rank in distributed:
        rows, truth = rank["ddp"]["rows"], rank["ddp"]["truth"]
        assert rows[0][:3] == [0, "model", "Net (DDP)"]
        assert rows[0][3:] == truth == rank["ddp"]["ledger"]
        assert [row[1] for row in rows[1:]] == ["first", "second", "frozen"]
        trained = (16 * 64 + 64 + 64 * 16 + 16) * 4
        assert truth[:2] == [trained + 16 * 3 * 4, trained]
        assert rows[1][4] == (16 * 64 + 64) * 4
        assert rows[2][4] == (64 * 16 + 16) * 4


def test_shards_of_fsdp2_are_this_ranks_own_bytes(distributed):
    whole = (16 * 64 + 64 + 64 * 16 + 16 + 16 * 3) * 4
    for rank in distributed:
        rows, truth = rank["fsdp2"]["rows"], rank["fsdp2"]["truth"]
        assert rows[0][3:] == truth == rank["fsdp2"]["ledger"]
        assert whole // 2 <= truth[0] < whole * 0.6
        assert rows[1][2] == "FSDPLinear"


def test_the_flat_parameter_of_fsdp_is_named_or_shared_out_to_its_views(distributed):
    whole = (16 * 64 + 64 + 64 * 16 + 16 + 16 * 3) * 4
    for rank in distributed:
        for original in (False, True):
            rows, truth = rank[f"fsdp1 {original}"]["rows"], rank[f"fsdp1 {original}"]["truth"]
            assert rows[0][:3] == [0, "model", "Net (FSDP)"]
            assert rows[0][3:] == truth == rank[f"fsdp1 {original}"]["ledger"]
            assert whole // 2 <= truth[0] < whole * 0.6
        named = rank["fsdp1 False"]["rows"]
        assert named[1][:3] == [1, "_flat_param", "FlatParameter"]
        assert named[1][3:] == named[0][3:]
    halves = [{row[1]: row[3] for row in rank["fsdp1 True"]["rows"]} for rank in distributed]
    assert halves[0]["first"] > 0
    assert halves[1]["first"] == 0, "this rank's half is the second layer's"
    assert halves[1]["second"] > 0


def test_what_ddp_measured_of_its_communication_is_passed_on(distributed):
    fast, straggler = (rank["ddp"]["exposed"] for rank in distributed)
    assert fast >= 0.02, "waits for the other in most of its steps"
    assert 0 <= straggler < fast
    for rank in distributed:
        assert "DistributedDataParallel" in rank["fsdp2"]["exposed"], (
            "nothing measures that, and it says so"
        )
