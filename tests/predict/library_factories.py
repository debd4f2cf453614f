"""Factories that do in a few lines what libraries of models do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Any, Any, Callable[[], Any]]
WIDTH, BOXES = 64, 256

if importlib.util.find_spec("torchvision") is None:
    LIBRARY = torch.library.Library("torchvision", "DEF")
    LIBRARY.define("nms(Tensor boxes, Tensor scores, float overlap) -> Tensor")

    @torch.library.register_fake("torchvision::nms", lib=LIBRARY)
    def _kept(boxes: torch.Tensor, scores: torch.Tensor, overlap: float) -> torch.Tensor:
        count = torch.library.get_ctx().new_dynamic_size()
        return boxes.new_empty(count, dtype=torch.int64)


def _made(batch: int, device: Any, loss: Callable[[nn.Module, torch.Tensor], Any]) -> Made:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    inputs = torch.randn(batch, WIDTH, device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: loss(model, inputs).mean()


def draws_a_place(batch: int, device: Any) -> Made:
    """Draw a place in a list of one, as detectors draw the side of their images."""
    repeats = [3]

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        place = int(torch.empty(1).uniform_(0.0, float(len(repeats))).item())
        return model(inputs.repeat(repeats[place], 1))

    return _made(batch, device, loss)


def picks_by_tensors(batch: int, device: Any) -> Made:
    """Index by lists of tensors of one number, as ``zip(*places)`` makes them."""

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        out = model(inputs)
        rows, columns = zip(*out.detach().abs().long().clamp(max=3)[:, :2], strict=True)
        hidden = torch.ones(out.shape, dtype=torch.bool, device=device)
        hidden[rows, columns] = False
        picked = out[list(rows)]
        assert picked.shape == out.shape
        return picked * hidden

    return _made(batch, device, loss)


def scales_between(batch: int, device: Any) -> Made:
    """Make a row of numbers between two that are in tensors."""

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        out = model(inputs)
        low, high = out.detach().min().cpu(), out.detach().max().cpu()
        return out * torch.linspace(low, high, WIDTH).to(device)

    return _made(batch, device, loss)


def lists_tensors(batch: int, device: Any) -> Made:
    """Make a tensor of a list of tensors of one number each."""

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        out = model(inputs)
        numbers = torch.tensor([out.detach().max(), out.detach().half().min()], device=device)
        pairs = torch.tensor([[1, 2], list(out.detach()[0, :2].long())], device=device)
        assert numbers.dtype == torch.float32
        assert pairs.shape == (2, 2)
        return out * numbers.sum() + pairs.sum()

    return _made(batch, device, loss)


def asserts(batch: int, device: Any) -> Made:
    """Check the boxes of objects as detectors do."""
    boxes = torch.rand(batch, 4, device=device)

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        degenerate = boxes[:, 2:] <= boxes[:, :2]
        if degenerate.any():
            torch._assert(False, "a box has no area")
        return model(inputs)

    return _made(batch, device, loss)


def suppresses(batch: int, device: Any) -> Made:
    """Keep the boxes that overlap little, and compute with what lies in each of them."""
    boxes, scores = torch.rand(BOXES, 4, device=device), torch.rand(BOXES, device=device)

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
        rows = inputs[kept % batch].repeat(1, 1)
        return functional.gelu(model(functional.gelu(model(rows))))

    return _made(batch, device, loss)


def positive(batch: int, device: Any) -> Made:
    """Compute only with samples above a limit, of which about half are."""

    def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        out = model(inputs)
        chosen = out[out[:, 0] > 0]
        for _ in range(8):
            chosen = functional.gelu(chosen)
        return chosen

    return _made(batch, device, loss)


def third_smallest(batch: int, device: Any) -> Made:
    """A place along the last dimension, of which there are fewer than places."""

    def loss(model: nn.Module, x: torch.Tensor) -> Any:
        found, places = model(x).kthvalue(3)
        return (found + places).sum()

    return _made(batch, device, loss)
