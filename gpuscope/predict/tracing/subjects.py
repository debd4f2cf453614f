"""Make the model to train, of fake tensors.

It is a preset of the Lab, a user's factory, a transformers config or a torchvision model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..request import CannotPredict, Request
from . import checkpointing, optimizers, switches, transformers_models
from .failures import in_words, library
from .redirect import CUDA
from .transformers_inputs import FRAMES, OBJECTS, PIXELS

RATE = 1e-4


@dataclass
class Subject:
    """What is trained; ``loss()`` runs the forward pass of a micro-batch."""

    model: nn.Module
    optimizer: Any
    loss: Callable[[], torch.Tensor]
    batch: int
    released: bool = False
    """Whether memory that building it has left in the allocator's cache is freed before the first
    step.
    """
    source: str = ""
    """The file and line at which the user's factory is defined."""
    checked: Callable[[Any], torch.Tensor] = lambda loss: loss
    """Returns what ``loss()`` returned, if it is a loss."""


def build(request: Request) -> Subject:
    """Build the model of a request. Raises :class:`CannotPredict`."""
    subject = _made(request)
    if request.channels_last:
        subject.model.to(memory_format=torch.channels_last)
    return subject


def _made(request: Request) -> Subject:
    name = request.model
    if name.startswith("hf:"):
        return _transformers(request, Path(name[3:]))
    if name.startswith("torchvision:"):
        return _torchvision(request, name[len("torchvision:") :])
    if ":" in name:
        return _factory(request)
    return _preset(request)


def _preset(request: Request) -> Subject:
    from ...lab import loaders, models
    from ...lab.toggles import PRESETS

    name = PRESETS[request.model]["cuda"] if request.model in PRESETS else request.model
    if name not in models.MODELS:
        known = ", ".join([*PRESETS, *models.MODELS])
        raise CannotPredict(
            f"There is no model {name!r}.",
            f"Known: {known}.",
            "choose one of these, or give MODULE:FACTORY",
        )
    preset = models.MODELS[name]
    task = models.build(name, CUDA, request.seed)
    batch = request.batch or preset.batch
    source = loaders.SyntheticBatches(task.pool, batch)
    for module in task.model.modules():
        if isinstance(module, models.Blocks):
            module.checkpoint = request.checkpoint == 1
    if request.checkpoint > 1:
        checkpointing.wrap(task.model, request.checkpoint)
    rate = preset.sgd_rate if request.optimizer == "sgd" else preset.learning_rate
    optimizer = optimizers.default(request, task.model.parameters(), rate)

    def loss() -> torch.Tensor:
        inputs, targets = source.next()
        return task.criterion(task.model(inputs), targets)

    return Subject(task.model, optimizer, loss, batch, released=True)


def _factory(request: Request) -> Subject:
    from ...lab import factory

    try:
        with switches.imported(request.model.partition(":")[0]):
            call = factory.find(request.model)
        batch = request.batch or factory.BATCH
        own = request.checkpoint == 1 and factory.takes_checkpoint(call)
        torch.manual_seed(request.seed)
        made = factory.make(request.model, call, batch, CUDA, own)
    except factory.BadFactory as bad:
        raise CannotPredict(*bad.args) from bad
    if request.checkpoint and not own:
        checkpointing.wrap(made.model, request.checkpoint)
    optimizer = optimizers.chosen(made.optimizer, request)
    # so that the factory's optimizer and its tensors are freed if another one is requested
    forward = made.forward

    def checked(loss: Any) -> torch.Tensor:
        try:
            return factory.checked(request.model, loss)
        except factory.BadFactory as bad:
            raise CannotPredict(*bad.args) from bad

    return Subject(made.model, optimizer, forward, batch, source=_source(call), checked=checked)


def _source(call: Callable[..., Any]) -> str:
    """Return the file and line at which a function or class is defined; "" if it is not known."""
    try:
        call = inspect.unwrap(call)
        return f"{inspect.getsourcefile(call)}:{inspect.getsourcelines(call)[1] or 1}"
    except (OSError, TypeError, ValueError):
        return ""


# ── models of libraries ───────────────────────────────────────────────────────────────────────────


