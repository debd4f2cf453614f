"""Models of sound, points, clicks and rays that nobody has predicted: see ``families_blind.py``."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated
from .families_blind import made

# ── sound, sample after sample ────────────────────────────────────────────────────────────────────


class Dilated(nn.Module):
    """A gated causal convolution.

    Carries the residual channels and the sum of what is passed on in one tensor, so that blocks can
    be chained: (batch, width + passed, length).
    """

    def __init__(self, width: int, passed: int, dilation: int):
        super().__init__()
        self.width, self.dilation = width, dilation
        self.mix = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.stay, self.leave = nn.Conv1d(width, width, 1), nn.Conv1d(width, passed, 1)

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        filtered, gate = self.mix(functional.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(filtered) * torch.sigmoid(gate)
        return x + self.stay(y), total + self.leave(y)


class Stack(nn.Module):
    def __init__(self, width: int, passed: int, dilations: list[int]):
        super().__init__()
        self.blocks = nn.ModuleList(Dilated(width, passed, dilation) for dilation in dilations)
        self.width = width

    def forward(self, both: Tensor) -> Tensor:
        x, total = both[:, : self.width], both[:, self.width :]
        for block in self.blocks:
            x, total = block(x, total)
        return torch.cat((x, total), 1)


class WaveNet(nn.Module):
    def __init__(self, width: int, passed: int, again: bool):
        super().__init__()
        self.width, self.passed = width, passed
        self.levels = nn.Embedding(256, width)
        self.stacks = Repeated(
            [Stack(width, passed, [2**place for place in range(9)]) for _ in range(3)], again
        )
        self.head = nn.Sequential(
            nn.ReLU(), nn.Conv1d(passed, passed, 1), nn.ReLU(), nn.Conv1d(passed, 256, 1)
        )

    def forward(self, wave: Tensor) -> Tensor:
        x = self.levels(wave).transpose(1, 2)
        both = torch.cat((x, x.new_zeros(x.shape[0], self.passed, x.shape[2])), 1)
        return self.head(self.stacks.run(both)[:, self.width :])


def wavenet(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """1.0 M parameters, 8000 samples of 256 levels."""
    wave = torch.randint(256, (batch, 8001), device=device)
    forward = lambda model: functional.cross_entropy(model(wave[:, :-1]), wave[:, 1:])  # noqa: E731
    return made(WaveNet(64, 192, checkpoint), device, forward)


# ── clouds of points ──────────────────────────────────────────────────────────────────────────────


def _pointwise(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Conv1d(into, out, 1), nn.BatchNorm1d(out), nn.ReLU()]
    return nn.Sequential(*layers)


class Alignment(nn.Module):
    """A matrix for every cloud, near the identity."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.points = size, _pointwise(size, 64, 128, 1024)
        self.head = nn.Sequential(
            nn.Linear(1024, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, size * size),
        )

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(self.points(x).amax(2)).view(-1, self.size, self.size)
        return found + torch.eye(self.size, device=x.device, dtype=found.dtype)


