"""Models for compiled trainings of families that no rule was made with.

The same form as in ``families.py``. Each was declared before it was measured or predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated, adamw, labelled, next_token_loss


class Crossing(nn.Module):
    """Latents that read a long input, and then each other."""

    def __init__(self, width: int, heads: int, latents: int, depth: int):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.heads = heads
        self.ask, self.tell = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.norm, self.outer = nn.LayerNorm(width), nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 500)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = self.norm(x)
        asked = self.ask(self.latents).expand(batch, -1, -1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (asked, *self.tell(x).chunk(2, -1))
        )
        read = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = self.latents + self.outer(read)
        for block in self.blocks:
            y = block(y)
        return self.head(y.mean(1))


def latents_reader(batch: int, device: Any) -> Made:
    model = Crossing(512, 8, 256, 8).to(device)
    return labelled(model, torch.randn(batch, 2048, 512, device=device), 500)


class DenseBlock(nn.Module):
    """Each layer reads what all before it have made."""

    def __init__(self, channels: int, growth: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + number * growth),
                nn.ReLU(),
                nn.Conv2d(channels + number * growth, growth, 3, padding=1, bias=False),
            )
            for number in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat((x, layer(x)), 1)
        return x


def dense_images(batch: int, device: Any) -> Made:
    parts: list[nn.Module] = [nn.Conv2d(3, 48, 3, 2, 1)]
    channels = 48
    for layers in (4, 6, 8):
        parts += [DenseBlock(channels, 24, layers)]
        channels += 24 * layers
        parts += [nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 200)]
    model = nn.Sequential(*parts).to(device)
    return labelled(model, torch.randn(batch, 3, 128, 128, device=device), 200)


class SpatialGate(nn.Module):
    """A multilayer perceptron in which half of the features gate the other half over positions."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 6 * width)
        self.gate, self.over = nn.LayerNorm(3 * width), nn.Linear(length, length)
        self.outer = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        left, right = functional.gelu(self.inner(self.norm(x))).chunk(2, -1)
        right = self.over(self.gate(right).transpose(1, 2)).transpose(1, 2)
        return x + self.outer(left * right)


def gated_positions(batch: int, device: Any, checkpoint: bool = False) -> Made:
    words, length, width = 12000, 384, 448
    blocks = Repeated([SpatialGate(width, length) for _ in range(10)], checkpoint)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.blocks = nn.Embedding(words, width), blocks
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks.run(self.table(tokens))))

    model = Model().to(device)
    tokens = torch.randint(words, (batch, length), device=device)
    return adamw(model, lambda: next_token_loss(model(tokens), tokens))


