"""What two ranks do in ``test_lab_parallel.py``.

They do both sides of every comparison; the result comes on rank 0's stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gpuscope.lab import parallel
from gpuscope.lab.config import LabConfig
from gpuscope.lab.loaders import make_sampler
from gpuscope.lab.training import Training

STEPS = 4
BASE = {"model": "mlp-tiny", "device": "cpu", "optimizer": "sgd", "batch": 8}


def weights(training: Training) -> list[float]:
    """Every parameter, whole, as one list of numbers."""
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in training.work.net.parameters()]
    return [float(x) for p in whole for x in p.detach().flatten()]


def trained(world: parallel.World, **toggles: Any) -> list[float]:
    training = Training(LabConfig(**{**BASE, **toggles}), world)
    for _ in range(STEPS):
        training.step()
    return weights(training)


def ddp_reductions(world: parallel.World, accumulate: int) -> int:
    """How many times DDP reduces gradients in ``STEPS`` steps."""
    training = Training(LabConfig(**{**BASE, "parallel": "ddp", "accumulate": accumulate}), world)
    seen: list[Any] = []

    def hook(state: Any, bucket):  # type: ignore[no-untyped-def]  # torch refuses an annotation that is text
        seen.append(bucket.index())
        return allreduce_hook(state, bucket)

    training.work.net.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(STEPS):
        training.step()
    return len(seen)


def fsdp_reductions(world: parallel.World, accumulate: int) -> int:
    """The same of FSDP2."""
    name = (
        "reduce_scatter_single"
        if hasattr(dist, "reduce_scatter_single")
        else "reduce_scatter_tensor"
    )
    before, seen = getattr(dist, name), []

    def counted(*args: Any, **options: Any) -> Any:
        seen.append(name)
        return before(*args, **options)

    training = Training(LabConfig(**{**BASE, "parallel": "fsdp", "accumulate": accumulate}), world)
    setattr(dist, name, counted)
    for _ in range(STEPS):
        training.step()
    setattr(dist, name, before)
    return len(seen)


def epochs(world: parallel.World) -> list[list[int]]:
    """The places of the pool that this rank sees in the first two epochs of ten samples."""
    each = 10 // world.size
    sampler = make_sampler(range(10), 3, world.rank, world.size)  # type: ignore[arg-type]
    places = [place for place, _ in zip(sampler, range(2 * each), strict=False)]
    return [places[:each], places[each:]]


def main() -> None:
    torch.set_num_threads(1)
    world = parallel.join(LabConfig(device="cpu", parallel="ddp"))
    flags = []
    for step in range(4):
        mine = world.rank == 1 and step == 1
        flags.append([parallel.agree(mine, world), parallel.agree(False, world, "another")])
    gathered = {
        "ddp": trained(world, parallel="ddp", accumulate=2),
        "fsdp": trained(world, parallel="fsdp", accumulate=2),
        "fsdp fp16": trained(world, parallel="fsdp", amp="fp16"),
        "ddp reductions": [ddp_reductions(world, 1), ddp_reductions(world, 3)],
        "fsdp reductions": [fsdp_reductions(world, 1), fsdp_reductions(world, 3)],
        "epochs": parallel.gather(epochs(world), world),
        "flags": parallel.gather(flags, world),
        "mean": parallel.mean(float(world.rank), world),
    }
    if world.rank == 0:
        print(json.dumps(gathered), flush=True)
    parallel.leave(world, 0)


if __name__ == "__main__":
    sys.exit(main())
