"""More families of plain torch: convolutional and recurrent networks, perceptrons, embedding bags.

The same form as in ``families.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from .families import Made, Repeated, labelled

# ── residual networks ─────────────────────────────────────────────────────────────────────────────


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(into, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.skip = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], again: bool):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        into = 64
        for level, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(Bottleneck(into, 64 * 2**level, 2 if level and not index else 1))
                into = 4 * 64 * 2**level
        self.blocks = Repeated(blocks, again)
        self.head = nn.Linear(into, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks.run(self.stem(images)).mean(dim=(2, 3)))


def _resnet(channels_last: bool) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        model = ResNet((3, 4, 6, 3), checkpoint).to(device)
        images = torch.randn(batch, 3, 224, 224, device=device)
        targets = torch.randint(1000, (batch,), device=device)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            images = images.contiguous(memory_format=torch.channels_last)

        def forward() -> Tensor:
            return functional.cross_entropy(model(images), targets)

        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), forward

    return factory


resnet50 = _resnet(channels_last=False)
resnet50_last = _resnet(channels_last=True)


# ── U-Nets ────────────────────────────────────────────────────────────────────────────────────────


class UNet(nn.Module):
    """Four levels; ``norm`` makes the normalization of so many channels."""

    def __init__(self, width: int, classes: int, norm: Callable[[int], nn.Module], again: bool):
        super().__init__()
        self.again = again

        def double(into: int, out: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(into, out, 3, padding=1),
                norm(out),
                nn.SiLU(),
                nn.Conv2d(out, out, 3, padding=1),
                norm(out),
                nn.SiLU(),
            )

        sizes = [width * 2**level for level in range(5)]
        self.first = double(3, width)
        self.down = nn.ModuleList(double(into, out) for into, out in itertools.pairwise(sizes))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(out, into, 2, 2)
            for into, out in reversed(list(itertools.pairwise(sizes)))
        )
        self.up = nn.ModuleList(double(2 * into, into) for into in reversed(sizes[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        return recompute(block, x, use_reentrant=False) if self.again else block(x)

    def forward(self, images: Tensor) -> Tensor:
        x = self._run(self.first, images)
        kept = []
        for block in self.down:
            kept.append(x)
            x = self._run(block, functional.max_pool2d(x, 2))
        for grow, block in zip(self.grow, self.up, strict=True):
            x = self._run(block, torch.cat((grow(x), kept.pop()), dim=1))
        return self.head(x)


def _unet(width: int, pixels: int, norm: Callable[[int], nn.Module]) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        classes = 21
        model = UNet(width, classes, norm, checkpoint).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def forward() -> Tensor:  # a new micro-batch each time, made on the host as a loader's is
            images = torch.randn(batch, 3, pixels, pixels).to(device)
            targets = torch.randint(classes, (batch, pixels, pixels)).to(device)
            return functional.cross_entropy(model(images), targets)

        return model, optimizer, forward

    return factory


unet_group = _unet(64, 256, lambda channels: nn.GroupNorm(8, channels))
unet_batch = _unet(32, 192, nn.BatchNorm2d)


# ── ConvNeXt's blocks: depthwise convolutions, layer norm over channels, layer scale ──────────────


class DepthwiseBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.shrink(functional.gelu(self.grow(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext_like(batch: int, device: Any, checkpoint: bool = False) -> Made:
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            starts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4)]
            starts += [
                nn.Sequential(nn.GroupNorm(1, into), nn.Conv2d(into, out, 2, 2))
                for into, out in itertools.pairwise(widths)
            ]
            self.starts = nn.ModuleList(starts)
            self.stages = nn.ModuleList(
                Repeated([DepthwiseBlock(width) for _ in range(depth)], checkpoint)
                for width, depth in zip(widths, depths, strict=True)
            )
            self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000)

        def forward(self, x: Tensor) -> Tensor:
            for start, stage in zip(self.starts, self.stages, strict=True):
                x = stage.run(start(x))
            return self.head(self.norm(x.mean((2, 3))))

    model = Net().to(device)
    return labelled(model, torch.randn(batch, 3, 224, 224, device=device))


# ── recurrent networks ────────────────────────────────────────────────────────────────────────────


def _recurrent(
    kind: type[nn.RNNBase], words: int, width: int, length: int, dropout: float
) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        class Language(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(words, width)
                self.layers = kind(width, width, 2, dropout=dropout, batch_first=True)
                self.drop = nn.Dropout(dropout)
                self.head = nn.Linear(width, words)

            def forward(self, tokens: Tensor) -> Tensor:
                x = self.drop(self.words(tokens))
                x = (
                    recompute(lambda x: self.layers(x)[0], x, use_reentrant=False)
                    if checkpoint
                    else self.layers(x)[0]
                )
                return self.head(self.drop(x))

        model = Language().to(device)
        tokens = torch.randint(words, (batch, length + 1), device=device)

        def forward() -> Tensor:
            return functional.cross_entropy(
                model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            )

        return model, torch.optim.AdamW(model.parameters(), lr=1e-3), forward

    return factory


lstm_lm = _recurrent(nn.LSTM, 33278, 650, 70, dropout=0.5)
gru_lm = _recurrent(nn.GRU, 10000, 512, 128, dropout=0.2)


# ── perceptrons and tables ────────────────────────────────────────────────────────────────────────


def _mlp(width: int, depth: int, outputs: int) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(784, width)
                blocks: list[nn.Module] = [
                    nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
                    for _ in range(depth)
                ]
                self.blocks = Repeated(blocks, checkpoint)
                self.head = nn.Linear(width, outputs)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.blocks.run(torch.relu(self.first(x))))

        model = Net().to(device)
        inputs, targets = (
            torch.randn(batch, 784, device=device),
            torch.randn(batch, outputs, device=device),
        )

        def forward() -> Tensor:
            return functional.mse_loss(model(inputs), targets)

        return model, torch.optim.AdamW(model.parameters(), lr=1e-3), forward

    return factory


mlp = _mlp(4096, 8, 64)
mlp_small = _mlp(512, 3, 10)


def dlrm_like(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """Embedding bags for categories and a perceptron for numbers.

    The products of all pairs go into a perceptron on top.
    """
    tables, rows, width, per_bag = 16, 100_000, 64, 4

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(
                nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)
            )
            self.bottom = nn.Sequential(
                nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU()
            )
            pairs = (tables + 1) * tables // 2
            self.top = nn.Sequential(
                nn.Linear(pairs + width, 1024),
                nn.ReLU(),
                nn.Linear(1024, 512),
                nn.ReLU(),
                nn.Linear(512, 1),
            )
            self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

        def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
            dense = self.bottom(numbers)
            parts = [dense] + [bag(categories[:, table]) for table, bag in enumerate(self.bags)]
            stacked = torch.stack(parts, dim=1)
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            chosen = products[:, self.pairs[0], self.pairs[1]]
            top = (
                recompute(self.top, torch.cat((dense, chosen), 1), use_reentrant=False)
                if checkpoint
                else None
            )
            return (self.top(torch.cat((dense, chosen), 1)) if top is None else top).squeeze(1)

    model = Net().to(device)
    numbers = torch.randn(batch, 13, device=device)
    categories = torch.randint(rows, (batch, tables, per_bag), device=device)
    clicks = torch.randint(2, (batch,), device=device).float()

    def forward() -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(numbers, categories), clicks)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), forward
