"""Offer fixes for a training that needs too much memory.

Each fix is a changed request, or other settings, to be simulated again.

What a fix frees is never computed from a rule of thumb. A fix that does not apply is left out with
the reason.
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
        key = "expandable-segments"
        change = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        growing = replace(settings, expandable=True)
        found.append(MemoryFix(key, _EXPANDABLE, change, COSTS[key], settings=growing))
    key, title = "chunked-loss", f"compute the loss in {CHUNKS} chunks"
    change = (
        "checkpoint(lambda h, y: cross_entropy(head(h), y), h_part, y_part) for each part, or a "
        "fused linear loss"
    )
    return [*found, MemoryFix(key, title, change, COSTS[key], chunks=CHUNKS)], left


def _changed(
    request: Request, key: str, title: str, code: str = "", **changes: object
) -> MemoryFix:
    """Return the fix that changes the request so, by its flags or by a line of ``code``."""
    changed = replace(request, **changes)  # type: ignore[arg-type]
    change = code or changed_flags(request, changed)
    return MemoryFix(key, title, change, COSTS[key], request=changed)


_EXPANDABLE = "expandable segments"
_Some = tuple[list[MemoryFix], list[LeftOut]]


def _batch(request: Request, batch: int, _: int | None) -> _Some:
    if batch < 2:
        why = "the micro-batch is already one sample"
        return [], [
            LeftOut("batch-half", "halve the micro-batch", why),
            LeftOut("accumulate", "accumulation", why),
        ]
    half, parts = batch // 2, 2 * request.accumulate
    title = f"micro-batch {half}"
    accumulated = f"{title}, accumulated over {parts}"
    return [
        _changed(request, "batch-half", f"{title} instead of {batch}", batch=half),
        _changed(request, "accumulate", accumulated, batch=half, accumulate=parts),
    ], []


def _precision(request: Request, _: int, __: int | None) -> _Some:
    if request.amp != "off" or request.deepspeed:
        why = f"{request.amp} autocast is already on"
        if request.deepspeed:
            why = "DeepSpeed's file says in which type it computes"
        return [], [LeftOut("bf16", "bf16 autocast", why), LeftOut("fp16", "fp16 autocast", why)]
    if _major(request) < 8:
        fix = _changed(request, "fp16", "fp16 autocast with a grad scaler", amp="fp16")
        why = "GPUs before Ampere have no bf16 kernels"
        return [fix], [LeftOut("bf16", "bf16 autocast", why)]
    fix = _changed(request, "bf16", "bf16 autocast", amp="bf16")
    why = "bf16 tensors are just as large, and need no grad scaler"
    return [fix], [LeftOut("fp16", "fp16 autocast", why)]


def _major(request: Request) -> int:
    major = request.architecture.split(".")[0]
    return int(major) if major.isdigit() else 0


def _checkpoint(request: Request, _: int, __: int | None) -> _Some:
    title = "checkpoint every block"
    if request.checkpoint == 1:
        return [], [LeftOut("checkpoint", title, "every block is already checkpointed")]
    code = ""
    if request.model.startswith("hf:"):
        code = "model.gradient_checkpointing_enable()"
    elif ":" in request.model:
        code = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for every block"
    found = [_changed(request, "checkpoint", title, code, checkpoint=1)]
    if request.checkpoint == 0:
        title, code = "checkpoint every second block", f"{code}, every second one" if code else ""
        found.append(_changed(request, "checkpoint-2", title, code, checkpoint=2))
    return found, []


def _optimizer(request: Request, _: int, __: int | None) -> _Some:
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    own_code = ":" in request.model
    if request.fused:
        left.append(LeftOut("fused-optimizer", "fused optimizer", "the optimizer is already fused"))
    else:
        code = "fused=True in the optimizer's arguments" if own_code else ""
        key, title = "fused-optimizer", "fused optimizer"
        found.append(_changed(request, key, title, code, fused=True, foreach=None))
    if request.optimizer == "sgd":
        left.append(LeftOut("sgd", "SGD with momentum", "it is already SGD"))
    else:
        code = "torch.optim.SGD(…, momentum=0.9)" if own_code else ""
        title = "SGD with momentum instead of Adam"
        found.append(_changed(request, "sgd", title, code, optimizer="sgd"))
    return found, left


def _inputs(request: Request, _: int, __: int | None) -> _Some:
    found: list[MemoryFix] = []
    left: list[LeftOut] = []
    for name, unit in (("sequence", "tokens per sample"), ("resolution", "pixels per side")):
        key, size = f"{name}-half", getattr(request, name)
        if size is not None and size > 1:
            title = f"{size // 2} {unit} instead of {size}"
            found.append(_changed(request, key, title, **{name: size // 2}))
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
        if ":" in request.model and key == "fsdp":
            change = "fully_shard(block) for every block, then fully_shard(model)"
        found.append(_changed(request, key, title, change, sharding=key, ranks=ranks))
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
        fix = _changed(request, key, title, **changes)
        if fix.request != request and not (key == "fsdp-params" and request.fsdp_params == "bf16"):
            found.append(fix)
    return found, []


def _gradients(request: Request, _: int, __: int | None) -> _Some:
    if request.set_to_none:
        return [], []
    title = "zero_grad(set_to_none=True)"
    return [_changed(request, "set-to-none", title, set_to_none=True)], []
