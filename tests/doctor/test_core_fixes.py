"""The table's code runs.

What a CPU can show of it is executed, as it stands there, on a tiny training.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import tempfile
import time
import warnings

import pytest

from gpuscope.doctor import table
from tests.fakes import forking, probe_client
from tests.fakes.cases import each

torch = pytest.importorskip("torch", reason="needs torch")
nn = torch.nn

FIXES = {
    "reduce-batch-size": (0, 1),
    "reduce-seq-length-or-resolution": (0, 2),
    "gradient-accumulation": (0,),
    "gradient-checkpointing": (0,),
    "optimizer-state": (2,),
    "late-phase-or-multiscale": (0, 1),
    "single-allocation-limit": (0,),
    "load-checkpoint-map-location-cpu": (0,),
    "empty-cache": (0, 1),
    "mps-watermark-ratio": (0,),
    "visible-devices": (1,),
    "host-memory-limit": (1,),
    "shm-size": (2,),
    "process-limits": (1,),
    "num-workers": (0, 1, 2),
    "main-guard": (0,),
    "collate-sizes": (3,),
    "shape-mismatch": (0, 1, 4, 5),
    "weights-only-load": (1, 2),
    "damaged-checkpoint": (2,),
    "hang-in-loader": (1, 2),
    "hang-alone": (1,),
    "too-small-workload": (0, 1),
    "autocast-inside-forward": (0,),
    "find-unused-parameters": (1,),
    "ddp-static-graph-or-nonreentrant": (0,),
    "deterministic": (0,),
    "compile-mode": (1,),
    "dynamic-shapes-recompile": (1, 2),
    "flash-attention-sdpa": (0,),
    "offload-cpu": (2,),
    "image-validation-full-set-on-gpu": (1,),
    "no-grad-eval": (0, 1),
    "detach-loss-accumulation": (0, 1),
    "memory-leak-in-user-list": (0,),
    "retain-graph": (0, 1),
    "oom-exception-holds-frames": (0, 1),
    "set-to-none": (0,),
    "expandable-segments": (1,),
    "pin-memory": (0, 1),
    "move-inputs-to-device": (0, 1),
    "move-model-to-device": (0, 1),
    "buffers-not-registered": (0, 1),
    "cast-to-model-dtype": (2, 3, 5, 6),
    "bad-index-or-label": (2, 3, 5, 6, 8, 9, 10, 11),
    "host-sync-in-loop": (0,),
    "host-bound-launches": (0,),
    "copies-to-host": (0,),
    "allocation-in-steps": (0, 2),
    "own-code-in-loop": (0, 1),
    "zero-grad-missing": (0,),
    "eval-mode-missing": (0,),
    "loss-not-divided": (0,),
    "use-module-attr": (0, 1, 2, 3, 4),
    "dp-on-cpu": (0,),
    "cudnn-benchmark-on": (0,),
    "cudnn-benchmark-off": (0,),
    "compile-graph-break": (1, 2),
    "benign-warning": (0,),
    "debug-settings": (1,),
}
ON_A_CPU = {
    '"cuda"': '"cpu"',
    ".cuda()": ".cpu()",
    "torch.cuda.synchronize": "torch.cpu.synchronize",
    '"nccl"': '"gloo"',
}
"""What these are written for a GPU with, and what is the same on a CPU."""
AS_ON_A_CPU = {
    "mixed-precision": (0, 1),
    "image-validation-full-set-on-gpu": (0,),
    "cast-to-model-dtype": (4,),
    "synchronize-timing": (0,),
    "bf16-instead-of-fp16": (1, 2),
    "grad-scaler-unscale-order": (0, 1),
    "autocast-forward-only": (0,),
    "autocast-inside-forward": (0,),
    "compile-warmup": (0,),
}
IN_A_GROUP = {
    "gradient-accumulation": (1,),
    "optimizer-state": (1,),
    "fsdp-or-zero": (0,),
    "distributed-sampler": (0, 1),
    "hang-in-collective": (1,),
}
"""They want a process group: one of one process."""
CASES = [
    pytest.param(table.load()[name].fixes[number], id=f"{name}-{number}")
    for name, numbers in FIXES.items()
    for number in numbers
]


class Inside(nn.Linear):
    def predict(self, given):
        return self(given)


def scene():
    """Names that the code uses, as a training has them."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = Inside(8, 4)
    inputs, targets = torch.randn(32, 8), torch.randint(4, (32,))
    data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
    loss_fn = nn.CrossEntropyLoss()
    hidden = (torch.zeros(1, 2, 4, requires_grad=True),) * 2
    attention = torch.randn(2, 2, 16, 8)
    shared = loss_fn(model(inputs), targets)

    modules = {
        "torch": torch,
        "nn": nn,
        "gc": gc,
        "os": os,
        "math": math,
        "contextlib": contextlib,
        "warnings": warnings,
        "DataLoader": DataLoader,
    }
    training = {
        "model": model,
        "inputs": inputs,
        "targets": targets,
        "data": data,
        "loader": DataLoader(data, batch_size=16),
        "loss_fn": loss_fn,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "lr": 0.1,
        "step": 100,
        "loss": loss_fn(model(inputs), targets),
        "loss_a": shared * 2,
        "loss_b": shared * 3,
        "logits": model(inputs),
        "device": torch.device("cpu"),
        "N": 2,
        "i": 1,
        "accumulation_steps": 2,
        "evaluate": lambda *_: None,
        "losses": [],
        "outputs": [],
        "total_loss": 0.0,
        "total": 0.0,
        "running": torch.zeros(()),
    }
    rest = {
        "block": nn.Linear(8, 8),
        "hidden": hidden,
        "x": torch.randn(4, 8),
        "q": attention,
        "k": attention,
        "v": attention,
        "self": nn.Module(),
        "batch": ["a", "bcd"],
        "smaller": lambda given: given,
        "Net": lambda: nn.Linear(8, 4),
        "image": torch.zeros(1, 3, 1024, 1024),
        "state": {"module.weight": model.weight, "module.bias": model.bias},
    }
    more = {
        "resolution": 320,
        "largest_shape": (32, 8),
        "path": os.path.join(tempfile.gettempdir(), f"{os.getpid()}.pt"),
        "attend": nn.functional.scaled_dot_product_attention,
        "train_step": lambda batch: None,
        "tokens": torch.randint(9, (2, 5)),
        "pad_to_multiple_of_128": torch.utils.data.default_collate,
        "checkpoint": torch.utils.checkpoint.checkpoint,
        "all_inputs": inputs,
        "compiled": model,
        "time": time,
        "epochs": 2,
        "rank": 0,
        "DistributedSampler": torch.utils.data.DistributedSampler,
        "train_epoch": lambda model, loader: [model(x).sum().backward() for x, _ in loader],
    }
    places = {
        "width": 8,
        "max_length": 9,
        "vocabulary": ["a", "b"],
        "embedding": nn.Embedding(5, 4),
        "ids": torch.arange(5),
        "index": torch.arange(3),
        "values": torch.zeros(3, 2),
        "dim": 0,
        "args": argparse.Namespace(lr=0.1),
    }
    return {**modules, **training, **rest, **more, **places}


