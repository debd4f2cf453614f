"""Freeze a model, store its weights in four or eight bits, and add low-rank adapters.

The operations are those of peft's ``lora.Linear`` (0.18 and 0.21) and of the ``Linear4bit`` and
``Linear8bitLt`` of bitsandbytes (0.48), by their public sources: what they keep for the backward
pass and which temporary tensors they make decides the memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..adapters import EVERY, Lora
from ..request import CannotPredict, Doubt

BLOCK = 64
"""Weights that share a scale in a four-bit layout."""
NESTED_BLOCK = 256
"""Scales that share a scale of their own, where these are stored in eight bits."""
COMPUTE = torch.bfloat16
"""The type that four-bit weights are unpacked to for a product."""
UNMEASURED = Doubt(
    "unmeasured",
    "The base weights have the layout of bitsandbytes, whose kernels were not measured.",
    "bitsandbytes",
    5.0,
)


QUANTISED = Doubt(
    "unmeasured",
    "A weight is stored in parts, as torchao quantises it. Its kernels were not measured: what "
    "they unpack for a product is traced as the library computes it on a CPU.",
    "torchao",
    10.0,
)


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a quantised one is made of; none for a plain one."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return []
    inner = [getattr(tensor, name) for name in flatten()[0]]
    return [leaf for one in inner for leaf in parts(one) or [one]]


class _Product(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """A product with weights that are unpacked for it, and once more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: Packed) -> torch.Tensor:
        ctx.packed, ctx.type = packed, x.dtype
        return functional.linear(x, packed.unpacked(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.matmul(gradient, ctx.packed.unpacked(gradient.dtype)), None


class Packed(nn.Module):  # type: ignore[misc]
    """A linear layer whose weight is packed, and not trained."""

    def __init__(self, linear: nn.Module, layout: str) -> None:
        super().__init__()
        self.in_features, self.out_features = _sizes(linear)
        self.bias = linear.bias
        self._layout = layout
        count = self.in_features * self.out_features
        scales = -(-count // BLOCK)
        device = linear.weight.device

        def empty(*shape: int, kind: torch.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        if layout == "int8":
            shape = (self.out_features, self.in_features)
            self._keep("weight", empty(*shape, kind=torch.int8))
            self._keep("scales", empty(self.out_features, kind=torch.float32))
            return
        self._keep("weight", empty(-(-count // 2), 1, kind=torch.uint8))
        self._keep("code", empty(16, kind=torch.float32))
        if layout == "nf4":
            self._keep("scales", empty(scales, kind=torch.float32))
            return
        self._keep("scales", empty(scales, kind=torch.uint8))
        self._keep("scales_of_scales", empty(-(-scales // NESTED_BLOCK), kind=torch.float32))
        self._keep("code_of_scales", empty(256, kind=torch.float32))
        self._keep("offset", empty(1, kind=torch.float32))

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        if name == "weight":
            self.weight = nn.Parameter(tensor, requires_grad=False)
        else:
            self.register_buffer(name, tensor)

    def unpacked(self, kind: torch.dtype) -> torch.Tensor:
        """Return the weight, with the temporary tensors that unpacking it makes."""
        shape = (self.out_features, self.in_features)
        if self._layout == "int8":
            return self.weight.to(kind).mul_(self.scales.unsqueeze(1).mul(1 / 127))
        if self._layout == "nf4-double":
            whole = torch.empty(self.scales.shape, dtype=torch.float32, device=self.weight.device)
            whole += self.offset
        out = torch.empty(shape, dtype=COMPUTE, device=self.weight.device)
        return out if kind == COMPUTE else out.to(kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._layout == "int8":
            out = self._in_eight_bits(x)
        else:
            out = _Product.apply(x.to(COMPUTE), self).to(x.dtype)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _in_eight_bits(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in eight bits: the input is rounded too, and sums have 32 bits."""
        half = x.to(torch.float16)
        rows = torch.empty(half.shape, dtype=torch.int8, device=x.device)
        sums = torch.empty(
            (*half.shape[:-1], self.out_features), dtype=torch.int32, device=x.device
        )
        del rows, sums
        return _Product.apply(half, self).to(x.dtype)


class Adapted(nn.Module):  # type: ignore[misc]
    """A layer with a low-rank adapter, in 32 bits where the layer has fewer."""

    def __init__(self, base: nn.Module, lora: Lora) -> None:
        super().__init__()
        device, (inputs, outputs) = base.weight.device, _sizes(base)
        self.base_layer = base
        self.lora_A = nn.Linear(inputs, lora.rank, bias=False, device=device)
        self.lora_B = nn.Linear(lora.rank, outputs, bias=False, device=device)
        self.dropout = nn.Dropout(lora.dropout) if lora.dropout else nn.Identity()

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = self.base_layer(x, *args, **kwargs)
        kind = out.dtype
        x = x.to(self.lora_A.weight.dtype)
        return (out + self.lora_B(self.lora_A(self.dropout(x))) * 2.0).to(kind)


def prepare(model: nn.Module, lora: Lora | None, layout: str, language: bool) -> None:
    """Freeze the model, pack its linear layers, and add the adapters.

    The output layer of a ``language`` model is frozen and stays as it is; that of another task is
    trained. Raises :class:`CannotPredict` where no layer has a target's name.
    """
    model.requires_grad_(False)
    head = _head(model)
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if _is_linear(module) and module is not head
    ]
    for name, module in linear:
        chosen = lora is not None and _is_target(name, lora)
        made: nn.Module = Packed(module, layout) if layout else module
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


def numbers(model: nn.Module) -> int:
    """Return how many numbers a model's parameters are, those in packed weights counted singly."""
    packed = {id(one.weight): one for one in model.modules() if isinstance(one, Packed)}
    held = {id(one): one for one in model.parameters()}
    return sum(
        packed[key].in_features * packed[key].out_features if key in packed else one.numel()
        for key, one in held.items()
    )


def _head(model: nn.Module) -> nn.Module | None:
    found = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(found, nn.Module):
        return found
    linear = [module for module in model.modules() if _is_linear(module)]
    return linear[-1] if linear else None


def _is_linear(module: nn.Module) -> bool:
    """Return whether it is a linear layer, or that of transformers whose weight is transposed."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _sizes(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    if isinstance(module, (nn.Linear, Packed)):
        return module.in_features, module.out_features
    return module.weight.shape[0], module.weight.shape[1]


def _is_target(name: str, lora: Lora) -> bool:
    if lora.targets == (EVERY,):
        return True
    return any(name == target or name.endswith("." + target) for target in lora.targets)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)
