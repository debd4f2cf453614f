"""Let a model compute in the type that FSDP2's mixed-precision policy gives its parameters.

``fully_shard`` gathers parameters in this type, and casts floating-point inputs of each module that
it wraps. Buffers stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..fully_sharded import block_of
from ..request import CannotPredict

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def cast_parameters(model: nn.Module, kind: torch.dtype) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(kind)


def cast_inputs(module: nn.Module, kind: torch.dtype) -> None:
    """Cast the floating-point tensors with which ``module`` is called from now on."""

    def to_kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(kind)
        return value

    def inputs(_: nn.Module, args: Any, named: Any) -> tuple[Any, Any]:
        return tree_map(to_kind, args), tree_map(to_kind, named)

    module.register_forward_pre_hook(inputs, with_kwargs=True)


def cast(model: nn.Module, params: str, wrap: str) -> None:
    """Cast the parameters of ``model``, and from now on what it and its blocks are called with."""
    kind = TYPES[params]
    parameters = [one for one in model.parameters() if one.is_floating_point()]
    if any(parameter.dtype != torch.float32 for parameter in parameters):
        raise CannotPredict(
            "FSDP's own type for parameters was asked for, and not all are in float32.",
            "Each rank's shares are predicted in float32, from which they are cast.",
            "leave out --fsdp-params, or build the model in float32",
            "usage",
        )
    cast_parameters(model, kind)
    for name, module in model.named_modules():
        if not name or (wrap == "blocks" and block_of(name) == name):
            cast_inputs(module, kind)
