"""The table's code runs: what a CPU can show of it is executed, as it stands there, on a tiny training."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import warnings

import pytest

from gpuscope.doctor import table

torch = pytest.importorskip("torch", reason="needs torch")
nn = torch.nn

FIXES = {
    "reduce-batch-size": (0, 1),
    "gradient-accumulation": (0,),
    "gradient-checkpointing": (0,),
    "optimizer-state": (2,),
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
    "pin-memory": (1,),
    "move-inputs-to-device": (0, 1),
    "move-model-to-device": (0, 1),
    "buffers-not-registered": (0, 1),
    "cast-to-model-dtype": (1, 2),
    "bad-index-or-label": (1, 3),
    "host-sync-in-loop": (0,),
    "zero-grad-missing": (0,),
    "eval-mode-missing": (0,),
    "loss-not-divided": (0,),
    "use-module-attr": (0, 2),
    "dp-on-cpu": (0,),
    "cudnn-benchmark-on": (0,),
    "cudnn-benchmark-off": (0,),
    "compile-graph-break": (2,),
    "benign-warning": (0,),
    "debug-settings": (1,),
}
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
        "torch": torch, "nn": nn, "gc": gc, "os": os, "math": math, "contextlib": contextlib, "warnings": warnings,
        "DataLoader": DataLoader,
    }  # fmt: skip
    training = {
        "model": model, "inputs": inputs, "targets": targets, "data": data, "loader": DataLoader(data, batch_size=16),
        "loss_fn": loss_fn, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "lr": 0.1, "step": 100,
        "loss": loss_fn(model(inputs), targets), "loss_a": shared * 2, "loss_b": shared * 3, "logits": model(inputs),
        "device": torch.device("cpu"), "N": 2, "i": 1, "accumulation_steps": 2, "evaluate": lambda *_: None,
        "losses": [], "outputs": [], "total_loss": 0.0, "total": 0.0, "running": torch.zeros(()),
    }  # fmt: skip
    rest = {
        "block": nn.Linear(8, 8), "hidden": hidden, "x": torch.randn(4, 8), "q": attention, "k": attention,
        "v": attention, "self": nn.Module(), "batch": ["a", "bcd"], "smaller": lambda given: given,
        "Net": lambda: nn.Linear(8, 4), "image": torch.zeros(1, 3, 1024, 1024),
        "state": {"module.weight": model.weight, "module.bias": model.bias},
    }  # fmt: skip
    return {**modules, **training, **rest}


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
    elif case == "use-module-attr-0":
        names["model"] = nn.DataParallel(names["model"])
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    try:
        exec(compile(fix.code, case, "exec"), names)
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark


def test_what_is_claimed_of_some_fixes_is_so():
    """The same gradients, layers that are found, a graph that is gone: not only that the lines run."""
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
    half, whole = (after("loss-not-divided", 0, part)["model"].weight.grad for part in ("code", "before"))
    torch.testing.assert_close(half * 2, whole)