@pytest.mark.parametrize("fix", CASES)
def test_the_code_of_a_fix_runs(fix, request):
    names = scene()
    case = request.node.callspec.id
    if case == "retain-graph-0":
        names["model"] = lambda given, state: (given, state)
    elif case.startswith("oom-exception"):
        calls = []

        def step(given):
            calls.append(given)
            if len(calls) == 1:
                raise torch.cuda.OutOfMemoryError("out of memory")

        names["step"] = step
    elif case in ("use-module-attr-0", "use-module-attr-3", "use-module-attr-4"):
        names["model"] = nn.DataParallel(names["model"])
        names["state"] = names["model"].module.state_dict()
    elif case == "use-module-attr-2":
        names["state"] = {
            f"_orig_mod.{name}": value for name, value in names["model"].state_dict().items()
        }
    elif case == "bad-index-or-label-2":
        names["targets"] = names["targets"] + 1
    elif case == "main-guard-0":
        names["step"] = lambda batch: None
    elif case.startswith("collate-sizes"):
        names["data"] = [(torch.zeros(size), torch.zeros(1)) for size in (3, 5)]
    elif case == "shape-mismatch-4":
        names["logits"], names["targets"] = torch.zeros(2, 3, 4), torch.zeros(2, 3).long()
    elif case == "weights-only-load-1":
        torch.save({"args": names["args"]}, names["path"])
    elif case.startswith("load-checkpoint"):
        torch.save({"model": names["model"].state_dict()}, names["path"])
    elif case.startswith("reduce-seq-length") or case == "shape-mismatch-5":
        names["batch"] = {"inputs": names["inputs"]}
    elif case == "find-unused-parameters-1":
        names["model"].unused_head = nn.Linear(2, 2)
    with as_before():
        exec(compile(fix.code, case, "exec"), names)
        if case == "deterministic-0":
            assert torch.are_deterministic_algorithms_enabled()


