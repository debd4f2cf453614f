"""The Lab's models and the data that they learn from.

Everything is made on the device from a seed, without downloads or files. Each task has a fixed pool
of samples, so that the same positions of the pool are the same data, however they are divided into
micro-batches or among ranks. No layer mixes the samples of a batch (there is no batch norm and no
dropout), so gradients that are accumulated over micro-batches, or averaged over ranks, are those of
one large batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .toggles import EVERY_PRESET

Samples = tuple[Tensor, Tensor]
"""Inputs and targets, the sample in the first dimension of both."""
TARGET_NOISE, LABEL_NOISE = 0.2, 0.1
"""Noise that keeps the losses of the regression and of the images from falling to zero, where two
precisions could not be compared: the standard deviation of the noise on targets of variance 1, and
the share of labels that are random.
"""
HELD_OUT = 256
"""The number of samples for validation, which are used repeatedly. They come from the same source
and are not trained on.
"""


class Task:
    """A model on its device, its pool of samples and its loss.

    ``draw(count)`` makes new samples of the same kind.
    """

    def __init__(
        self,
        model: nn.Module,
        draw: Callable[[int], Samples],
        pool: int,
        loss: Callable[[Tensor, Tensor], Tensor],
    ):
        self.model = model
        self.criterion = loss
        """Outputs and targets → the mean loss over the batch, a scalar that can be differentiated.
        """
        self.pool = draw(pool)
        self._draw = draw

    def held_out(self) -> Samples:
        """Return ``HELD_OUT`` samples that are not in the pool.

        They are drawn after it, so the pool is the same without them.
        """
        return self._draw(HELD_OUT)


class Blocks(nn.Sequential):  # type: ignore[misc]  # torch is not type-checked
    """The repeated part of a model, which is the unit of checkpointing and of sharding.

    With ``checkpoint`` a block keeps only its input for the backward pass, which computes its
    activations again.
    """

    checkpoint = False

    def forward(self, x: Tensor) -> Tensor:
        again = self.checkpoint and torch.is_grad_enabled()
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


class BlockStack(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A model in three parts: what comes before the blocks, the blocks, what comes after."""

    def __init__(self, before: nn.Module, blocks: list[nn.Module], after: nn.Module):
        super().__init__()
        self.before = before
        self.blocks = Blocks(*blocks)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.blocks(self.before(x)))


@dataclass(frozen=True)
class Preset:
    """A size of a model that the Lab knows by name.

    ``make(device, generator)`` builds the task; the generator is on the device and draws the data.
    The learning rates are for AdamW, and for SGD with momentum 0.9. They rise linearly over the
    first ``warm_up`` optimizer steps. Without that, AdamW's first steps would raise a transformer's
    loss above its initial value, and precisions that agree otherwise would end in different places.
    Rates and warm-up are chosen so that float32 and bfloat16 follow the same curve.
    """

    batch: int
    learning_rate: float
    sgd_rate: float
    warm_up: int
    make: Callable[[torch.device, torch.Generator], Task]


def build(preset: str, device: torch.device, seed: int) -> Task:
    """Return the task of ``preset`` with weights and data drawn from ``seed``.

    Both are made on ``device`` itself.
    """
    torch.manual_seed(seed)
    return MODELS[preset].make(device, torch.Generator(device).manual_seed(seed))


# ── mlp: regression on a fixed teacher ────────────────────────────────────────────────────────────


def _mlp(width: int, depth: int, pool: int) -> Callable[[torch.device, torch.Generator], Task]:
    features, hidden, outputs = 256, 16, 16

    def make(device: torch.device, generator: torch.Generator) -> Task:
        def layer(into: int) -> nn.Module:
            linear = nn.Linear(into, width, device=device)
            # a GELU passes on about as much variance as a ReLU
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            return nn.Sequential(linear, nn.GELU())

        model = BlockStack(
            layer(features),
            [layer(width) for _ in range(depth - 1)],
            nn.Linear(width, outputs, device=device),
        )
        into = torch.randn(features, hidden, device=device, generator=generator) / math.sqrt(
            features
        )
        out = torch.randn(hidden, outputs, device=device, generator=generator) / math.sqrt(hidden)

        def teach(inputs: Tensor) -> Tensor:
            return torch.tanh(inputs @ into) @ out

        scale = teach(torch.randn(4096, features, device=device, generator=generator)).std()

        def draw(count: int) -> Samples:
            inputs = torch.randn(count, features, device=device, generator=generator)
            noise = torch.randn(count, outputs, device=device, generator=generator)
            return inputs, teach(inputs) / scale + TARGET_NOISE * noise

        return Task(model, draw, pool, functional.mse_loss)

    return make


