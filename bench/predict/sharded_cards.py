"""Judge predictions of DDP, FSDP2 and ZeRO-1 on trainings that were declared before.

``python -m bench.predict.sharded_cards --out DIR`` predicts, measures on two GPUs and compares. No
model of ``sharded_models.py`` and none of these trainings was measured when the predictions were
made. Trainings named *paused* wait after each step, as those that load data or save do: NCCL's
watchdog thread has then looked before DDP replaces its first bucket. What the actions do is said in
``cards.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuscope.predict.request import Request

from .cards import Case, Phases, Place, main
from .ddp_cards import OPTIONS, train
from .fsdp_cards import SHORT, sharded
from .sharded_models import MODELS

BF16, FP32 = torch.bfloat16, torch.float32
DDP: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("parallel", "default", 6, {}),
    ("parallel", "default", 12, {"amp": "bf16", "pause": True}),
    ("parallel", "views", 12, {"amp": "bf16", "checkpoint": 1, "pause": True}),
    ("latents", "default", 16, {"amp": "bf16"}),
    ("latents", "static", 16, {}),
    ("latents", "hooked", 24, {"amp": "bf16", "pause": True}),
    ("pictures", "default", 32, {"pause": True}),
    ("pictures", "views", 48, {"amp": "bf16"}),
    ("gating", "default", 16, {"amp": "bf16", "accumulate": 2, "pause": True}),
    ("gating", "unused", 16, {}),
)
FSDP: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("parallel", "default", 8, {}),
    ("parallel", "policy", 8, {"param": BF16, "reduce": FP32}),
    ("parallel", "kept_short", 8, {"param": BF16, "reshard": False}),
    ("parallel", "offload_policy", 4, {"param": BF16, "reduce": FP32, "offload": True}),
    ("parallel", "checkpoint_policy", 16, {"param": BF16, "reduce": FP32, "checkpoint": 1}),
    ("latents", "autocast", 24, {"amp": "bf16"}),
    ("latents", "offload", 16, {"offload": True}),
    ("gating", "ahead_policy", 16, {"param": BF16, "reduce": FP32, "ahead": 2}),
    ("gating", "root", 16, {"root": True}),
)
ZERO: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("parallel", "zero1", 6, {"pause": True}),
    ("latents", "zero1", 24, {"amp": "bf16", "pause": True}),
    ("gating", "zero1_views", 16, {"views": True}),
)


def _factory(name: str, option: str | None) -> Callable[..., Any]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Any:
        build, loss = MODELS[name](batch, device, checkpoint)
        model = build().to(device)
        if option is not None:
            torch.distributed.init_process_group("nccl")
            model = _wrapped(model, option, None)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: loss(model)

    return factory


def _wrapped(model: nn.Module, option: str, index: int | None) -> Any:
    options = dict(OPTIONS[option])
    hooked = options.pop("hook", False)
    wrapped = DistributedDataParallel(model, None if index is None else [index], **options)
    if hooked:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


# A request names its factory, so each is a member of this module.
globals().update({name: _factory(name, None) for name in MODELS})
globals().update({f"{a}_{b}": _factory(a, b) for a in MODELS for b in OPTIONS})


def _case(kind: str, model: str, way: str, batch: int, options: dict[str, Any]) -> Case:
    said: dict[str, Any] = {"amp": options.get("amp", "off")}
    factory = model
    if kind == "ddp" and options.get("accumulate", 1) == 1:
        factory = f"{model}_{way}"
    elif kind == "fsdp":
        reshard = options.setdefault("reshard", None)
        said |= {
            "sharding": "fsdp",
            "fsdp_reshard": {None: "blocks", True: "always", False: "never"}[reshard],
            "fsdp_params": SHORT[options.get("param", FP32)],
            "fsdp_reduce": SHORT.get(options.get("reduce"), "as-params"),
            "fsdp_offload": options.get("offload", False),
            "fsdp_ahead": options.get("ahead", 0),
            "fsdp_wrap": "root" if options.get("root") else "blocks",
        }
    else:  # DDP is put around the model by the prediction itself
        said |= {"sharding": kind, "bucket_views": options.get("views", way == "views")}
    request = Request(
        f"bench.predict.sharded_cards:{factory}",
        batch,
        checkpoint=options.get("checkpoint", 0),
        accumulate=options.get("accumulate", 1),
        ranks=2 if "sharding" in said else 1,
        **said,
    )
    words = [kind, model, way, f"b{batch}", said["amp"]]
    words += [word for word in ("checkpoint", "accumulate", "pause") if word in options]
    return Case("-".join(words), request, {"kind": kind, "model": model, "way": way, **options})


CASES = [
    _case(kind, *row)
    for kind, rows in (("ddp", DDP), ("fsdp", FSDP), ("zero1", ZERO))
    for row in rows
]


def run(case: Case, place: Place, phases: Phases) -> None:
    place.join()
    options = case.options
    cuda = place.device.type == "cuda"
    phases.begin("build")
    batch = (case.request.batch or 1) if cuda else 2
    build, loss = MODELS[options["model"]](batch, place.device, bool(options.get("checkpoint")))
    index = place.rank if cuda else None
    model: Any
    if options["kind"] == "fsdp":
        model = sharded(build, options, place)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
    elif options["kind"] == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        views = options.get("views", False)
        model = _wrapped(build().to(place.device), "views" if views else "default", index)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=views, lr=1e-4
        )
    else:
        model = _wrapped(build().to(place.device), options["way"], index)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    phases.end(0, "build")
    more: dict[str, Any] = {
        name: options[name] for name in ("accumulate", "pause") if name in options
    }
    if options["kind"] != "fsdp":
        more["no_sync"] = model.no_sync
    train(optimizer, lambda: loss(model), place, phases, amp=options.get("amp", "off"), **more)


if __name__ == "__main__":
    raise SystemExit(main("sharded_cards", CASES, (__doc__ or "").splitlines()[0]))
