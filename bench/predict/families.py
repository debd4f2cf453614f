"""Model families of plain torch that predictions of memory are judged on.

They are transformers of several kinds, in training.

Each is a factory in the form that `gpuscope lab` and `gpuscope predict` take: ``FACTORY(batch=…,
device=…, checkpoint=False)`` → (model, optimizer, forward). The sizes are such that steps take well
under a second on a large GPU and peaks lie between some hundred MiB and 40 GiB. The other families
are in ``families_vision.py`` and ``families_public.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]


def size(full: int, device: Any) -> int:
    """Return ``full`` on a GPU, and little on a CPU, which only shows that everything runs."""
    return full if torch.device(device).type != "cpu" else min(full, 2)


def adamw(model: nn.Module, forward: Callable[[], Tensor]) -> Made:
    """Return what a factory returns, with the usual optimizer."""
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


def labelled(model: nn.Module, inputs: Tensor, classes: int = 1000) -> Made:
    """Return the training of a classifier of ``inputs``, with labels made at random once."""
    targets = torch.randint(classes, (inputs.shape[0],), device=inputs.device)
    return adamw(model, lambda: functional.cross_entropy(model(inputs), targets))


class Repeated(nn.ModuleList):
    """Blocks that may each be computed again in the backward pass."""

    def __init__(self, blocks: list[nn.Module], again: bool, reentrant: bool = False):
        super().__init__(blocks)
        self.again, self.reentrant = again, reentrant

    def run(self, x: Tensor, *others: Any) -> Tensor:
        for block in self:
            if self.again and self.training:
                x = recompute(block, x, *others, use_reentrant=self.reentrant)
            else:
                x = block(x, *others)
        return x


# ── decoder-only transformers in GPT-2's manner ───────────────────────────────────────────────────


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.into(x).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout
        )
        return self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.second = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.drop(self.shrink(functional.gelu(self.grow(self.second(x)))))


class Gpt(nn.Module):
    def __init__(
        self,
        words: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        *,
        dropout: float = 0.0,
        tied: bool = True,
        again: bool = False,
        reentrant: bool = False,
    ):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = Repeated(
            [GptBlock(width, heads, dropout) for _ in range(depth)], again, reentrant
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.words(tokens) + self.places(places))
        return self.head(self.norm(self.blocks.run(x)))


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def _gpt(
    words: int, length: int, width: int, depth: int, heads: int, **options: Any
) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        model = Gpt(words, length, width, depth, heads, again=checkpoint, **options).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(words, (batch, length + 1), device=device)

        def forward() -> Tensor:
            return next_token_loss(model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous())

        return model, optimizer, forward

    return factory


gpt_small = _gpt(50304, 512, 768, 12, 12)
gpt_medium = _gpt(50304, 1024, 1024, 24, 16)
gpt_wide = _gpt(32000, 256, 2048, 4, 16, dropout=0.1, tied=False)
gpt_tiny = _gpt(8000, 128, 256, 4, 4, dropout=0.1)
gpt_reentrant = _gpt(32000, 512, 512, 8, 8, reentrant=True)


# ── decoder with rotary positions, RMS norm, gated MLP and fewer key heads ────────────────────────


class RmsNorm(nn.Module):
    """Written out, as most public models have it."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines


class GatedBlock(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int):
        super().__init__()
        self.heads, self.key_heads, size = heads, key_heads, width // heads
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * size, bias=False)
        self.value = nn.Linear(width, key_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        inner = 8 * width // 3 // 64 * 64
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = self.first(x)
        query = self.query(normed).view(batch, length, self.heads, -1).transpose(1, 2)
        key = self.key(normed).view(batch, length, self.key_heads, -1).transpose(1, 2)
        value = self.value(normed).view(batch, length, self.key_heads, -1).transpose(1, 2)
        query, key = rotated(query, cosines, sines), rotated(key, cosines, sines)
        groups = self.heads // self.key_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        normed = self.second(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Gated(nn.Module):
    def __init__(
        self,
        words: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        key_heads: int,
        again: bool,
    ):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = Repeated([GatedBlock(width, heads, key_heads) for _ in range(depth)], again)
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.cat([torch.outer(torch.arange(length), rates)] * 2, dim=-1)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.blocks.run(self.words(tokens), self.cosines, self.sines)
        return self.head(self.norm(x))


def llama_like(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = Gated(32000, 1024, 1024, 12, 16, 4, checkpoint).to(device)
    tokens = torch.randint(32000, (batch, 1025), device=device)

    def forward() -> Tensor:
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


# ── encoders ──────────────────────────────────────────────────────────────────────────────────────


class EncoderBlock(nn.Module):
    """Post-norm as BERT's; ``mask`` is True where a key may be looked at."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        )
        x = self.first(x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width))))
        return self.second(x + self.drop(self.shrink(functional.gelu(self.grow(x)))))


class Bert(nn.Module):
    def __init__(self, words: int, length: int, width: int, depth: int, heads: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places, self.kinds = nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.blocks = Repeated([EncoderBlock(width, heads, 0.1) for _ in range(depth)], again)
        self.change, self.change_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))
        x = self.blocks.run(self.drop(self.norm(x)), present[:, None, None, :])
        x = self.change_norm(functional.gelu(self.change(x)))
        return functional.linear(x, self.words.weight, self.bias)


def bert_base(batch: int, device: Any, checkpoint: bool = False) -> Made:
    words, length = 30522, 256
    model = Bert(words, length, 768, 12, 12, checkpoint).to(device)
    tokens = torch.randint(1, words, (batch, length), device=device)
    present = torch.arange(length, device=device)[None, :] < torch.randint(
        length // 2, length, (batch, 1), device=device
    )
    targets = torch.where(torch.rand(batch, length, device=device) < 0.15, tokens, -100)

    def forward() -> Tensor:
        logits = model(tokens, present)
        return functional.cross_entropy(logits.view(-1, words), targets.view(-1), ignore_index=-100)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


def encoder_torch(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """Classify sequences with torch's own encoder layers.

    The layers make an additive mask of a padding mask.
    """
    width, length, depth = 512, 384, 8

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20000, width)
            layers = [
                nn.TransformerEncoderLayer(
                    width, 8, 4 * width, dropout=0.1, batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
            self.blocks = Repeated(layers, checkpoint)
            self.head = nn.Linear(width, 16)

        def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
            x = self.blocks.run(self.words(tokens) * math.sqrt(width), None, padding)
            return self.head(x.mean(dim=1))

    model = Classifier().to(device)
    tokens = torch.randint(20000, (batch, length), device=device)
    padding = torch.arange(length, device=device)[None, :] >= torch.randint(
        200, length, (batch, 1), device=device
    )
    targets = torch.randint(16, (batch,), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(model(tokens, padding), targets)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


class Vit(nn.Module):
    def __init__(
        self, width: int, depth: int, heads: int, pixels: int, dropout: float, again: bool
    ):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (pixels // 16) ** 2 + 1, width) * 0.02)
        self.blocks = Repeated([VitBlock(width, heads, dropout) for _ in range(depth)], again)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        return self.head(self.norm(self.blocks.run(x))[:, 0])


def vit_b16(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = Vit(768, 12, 12, 224, 0.1, checkpoint).to(device)
    images = torch.randn(batch, 3, 224, 224, device=device)
    targets = torch.randint(1000, (batch,), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(model(images), targets, label_smoothing=0.1)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


class VitBlock(nn.Module):
    """Pre-norm around torch's multi-head attention, which returns no weights."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.second(x))
