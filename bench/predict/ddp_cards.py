"""Measure what DistributedDataParallel takes on two GPUs, beside the prediction.

``python -m bench.predict.ddp_cards --out DIR`` trains an encoder, a GPT and a ResNet in two
processes over NCCL: in float32 and bf16, with each of DDP's options, and some with a pause after
each step. The pause shows whether NCCL still keeps DDP's first bucket in the second step: its
watchdog thread looks ten times a second. What the actions do is said in ``cards.py``.

``--only 'held-*'`` chooses the cases of ``ddp_models.py``, which were declared after the others had
been measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuscope.predict.request import Request

from . import ddp_models, families, families_vision
from .cards import Case, Phases, Place, main
from .families import size

STEPS, PAUSE_SECONDS = 3, 0.5
WIDTH, TOKENS, WORDS, LAYERS = 768, 256, 32000, 12
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "hooked": {"hook": True},
    "large": {"bucket_cap_mb": 100, "gradient_as_bucket_view": True},
    "views_static": {"gradient_as_bucket_view": True, "static_graph": True},
    "own_buffers": {"broadcast_buffers": False, "gradient_as_bucket_view": True},
}
MEASURED = ("default", "views", "static", "unused", "hooked")
"""The options with which the rules were measured."""


class Net(nn.Module):
    def __init__(self, words: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)))


def encoder(batch: int, device: Any) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    words = size(WORDS, device)

    def loss(model: nn.Module) -> torch.Tensor:
        tokens = torch.randint(words, (batch, size(TOKENS, device)), device=device)
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return Net(words, size(LAYERS, device)).to(device), loss


def gpt(
    batch: int, device: Any, checkpoint: bool = False
) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    words, length, depth = (size(full, device) for full in (50304, 512, 12))
    model = families.Gpt(words, length, 64 * depth, depth, depth, again=checkpoint).to(device)
    tokens = torch.randint(words, (batch, length + 1), device=device)

    def loss(model: nn.Module) -> torch.Tensor:
        logits = model(tokens[:, :-1].contiguous())
        return families.next_token_loss(logits, tokens[:, 1:].contiguous())

    return model, loss


def resnet(batch: int, device: Any) -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    depths = (size(3, device), size(4, device), size(6, device), size(3, device))
    model = families_vision.ResNet(depths, False).to(device)
    images = torch.randn(batch, 3, 16 * size(14, device), 16 * size(14, device), device=device)
    targets = torch.randint(1000, (batch,), device=device)
    return model, lambda model: nn.functional.cross_entropy(model(images), targets)


MODELS: dict[str, Callable[..., Any]] = {
    "encoder": encoder,
    "gpt": gpt,
    "gpt_checkpointed": partial(gpt, checkpoint=True),
    "resnet": resnet,
    **ddp_models.HELD,
}


def make(batch: int, device: Any, model_name: str, option: str) -> Any:
    """Return the wrapped model, its optimizer and the forward pass."""
    options = dict(OPTIONS[option])
    hooked = options.pop("hook", False)
    plain, loss = MODELS[model_name](batch, device)
    index = getattr(device, "index", None) or 0
    ids = [index] if torch.device(device).type == "cuda" else None
    model = DistributedDataParallel(plain, device_ids=ids, **options)
    if hooked:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, lambda: loss(model)


def _factory(model_name: str, option: str) -> Callable[..., Any]:
    def factory(batch: int, device: Any) -> Any:
        torch.distributed.init_process_group("nccl")
        return make(batch, device, model_name, option)

    return factory


def _plain(model_name: str) -> Callable[..., Any]:
    def factory(batch: int, device: Any) -> Any:
        model, loss = MODELS[model_name](batch, device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: loss(model)

    return factory


# A request names its factory, so each is a member of this module.
globals().update({f"{a}_{b}": _factory(a, b) for a in MODELS for b in OPTIONS})
globals().update({f"plain_{name}": _plain(name) for name in MODELS})


def _case(
    model: str, option: str, batch: int, amp: str, *, accumulate: int = 1, **more: Any
) -> Case:
    words = [model, option, f"b{batch}", amp]
    words += ["no_sync"] if accumulate > 1 else []
    words += ["paused"] if more.get("pause") else []
    request = Request(f"bench.predict.ddp_cards:{model}_{option}", batch, amp)
    if accumulate > 1:  # the wrapper of the request leaves out all but the last micro-batch
        request = Request(
            f"bench.predict.ddp_cards:plain_{model}", batch, amp, accumulate=accumulate,
            sharding="ddp", ranks=2, bucket_views=option == "views",
        )  # fmt: skip
    options = {"model": model, "option": option, "amp": amp, "accumulate": accumulate, **more}
    return Case("-".join(words), request, options)


def _cases() -> list[Case]:
    types = ("off", "bf16")
    found = [_case("encoder", option, 16, amp, record=True) for option in MEASURED for amp in types]
    found += [
        _case(model, "default", batch, amp, record=True)
        for model, batch in (("gpt", 4), ("gpt", 16), ("resnet", 64), ("gpt_checkpointed", 16))
        for amp in types
    ]
    found += [
        _case(model, option, 8, "bf16", accumulate=2, record=True)
        for model in ("gpt", "resnet")
        for option in ("default", "views")
    ]
    found += [
        _case(model, option, 8, "bf16")
        for model in ("gpt", "resnet")
        for option in ("views", "static", "hooked")
    ]
    found += [
        _case("encoder", option, 16, amp, pause=True)
        for option in ("default", "hooked")
        for amp in types
    ]
    found += [
        _case("encoder", option, batch, amp)
        for batch in (4, 48)
        for option in MEASURED
        for amp in types
    ]
    return found


def _held() -> list[Case]:
    """Return cases as people train, of models that no rule was made from."""
    found = [
        _case("vit", "views", 64, "bf16"),
        _case("vit", "default", 32, "off"),
        _case("vit", "views", 32, "bf16", accumulate=4),
        _case("lstm", "default", 32, "off"),
        _case("lstm", "views", 48, "bf16", accumulate=2),
        _case("unet", "default", 16, "bf16"),
        _case("unet", "own_buffers", 8, "off"),
        _case("unet", "default", 8, "bf16", accumulate=4),
        _case("convnext", "views_static", 32, "bf16"),
        _case("gated", "large", 8, "bf16"),
        _case("gated", "default", 4, "bf16", accumulate=8),
        _case("gated", "views_static", 8, "bf16"),
        _case("experts", "unused", 256, "bf16"),
        _case("tables", "default", 4096, "off"),
    ]
    return [replace(case, name=f"held-{case.name}") for case in found]


CASES = [*_cases(), *_held()]


def train(
    optimizer: Any,
    loss: Callable[[], torch.Tensor],
    place: Place,
    phases: Phases,
    *,
    amp: str = "off",
    accumulate: int = 1,
    no_sync: Callable[[], Any] = contextlib.nullcontext,
    pause: bool = False,
) -> None:
    """Train three steps, and note the peaks of each phase."""
    for step in range(1, STEPS + 1):
        phases.begin(f"step {step}")
        optimizer.zero_grad()
        for micro in range(accumulate):
            last = micro == accumulate - 1
            with contextlib.nullcontext() if last else no_sync():
                phases.begin("forward")
                with torch.autocast(place.device.type, torch.bfloat16, enabled=amp == "bf16"):
                    value = loss()
                    if accumulate > 1:
                        value = value / accumulate
                phases.end(step, "forward")
                phases.begin("backward")
                value.backward()
                phases.end(step, "backward")
        phases.begin("optimizer")
        optimizer.step()
        phases.end(step, "optimizer")
        if pause:
            if place.device.type == "cuda":
                torch.cuda.synchronize()
            time.sleep(PAUSE_SECONDS)


def run(case: Case, place: Place, phases: Phases) -> None:
    place.join()
    options = case.options
    phases.begin("build")
    batch = (case.request.batch or 1) if place.device.type == "cuda" else 2
    model, optimizer, loss = make(batch, place.device, options["model"], options["option"])
    phases.end(0, "build")
    train(
        optimizer, loss, place, phases,
        amp=options["amp"], accumulate=options["accumulate"], no_sync=model.no_sync,
        pause=options.get("pause", False),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main("ddp_cards", CASES, (__doc__ or "").splitlines()[0]))
