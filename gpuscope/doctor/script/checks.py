"""List all checks, and what they leave open."""

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


def run(s: Script) -> Iterator[Found]:
    """Yield what every check finds in the file."""
    for check in ALL:
        yield from check(s)


def open_questions(s: Script) -> Iterator[Abstained]:
    """Yield what one file alone cannot settle."""
    if (
        s.distributed
        and s.training_loops
        and not s.calls_to(LOADER)
        and not s.calls_to(SAMPLER)
        and _has_loader(s)
    ):
        yield Abstained(
            pitfall="distributed-sampler",
            missing=f"{s.path} trains under DistributedDataParallel with a loader from elsewhere: "
            "whether it has a DistributedSampler, and hears of each epoch",
        )
    if s.managed and s.training_loops:
        yield Abstained(
            pitfall="move-inputs-to-device",
            missing=f"{s.path} leaves devices, scaling and accumulation to {s.managed}: their "
            "checks were left out",
        )


def _has_loader(s: Script) -> bool:
    """Return whether a training loop goes through something that is named as a loader."""
    return any(
        "load" in s.code(loop.iter).lower()
        for loop in s.training_loops
        if not isinstance(loop, ast.While)
    )
