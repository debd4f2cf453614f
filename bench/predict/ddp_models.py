"""Models that DDP trains on two GPUs in cases that are declared before they are measured.

Each differs from those that DDP's rules were made from: attention of torch's own module over
patches, one table of words that is two thirds of an LSTM, convolutions that go down and up again,
convolutions of single channels, experts of which a step may use none, and tables of categories.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Gated, next_token_loss, size

Wrapped = tuple[nn.Module, Callable[[nn.Module], Tensor]]


class Vit(nn.Module):
    """A transformer over patches, of torch's own layers."""

    def __init__(self, width: int, depth: int, patches: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, patches + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.first.expand(patches.shape[0], -1, -1)
        return self.head(self.norm(self.layers(torch.cat([first, patches], 1) + self.places))[:, 0])


def vit(batch: int, device: Any) -> Wrapped:
    side = 16 * size(14, device)
    model = Vit(64 * size(6, device), size(12, device), (side // 16) ** 2).to(device)
    images = torch.randn(batch, 3, side, side, device=device)
    return model, _classified(images, batch, device)


def _classified(inputs: Tensor, batch: int, device: Any) -> Callable[[nn.Module], Tensor]:
    targets = torch.randint(1000, (batch,), device=device)
    return lambda model: functional.cross_entropy(model(inputs), targets)


class Lstm(nn.Module):
    """A language model whose words go in and out through two tables."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.lstm(self.drop(self.words(tokens)))[0]))


def lstm(batch: int, device: Any) -> Wrapped:
    words = size(33278, device)
    model = Lstm(words, 128 * size(5, device)).to(device)
    tokens = torch.randint(words, (batch, size(128, device) + 1), device=device)
    targets = tokens[:, 1:].contiguous()
    return model, lambda model: next_token_loss(model(tokens[:, :-1].contiguous()), targets)


def _twice(into: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (into, width):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()]
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Convolutions that halve the image four times, and double it as often."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        pairs = list(pairwise(widths))
        self.first = _twice(3, width)
        self.down = nn.ModuleList(_twice(less, more) for less, more in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(more, less, 2, 2) for less, more in pairs[::-1])
        self.join = nn.ModuleList(_twice(2 * less, less) for less, more in pairs[::-1])
        self.head = nn.Conv2d(width, 21, 1)

    def forward(self, images: Tensor) -> Tensor:
        kept = [self.first(images)]
        for block in self.down:
            kept.append(block(functional.max_pool2d(kept[-1], 2)))
        out = kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            out = join(torch.cat([up(out), kept.pop()], 1))
        return self.head(out)


def unet(batch: int, device: Any) -> Wrapped:
    side = 32 * size(6, device)
    model = Unet(16 * size(4, device)).to(device)
    images = torch.randn(batch, 3, side, side, device=device)
    targets = torch.randint(21, (batch, side, side), device=device)
    return model, lambda model: functional.cross_entropy(model(images), targets)


class Convnext(nn.Module):
    """Convolutions of single channels between norms over all channels."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.norm = nn.LayerNorm(width)
            self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.scale = nn.Parameter(torch.full((width,), 1e-6))

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(self.each(x).permute(0, 2, 3, 1))
            out = self.scale * self.shrink(functional.gelu(self.grow(out)))
            return x + out.permute(0, 3, 1, 2)

    def __init__(self, width: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4)]
        for level, depth in enumerate(depths):
            if level:
                layers.append(nn.Conv2d(width, 2 * width, 2, 2))
                width *= 2
            layers += [self.Block(width) for _ in range(depth)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).mean((2, 3)))


def convnext(batch: int, device: Any) -> Wrapped:
    depths = (size(3, device), size(3, device), size(9, device), size(3, device))
    model = Convnext(16 * size(6, device), depths).to(device)
    side = 32 * size(7, device)
    return model, _classified(torch.randn(batch, 3, side, side, device=device), batch, device)


def gated(batch: int, device: Any) -> Wrapped:
    """Return a decoder with fewer heads of keys than of queries."""
    words, length, heads = size(32000, device), size(1024, device), size(16, device)
    model = Gated(words, length, 64 * heads, size(8, device), heads, max(1, heads // 4), False)
    tokens = torch.randint(words, (batch, length + 1), device=device)
    targets = tokens[:, 1:].contiguous()
    return model.to(device), lambda model: next_token_loss(
        model(tokens[:, :-1].contiguous()), targets
    )


def _expert(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Experts(nn.Module):
    """Layers of experts; half of them are for another task and get no gradients."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList((_expert(width), _expert(width))) for _ in range(layers)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        for first, _second in self.layers:
            x = x + first(x)
        return self.head(x)


def experts(batch: int, device: Any) -> Wrapped:
    width = 128 * size(8, device)
    model = Experts(width, size(6, device)).to(device)
    return model, _classified(torch.randn(batch, width, device=device), batch, device)


class Tables(nn.Module):
    """Tables of categories, and a perceptron over what they hold."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(8))
        self.top = nn.Sequential(
            nn.Linear(8 * width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
            nn.Linear(512, 1000),
        )  # fmt: skip

    def forward(self, categories: Tensor) -> Tensor:
        found = [table(categories[number]) for number, table in enumerate(self.tables)]
        return self.top(torch.cat(found, 1))


def tables(batch: int, device: Any) -> Wrapped:
    rows = size(100_000, device)
    model = Tables(rows, 16 * size(4, device)).to(device)
    categories = torch.randint(rows, (8, batch, 10), device=device)
    return model, _classified(categories, batch, device)


HELD: dict[str, Callable[[int, Any], Wrapped]] = {
    "vit": vit,
    "lstm": lstm,
    "unet": unet,
    "convnext": convnext,
    "gated": gated,
    "experts": experts,
    "tables": tables,
}
