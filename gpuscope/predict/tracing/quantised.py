"""Weights in fewer bits than they are computed with: their layouts, and what unpacking them takes.

The layouts and operations are those of the ``Linear4bit`` and ``Linear8bitLt`` of bitsandbytes
(0.50), by its public sources. :class:`Packed` is such a layer for a model from a config, for which
the library is not needed. What the library's own layers keep is counted by :func:`parts`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...text.units import bytes_text
from ..request import Doubt

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

LARGE_SHARE = 0.1
"""The share of a model's bytes from which weights that stay whole are told."""

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
    if flatten is not None:
        inner = [getattr(tensor, name) for name in flatten()[0]]
        return [leaf for one in inner for leaf in parts(one) or [one]]
    scales = [getattr(tensor, name, None) for name in ("CB", "SCB")]
    for state in _states(tensor):
        scales += [getattr(state, name, None) for name in ("absmax", "code", "offset")]
    found = [one for one in scales if isinstance(one, torch.Tensor)]
    return [tensor, *found] if found else []


def _states(tensor: torch.Tensor) -> Iterator[Any]:
    """Iterate over the scales of a weight in four bits, and the scales of these scales."""
    state = getattr(tensor, "quant_state", None)
    while state is not None:
        yield state
        state = getattr(state, "state2", None)


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
        self.in_features, self.out_features = sizes(linear)
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


def doubts(model: nn.Module) -> Iterator[Doubt]:
    """Iterate over what is doubtful of a model whose linear layers were packed.

    The experts of a mixture are in one tensor for all of them, which bitsandbytes does not pack.
    """
    yield UNMEASURED
    every = {id(one): one.nbytes for one in model.parameters()}
    stacked = {
        id(one): (name, one.nbytes) for name, one in model.named_parameters() if one.dim() == 3
    }
    whole = sum(size for _, size in stacked.values())
    if whole > LARGE_SHARE * sum(every.values()):
        name = next(iter(stacked.values()))[0]
        text = (
            f"{bytes_text(whole)} of weights stay in their own type, such as {name}: each of these "
            "tensors has the weights of all experts, and bitsandbytes packs linear layers only."
        )
        yield Doubt("unmeasured", text, "experts")


def weights_text(model: nn.Module) -> str:
    """Return the type of most of the parameters: ``bfloat16 weights``."""
    counts = Counter[str]()
    for parameter in model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return f"{counts.most_common(1)[0][0]} weights" if counts else "no weights"


def numbers(model: nn.Module) -> int:
    """Return how many numbers a model's parameters are, those in packed weights counted singly."""
    packed = {id(one.weight): one for one in model.modules() if isinstance(one, Packed)}
    total = 0
    for key, held in {id(one): one for one in model.parameters()}.items():
        state = next(_states(held), None)
        if key in packed:
            total += packed[key].in_features * packed[key].out_features
        else:
            total += held.numel() if state is None else math.prod(state.shape)
    return total


def sizes(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    if isinstance(module, (nn.Linear, Packed)):
        return module.in_features, module.out_features
    return module.weight.shape[0], module.weight.shape[1]