# ── conv: images of ten classes, each a fixed pattern under noise ─────────────────────────────────


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
        self.skip = (
            nn.Identity() if same else nn.Conv2d(into, out, 1, stride, bias=False, device=device)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def _conv(
    widths: tuple[int, ...], blocks: int, pixels: int, pool: int
) -> Callable[[torch.device, torch.Generator], Task]:
    classes = 10

    def make(device: torch.device, generator: torch.Generator) -> Task:
        layers: list[nn.Module] = []
        into = widths[0]
        for level, width in enumerate(widths):
            for block in range(blocks):
                layers.append(_Residual(into, width, 2 if level and not block else 1, device))
                into = width
        head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes, device=device)
        )
        model = BlockStack(nn.Conv2d(3, widths[0], 3, 1, 1, device=device), layers, head)
        coarse = torch.randn(classes, 3, 4, 4, device=device, generator=generator)
        patterns = functional.interpolate(coarse, size=(pixels, pixels), mode="bilinear")

        def draw(count: int) -> Samples:
            targets = torch.randint(classes, (count,), device=device, generator=generator)
            noise = torch.randn(count, 3, pixels, pixels, device=device, generator=generator)
            labels = torch.randint(classes, (count,), device=device, generator=generator)
            blind = torch.rand(count, device=device, generator=generator) < LABEL_NOISE
            return patterns[targets] + 0.5 * noise, torch.where(blind, labels, targets)

        return Task(model, draw, pool, functional.cross_entropy)

    return make


# ── gpt: next token of a fixed Markov chain ───────────────────────────────────────────────────────


class _Block(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    def __init__(self, width: int, heads: int, device: torch.device):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width, device=device)
        self.attention_in = nn.Linear(width, 3 * width, device=device)
        self.attention_out = nn.Linear(width, width, device=device)
        self.before_mlp = nn.LayerNorm(width, device=device)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, device=device),
            nn.GELU(),
            nn.Linear(4 * width, width, device=device),
        )

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.attention_in(self.before_attention(x)).view(samples, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(samples, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A decoder-only transformer: (samples, length) int64 → logits (samples, length, vocabulary).

    The token embedding is also the output layer. Weights are initialised as in GPT-2: normal with
    standard deviation 0.02, and smaller by √(2·depth) for those that write into the residual
    stream.
    """

    def __init__(
        self, vocabulary: int, length: int, width: int, depth: int, heads: int, device: torch.device
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, device=device)
        self.positions = nn.Embedding(length, width, device=device)
        self.blocks = Blocks(*(_Block(width, heads, device) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, device=device)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                writes = name.endswith(("attention_out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth) if writes else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions.weight[: tokens.shape[1]]
        return functional.linear(
            self.norm(self.blocks(self.tokens(tokens) + positions)), self.tokens.weight
        )


def _token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _gpt(
    vocabulary: int, length: int, width: int, depth: int, heads: int, pool: int
) -> Callable[[torch.device, torch.Generator], Task]:
    # The chain uses only some of the words, and each is followed by one of four others. So the loss
    # falls from ln(vocabulary) first to ln(words) and then towards ln(4), within the first hundred
    # steps of either size.
    words, successors = min(vocabulary, 64), 4

    def make(device: torch.device, generator: torch.Generator) -> Task:
        model = Gpt(vocabulary, length, width, depth, heads, device)
        follows = torch.randint(words, (words, successors), device=device, generator=generator)

        def draw(count: int) -> Samples:
            choice = torch.randint(successors, (count, length), device=device, generator=generator)
            tokens = [torch.randint(words, (count,), device=device, generator=generator)]
            for place in range(length):
                tokens.append(follows[tokens[-1], choice[:, place]])
            text = torch.stack(tokens, dim=1)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()

        return Task(model, draw, pool, _token_loss)

    return make


def _gpt_of(
    width: int, depth: int, heads: int, length: int
) -> Callable[[torch.device, torch.Generator], Task]:
    return _gpt(vocabulary=50304, length=length, width=width, depth=depth, heads=heads, pool=1024)


MODELS: dict[str, Preset] = {
    "mlp-tiny": Preset(32, 3e-3, 0.1, 10, _mlp(width=32, depth=2, pool=4096)),
    "mlp-small": Preset(128, 5e-4, 0.05, 10, _mlp(width=512, depth=4, pool=4096)),
    "mlp-large": Preset(8192, 3e-5, 0.001, 40, _mlp(width=4096, depth=8, pool=65536)),
    "conv-small": Preset(32, 5e-4, 0.007, 10, _conv((16, 32, 64), blocks=1, pixels=32, pool=1024)),
    "conv-large": Preset(
        256, 1e-4, 6e-4, 40, _conv((64, 128, 256, 512), blocks=2, pixels=64, pool=4096)
    ),
    "gpt-tiny": Preset(
        8, 1e-3, 0.01, 20, _gpt(vocabulary=512, length=64, width=128, depth=2, heads=4, pool=1024)
    ),
    "gpt-small": Preset(8, 3e-4, 5e-4, 40, _gpt_of(width=768, depth=12, heads=12, length=512)),
    "gpt-medium": Preset(8, 1.5e-4, 3e-4, 40, _gpt_of(width=1024, depth=24, heads=16, length=1024)),
    "gpt-large": Preset(4, 3e-5, 5e-4, 40, _gpt_of(width=1280, depth=36, heads=20, length=1024)),
    "gpt-1.3b": Preset(4, 6e-5, 5e-4, 40, _gpt_of(width=2048, depth=24, heads=16, length=1024)),
}
assert set(MODELS) == set(EVERY_PRESET)
