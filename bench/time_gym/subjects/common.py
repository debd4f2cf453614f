"""What the trainings share: their words, their steps, and a few models."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PRINT_SECONDS = 0.1


class Training:
    """How a training is to run: on which device, cured or not, for how long."""

    def __init__(self, device: str, cured: bool, seconds: float, most: int) -> None:
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.cured = cured
        self._until = time.monotonic() + seconds
        self._most = most
        self._printed = 0.0
        self._made = 0

    def pick(self, gpu: int, cpu: int) -> int:
        """Return a size: the one for a GPU, or the one with which a CPU shows that it runs."""
        return gpu if self.cuda else cpu

    def steps(self) -> Iterator[int]:
        """Yield 1, 2, 3, … and print how many steps were made."""
        while not self.over:
            yield self._made + 1
            self.made()

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until or self._made >= self._most

    def made(self) -> None:
        """Count a step that has ended, and print it, if the last print was not just now."""
        self._made += 1
        now = time.monotonic()
        if now > self._printed + PRINT_SECONDS or self._made == self._most:
            self._printed = now
            print(f"step {self._made}", flush=True)

    def half(self, enabled: bool = True) -> Any:
        """Return autocast to bfloat16; on a CPU nothing."""
        if not self.cuda or not enabled:
            return contextlib.nullcontext()
        return torch.autocast("cuda", torch.bfloat16)

    def tokens(self, rows: int, length: int, vocabulary: int) -> torch.Tensor:
        return torch.randint(0, vocabulary, (rows, length), device=self.device)


def main(trainings: Mapping[str, Callable[[Training], None]]) -> None:
    """Train as the words of the command line say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("training", choices=[*trainings])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cured", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("This training needs a CUDA GPU, and torch finds none here.")
    torch.manual_seed(0)
    trainings[args.training](Training(args.device, args.cured, args.seconds, args.steps))


def named(*functions: Callable[[Training], None]) -> dict[str, Callable[[Training], None]]:
    """Return functions by their names in the index."""
    return {function.__name__.replace("_", "-"): function for function in functions}


class Block(nn.Module):
    """A block of a transformer: causal attention and a wide layer, both after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.wide(self.second(x))


class GPT(nn.Module):
    """A language model; ``forward`` returns the logits of every token."""

    def __init__(self, layers: int, width: int, vocabulary: int = 8192, length: int = 1024) -> None:
        super().__init__()
        self.vocabulary, self.length = vocabulary, length
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self(tokens)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt(training: Training, layers: int = 8, width: int = 1024) -> GPT:
    """Return a model whose steps of 16 rows keep a large GPU busy for some 40 ms."""
    model = GPT(
        training.pick(layers, 2),
        training.pick(width, 32),
        training.pick(8192, 64),
        training.pick(1024, 16),
    )
    return model.to(training.device)


def batch_of(training: Training, model: GPT, rows: int = 16) -> torch.Tensor:
    return training.tokens(training.pick(rows, 2), model.length, model.vocabulary)


def adamw(training: Training, model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    """Return the usual optimizer, in one kernel where there is a GPU."""
    more = more or ({"fused": True} if training.cuda else {})
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **more)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.first, self.second = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(self.one(x)))
        return F.relu(self.second(self.two(y)) + self.short(x))


def residual_net(training: Training, width: int = 64, each: int = 3) -> nn.Module:
    """Return a classifier of pictures with 10 kinds, in the layout that tensor cores like."""
    layers: list[nn.Module] = [nn.Conv2d(3, training.pick(width, 8), 3, 1, 1, bias=False)]
    inputs = training.pick(width, 8)
    for stage in range(training.pick(4, 2)):
        outputs = training.pick(width, 8) * 2**stage
        for number in range(training.pick(each, 1)):
            layers.append(Residual(inputs, outputs, 2 if stage and not number else 1))
            inputs = outputs
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))
    return net.to(training.device, memory_format=torch.channels_last)


def pictures(
    training: Training, rows: int = 512, side: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (training.pick(rows, 4), 3, training.pick(side, 8), training.pick(side, 8))
    images = torch.randn(shape, device=training.device)
    kinds = torch.randint(10, shape[:1], device=training.device)
    return images.to(memory_format=torch.channels_last), kinds


def deep(training: Training, layers: int, width: int, **more: Any) -> nn.Sequential:
    """Return a chain of equal layers; in bfloat16 on a GPU, so that no layer needs a cast."""
    more = more or ({"dtype": torch.bfloat16} if training.cuda else {})
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).to(training.device, **more)


def rows_for(model: nn.Sequential, rows: int) -> torch.Tensor:
    """Return inputs of a chain, of its own type and on its device."""
    weight = model[0].weight
    return torch.randn(rows, weight.shape[1], device=weight.device, dtype=weight.dtype)
