"""Models of text and sound that nothing in ``predict`` was made or tuned with.

See ``families_unseen.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated
from .families_unseen import adamw

# ── text and sound ────────────────────────────────────────────────────────────────────────────────


class Translator(nn.Module):
    def __init__(self, words: int, width: int):
        super().__init__()
        self.words, self.positions = (
            nn.Embedding(words, width),
            nn.Parameter(torch.zeros(256, width)),
        )
        self.body = nn.Transformer(width, 8, 6, 6, 4 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, source: Tensor, target: Tensor, future: Tensor) -> Tensor:
        source, target = self.words(source) + self.positions[: source.shape[1]], self.words(target)
        return self.head(
            self.body(source, target + self.positions[: target.shape[1]], tgt_mask=future)
        )


def translator(batch: int, device: Any) -> Made:
    source = torch.randint(24000, (batch, 192), device=device)
    target = torch.randint(24000, (batch, 160), device=device)
    future = nn.Transformer.generate_square_subsequent_mask(159, device=device)

    def forward(model: nn.Module) -> Tensor:
        logits = model(source, target[:, :-1], future)
        return functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), target[:, 1:].reshape(-1)
        )

    return adamw(Translator(24000, 512), device, forward)


class Narrow(nn.Module):
    """A decoder block with root-mean-square norms and a gated part.

    It has fewer heads for keys than for queries.
    """

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.value = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, 3 * width, bias=False),
        )
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.first(x)
        query = self.query(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        key, value = (
            self.pair(y)
            .view(batch, length, 2, self.shared, self.size)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.value(y))


class NarrowDecoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = Repeated([Narrow(width, 10, 2) for _ in range(depth)], again)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks.run(self.words(tokens))))


def narrow_decoder(batch: int, device: Any, checkpoint: bool = False) -> Made:
    tokens = torch.randint(32000, (batch, 1025), device=device)

    def forward(model: nn.Module) -> Tensor:
        logits = model(tokens[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return adamw(NarrowDecoder(32000, 1280, 8, checkpoint), device, forward)


class Experts(nn.Module):
    """Every token goes to its best expert, which takes as many as there is room for."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        shape, x = x.shape, x.flatten(0, 1)
        count = self.up.shape[0]
        weights = self.gate(x).softmax(-1)
        chosen, places = weights.topk(x.shape[0] // count, dim=0)
        taken = x[places.T.flatten()].view(count, -1, x.shape[1])
        made = torch.bmm(
            functional.gelu(torch.bmm(taken, self.up.to(x.dtype))), self.down.to(x.dtype)
        )
        out = torch.zeros_like(x, dtype=made.dtype)
        return out.index_add(
            0, places.T.flatten(), (made * chosen.T[..., None]).flatten(0, 1).to(made.dtype)
        ).view(shape)


class ExpertText(nn.Module):
    def __init__(self, words: int, width: int):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.mixing = nn.ModuleList(
            nn.Conv1d(width, width, 4, groups=width, padding=3) for _ in range(4)
        )
        self.experts = nn.ModuleList(Experts(width, 8) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(8))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for place, (mix, experts) in enumerate(zip(self.mixing, self.experts, strict=True)):
            y = self.norms[2 * place](x).transpose(1, 2)
            x = x + mix(y)[..., : y.shape[-1]].transpose(1, 2)
            x = x + experts(self.norms[2 * place + 1](x))
        return self.head(x)


def expert_text(batch: int, device: Any) -> Made:
    tokens = torch.randint(16000, (batch, 257), device=device)

    def forward(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])

    return adamw(ExpertText(16000, 512), device, forward)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 300, padding_idx=0)
        self.both = nn.LSTM(300, 384, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Linear(768, 256), nn.Tanh(), nn.Linear(256, 40))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.both(self.words(tokens))[0])


def tagger(batch: int, device: Any) -> Made:
    tokens = torch.randint(1, 20000, (batch, 120), device=device)
    tags = torch.randint(40, (batch, 120), device=device)
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return (
        model,
        optimizer,
        lambda: functional.cross_entropy(model(tokens).flatten(0, 1), tags.flatten()),
    )


class Sound(nn.Module):
    def __init__(self, width: int, again: bool):
        super().__init__()
        sizes = [(1, 10, 5), (width, 3, 2), (width, 3, 2), (width, 3, 2), (width, 2, 2)]
        self.front = nn.ModuleList(
            nn.Conv1d(into, width, kernel, step) for into, kernel, step in sizes
        )
        self.norm = nn.GroupNorm(width, width)

        def layer() -> nn.Module:
            return nn.TransformerEncoderLayer(
                width, 8, 4 * width, batch_first=True, norm_first=True
            )

        self.blocks = Repeated([layer() for _ in range(6)], again)
        self.head = nn.Linear(width, 32)

    def forward(self, wave: Tensor) -> Tensor:
        x = wave[:, None]
        for place, convolution in enumerate(self.front):
            x = functional.gelu(self.norm(convolution(x)) if not place else convolution(x))
        return self.head(self.blocks.run(x.transpose(1, 2))).log_softmax(-1)


def sound(batch: int, device: Any, checkpoint: bool = False) -> Made:
    wave = torch.randn(batch, 48000, device=device)
    targets = torch.randint(1, 32, (batch, 40), device=device)
    lengths = torch.full((batch,), 40)

    def forward(model: nn.Module) -> Tensor:
        said = model(wave).float().transpose(0, 1)
        return functional.ctc_loss(said, targets, torch.full((batch,), said.shape[0]), lengths)

    return adamw(Sound(512, checkpoint), device, forward)
