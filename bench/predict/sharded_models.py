"""Models of the sharded trainings that were declared before they were measured.

No rule of the predictions was derived from one of them. A model has ``blocks``, in which FSDP2
shards it, but for the one that is made of convolutions. On a CPU they are small, which shows that
everything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Repeated, next_token_loss, size


class ParallelBlock(nn.Module):
    """Attention and the feed-forward layers beside each other, behind one norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 7 * width, bias=False)
        self.out = nn.Linear(5 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        *parts, inner = self.into(self.norm(x)).split([width, width, width, 4 * width], dim=-1)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        return x + self.out(torch.cat((y, functional.gelu(inner, approximate="tanh")), dim=-1))


class ParallelDecoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = Repeated([ParallelBlock(width, width // 64) for _ in range(depth)], again)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks.run(self.words(tokens))))


class LatentBlock(nn.Module):
    """A few latent vectors look at a long input, and then at each other."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.look = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mix = nn.MultiheadAttention(width, heads, batch_first=True)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, latents: Tensor, seen: Tensor) -> Tensor:
        first, second, third, fourth = self.norms
        seen = second(seen)
        latents = latents + self.look(first(latents), seen, seen, need_weights=False)[0]
        y = third(latents)
        latents = latents + self.mix(y, y, y, need_weights=False)[0]
        return latents + self.shrink(functional.gelu(self.grow(fourth(latents))))


class Latents(nn.Module):
    def __init__(self, number: int, width: int, depth: int, again: bool):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(number, width))
        self.embed = nn.Linear(64, width)
        self.blocks = Repeated([LatentBlock(width, width // 64) for _ in range(depth)], again)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.start.expand(x.shape[0], -1, -1)
        return self.head(self.blocks.run(latents, self.embed(x)).mean(dim=1))


class GatingBlock(nn.Module):
    """One half of the channels gates the other, mixed along the sequence."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(3 * width)
        self.into, self.out = nn.Linear(width, 6 * width), nn.Linear(3 * width, width)
        self.along = nn.Linear(length, length)

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = functional.gelu(self.into(self.norm(x))).chunk(2, dim=-1)
        gate = self.along(self.inner_norm(gate).transpose(1, 2)).transpose(1, 2)
        return x + self.out(kept * gate)


class GatingText(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = Repeated([GatingBlock(width, length) for _ in range(depth)], again)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks.run(self.words(tokens))))


class DepthwiseBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.along = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.along(x).permute(0, 2, 3, 1))
        y = self.scale * self.shrink(functional.gelu(self.grow(y)))
        return x + y.permute(0, 3, 1, 2)


def depthwise(depths: tuple[int, ...]) -> nn.Module:
    parts: list[nn.Module] = []
    before, stride = 3, 4
    for width, depth in zip((96, 192, 384, 768), depths, strict=True):
        parts.append(nn.Conv2d(before, width, stride, stride))
        parts += [DepthwiseBlock(width) for _ in range(depth)]
        before, stride = width, 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))


# ── how each is built, and its loss ───────────────────────────────────────────────────────────────

Built = tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]


def parallel(batch: int, device: Any, again: bool) -> Built:
    words, length = size(40000, device), size(768, device)
    tokens = torch.randint(words, (batch, length + 1), device=device)

    def loss(model: nn.Module) -> Tensor:
        return next_token_loss(model(tokens[:, :-1]), tokens[:, 1:].contiguous())

    return lambda: ParallelDecoder(words, 64 * size(18, device), size(14, device), again), loss


def latents(batch: int, device: Any, again: bool) -> Built:
    x = torch.randn(batch, size(2048, device), 64, device=device)
    targets = torch.randint(1000, (batch,), device=device)

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(x).float(), targets)

    return lambda: Latents(size(256, device), 64 * size(16, device), size(10, device), again), loss


def gating(batch: int, device: Any, again: bool) -> Built:
    words, length = size(30000, device), size(512, device)
    tokens = torch.randint(words, (batch, length), device=device)

    def loss(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return lambda: GatingText(words, length, size(896, device), size(16, device), again), loss


def pictures(batch: int, device: Any, again: bool) -> Built:
    side = 32 * size(7, device)
    x = torch.randn(batch, 3, side, side, device=device)
    targets = torch.randint(1000, (batch,), device=device)
    depths = tuple(size(depth, device) for depth in (3, 3, 9, 3))
    return lambda: depthwise(depths), lambda model: functional.cross_entropy(model(x), targets)


MODELS: dict[str, Callable[[int, Any, bool], Built]] = {
    "parallel": parallel, "latents": latents, "gating": gating, "pictures": pictures,
}  # fmt: skip
