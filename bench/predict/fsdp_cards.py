"""Measure what FSDP2 and ZeRO-1 take on two GPUs, beside the prediction.

``python -m bench.predict.fsdp_cards --out DIR`` trains a GPT and a gated decoder in two processes:
each block sharded by ``fully_shard``, with and without resharding after the forward pass, with a
policy of mixed precision, with parameters on the host, and with
``ZeroRedundancyOptimizer`` under DistributedDataParallel. The model is built on the meta device, as
programs for large models do, so that it is never whole on a GPU. What the actions do is said in
``cards.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gpuscope.predict.request import Request

from . import families
from .cards import Case, Phases, Place, main
from .ddp_cards import train
from .families import size

WORDS = {"gpt": 50304, "gated": 32000}
LENGTH = 512


def _model(name: str, checkpoint: bool, device: Any) -> nn.Module:
    words, length = size(WORDS[name], device), size(LENGTH, device)
    if name == "gpt":
        return families.Gpt(
            words, length, 64 * size(16, device), size(16, device), 16, again=checkpoint
        )
    return families.Gated(words, length, 1280, size(10, device), 20, 4, checkpoint)


def _loss(name: str, batch: int, device: Any) -> Callable[[nn.Module], torch.Tensor]:
    shape = batch, size(LENGTH, device) + 1
    tokens = torch.randint(size(WORDS[name], device), shape, device=device)

    def loss(model: nn.Module) -> torch.Tensor:
        logits = model(tokens[:, :-1].contiguous())
        return families.next_token_loss(logits, tokens[:, 1:].contiguous())

    return loss


def _factory(name: str) -> Callable[..., Any]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Any:
        model = _model(name, checkpoint, device).to(device)
        loss = _loss(name, batch, device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: loss(model)

    return factory


gpt, gated = _factory("gpt"), _factory("gated")


# ── what is asked for, and what the request says of it ────────────────────────────────────────────

WAYS: dict[str, dict[str, Any]] = {
    "reshard": {},
    "kept": {"reshard": False},
    "autocast": {"amp": "bf16"},
    "policy": {"param": torch.bfloat16, "reduce": torch.float32},
    "policy_short": {"param": torch.bfloat16, "reduce": torch.bfloat16},
    "policy_kept": {"param": torch.bfloat16, "reduce": torch.float32, "reshard": False},
    "offload": {"offload": True},
    "offload_policy": {"offload": True, "param": torch.bfloat16, "reduce": torch.float32},
    "prefetch": {"prefetch": True},
    "checkpoint": {"checkpoint": 1},
    "checkpoint_policy": {"checkpoint": 1, "param": torch.bfloat16, "reduce": torch.float32},
    "zero1": {"zero": True},
    "zero1_autocast": {"zero": True, "amp": "bf16"},
    "zero1_views": {"zero": True, "views": True},
}
UNSAID = {
    "prefetch": "one block is fetched ahead in the forward pass, two in the backward pass",
    "views": "the optimizer's parameters are views of buckets",
}
"""What no switch of a prediction says."""
SHORT = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def _case(model: str, way: str, batch: int) -> Case:
    options = WAYS[way]
    request = Request(
        f"bench.predict.fsdp_cards:{model}",
        batch,
        options.get("amp", "off"),
        checkpoint=options.get("checkpoint", 0),
        sharding="zero1" if options.get("zero") else "fsdp",
        ranks=2,
        fsdp_reshard="always" if options.get("reshard", True) else "never",
        fsdp_params=SHORT[options.get("param", torch.float32)],
        fsdp_reduce=SHORT.get(options.get("reduce"), "as-params"),
        fsdp_offload=options.get("offload", False),
        fsdp_ahead=2 if "prefetch" in options else 0,
        bucket_views=options.get("views", False),
    )
    unsaid = "; ".join(text for key, text in UNSAID.items() if key in options)
    return Case(
        f"{model}-{way}-b{batch}", request, {"model": model, "way": way, "record": batch > 2},
        about=unsaid,
    )  # fmt: skip


CASES = [_case("gpt", way, 12) for way in WAYS]
CASES += [_case("gated", way, 8) for way in WAYS if way not in ("policy_kept", "offload_policy")]
CASES += [_case("gpt", way, 2) for way in WAYS]


# ── the real ones ─────────────────────────────────────────────────────────────────────────────────


def sharded(build: Callable[[], nn.Module], options: dict[str, Any], place: Place) -> nn.Module:
    """Return the model that ``build`` makes, on the meta device, sharded as the options say."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )

    with torch.device("meta"):
        model = build()
    chosen = {
        "mesh": init_device_mesh(place.device.type, (place.ranks,)),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=options.get("param"), reduce_dtype=options.get("reduce")
        ),
        # pinned memory needs a GPU
        "offload_policy": CPUOffloadPolicy(pin_memory=place.device.type == "cuda")
        if options.get("offload")
        else OffloadPolicy(),
    }
    if options.get("reshard", True) is not None:  # None: as torch has it
        chosen["reshard_after_forward"] = options.get("reshard", True)
    blocks = [] if options.get("root") else list(model.blocks)
    for block in blocks:
        fully_shard(block, **chosen)
    fully_shard(model, **chosen)
    if options.get("prefetch"):
        for before, (block, after) in zip([None, *blocks], pairwise(blocks), strict=False):
            block.set_modules_to_forward_prefetch([after])
            after.set_modules_to_backward_prefetch([block, *([before] if before else [])])
    ahead: int = options.get("ahead", 0)
    for number, block in enumerate(blocks) if ahead else ():
        block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + ahead])
        before = blocks[max(0, number - ahead) : number]
        block.set_modules_to_backward_prefetch(before[::-1])
    model.to_empty(device="cpu" if options.get("offload") else place.device)
    for name, buffer in model.named_buffers():
        model.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = (
            torch.zeros_like(buffer, device=place.device)
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=0.02)
    return model


def run(case: Case, place: Place, phases: Phases) -> None:
    place.join()
    name, options = case.options["model"], WAYS[case.options["way"]]
    batch = case.request.batch if place.device.type == "cuda" else 2
    checkpoint = bool(options.get("checkpoint"))
    phases.begin("build")
    model: nn.Module
    if options.get("zero"):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        views = options.get("views", False)
        ids = [place.rank] if place.device.type == "cuda" else None
        model = DistributedDataParallel(
            _model(name, checkpoint, place.device).to(place.device),
            ids,
            gradient_as_bucket_view=views,
        )
        optimizer: Any = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=views, lr=1e-4
        )
    else:
        model = sharded(lambda: _model(name, checkpoint, place.device), options, place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss = _loss(name, batch or 1, place.device)
    phases.end(0, "build")
    train(optimizer, lambda: loss(model), place, phases, amp=options.get("amp", "off"))


if __name__ == "__main__":
    raise SystemExit(main("fsdp_cards", CASES, (__doc__ or "").splitlines()[0]))
