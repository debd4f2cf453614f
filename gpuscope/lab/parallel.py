"""Train in several processes, or in one on several GPUs: join the group, agree, and leave it.

A process that torchrun's agent has started finds its place in ``RANK``, ``LOCAL_RANK`` and
``WORLD_SIZE``. Everything here also works in a world of one, where it does nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from ..text.units import count_text
from .config import LabConfig

COLLECTIVE_TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others, at the start and in any collective, before it gives up."""


class CannotJoin(Exception):
    """This process has no place in the group. ``args``: what, why, next."""


@dataclass
class World:
    """The place of this process among those that train together.

    ``backend`` is "" in a world of one.
    """

    rank: int
    size: int
    local_rank: int
    backend: str
    device: torch.device
    local_size: int = 1
    """Processes of the world on this machine."""
    _control: Any = None
    """A gloo group for what the hosts agree on, because asking it never waits for a GPU."""
    _pending: dict[str, tuple[Any, torch.Tensor]] = field(default_factory=dict)


def launched() -> bool:
    """Say whether a launcher has given this process a rank."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def join(config: LabConfig) -> World:
    """Join the group that the launcher has made for this process, and return its world.

    It is a world of one unless ``config`` trains in processes and a launcher has given this one
    a rank. This blocks until every rank is here. Raises :class:`CannotJoin`, and RuntimeError
    where a rank does not come.
    """
    cuda = config.device != "cpu" and torch.cuda.is_available()
    if not (config.processes and launched()):
        return World(0, 1, 0, "", torch.device("cuda", 0) if cuda else torch.device("cpu"))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", _gpu(local_rank, local_size, config))
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
    return World(rank, size, local_rank, backend, device, local_size, control)


def _gpu(local_rank: int, local_size: int, config: LabConfig) -> int:
    """Return the ordinal of this rank's GPU.

    It is the local rank, or 0 if the launcher shows each rank only its own GPU.
    """
    count = torch.cuda.device_count()
    if local_rank < count:
        return local_rank
    if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") and local_size > 1:
        return 0
    raise CannotJoin(
        f"Rank {os.environ['RANK']} has no GPU.",
        f"its local rank is {local_rank}, and torch finds {count_text(count, 'GPU')} "
        "on this machine.",
        config.command(nproc=count or 1),
    )


# ── the model ─────────────────────────────────────────────────────────────────────────────────────


def wrap(model: nn.Module, config: LabConfig, world: World) -> nn.Module:
    """Return the model as ``config.parallel`` trains it.

    This is called before its optimizer is made and before it is compiled. FSDP2 changes the model
    itself: its parameters become shards (``DTensor``).
    """
    cuda = world.device.type == "cuda"
    if config.parallel == "dp" and cuda:
        count = min(config.nproc or torch.cuda.device_count(), torch.cuda.device_count())
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.amp)
        return nn.DataParallel(
            model if kind is None else _Autocast(model, kind), device_ids=list(range(count))
        )
    if config.parallel == "ddp" and world.backend:
        ids = [world.device.index] if cuda else None
        # Gradients are views of the buckets in which they are reduced, which saves one copy of them
        # in memory and time.
        return nn.parallel.DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True
        )
    if config.parallel == "fsdp" and world.backend:
        from torch.distributed.device_mesh import init_device_mesh

        fully_shard = find_fully_shard()
        mesh = init_device_mesh(world.device.type, (world.size,))
        if not cuda:
            _try_on_cpu(fully_shard, mesh, config)
        chosen = _fsdp_options(config, cuda)
        found = blocks(model) if config.fsdp_wrap == "blocks" else []
        for block in found:
            fully_shard(block, mesh=mesh, **chosen)
        fully_shard(model, mesh=mesh, **chosen)
        _gather_ahead(found, config.fsdp_ahead)
    return model  # DataParallel without a GPU calls the model itself


def _fsdp_options(config: LabConfig, cuda: bool) -> dict[str, Any]:
    """Return what ``fully_shard`` is told besides its mesh; torch's own defaults are left out."""
    from torch.distributed import fsdp

    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    chosen: dict[str, Any] = {}
    if config.fsdp_reshard != "blocks":
        chosen["reshard_after_forward"] = config.fsdp_reshard == "always"
    if config.fsdp_params != "fp32" or config.fsdp_reduce != "as-params":
        chosen["mp_policy"] = fsdp.MixedPrecisionPolicy(
            param_dtype=None if config.fsdp_params == "fp32" else types[config.fsdp_params],
            reduce_dtype=types.get(config.fsdp_reduce),
        )
    if config.fsdp_offload and cuda:
        chosen["offload_policy"] = fsdp.CPUOffloadPolicy()
    return chosen


def _gather_ahead(found: list[Any], ahead: int) -> None:
    """Let each of these blocks gather the next ``ahead`` in its forward and its backward pass."""
    for place, block in enumerate(found) if ahead else ():
        block.set_modules_to_forward_prefetch(found[place + 1 : place + 1 + ahead])
        block.set_modules_to_backward_prefetch(found[max(0, place - ahead) : place][::-1])


