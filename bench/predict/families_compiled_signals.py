"""Models of images, sound, graphs and tables for compiled trainings that no rule was made with.

The same form as in ``families.py``. Each was declared before it was measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated, adamw, labelled


def _images(model: nn.Module, batch: int, side: int, device: Any, classes: int) -> Made:
    model = model.to(device)
    return labelled(model, torch.randn(batch, 3, side, side, device=device), classes)


class Pooling(nn.Module):
    """Neighbours are averaged instead of attended to."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.GroupNorm(1, width), nn.GroupNorm(1, width)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.wide, self.narrow = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        x = x + self.scale * (self.pool(y) - y)
        return x + self.scale * self.narrow(functional.gelu(self.wide(self.second(x))))


def pooled_images(batch: int, device: Any) -> Made:
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 4, 2)]
    for before, after in ((64, 128), (128, 256)):
        parts += [Pooling(before), Pooling(before), nn.Conv2d(before, after, 3, 2, 1)]
    parts += [Pooling(256) for _ in range(4)]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 500)]
    return _images(nn.Sequential(*parts), batch, 224, device, 500)


class Windows(nn.Module):
    """Attention inside of windows, which are shifted in every second block."""

    def __init__(self, width: int, heads: int, window: int, shift: int):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window**2, window**2))

    def forward(self, x: Tensor) -> Tensor:
        batch, high, wide, width = x.shape
        size = self.window
        y = torch.roll(self.first(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, high // size, size, wide // size, size, width)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, width)
        parts = self.parts(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts
        bias = self.bias.to(q.dtype).unsqueeze(0)
        y = functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)
        y = self.outer(y).view(batch, high // size, wide // size, size, size, width)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        self.early = nn.Sequential(*(Windows(96, 3, 7, 3 * (number % 2)) for number in range(2)))
        self.merge = nn.Linear(384, 192, bias=False)
        self.late = nn.Sequential(*(Windows(192, 6, 7, 3 * (number % 2)) for number in range(6)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 400)

    def forward(self, images: Tensor) -> Tensor:
        x = self.early(self.patches(images).permute(0, 2, 3, 1))
        x = torch.cat([x[:, a::2, b::2] for a in (0, 1) for b in (0, 1)], -1)
        x = self.late(self.merge(x))
        return self.head(self.norm(x).mean((1, 2)))


def window_images(batch: int, device: Any) -> Made:
    return _images(Shifted(), batch, 224, device, 400)


class Responding(nn.Module):
    """A wide convolution, and channels that are normalised by their response to the image."""

    def __init__(self, width: int):
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.zeros(4 * width))
        self.shift = nn.Parameter(torch.zeros(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.wide(self.norm(self.deep(x).permute(0, 2, 3, 1))))
        size = torch.linalg.vector_norm(y.float(), dim=(1, 2), keepdim=True)
        size = size / (size.mean(-1, keepdim=True) + 1e-6)
        y = self.scale * (y * size.to(y.dtype)) + self.shift + y
        return x + self.narrow(y).permute(0, 3, 1, 2)


class Responses(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 80, 4, 4)
        self.early = Repeated([Responding(80) for _ in range(3)], again)
        self.halve = nn.Conv2d(80, 160, 2, 2)
        self.late = Repeated([Responding(160) for _ in range(6)], again)
        self.norm, self.head = nn.LayerNorm(160), nn.Linear(160, 300)

    def forward(self, images: Tensor) -> Tensor:
        x = self.late.run(self.halve(self.early.run(self.start(images))))
        return self.head(self.norm(x.mean((2, 3))))


def responding_images(batch: int, device: Any, checkpoint: bool = False) -> Made:
    return _images(Responses(checkpoint), batch, 224, device, 300)


class Timed(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.first, self.second = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv, self.again = (
            nn.Conv2d(width, after, 3, padding=1) for width in (before, after)
        )  # fmt: skip
        self.time = nn.Linear(128, after)
        self.aside = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv(functional.silu(self.first(x))) + self.time(time)[:, :, None, None]
        return self.aside(x) + self.again(functional.silu(self.second(y)))


class Everywhere(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.parts = nn.GroupNorm(8, width), nn.Conv2d(width, 3 * width, 1)
        self.outer = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.outer(y.transpose(1, 2).reshape(x.shape))


class Denoising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.start, self.end = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 3, padding=1)
        self.one, self.two, self.three = Timed(64, 64), Timed(64, 128), Timed(128, 192)
        self.mixed, self.middle = Everywhere(192), Timed(192, 192)
        self.four, self.five = Timed(192 + 128, 128), Timed(128 + 64, 64)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        rates = torch.exp(torch.linspace(0, 6, 32, device=x.device))
        angles = time[:, None] * rates
        time = self.time(torch.cat((angles.sin(), angles.cos()), -1))
        a = self.one(self.start(x), time)
        b = self.two(functional.avg_pool2d(a, 2), time)
        c = self.middle(self.mixed(self.three(functional.avg_pool2d(b, 2), time)), time)
        up = functional.interpolate(c, scale_factor=2.0, mode="nearest")
        b = self.four(torch.cat((up, b), 1), time)
        up = functional.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.end(functional.silu(self.five(torch.cat((up, a), 1), time)))


def denoising(batch: int, device: Any) -> Made:
    model = Denoising().to(device)
    images = torch.randn(batch, 3, 96, 96, device=device)

    def forward() -> Tensor:
        time = torch.rand(batch, device=device)
        noise = torch.randn_like(images)
        part = time[:, None, None, None]
        return functional.mse_loss(model((1 - part) * images + part * noise, time), noise)

    return adamw(model, forward)


class Codes(nn.Module):
    """Images are encoded as a distribution, sampled, and decoded."""

    def __init__(self) -> None:
        super().__init__()
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for before, after in ((3, 48), (48, 96), (96, 192)):
            down += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
            up = [nn.ConvTranspose2d(after, before, 4, 2, 1), *up]
            up = [nn.BatchNorm2d(after), nn.LeakyReLU(0.2), *up]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)
        self.code, self.back = nn.Conv2d(192, 64, 1), nn.Conv2d(32, 192, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.code(self.down(images)).chunk(2, 1)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        far = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
        return self.up(self.back(sample)), far


def coded_images(batch: int, device: Any) -> Made:
    model = Codes().to(device)
    images = torch.rand(batch, 3, 160, 160, device=device)

    def forward() -> Tensor:
        made, far = model(images)
        return functional.mse_loss(made, images) + 0.1 * far

    return adamw(model, forward)


class Edges(nn.Module):
    """Nodes attend to their neighbours along a list of edges."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(width, width)
        self.source = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.target = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        y = self.inner(x).unflatten(-1, (self.heads, -1))
        told, asked = (y * self.source).sum(-1), (y * self.target).sum(-1)
        scores = functional.leaky_relu(told[source] + asked[target], 0.2)
        scores = torch.exp(scores - scores.amax())
        total = torch.zeros_like(told).index_add(0, target, scores)
        weights = scores / (total[target] + 1e-9)
        made = torch.zeros_like(y).index_add(0, target, y[source] * weights.unsqueeze(-1))
        return x + functional.elu(self.norm(made.flatten(1)))


def attended_edges(batch: int, device: Any) -> Made:
    """A graph of 1,000 nodes and 12,000 edges per sample."""
    nodes, edges, width = 1000 * batch, 12000 * batch, 128

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.head = nn.Linear(64, width), nn.Linear(width, 40)
            self.layers = nn.ModuleList(Edges(width, 4) for _ in range(5))

        def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
            x = self.start(x)
            for layer in self.layers:
                x = layer(x, source, target)
            return self.head(x)

    model = Model().to(device)
    x = torch.randn(nodes, 64, device=device)
    source, target = (torch.randint(nodes, (edges,), device=device) for _ in range(2))
    labels = torch.randint(40, (nodes,), device=device)
    return adamw(model, lambda: functional.cross_entropy(model(x, source, target), labels))


class Listening(nn.Module):
    """Convolution and attention over sound, with half steps before and after."""

    def __init__(self, width: int):
        super().__init__()
        self.before, self.after = (
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1),
                nn.Linear(4 * width, width), nn.Dropout(0.1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.parts = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.outer, self.middle = nn.Linear(width, width), nn.LayerNorm(width)
        self.gate, self.point = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.deep = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.batch, self.last = nn.BatchNorm1d(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        parts = self.parts(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (6, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        y = functional.glu(self.gate(self.middle(x).transpose(1, 2)), 1)
        y = self.point(functional.silu(self.batch(self.deep(y)))).transpose(1, 2)
        x = x + y
        return self.last(x + 0.5 * self.after(x))


def listening_blocks(batch: int, device: Any) -> Made:
    """Convolutions over raw sound, and blocks that are compiled one by one."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = ((1, 128, 10, 5), (128, 256, 8, 4), (256, 384, 4, 2), (384, 384, 4, 2))
            self.start = nn.Sequential(
                *(nn.Sequential(nn.Conv1d(a, b, k, s), nn.GELU()) for a, b, k, s in sizes)
            )
            self.blocks = nn.ModuleList(Listening(384) for _ in range(7))
            self.head = nn.Linear(384, 96)

        def forward(self, sound: Tensor) -> Tensor:
            x = self.start(sound.unsqueeze(1)).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Model().to(device)
    for block in model.blocks:
        block.compile()
    sound = torch.randn(batch, 48000, device=device)

    def forward() -> Tensor:
        scores = model(sound).flatten(0, 1)
        return functional.cross_entropy(scores, scores.detach().argmax(-1))

    return adamw(model, forward)


class Crossing(nn.Module):
    """Each layer multiplies the table's features by a low-rank product of what came before."""

    def __init__(self, width: int, rank: int):
        super().__init__()
        self.low, self.high = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)
        self.wide, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        x = x + first * self.high(self.low(x))
        return x + functional.relu(self.wide(self.norm(x)))


class Crossed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20000, 64) for _ in range(16))
        self.layers = nn.ModuleList(Crossing(width, 256) for _ in range(5))
        self.head = nn.Linear(width, 1)

    def forward(self, keys: Tensor) -> Tensor:
        found = [table(keys[:, place]) for place, table in enumerate(self.tables)]
        x = first = torch.cat(found, -1)
        for layer in self.layers:
            x = layer(first, x)
        return self.head(x).squeeze(-1)


def crossed_table(batch: int, device: Any) -> Made:
    model = Crossed(1024).to(device)
    keys = torch.randint(20000, (batch, 16), device=device)
    clicks = torch.rand(batch, device=device).round()
    return adamw(model, lambda: functional.binary_cross_entropy_with_logits(model(keys), clicks))