def _transformers(request: Request, path: Path) -> Subject:
    model, loss, batch = transformers_models.make(request, path)
    if request.checkpoint == 1 and getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable()
    elif request.checkpoint:
        checkpointing.wrap(model, request.checkpoint)
    trained = [one for one in model.parameters() if one.requires_grad]
    return Subject(model, optimizers.default(request, trained, RATE), loss, batch)


def _torchvision(request: Request, name: str) -> Subject:
    models = library("torchvision.models", "A torchvision model")
    if name not in models.list_models():
        close = [known for known in models.list_models() if known.startswith(name[:4])][:12]
        why = (
            f"It has: {', '.join(close)}…"
            if close
            else "torchvision.models.list_models() lists them."
        )
        raise CannotPredict(f"torchvision has no model {name!r}.", why, "name one of these")
    # A composed model would download the weights of its backbone.
    has_backbone = (
        "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters
    )
    model = models.get_model(
        name, weights=None, **({"weights_backbone": None} if has_backbone else {})
    ).to(CUDA)
    model.train()
    if request.checkpoint:
        checkpointing.wrap(model, request.checkpoint)
    batch = request.batch or 8
    optimizer = optimizers.default(request, model.parameters(), RATE)
    kind = models.get_model_builder(name).__module__.split(".")[2]
    call = _TORCHVISION.get(kind, _images)(model, batch, request.resolution or PIXELS)

    def loss() -> torch.Tensor:
        try:
            return call()
        except CannotPredict:
            raise
        except Exception as error:
            if in_words(request, error).code != "factory_failed":
                raise
            raise CannotPredict(
                f"torchvision's {name} does not accept the batch generated for it: {batch} samples "
                f"with sides of {request.resolution or PIXELS} pixels.",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
                "another --resolution; or MODULE:FACTORY, with a batch like your data's",
            ) from error

    return Subject(model, optimizer, loss, batch)


def _images(model: nn.Module, batch: int, pixels: int) -> Callable[[], torch.Tensor]:
    """Return the loss for images that are classified, whole or by pixel."""
    return _classified(model, torch.randn(batch, 3, pixels, pixels, device=CUDA))


def _videos(model: nn.Module, batch: int, pixels: int) -> Callable[[], torch.Tensor]:
    """Return the loss for videos that are classified."""
    return _classified(model, torch.randn(batch, 3, FRAMES, pixels, pixels, device=CUDA))


def _classified(model: nn.Module, inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
    def loss() -> torch.Tensor:
        out = model(inputs)
        out = out.get("out", out) if isinstance(out, dict) else getattr(out, "logits", out)
        if not isinstance(out, torch.Tensor) or out.dim() not in (2, 4):
            raise CannotPredict(
                f"torchvision's {type(model).__name__} is not a classifier.",
                "its outputs have another format.",
                "give MODULE:FACTORY",
            )
        shape = (out.shape[0], *out.shape[2:])
        return functional.cross_entropy(out, torch.zeros(shape, dtype=torch.int64, device=CUDA))

    return loss


def _objects(model: nn.Module, batch: int, pixels: int) -> Callable[[], torch.Tensor]:
    """Return the sum of a detector's own losses; each image has some objects."""
    images = [torch.rand(3, pixels, pixels, device=CUDA) for _ in range(batch)]
    corners = torch.rand(OBJECTS, 2, device=CUDA) * pixels / 2
    target = {
        "boxes": torch.cat([corners, corners + pixels / 4], 1),
        "labels": torch.ones(OBJECTS, dtype=torch.int64, device=CUDA),
    }
    heads = getattr(model, "roi_heads", None)
    if getattr(heads, "mask_head", None) is not None:
        target["masks"] = torch.zeros(OBJECTS, pixels, pixels, dtype=torch.uint8, device=CUDA)
    if getattr(heads, "keypoint_head", None) is not None:
        target["keypoints"] = torch.rand(OBJECTS, _KEYPOINTS, 3, device=CUDA)
    return lambda: torch.stack(list(model(images, [target] * batch).values())).sum()


_KEYPOINTS = 17
_TORCHVISION = {"detection": _objects, "video": _videos}
"""What makes the loss of a model, by the part of torchvision's models that it is of."""
