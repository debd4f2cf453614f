"""Offer fixes for a training that needs too much memory.

Each fix is a changed request, or other settings, to be simulated again.

What a fix frees is never computed from a rule of thumb. A fix that does not apply is left out with
the reason. Costs are described in words, with a figure only if a source gives one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..model.allocator_settings import AllocatorSettings
from .flags import changed_flags
from .request import Request
from .trainer_what_if import COSTS

RANKS = 8
"""The number of ranks for which sharding is tried if it is not known: the GPUs of a usual node."""
CHUNKS = 8
"""The number of parts in which a loss is computed."""


@dataclass(frozen=True, slots=True)
class MemoryFix:
    """A fix; ``key`` names it in documents.

    ``change`` holds the flags of ``gpuscope lab`` or ``predict``, or the line of code, that makes
    it. Exactly one of ``request`` (traced again), ``settings`` (the same trace under other
    settings) and ``chunks`` (the same trace with the loss in this many parts) says what is
    simulated.
    """

    key: str
    title: str
    change: str
    cost: str
    request: Request | None = None
    settings: AllocatorSettings | None = None
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A fix that was not tried, or could not be tried."""

    key: str
    title: str
    reason: str


def fixes(
    request: Request, batch: int, settings: AllocatorSettings, default_ranks: int | None = None
) -> tuple[list[MemoryFix], list[LeftOut]]:
    """Return the fixes to try for ``request`` with micro-batch ``batch``, and those left out.

    ``default_ranks`` is the number of GPUs that a sharded training would have here.
    """
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    for part in (
        _batch, _precision, _checkpoint, _optimizer, _inputs, _sharding, _fully_sharded, _gradients,
    ):  # fmt: skip
        some, others = part(request, batch, default_ranks)
        found += some
        left += others
    if settings.expandable or not settings.native:
        why = (
            "it is already on" if settings.expandable else "it is an option of the native allocator"
        )
        left.append(LeftOut("expandable-segments", _EXPANDABLE, why))
    else:
        found.append(
            MemoryFix(
                "expandable-segments",
                _EXPANDABLE,
                "PYTORCH_ALLOC_CONF=expandable_segments:True",
                "none for the model: the same tensors in growing segments; frees cache, not "
                "tensors",
                settings=replace(settings, expandable=True),
            )
        )
    found.append(
        MemoryFix(
            "chunked-loss",
            f"compute the loss in {CHUNKS} chunks",
            "checkpoint(lambda h, y: cross_entropy(head(h), y), h_part, y_part) for each part, or "
            "a fused linear loss",
            "the output layer runs once more in the backward pass; the same loss and gradients",
            chunks=CHUNKS,
        )
    )
    return found, left


_EXPANDABLE = "expandable segments"
_Some = tuple[list[MemoryFix], list[LeftOut]]


def _batch(request: Request, batch: int, _: int | None) -> _Some:
    if batch < 2:
        why = "the micro-batch is already one sample"
        return [], [
            LeftOut("batch-half", "halve the micro-batch", why),
            LeftOut("accumulate", "accumulation", why),
        ]
    half, parts = batch // 2, request.accumulate
    alone = replace(request, batch=half)
    both = replace(alone, accumulate=2 * parts)
    return [
        MemoryFix(
            "batch-half",
            f"micro-batch {half} instead of {batch}",
            changed_flags(request, alone),
            COSTS["batch-half"],
            request=alone,
        ),
        MemoryFix(
            "accumulate",
            f"micro-batch {half}, accumulated over {2 * parts}",
            changed_flags(request, both),
            "the same samples and gradients per step (unless layers mix samples, as batch norm "
            "does); smaller kernels",
            request=both,
        ),
    ], []


def _precision(request: Request, _: int, __: int | None) -> _Some:
    if request.amp != "off" or request.deepspeed:
        why = f"{request.amp} autocast is already on"
        if request.deepspeed:
            why = "DeepSpeed's file says in which type it computes"
        return [], [LeftOut("bf16", "bf16 autocast", why), LeftOut("fp16", "fp16 autocast", why)]
    bf16, fp16 = replace(request, amp="bf16"), replace(request, amp="fp16")
    if _major(request) < 8:
        return [
            MemoryFix(
                "fp16",
                "fp16 autocast with a grad scaler",
                changed_flags(request, fp16),
                "11 bits of mantissa and a small range in matmuls: steps that overflow are skipped",
                request=fp16,
            )
        ], [LeftOut("bf16", "bf16 autocast", "GPUs before Ampere have no bf16 kernels")]
    return [
        MemoryFix(
            "bf16",
            "bf16 autocast",
            changed_flags(request, bf16),
            "8 bits of mantissa in matmuls; weights, gradients and optimizer state stay fp32",
            request=bf16,
        )
    ], [LeftOut("fp16", "fp16 autocast", "bf16 tensors are just as large, and need no grad scaler")]


def _major(request: Request) -> int:
    major = request.architecture.split(".")[0]
    return int(major) if major.isdigit() else 0