class PointNet(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.align, self.align_features = Alignment(3), Alignment(64)
        self.first, self.second = _pointwise(3, 64, 64), _pointwise(64, 128, 1024)
        self.head = nn.Sequential(
            nn.Linear(1024, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(512, classes),
        )

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(torch.bmm(self.align(points), points))
        matrix = self.align_features(x)
        return self.head(self.second(torch.bmm(matrix, x)).max(2).values), matrix


def pointnet(batch: int, device: Any) -> Made:
    """3.4 M parameters, 1024 points; the second alignment is kept near an orthogonal one. NAdam."""
    points = torch.randn(batch, 3, 1024, device=device)
    labels = torch.randint(40, (batch,), device=device)
    optimizer = lambda parameters: torch.optim.NAdam(parameters, lr=1e-3, weight_decay=1e-4)  # noqa: E731

    def forward(model: nn.Module) -> Tensor:
        logits, matrix = model(points)
        apart = torch.bmm(matrix, matrix.transpose(1, 2)) - torch.eye(64, device=points.device)
        return (
            functional.cross_entropy(logits, labels)
            + 1e-3 * torch.linalg.matrix_norm(apart.float()).mean()
        )

    return made(PointNet(40), device, forward, optimizer)


# ── clicks: bags of several lengths, crossed ──────────────────────────────────────────────────────


class Crossed(nn.Module):
    """Weighted sums and products of features, with a perceptron beside them.

    The sums come out of one table for all columns; the products are of every feature with every
    other, of low rank.
    """

    def __init__(self, rows: int, columns: int, width: int):
        super().__init__()
        self.columns = columns
        self.bags = nn.EmbeddingBag(rows, width, mode="sum", include_last_offset=True)
        size = columns * width + 13
        self.down = nn.ModuleList(nn.Linear(size, 96, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(96, size) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(size, 1024),
            nn.ReLU(),
            nn.BatchNorm1d(1024),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.BatchNorm1d(512),
            nn.Linear(512, 256),
            nn.ReLU(),
        )
        self.head = nn.Linear(size + 256, 1)

    def forward(self, numbers: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
        found = self.bags(rows, starts, weights).view(numbers.shape[0], -1)
        first = torch.cat((found, numbers), 1)
        x = first
        for down, up in zip(self.down, self.up, strict=True):
            x = first * up(down(x)) + x
        return self.head(torch.cat((x, self.deep(first)), 1))[:, 0]


def dcn_bags(batch: int, device: Any) -> Made:
    """34 M parameters: 26 columns with one to five rows each; Adagrad."""
    columns, table = 26, 1_000_000
    lengths = torch.arange(batch * columns, device=device) % 5 + 1
    starts = functional.pad(lengths.cumsum(0), (1, 0))
    total = sum(place % 5 + 1 for place in range(batch * columns))
    rows, weights = torch.randint(table, (total,), device=device), torch.rand(total, device=device)
    numbers, clicks = (
        torch.randn(batch, 13, device=device),
        torch.rand(batch, device=device).round(),
    )

    def forward(model: nn.Module) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            model(numbers, rows, starts, weights), clicks
        )

    optimizer = lambda parameters: torch.optim.Adagrad(parameters, lr=0.01)  # noqa: E731
    return made(Crossed(table, columns, 32), device, forward, optimizer)


# ── rays through a scene ──────────────────────────────────────────────────────────────────────────


def waves(x: Tensor, octaves: int) -> Tensor:
    """Return the sines and cosines of ``octaves`` frequencies, beside ``x``.

    Shapes: (…, size) → (…, size · (1 + 2 · octaves)).
    """
    angles = x[..., None] * (math.pi * 2.0 ** torch.arange(octaves, device=x.device))
    return torch.cat((x, angles.sin().flatten(-2), angles.cos().flatten(-2)), -1)


class Field(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.before = nn.ModuleList(
            nn.Linear(63 if not place else width, width) for place in range(5)
        )
        self.after = nn.ModuleList(
            nn.Linear(width + 63 if not place else width, width) for place in range(3)
        )
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = nn.Sequential(
            nn.Linear(width + 27, width // 2), nn.ReLU(), nn.Linear(width // 2, 3)
        )

    def forward(self, points: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        places = x = waves(points, 10)
        for layer in self.before:
            x = layer(x).relu()
        x = torch.cat((x, places.to(x.dtype)), -1)
        for layer in self.after:
            x = layer(x).relu()
        seen = waves(directions, 4).expand(*points.shape[:-1], -1)
        return self.density(x)[..., 0], torch.sigmoid(
            self.colour(torch.cat((self.feature(x), seen), -1))
        )


def composed(density: Tensor, colour: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Colours of rays and the weights of their samples."""
    steps = torch.cat((depths.diff(dim=-1), torch.full_like(depths[..., :1], 1e10)), -1)
    solid = 1 - torch.exp(-functional.softplus(density) * steps)
    clear = torch.cumprod(torch.cat((torch.ones_like(solid[:, :1]), 1 - solid + 1e-10), -1), -1)[
        :, :-1
    ]
    weights = solid * clear
    return (weights[..., None] * colour).sum(-2), weights


class Scene(nn.Module):
    """A coarse field, then a fine one where the coarse one has found something."""

    def __init__(self, width: int):
        super().__init__()
        self.coarse, self.fine = Field(width), Field(width)

    def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        depths = torch.linspace(2, 6, 65, device=origins.device)[:-1]
        depths = depths + torch.rand(origins.shape[0], 64, device=origins.device) * (4 / 64)
        seen = directions[:, None]
        density, colour = self.coarse(origins[:, None] + seen * depths[..., None], seen)
        first, weights = composed(density, colour, depths)
        with torch.no_grad():
            chances = (weights[:, 1:-1].float() + 1e-5).cumsum(-1)
            drawn = torch.rand(origins.shape[0], 64, device=origins.device) * chances[:, -1:]
            where = torch.searchsorted(chances, drawn).clamp(max=61)
            depths = torch.cat((depths, depths.gather(1, where + 1)), 1).sort(-1).values
        density, colour = self.fine(origins[:, None] + seen * depths[..., None], seen)
        return first, composed(density, colour, depths)[0]


def nerf(batch: int, device: Any) -> Made:
    """1.2 M parameters; ``batch`` rays, 64 samples of each and then 128; Adam."""
    origins = torch.randn(batch, 3, device=device)
    directions = functional.normalize(torch.randn(batch, 3, device=device), dim=-1)
    colours = torch.rand(batch, 3, device=device)

    def forward(model: nn.Module) -> Tensor:
        first, second = model(origins, directions)
        return functional.mse_loss(first, colours) + functional.mse_loss(second, colours)

    return made(
        Scene(256),
        device,
        forward,
        lambda parameters: torch.optim.Adam(parameters, lr=5e-4, eps=1e-7),
    )
