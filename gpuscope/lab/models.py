"""The lab's models and the data they learn from. Everything is made on the device from a seed: no download, no files.

Each task keeps a fixed pool of samples and hands them out in order, so that the same number of samples is the same
data however it is cut into micro-batches. No layer mixes the samples of a batch (no batch norm, no dropout): gradients
accumulated over micro-batches are those of one large batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import PRESETS


class Task:
    """A model on its device, its pool of samples and its loss."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor, loss: Callable[[Tensor, Tensor], Tensor]):
        self.model = model
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._order = torch.arange(len(inputs), device=inputs.device)
        self._position = 0

    def next_batch(self, size: int) -> tuple[Tensor, Tensor]:
        """The next ``size`` samples of the pool, from its start again when it is used up."""
        pool = len(self._order)
        end = self._position + size
        if end <= pool:
            chosen = self._order[self._position : end]
        else:
            chosen = torch.arange(self._position, end, device=self._order.device) % pool
        self._position = end % pool
        return self._inputs[chosen], self._targets[chosen]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the batch, a scalar that can be differentiated."""
        return self._loss(self.model(inputs), targets)


@dataclass(frozen=True)
class Preset:
    """``make(device, generator)`` builds the task; the generator lives on the device and draws the data."""

    batch: int
    learning_rate: float
    make: Callable[[torch.device, torch.Generator], Task]


def build(preset: str, device: torch.device, seed: int) -> Task:
    """The task of ``preset`` with weights and data drawn from ``seed``."""
    torch.manual_seed(seed)
    return MODELS[preset].make(device, torch.Generator(device).manual_seed(seed))


# ── mlp: regression on a fixed teacher ────────────────────────────────────────────────────────────────────────────────


def _mlp(width: int, depth: int, pool: int) -> Callable[[torch.device, torch.Generator], Task]:
    features, hidden, outputs = 256, 16, 16

    def make(device: torch.device, generator: torch.Generator) -> Task:
        layers: list[nn.Module] = [nn.Linear(features, width, device=device), nn.GELU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width, device=device), nn.GELU()]
        model = nn.Sequential(*layers, nn.Linear(width, outputs, device=device))
        inputs = torch.randn(pool, features, device=device, generator=generator)
        into = torch.randn(features, hidden, device=device, generator=generator) / math.sqrt(features)
        out = torch.randn(hidden, outputs, device=device, generator=generator) / math.sqrt(hidden)
        targets = torch.tanh(inputs @ into) @ out
        return Task(model, inputs, targets / targets.std(), functional.mse_loss)

    return make


# ── conv: images of ten classes, each a fixed pattern under noise ─────────────────────────────────────────────────────


class _Residual(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    def __init__(self, into: int, out: int, stride: int, device: torch.device):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False, device=device),
            nn.GroupNorm(8, out, device=device),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False, device=device),
            nn.GroupNorm(8, out, device=device),
        )
        same = into == out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(into, out, 1, stride, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def _conv(
    widths: tuple[int, ...], blocks: int, pixels: int, pool: int
) -> Callable[[torch.device, torch.Generator], Task]:
    classes = 10

    def make(device: torch.device, generator: torch.Generator) -> Task:
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, device=device)]
        into = widths[0]
        for level, width in enumerate(widths):
            for block in range(blocks):
                layers.append(_Residual(into, width, 2 if level and not block else 1, device))
                into = width
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes, device=device))
        coarse = torch.randn(classes, 3, 4, 4, device=device, generator=generator)
        patterns = functional.interpolate(coarse, size=(pixels, pixels), mode="bilinear")
        targets = torch.randint(classes, (pool,), device=device, generator=generator)
        noise = torch.randn(pool, 3, pixels, pixels, device=device, generator=generator)
        return Task(model, patterns[targets] + 0.5 * noise, targets, functional.cross_entropy)

    return make


# ── gpt: next token of a fixed Markov chain ───────────────────────────────────────────────────────────────────────────


class _Block(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    def __init__(self, width: int, heads: int, device: torch.device):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width, device=device)
        self.attention_in = nn.Linear(width, 3 * width, device=device)
        self.attention_out = nn.Linear(width, width, device=device)
        self.before_mlp = nn.LayerNorm(width, device=device)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, device=device), nn.GELU(), nn.Linear(4 * width, width, device=device)
        )

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.attention_in(self.before_attention(x)).view(samples, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(samples, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A decoder-only transformer; the token embedding is also the output layer. (samples, length) int64 → logits."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int, device: torch.device):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, device=device)
        self.positions = nn.Embedding(length, width, device=device)
        self.blocks = nn.Sequential(*(_Block(width, heads, device) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, device=device)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions.weight[: tokens.shape[1]]
        return functional.linear(self.norm(self.blocks(self.tokens(tokens) + positions)), self.tokens.weight)


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _gpt(
    vocabulary: int, length: int, width: int, depth: int, heads: int, pool: int
) -> Callable[[torch.device, torch.Generator], Task]:
    # The chain speaks few of the words, each followed by one of four others: the loss falls from ln(vocabulary) first
    # to ln(words), then towards ln(4), within the first hundred steps of either size.
    words, successors = min(vocabulary, 64), 4

    def make(device: torch.device, generator: torch.Generator) -> Task:
        model = Gpt(vocabulary, length, width, depth, heads, device)
        follows = torch.randint(words, (words, successors), device=device, generator=generator)
        choice = torch.randint(successors, (pool, length), device=device, generator=generator)
        tokens = [torch.randint(words, (pool,), device=device, generator=generator)]
        for place in range(length):
            tokens.append(follows[tokens[-1], choice[:, place]])
        text = torch.stack(tokens, dim=1)
        return Task(model, text[:, :-1].contiguous(), text[:, 1:].contiguous(), _token_loss)

    return make


MODELS: dict[str, Preset] = {
    "mlp-small": Preset(128, 1e-3, _mlp(width=512, depth=4, pool=4096)),
    "mlp-large": Preset(8192, 3e-4, _mlp(width=4096, depth=8, pool=65536)),
    "conv-small": Preset(32, 1e-3, _conv((16, 32, 64), blocks=1, pixels=32, pool=1024)),
    "conv-large": Preset(256, 1e-3, _conv((64, 128, 256, 512), blocks=2, pixels=64, pool=4096)),
    "gpt-tiny": Preset(8, 1e-3, _gpt(vocabulary=512, length=64, width=128, depth=2, heads=4, pool=1024)),
    "gpt-small": Preset(8, 3e-4, _gpt(vocabulary=50304, length=512, width=768, depth=12, heads=12, pool=1024)),
}
assert set(MODELS) == {preset for sizes in PRESETS.values() for preset in sizes.values()}
