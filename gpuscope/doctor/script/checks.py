"""All checks, and what they leave undecided."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..finding import Abstained
from . import cudnn, devices, memory, parallel, precision, registered, speed, step, wrapped
from .facts import LOADER, SAMPLER, Found, Script

ALL = (
    *memory.CHECKS,
    *precision.CHECKS,
    *step.CHECKS,
    *parallel.CHECKS,
    *wrapped.CHECKS,
    *devices.CHECKS,
    *registered.CHECKS,
    *speed.CHECKS,
    *cudnn.CHECKS,
)

# What is a mistake on a GPU alone: a program that trains on the CPU does not make it.
ON_A_GPU = frozenset(
    f"script.{name}"
    for name in (
        "autocast-around-dataparallel", "benchmark-and-deterministic", "benchmark-with-seed",
        "clock-without-synchronize", "dataparallel", "empty-cache-each-step", "first-gpu-in-every-rank",
        "gloo-between-gpus", "labels-not-moved", "load-without-map-location", "made-on-cpu", "memory-not-pinned",
        "model-not-moved", "move-without-effect", "no-cudnn-benchmark", "no-loader-workers", "odd-last-batch",
        "outputs-kept", "waits-each-step",
    )
)  # fmt: skip


def run(s: Script, on_cpu: bool = False) -> Iterator[Found]:
    """What every check finds in the file. ``on_cpu``: it is known to train on the CPU."""
    for check in ALL:
        yield from (found for found in check(s) if not (on_cpu and found.cause in ON_A_GPU))


def undecided(s: Script) -> Iterator[Abstained]:
    """What one file alone cannot settle."""
    if s.distributed and s.training_loops and not s.calls_to(LOADER) and not s.calls_to(SAMPLER) and _given(s):
        yield Abstained(
            pitfall="distributed-sampler",
            missing=f"{s.path} trains under DistributedDataParallel with a loader from elsewhere: whether it has a "
            "DistributedSampler, and hears of each epoch",
        )
    if s.managed and s.training_loops:
        yield Abstained(
            pitfall="move-inputs-to-device",
            missing=f"{s.path} leaves devices, scaling and accumulation to {s.managed}: their checks were left out",
        )


def _given(s: Script) -> bool:
    """Whether a training loop goes through something that is named as a loader."""
    return any("load" in s.code(loop.iter).lower() for loop in s.training_loops if not isinstance(loop, ast.While))
