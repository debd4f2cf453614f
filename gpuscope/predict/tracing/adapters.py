"""Freeze a model, store its weights in four or eight bits, and add low-rank adapters.

The operations are those of peft's ``lora.Linear`` (0.18 and 0.21), by its public sources: what they
keep for the backward pass and which temporary tensors they make decides the memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..adapters import EVERY, Lora
from ..request import CannotPredict
from .quantised import Packed, sizes


class Adapted(nn.Module):  # type: ignore[misc]
    """A layer with a low-rank adapter, in 32 bits where the layer has fewer."""

    def __init__(self, base: nn.Module, lora: Lora) -> None:
        super().__init__()
        device, (inputs, outputs) = base.weight.device, sizes(base)
        self.base_layer = base
        self.lora_A = nn.Linear(inputs, lora.rank, bias=False, device=device)
        self.lora_B = nn.Linear(lora.rank, outputs, bias=False, device=device)
        self.dropout = nn.Dropout(lora.dropout) if lora.dropout else nn.Identity()

    @property
    def weight(self) -> Any:
        """The weight of the layer, whose type some models ask for."""
        return self.base_layer.weight

    @property
    def bias(self) -> Any:
        return self.base_layer.bias

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = self.base_layer(x, *args, **kwargs)
        kind = out.dtype
        x = x.to(self.lora_A.weight.dtype)
        return (out + self.lora_B(self.lora_A(self.dropout(x))) * 2.0).to(kind)


def prepare(model: nn.Module, lora: Lora | None, layout: str, language: bool) -> None:
    """Freeze the model, pack its linear layers, and add the adapters.

    The output layer of a ``language`` model is frozen and stays as it is; that of another task is
    trained. Layers that transformers keeps in float32 are not packed. Raises
    :class:`CannotPredict` where no layer has a target's name.
    """
    model.requires_grad_(False)
    head = _head(model)
    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if _is_linear(module) and module is not head
    ]
    for name, module in linear:
        chosen = lora is not None and _is_target(name, lora)
        packed = layout and kept.isdisjoint(name.split("."))
        made: nn.Module = Packed(module, layout) if packed else module
        if lora is not None and chosen:
            made = Adapted(made, lora)
        if made is not module:
            _put(model, name, made)
    if lora is not None and not any(isinstance(one, Adapted) for one in model.modules()):
        ends = sorted({name.rpartition(".")[2] for name, _ in linear})
        raise CannotPredict(
            f"No linear layer is named {' or '.join(lora.targets)}.",
            f"The model has: {', '.join(ends[:20])}.",
            "--lora r=16,targets=all    or one of these names",
            "usage",
        )
    if head is not None and not language:
        head.requires_grad_(True)


def _head(model: nn.Module) -> nn.Module | None:
    found = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(found, nn.Module):
        return found
    linear = [module for module in model.modules() if _is_linear(module)]
    return linear[-1] if linear else None


def _is_linear(module: nn.Module) -> bool:
    """Return whether it is a linear layer, or that of transformers whose weight is transposed."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_target(name: str, lora: Lora) -> bool:
    if lora.targets == (EVERY,):
        return True
    return any(name == target or name.endswith("." + target) for target in lora.targets)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)
