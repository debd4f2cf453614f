"""Hold what is known before a run: how many processes it has, and whether it can fit.

Only the standard library is needed. A viewer without torch fills in the few facts that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .config import LabConfig

PARAMETERS = {
    "mlp-tiny": 9_808,
    "mlp-small": 927_760,
    "mlp-large": 118_587_408,
    "conv-small": 77_834,
    "conv-large": 11_172_106,
    "gpt-tiny": 470_528,
    "gpt-small": 124_082_688,
    "gpt-medium": 354_871_296,
    "gpt-large": 774_090_240,
    "gpt-1.3b": 1_313_722_368,
}
"""The number of parameters of each preset, for a viewer that has no torch to count them."""
FIRST_FSDP2 = (2, 4)
CPU_PROCESSES = 2
"""The number of ranks on a CPU if the toggles do not set it."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about the machine and the model; None means unknown."""

    device_type: str
    """``cpu`` or ``cuda``: where the run would train."""
    gpus: int | None = None
    """CUDA devices that torch sees."""
    gpu_name: str | None = None
    capability: tuple[int, int] | None = None
    free_bytes: list[int] | None = None
    """Free memory in bytes of each GPU that the run would use, in torch's order; on a CPU one
    entry, the available memory.
    """
    torch_version: str | None = None
    cores: int = 1
    has_compiler: bool | None = None
    """Whether torch.compile finds the compilers that it needs: the C++ compiler on a CPU, Triton
    and the C compiler on CUDA.
    """
    torch_folder: str | None = None
    """Where torch is installed."""
    parameters: int | None = None
    """The number of parameters of a user's own model; those of the presets are known."""
    factory_takes_checkpoint: bool | None = None
    """Whether the user's factory has the keyword ``checkpoint``."""
    processes: int | None = None
    """The number of ranks on this machine, if a launcher has already started them; else the toggles
    set it.
    """
    world_size: int | None = None
    """Ranks on all machines, where a launcher has started them."""

    @property
    def torch(self) -> tuple[int, int] | None:
        found = re.match(r"(\d+)\.(\d+)", self.torch_version or "")
        return (int(found[1]), int(found[2])) if found else None

    def older(self, version: tuple[int, int]) -> bool:
        """Say whether torch is known to be older than ``version``."""
        return self.torch is not None and self.torch < version


def processes(config: LabConfig, facts: RunFacts) -> int:
    """Return how many processes train on this machine, at least 1."""
    if not config.processes:
        return 1
    return (
        facts.processes
        or config.nproc
        or (CPU_PROCESSES if facts.device_type == "cpu" else facts.gpus or 1)
    )


def ranks(config: LabConfig, facts: RunFacts) -> int:
    """Return how many processes train together, on all machines."""
    return max(facts.world_size or 0, processes(config, facts))


def gpus(config: LabConfig, facts: RunFacts) -> int:
    """Return how many GPUs the run uses on this machine: 0 on a CPU, at least 1 otherwise."""
    if facts.device_type == "cpu":
        return 0
    return (
        (config.nproc or facts.gpus or 1) if config.parallel == "dp" else processes(config, facts)
    )


# ── does it fit? ──────────────────────────────────────────────────────────────────────────────────


def least_bytes(config: LabConfig, facts: RunFacts) -> int | None:
    """Return the least memory in bytes that each GPU (on a CPU: the machine) needs.

    It covers weights, gradients and the optimizer's state, all in float32, without any activation.
    None if the number of parameters is unknown. DDP keeps its gradients a second time, in the
    buckets that it reduces; FSDP2 shards everything.
    """
    count = (
        facts.parameters
        if config.factory
        else PARAMETERS.get(config.preset(facts.device_type), facts.parameters)
    )
    if count is None:
        return None
    state = 0 if config.factory else 8 if config.optimizer == "adamw" else 4
    each = 4 + 4 + state + (4 if config.parallel == "ddp" else 0)
    each_rank = count * each // (ranks(config, facts) if config.parallel == "fsdp" else 1)
    return each_rank * (processes(config, facts) if facts.device_type == "cpu" else 1)


def fits(config: LabConfig, facts: RunFacts) -> bool:
    need = least_bytes(config, facts)
    if need is None or not facts.free_bytes:
        return True
    used = facts.free_bytes[: max(1, gpus(config, facts))]
    return need <= (used[0] if config.parallel == "dp" else min(used))


def smaller(config: LabConfig, facts: RunFacts) -> Iterator[LabConfig]:
    """Return combinations that need less memory, the nearest first.

    They use a smaller optimizer state, then sharding, then a smaller preset.
    """
    if config.factory:
        return
    yield replace(config, optimizer="sgd")
    if (
        facts.device_type == "cuda"
        and (facts.gpus or 1) > 1
        and not facts.older(FIRST_FSDP2)
        and not facts.processes
    ):
        for optimizer in (config.optimizer, "sgd"):
            yield replace(config, parallel="fsdp", nproc=None, optimizer=optimizer)
    preset = config.preset(facts.device_type)
    family = preset.partition("-")[0]
    sizes = sorted((count, name) for name, count in PARAMETERS.items() if name.startswith(family))
    for count, name in reversed(sizes):
        if count < PARAMETERS[preset]:
            yield replace(config, model=name)