@contextlib.contextmanager
def as_before():
    """What the code sets for the whole process is as it was afterwards."""
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    benchmark, deterministic = cudnn.benchmark, cudnn.deterministic
    strategy = torch.multiprocessing.get_sharing_strategy()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.benchmark, cudnn.deterministic = benchmark, deterministic
        torch.use_deterministic_algorithms(False)
        torch.multiprocessing.set_sharing_strategy(strategy)


def for_a_cpu(code):
    for gpu, cpu in ON_A_CPU.items():
        code = code.replace(gpu, cpu)
    return code


def cases(fixes):
    return [
        pytest.param(name, number, id=f"{name}-{number}")
        for name, numbers in fixes.items()
        for number in numbers
    ]


@each(("name", "number"), cases(AS_ON_A_CPU))
def test_the_code_of_a_fix_for_a_gpu_runs_as_on_a_cpu(name, number):
    """Of a fix with a scaler the parameters have moved afterwards, and are all numbers."""
    names = scene()
    scaler = names["scaler"] = torch.amp.GradScaler("cpu")
    if (name, number) == ("grad-scaler-unscale-order", 1):
        scaler.scale(names["loss"]).backward()
    code = for_a_cpu(table.load()[name].fixes[number].code)
    before = names["model"].weight.detach().clone()
    with as_before():
        exec(compile(code, f"{name}-{number}", "exec"), names)
    if "scaler.step" in code:
        assert not torch.equal(names["model"].weight, before)
        assert names["model"].weight.isfinite().all()


def in_a_group(name, number):
    import torch.distributed as dist

    names = scene()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if name == "fsdp-or-zero":
        names["model"].blocks = nn.ModuleList([nn.Linear(8, 8)])
    elif name in ("gradient-accumulation", "distributed-sampler"):
        names["model"] = nn.parallel.DistributedDataParallel(names["model"])
    names["reduce_mean"] = lambda value: (
        dist.all_reduce(value := value.detach()) or value / dist.get_world_size()
    )
    exec(
        compile(for_a_cpu(table.load()[name].fixes[number].code), f"{name}-{number}", "exec"), names
    )
    dist.destroy_process_group()
    print("ran", name, number, flush=True)


@pytest.mark.slow
def test_the_code_of_the_fixes_for_ranks_runs_in_a_group_of_one():
    """In a process of its own: what a process group leaves behind is nobody else's."""
    wanted = [(name, number) for name, numbers in IN_A_GROUP.items() for number in numbers]
    begin = "import os\nfrom tests.doctor.test_core_fixes import in_a_group\n"
    code = f"{begin}for case in {wanted}: in_a_group(*case)\nos._exit(0)"
    environ = probe_client.environment(CUDA_VISIBLE_DEVICES="")
    done = forking.completed(code, environ, seconds=300)
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [
        f"ran {name} {number}" for name, number in wanted
    ], done.stderr
    assert done.returncode == 0


def test_what_is_claimed_of_some_fixes_is_so():
    """What is claimed of some fixes is so.

    They give the same gradients, layers that are found, a graph that is gone: not only do the lines
    run.
    """
    rows = table.load()

    def after(name, number, part="code"):
        names = scene()
        exec(compile(getattr(rows[name].fixes[number], part), name, "exec"), names)
        return names

    assert not [*after("buffers-not-registered", 0, "before")["self"].parameters()]
    assert len([*after("buffers-not-registered", 0)["self"].parameters()]) == 8
    assert [*after("buffers-not-registered", 1)["self"].state_dict()] == ["mean"]
    assert after("detach-loss-accumulation", 0, "before")["total_loss"].requires_grad
    assert isinstance(after("detach-loss-accumulation", 0)["total_loss"], float)
    assert not after("detach-loss-accumulation", 1)["losses"][0].requires_grad
    assert not after("memory-leak-in-user-list", 0)["outputs"][0].requires_grad
    assert after("memory-leak-in-user-list", 0, "before")["outputs"][0].requires_grad
    fused, plain = (after("flash-attention-sdpa", 0, part)["out"] for part in ("code", "before"))
    torch.testing.assert_close(fused, plain)
    gradient = after("zero-grad-missing", 0)["model"].weight.grad
    assert gradient is None
    assert after("zero-grad-missing", 0, "before")["model"].weight.grad is not None
    half, whole = (
        after("loss-not-divided", 0, part)["model"].weight.grad for part in ("code", "before")
    )
    torch.testing.assert_close(half * 2, whole)