def _checkpoint(request: Request, _: int, __: int | None) -> _Some:
    title = "checkpoint every block"
    if request.checkpoint == 1:
        return [], [LeftOut("checkpoint", title, "every block is already checkpointed")]
    every = replace(request, checkpoint=1)
    code = ""
    if request.model.startswith("hf:"):
        code = "model.gradient_checkpointing_enable()"
    elif ":" in request.model:
        code = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for every block"
    found = [
        MemoryFix(
            "checkpoint",
            title,
            code or changed_flags(request, every),
            "slower: the forward pass of the blocks runs once more in the backward pass (Chen et "
            "al., 2016)",
            request=every,
        )
    ]
    if request.checkpoint == 0:
        some = replace(request, checkpoint=2)
        found.append(
            MemoryFix(
                "checkpoint-2",
                "checkpoint every second block",
                f"{code}, every second one" if code else changed_flags(request, some),
                "slower: half of the blocks run once more",
                request=some,
            )
        )
    return found, []


def _optimizer(request: Request, _: int, __: int | None) -> _Some:
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    own_code = ":" in request.model
    if request.fused:
        left.append(LeftOut("fused-optimizer", "fused optimizer", "the optimizer is already fused"))
    else:
        fused = replace(request, fused=True, foreach=None)
        code = "fused=True in the optimizer's arguments"
        cost = (
            "none: one kernel per list and no temporary lists (torch's Adam, AdamW, SGD, "
            "Adagrad have it)"
        )
        change = code if own_code else changed_flags(request, fused)
        found.append(MemoryFix("fused-optimizer", "fused optimizer", change, cost, request=fused))
    if request.optimizer == "sgd":
        left.append(LeftOut("sgd", "SGD with momentum", "it is already SGD"))
    else:
        sgd = replace(request, optimizer="sgd")
        code = "torch.optim.SGD(…, momentum=0.9)"
        cost = (
            "one state per parameter instead of two: another training, which needs its own "
            "learning rate"
        )
        change = code if own_code else changed_flags(request, sgd)
        found.append(
            MemoryFix("sgd", "SGD with momentum instead of Adam", change, cost, request=sgd)
        )
    return found, left


def _inputs(request: Request, _: int, __: int | None) -> _Some:
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    for name, unit, cost in (
        ("sequence", "tokens per sample", "the model sees half the context"),
        ("resolution", "pixels per side", "the model sees a quarter of the pixels"),
    ):
        key, size = f"{name}-half", getattr(request, name)
        if size is not None and size > 1:
            half = replace(request, **{name: size // 2})
            title = f"{size // 2} {unit} instead of {size}"
            found.append(MemoryFix(key, title, changed_flags(request, half), cost, request=half))
            continue
        why = f"the model's code sets the {name}"
        if request.model.startswith(("hf:", "torchvision:")):
            why = f"no {name} was given, or the model has none: --{name} N"
        left.append(LeftOut(key, f"half the {name}", why))
    return found, left


def _sharding(request: Request, _: int, default_ranks: int | None) -> _Some:
    ranks = request.ranks if request.ranks > 1 else default_ranks or RANKS
    if ranks < 2 or request.deepspeed:
        why = (
            "the training is already sharded (DeepSpeed)"
            if request.deepspeed
            else "there is one GPU"
        )
        return [], [LeftOut("zero1", "ZeRO-1", why), LeftOut("fsdp", "FSDP", why)]
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    for key, name, change in (
        ("zero1", "ZeRO-1", "ZeroRedundancyOptimizer(parameters, optimizer_class=…)"),
        ("fsdp", "FSDP2", f"--parallel fsdp --nproc {ranks}"),
    ):
        title = f"{name} over {ranks} ranks"
        if request.sharding in (key, "fsdp"):
            left.append(
                LeftOut(key, title, f"the training is already sharded ({request.sharding})")
            )
            continue
        sharded = replace(request, sharding=key, ranks=ranks)
        code = "fully_shard(block) for every block, then fully_shard(model)"
        own = ":" in request.model and key == "fsdp"
        found.append(MemoryFix(key, title, code if own else change, COSTS[key], request=sharded))
    return found, left


def _fully_sharded(request: Request, _: int, __: int | None) -> _Some:
    """Offer what FSDP2 can do beyond sharding, once a training uses it."""
    if request.sharding != "fsdp":
        return [], []
    found = []
    for key, title, changes in (
        ("fsdp-reshard", "sharding the blocks again after the forward pass",
         {"fsdp_reshard": "blocks"} if request.fsdp_reshard == "never" else {}),
        ("fsdp-params", "parameters gathered in bf16",
         {"fsdp_params": "bf16", "fsdp_reduce": "fp32"} if request.amp == "off" else {}),
        ("fsdp-offload", "parameters and optimizer on the host", {"fsdp_offload": True}),
    ):  # fmt: skip
        changed = replace(request, **changes)
        if changed != request and not (key == "fsdp-params" and request.fsdp_params == "bf16"):
            flags = changed_flags(request, changed)
            found.append(MemoryFix(key, title, flags, COSTS[key], request=changed))
    return found, []


def _gradients(request: Request, _: int, __: int | None) -> _Some:
    if request.set_to_none:
        return [], []
    changed = replace(request, set_to_none=True)
    return [
        MemoryFix(
            "set-to-none",
            "zero_grad(set_to_none=True)",
            changed_flags(request, changed),
            "none: gradients are created again in each step",
            request=changed,
        )
    ], []
