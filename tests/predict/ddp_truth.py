"""Train under a real ``DistributedDataParallel`` on the CPU, and trace the same training.

``python -m tests.predict.ddp_truth NAME…`` prints for each case of :data:`CASES` the largest sum of
live tensors in each phase, as it was (the least of some runs) and as it was traced. One rank of
gloo takes what each of several takes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpuscope.predict.request import Request
from gpuscope.predict.trace import Trace
from gpuscope.predict.tracing import steps

WIDTH, BATCH, STEPS = 384, 16, 3
RUNS = 3
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "static views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "unused views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 1, "gradient_as_bucket_view": True},
    "kept views": {"gradient_as_bucket_view": True, "set_to_none": False},
    "accumulated": {"accumulate": 2},
    "accumulated views": {"accumulate": 2, "gradient_as_bucket_view": True},
    "hooked": {"hook": True},
}


class Net(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """Some layers, with buffers, shared weights and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
              for _ in range(4))
        )  # fmt: skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(inputs)) + self.frozen(inputs)
        return self.first(self.blocks(hidden))


def make(device: Any, options: dict[str, Any]) -> Any:
    wanted = {name: value for name, value in options.items() if name not in _OTHERS}
    model = DistributedDataParallel(Net().to(device), **wanted)
    if options.get("hook"):
        model.register_comm_hook(None, _compressed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)

    def loss() -> torch.Tensor:
        return model(torch.randn(BATCH, WIDTH, device=device)).square().mean()

    return model, optimizer, loss


_OTHERS = ("accumulate", "set_to_none", "hook")


def _compressed(state: Any, bucket: Any) -> Any:
    """Reduce in 16 bits; torch's own hook refuses to run without NCCL."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    future = bf16_compress_hook(state, bucket)
    future.wait()  # so that no two buckets are reduced at the same time
    return future


_compressed.__annotations__.clear()
case = ""


def factory(batch: int, device: Any) -> Any:
    """Make the case that is being traced. A training without ``no_sync`` reduces each backward."""
    torch.distributed.init_process_group("nccl")
    return make(device, CASES[case])


class Live(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of all tensors, from their first operator until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, Any] = {}
        self.now = self.peak = 0

    def _made(self, key: int, size: int) -> None:
        pass

    def _freed(self, key: int, size: int) -> None:
        del self._held[key]
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if size and key not in self._held:
                    self._held[key] = weakref.ref(
                        storage, lambda _, key=key, size=size: self._freed(key, size)
                    )
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    self._made(key, size)
        return out

    def phase(self) -> int:
        """Return the peak since the last call."""
        found, self.peak = self.peak, self.now
        return found


def real(options: dict[str, Any]) -> list[int]:
    """Return the peak of each phase: build, then forward, backward and optimizer of each step."""
    torch.manual_seed(0)
    found = []
    with Live() as live:
        _, optimizer, loss = make("cpu", options)
        found.append(live.phase())
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=options.get("set_to_none", True))
            for _ in range(options.get("accumulate", 1)):
                value = loss()
                found.append(live.phase())
                value.backward()
                found.append(live.phase())
            del value
            optimizer.step()
            found.append(live.phase())
    return found


def traced(options: dict[str, Any]) -> list[int]:
    request = Request(
        f"{__spec__.name if __spec__ else __name__}:factory",
        batch=BATCH,
        accumulate=options.get("accumulate", 1),
        set_to_none=options.get("set_to_none", True),
        steps=STEPS,
    )
    return peaks(steps.trace(request, emulate=False).trace)


def peaks(trace: Trace) -> list[int]:
    marks = [mark.at for mark in trace.marks if not mark.name.startswith("step ")]
    found, now, most = [], 0, 0
    for at, event in enumerate(trace.events):
        while marks[1:] and marks[1] <= at:
            found.append(most)
            most = now
            marks.pop(0)
        now += trace.sizes[event] if event >= 0 else -trace.sizes[~event]
        most = max(most, now)
    return [*found, most]


def main() -> None:
    global case
    # the factory is looked for in the module by its name, not in __main__
    me = __import__("importlib").import_module("tests.predict.ddp_truth")
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        # A thread of gloo may free a buffer late, which makes a peak larger, never smaller.
        truths = {
            name: list(map(min, *(real(CASES[name]) for _ in range(RUNS))))
            for name in sys.argv[1:] or CASES
        }
        torch.distributed.destroy_process_group()
        for name, truth in truths.items():
            me.case = name
            print(json.dumps({"case": name, "real": truth, "traced": traced(CASES[name])}))
    sys.stdout.flush()
    os._exit(0)  # gloo may abort at the end of a process


if __name__ == "__main__":
    main()
