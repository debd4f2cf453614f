"""Simulate what ``nn.DataParallel`` allocates on the first of several devices.

It follows torch's own code (``torch/nn/parallel``, ``torch/csrc/cuda/comm.cpp``):

- The first device computes the first part of the batch; the parts are views of the inputs.
- Parameters and buffers are sent to the other devices in flat copies of 10 MiB; a tensor that is
  as large is sent from its own place.
- The outputs of all devices are gathered into new tensors on the first device, where the loss of
  the whole batch is computed.
- At the end of the backward pass the gradients of all parameters are there. They are added to those
  of the other devices in flat copies of 10 MiB, and the sums are new tensors. Only then are the
  first ones freed.

The other devices hold less: no optimizer state, no sums, and only their own outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

BUFFER_BYTES = 10 << 20


class _Replica(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """The parameters of the first device's copy, whose gradients are summed all at once."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> Any:
        _send(parameters)
        ctx.set_materialize_grads(False)
        ctx.shapes = [(one.shape, one.dtype, one.device) for one in parameters]
        return tuple(parameter.detach() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = [
            torch.zeros(shape, dtype=kind, device=device) if one is None else one
            for one, (shape, kind, device) in zip(gradients, ctx.shapes, strict=True)
        ]
        sums: list[Any] = [None] * len(found)
        for places in _chunks(found):
            flat = _flat([found[place] for place in places])
            whole = torch.empty_like(flat)
            del flat
            at = 0
            for place in places:
                size = found[place].numel()
                sums[place] = whole.narrow(0, at, size).view(found[place].shape)
                at += size
        return tuple(sums)


class _Gathered(torch.autograd.Function):  # type: ignore[misc]
    """An output of the whole batch, of which the first device has computed a part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, times: float) -> Any:
        ctx.scalar, ctx.size = part.dim() == 0, 1 if part.dim() == 0 else part.shape[0]
        rest = part.shape[1:]
        return part.new_empty((round(ctx.size * times), *rest))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient[0] if ctx.scalar else gradient.narrow(0, 0, ctx.size), None


def forward(module: nn.Module, run: Callable[..., Any], devices: int, args: Any, named: Any) -> Any:
    """Run the first device's part of a forward pass; ``run`` is the module's own forward."""
    sizes = [one.shape[0] for one in tree_leaves((args, named)) if _divided(one)]
    if not sizes:
        return run(*args, **named)
    whole = sizes[0]
    part = -(-whole // devices)

    def divide(value: Any) -> Any:
        return value.narrow(0, 0, min(value.shape[0], part)) if _divided(value) else value

    args, named = tree_map(divide, args), tree_map(divide, named)
    kept = dict(module.named_parameters())
    trained = {name: one for name, one in kept.items() if one.requires_grad}
    _send([one for one in (*kept.values(), *module.buffers()) if not one.requires_grad])
    if torch.is_grad_enabled() and trained:
        copies = dict(zip(trained, _Replica.apply(*trained.values()), strict=True))
    else:
        _send(list(trained.values()))
        copies = trained
    out = torch.func.functional_call(module, copies, args, named)

    def gather(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        times = devices if value.dim() == 0 else whole / part
        return _Gathered.apply(value, times)

    return tree_map(gather, out)


def install(model: nn.Module, devices: int) -> None:
    """Let ``model`` run as the module of a ``DataParallel``."""
    inside = [False]
    plain = model.forward

    def divided(*args: Any, **named: Any) -> Any:
        if inside[0]:
            return plain(*args, **named)
        inside[0] = True
        try:
            return forward(model, plain, devices, args, named)
        finally:
            inside[0] = False

    divided.devices = devices  # type: ignore[attr-defined]
    model.forward = divided


def divides(model: nn.Module) -> bool:
    """Whether it runs as one of several."""
    return hasattr(model.forward, "devices")


def _divided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _send(tensors: Sequence[torch.Tensor]) -> None:
    """Make the flat copies from which tensors are sent."""
    for places in _chunks(tensors):
        with torch.no_grad():
            flat = _flat([tensors[place].detach() for place in places])
        del flat


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return tensors[0].new_empty(sum(one.numel() for one in tensors))


def _chunks(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield the places of tensors that travel together, by their type."""
    filling: dict[torch.dtype, list[int]] = {}
    sizes: dict[torch.dtype, int] = {}
    for place, tensor in enumerate(tensors):
        kind, size = tensor.dtype, tensor.nbytes
        if filling.get(kind) and sizes[kind] + size > BUFFER_BYTES:
            yield filling.pop(kind)
        if not filling.get(kind):
            sizes[kind] = 0
        filling.setdefault(kind, []).append(place)
        sizes[kind] += size
    yield from filling.values()