class SharedKeysBlock(nn.Module):
    """One head of keys and values for all queries, squared ReLU, and normalised queries."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries, self.shared = nn.Linear(width, width), nn.Linear(width, 2 * self.size)
        self.outer = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q = self.queries(y).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        q = functional.normalize(q, dim=-1)
        k, v = (
            part.unsqueeze(1).expand(-1, self.heads, -1, -1) for part in self.shared(y).chunk(2, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.relu(self.wide(self.second(x))).square())


def _shared_keys(by_blocks: bool) -> Callable[..., Made]:
    def factory(batch: int, device: Any) -> Made:
        words, length, width = 20000, 640, 768
        model = nn.Sequential(
            nn.Embedding(words, width),
            *(SharedKeysBlock(width, 12) for _ in range(8)),
            nn.RMSNorm(width),
            nn.Linear(width, words, bias=False),
        ).to(device)
        if by_blocks:
            for block in model[1:-2]:
                block.compile()
        tokens = torch.randint(words, (batch, length), device=device)

        def forward() -> Tensor:
            capped = 30 * torch.tanh(model(tokens) / 30)
            return next_token_loss(capped, tokens)

        return adamw(model, forward)

    return factory


shared_keys, shared_keys_blocks = _shared_keys(False), _shared_keys(True)


def layered_patches(batch: int, device: Any) -> Made:
    """Patches that depthwise convolutions of 7 × 7 and pointwise ones mix in turn."""

    class Mix(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.deep = nn.Sequential(
                nn.Conv2d(width, width, 7, padding=3, groups=width), nn.GELU(),
                nn.BatchNorm2d(width),
            )  # fmt: skip
            self.wide = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

        def forward(self, x: Tensor) -> Tensor:
            return self.wide(x + self.deep(x))

    model = nn.Sequential(
        nn.Conv2d(3, 320, 8, 8), *(Mix(320) for _ in range(9)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 300),
    ).to(device)  # fmt: skip
    return labelled(model, torch.randn(batch, 3, 224, 224, device=device), 300)


def hourglass(batch: int, device: Any) -> Made:
    """Halve an image three times and enlarge it again, adding what was there at each size."""

    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.InstanceNorm2d(after, affine=True),
            nn.SiLU(), nn.Conv2d(after, after, 3, padding=1), nn.InstanceNorm2d(after, affine=True),
            nn.SiLU(),
        )  # fmt: skip

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = (32, 64, 128, 192)
            self.down = nn.ModuleList(block(a, b) for a, b in pairwise((3, *sizes)))
            self.up = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairwise(sizes))
            self.head = nn.Conv2d(32, 17, 1)

        def forward(self, x: Tensor) -> Tensor:
            seen: list[Tensor] = []
            for part in self.down:
                x = part(functional.max_pool2d(x, 2) if seen else x)
                seen.append(x)
            for part, beside in zip(reversed(self.up), reversed(seen[:-1]), strict=True):
                x = part(functional.interpolate(x, scale_factor=2.0, mode="bilinear")) + beside
            return self.head(x)

    model = Model().to(device)
    images = torch.randn(batch, 3, 128, 128, device=device)
    maps = torch.rand(batch, 17, 128, 128, device=device)
    return adamw(model, lambda: functional.mse_loss(model(images), maps))


class Decaying(nn.Module):
    """Linear attention with a decay, in chunks."""

    def __init__(self, width: int, heads: int, chunk: int):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.outer, self.rates = nn.Linear(width, width), nn.Parameter(torch.ones(heads))
        self.second, self.wide = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v, gate = self.inner(self.norm(x)).chunk(4, -1)
        q, k, v = (
            part.view(batch, length // self.chunk, self.chunk, self.heads, -1).transpose(2, 3)
            for part in (q, k, v)
        )
        away = torch.arange(self.chunk, device=x.device)
        away = (away[:, None] - away).clamp(min=0) * functional.softplus(self.rates)[:, None, None]
        near = (q @ k.transpose(-1, -2)) * torch.exp(-away).tril()
        state = (k.transpose(-1, -2) @ v).cumsum(1)
        y = near.to(v.dtype) @ v + q @ functional.pad(state[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        y = y.transpose(2, 3).reshape(batch, length, width) * functional.silu(gate)
        x = x + self.outer(y)
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


def decaying(batch: int, device: Any) -> Made:
    words, length, width = 8192, 512, 512
    model = nn.Sequential(
        nn.Embedding(words, width),
        *(Decaying(width, 8, 64) for _ in range(6)),
        nn.LayerNorm(width),
        nn.Linear(width, words),
    ).to(device)
    tokens = torch.randint(words, (batch, length), device=device)
    return adamw(model, lambda: next_token_loss(model(tokens), tokens))


def signals(batch: int, device: Any) -> Made:
    """Dilated convolutions over long signals, with squeezed channels as gates."""

    class Layer(nn.Module):
        def __init__(self, width: int, step: int):
            super().__init__()
            self.conv = nn.Conv1d(width, width, 5, padding=2 * step, dilation=step)
            self.norm = nn.GroupNorm(8, width)
            self.gate = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(),
                                      nn.Linear(width // 4, width), nn.Sigmoid())  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            y = functional.silu(self.norm(self.conv(x)))
            return x + y * self.gate(y.mean(-1)).unsqueeze(-1)

    model = nn.Sequential(
        nn.Conv1d(2, 160, 9, padding=4), *(Layer(160, 2 ** (number % 5)) for number in range(10)),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(160, 64),
    ).to(device)  # fmt: skip
    return labelled(model, torch.randn(batch, 2, 8000, device=device), 64)
