"""Small models of many kinds, each with a function that trains one step of it and gives the loss.

They are for tests that count what a step computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], torch.Tensor]


class Attention(nn.Module):
    """Self-attention with ``heads`` heads of q and ``shared`` heads of k and v."""

    def __init__(self, width: int, heads: int, shared: int = 0, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.shared, self.causal = heads, shared or heads, causal
        self.each = width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.each * self.shared)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, self.each).transpose(1, 2)
        kv = self.kv(x).view(batch, length, 2, self.shared, self.each)
        k, v = kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)
        more: dict[str, Any] = {"enable_gqa": True} if self.shared != self.heads else {}
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, **more)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shared: int = 0, causal: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, shared, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Words(nn.Module):
    """A transformer over token ids: GPT where it is causal, like BERT where it is not."""

    def __init__(
        self, causal: bool, shared: int = 0, width: int = 64, layers: int = 2, again: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(211, width)
        self.blocks = nn.ModuleList(Block(width, 4, shared, causal) for _ in range(layers))
        self.head = nn.Linear(width, 211, bias=False)
        self.again = again

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if self.again:
                from torch.utils.checkpoint import checkpoint

                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.last = nn.ConvTranspose2d(32, 10, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.down(x))
        b = F.relu(self.up(F.relu(self.deep(a))))
        return self.last(torch.cat([a, b], 1)).mean((2, 3))


class Experts(nn.Module):
    """Each token goes through the one of four networks that a router chooses."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, here, expert(x[here]))
        return self.head(out)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 24), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        return self.head(state[0])


def _images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32)


def _vectors() -> torch.Tensor:
    return torch.randn(48, 32)


def _ids() -> torch.Tensor:
    return torch.randint(0, 211, (4, 32))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)),
        _vectors,
    ),
    "convnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 24, 3, dilation=2),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10),
        ),
        _images,
    ),
    "resnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2, padding=3), Residual(16), nn.MaxPool2d(2), Residual(16),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        ),
        _images,
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.Linear(32, 64), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 8, 4, stride=2),
            nn.ReLU(), nn.ConvTranspose2d(8, 4, 3, stride=2), nn.Flatten(),
            nn.Linear(676, 10),
        ),
        _vectors,
    ),
    "gpt": (lambda: Words(causal=True), _ids),
    "bert": (lambda: Words(causal=False), _ids),
    "gqa": (lambda: Words(causal=True, shared=2), _ids),
    "lstm": (Recurrent, lambda: torch.randn(4, 7, 16)),
    "moe": (Experts, _vectors),
    "unet": (UNet, _images),
}  # fmt: skip


def step_of(name: str, device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make().to(device)
    return training(model, batch().to(device))


def training(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """Return a step of a model whose batch is always ``x``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        out = model(x)
        if out.dim() == 3:
            loss = F.cross_entropy(out.flatten(0, 1), x.flatten())
        else:
            loss = F.cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device=x.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, optimizer, step