class _Autocast(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A model that applies autocast inside its forward pass.

    DataParallel runs its replicas in threads of its own and tells them whether to cast, but not to
    which type. Under bf16 they would compute in fp16, without a gradient scaler.
    """

    def __init__(self, model: nn.Module, kind: torch.dtype):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=self.kind):
            output: torch.Tensor = self.model(*inputs)
            return output


def _try_on_cpu(fully_shard: Any, mesh: Any, config: LabConfig) -> None:
    """Make one step of a model of four numbers, to see whether FSDP2 works on this CPU.

    Support for CPUs came to FSDP2 in several steps, and the version number does not say which part
    is still missing. Raises :class:`CannotJoin`.
    """
    trial = nn.Linear(2, 2, bias=False)
    try:
        fully_shard(trial, mesh=mesh)
        trial(torch.ones(1, 2)).sum().backward()
    except Exception as error:
        raise CannotJoin(
            f"FSDP2 of torch {torch.__version__} does not train on a CPU.",
            " ".join(str(error).split())[:300] or type(error).__name__,
            config.command(parallel="ddp"),
        ) from error


def find_fully_shard() -> Any:
    """Return FSDP2's ``fully_shard`` from the module where this torch keeps it.

    That is ``torch.distributed.fsdp`` since 2.6, before that among the composable functions. Raises
    :class:`CannotJoin` if there is none.
    """
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            raise CannotJoin(
                "This torch has no FSDP2.",
                f"torch {torch.__version__} has no fully_shard; it came with torch 2.4.",
                "gpuscope lab --parallel ddp",
            ) from None
    return fully_shard


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the parts that FSDP2 gathers one after the other.

    These are the modules with parameters in that module list which holds the most parameters; empty
    if the model has no such list.
    """
    best: tuple[int, list[nn.Module]] = (0, [])
    for module in model.modules():
        if isinstance(module, (nn.Sequential, nn.ModuleList)):
            parts = [child for child in module.children() if any(True for _ in child.parameters())]
            held = sum(parameter.numel() for parameter in module.parameters())
            if len(parts) > 1 and held > best[0]:
                best = (held, parts)
    return best[1]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that :func:`wrap` returned, from under ``torch.compile``."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


@contextmanager
def no_sync(model: nn.Module, last: bool) -> Iterator[None]:
    """Return the context manager around forward and backward of one micro-batch.

    Gradients are reduced among the ranks only in the ``last`` micro-batch of a step; the others are
    added up on each rank.
    """
    inner = unwrapped(model)
    context: AbstractContextManager[Any] = nullcontext()
    if hasattr(inner, "set_requires_gradient_sync"):
        inner.set_requires_gradient_sync(last)
    elif isinstance(inner, nn.parallel.DistributedDataParallel) and not last:
        context = inner.no_sync()
    with context:
        yield


# ── what the ranks tell each other ────────────────────────────────────────────────────────────────


def mean(value: float, world: World) -> float:
    """Return the mean of ``value`` over the ranks. Every rank calls it, at the same step."""
    if world.size == 1:
        return value
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, group=world._control)
    return float(tensor[0]) / world.size


def means(values: list[float], world: World) -> list[float]:
    """Return the means of several values over the ranks.

    Every rank passes the same number of values.
    """
    if world.size == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, group=world._control)
    return [float(value) / world.size for value in tensor]


def gather(value: Any, world: World) -> list[Any] | None:
    """Return every rank's ``value``, by rank, on rank 0; None on the others.

    Every rank calls it. What JSON holds can be gathered.
    """
    if world.size == 1:
        return [value]
    data = json.dumps(value).encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(lengths, torch.tensor([len(data)], dtype=torch.int64), group=world._control)
    counts = [int(length[0]) for length in lengths]
    padded = torch.tensor(list(data.ljust(max(counts))), dtype=torch.uint8)
    texts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(texts, padded, group=world._control)
    if world.rank != 0:
        return None
    return [
        json.loads(bytes(text.tolist()[:count])) for text, count in zip(texts, counts, strict=True)
    ]


def agree(flag: bool, world: World, name: str = "stop") -> bool:
    """Return whether any rank has raised this flag; the answer is the same on every rank.

    Every rank calls it at the same places. Nothing waits for the answer: with several ranks it is
    about the flags of the previous call (False at the first), which were exchanged during the step
    in between. Flags of different ``name`` are independent.
    """
    if world.size == 1:
        return flag
    before = world._pending.pop(name, None)
    tensor = torch.tensor([int(flag)], dtype=torch.int32)
    world._pending[name] = (
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=world._control, async_op=True),
        tensor,
    )
    if before is None:
        return False
    before[0].wait()
    return bool(before[1][0])


def leave(world: World, code: int) -> NoReturn:
    """End this process.

    If all went well, ranks wait for each other and leave without the interpreter's teardown, in
    which gloo's threads sometimes abort. A rank that has failed does not wait.
    """
    if world.size == 1 and not world.backend:
        sys.exit(code)
    if code == 0:
        for work, _ in world._pending.values():
            work.wait()
        dist.barrier(group=world._control)
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
