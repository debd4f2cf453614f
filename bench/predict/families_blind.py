"""Models that nobody has predicted, kept apart from every rule in ``predict``.

The predictions are judged by them.

The same form as in ``families.py``. What they share is here, with the models of text; the others
are in ``families_blind_vision.py``, ``families_blind_public.py`` and ``families_blind_signals.py``,
and the configurations in ``truth_unseen.py``. They bring what the other families lack: a loss in
recomputed chunks, a bias over positions, adapters over a frozen base, state carried from step to
step, a scan in a loop of Python, a second optimizer, an average of weights, clipping. They are not
to be changed because of what a prediction says about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from .families import Made, Repeated


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def made(
    model: nn.Module,
    device: Any,
    forward: Callable[[Any], Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = adamw,
) -> Made:
    """In training, with an optimizer over what can be trained."""
    model = model.to(device).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, optimizer(trained), lambda: forward(model)


# ── a decoder whose loss is computed in chunks ────────────────────────────────────────────────────


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions. ``x``: (batch, heads, length, size); ``angles``: (length, size / 2)."""
    even, odd = x[..., ::2], x[..., 1::2]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


class SwiGLU(nn.Module):
    """Gate and value in one product."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up, self.down = (
            nn.Linear(width, 2 * hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * value)


class GroupedBlock(nn.Module):
    """Grouped-query attention whose keys and values are repeated for the heads that share them."""

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.size, bias=False)
        self.value = nn.Linear(width, shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = SwiGLU(width, 11 * width // 4)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        y = self.norms[0](x)
        query = rotated(self.query(y).unflatten(-1, (self.heads, -1)).transpose(1, 2), angles)
        key = rotated(self.key(y).unflatten(-1, (self.shared, -1)).transpose(1, 2), angles)
        value = self.value(y).unflatten(-1, (self.shared, -1)).transpose(1, 2)
        times = self.heads // self.shared
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class ChunkedDecoder(nn.Module):
    """A decoder whose logits exist only a chunk of positions at a time.

    They exist while the chunk's loss is computed, and again in its backward pass.
    """

    def __init__(self, words: int, width: int, depth: int, again: bool, chunks: int = 8):
        super().__init__()
        self.chunks = chunks
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = Repeated([GroupedBlock(width, 16, 4) for _ in range(depth)], again)
        self.norm = nn.RMSNorm(width)
        self.register_buffer(
            "rates", 10000.0 ** (-torch.arange(0, width // 16, 2) / (width // 16)), persistent=False
        )

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(hidden).float(), targets, reduction="sum")

    def forward(self, tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
        angles = torch.outer(torch.arange(inputs.shape[1], device=tokens.device), self.rates)
        hidden = self.norm(self.blocks.run(self.words(inputs), angles)).flatten(0, 1)
        parts = zip(hidden.chunk(self.chunks), targets.chunk(self.chunks), strict=True)
        losses = [
            recompute(self._loss, part, target, use_reentrant=False) for part, target in parts
        ]
        return torch.stack(losses).sum() / targets.numel()


def chunked_llama(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """188 M parameters, 1024 tokens."""
    tokens = torch.randint(48000, (batch, 1025), device=device)
    return made(ChunkedDecoder(48000, 1024, 8, checkpoint), device, lambda model: model(tokens))


# ── a bias over positions, gradients clipped ──────────────────────────────────────────────────────


class BiasedBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed, self.drop = SwiGLU(width, 2 * width), nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        parts = (
            self.into(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), attn_mask=bias)  # type: ignore[misc]
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.feed(self.norms[1](x)))


class AlibiDecoder(nn.Module):
    """A decoder with positions only as a slope over the distance for each head.

    Input and output share the table of words.
    """

    def __init__(self, words: int, width: int, heads: int, depth: int, length: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.blocks = Repeated([BiasedBlock(width, heads) for _ in range(depth)], again)
        self.norm = nn.LayerNorm(width)
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
        places = torch.arange(length)
        distance = (places[None, :] - places[:, None]).float()
        bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, -math.inf)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks.run(self.words(tokens), self.bias))
        return functional.linear(x, self.words.weight)


def clipping(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Clips the norm of all gradients before each step; a grad scaler has unscaled them by then."""
    kept = list(parameters)
    optimizer = torch.optim.AdamW(kept, lr=3e-4, betas=(0.9, 0.95))

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(kept, 1.0)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def alibi_clipped(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """78 M parameters, 640 tokens."""
    tokens = torch.randint(40000, (batch, 641), device=device)

    def forward(model: nn.Module) -> Tensor:
        logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return made(AlibiDecoder(40000, 768, 12, 8, 640, checkpoint), device, forward, clipping)


# ── adapters over a frozen base ───────────────────────────────────────────────────────────────────


class Adapted(nn.Module):
    """A frozen product and a trained one of low rank beside it."""

    def __init__(self, into: int, out: int, rank: int = 16):
        super().__init__()
        self.base = nn.Linear(into, out).requires_grad_(False)
        self.down, self.up = nn.Linear(into, rank, bias=False), nn.Linear(rank, out, bias=False)
        self.drop = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(self.drop(x)))


class AdaptedBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width).requires_grad_(False) for _ in range(2))
        self.query, self.value = Adapted(width, width), Adapted(width, width)
        self.key, self.out = (nn.Linear(width, width).requires_grad_(False) for _ in range(2))
        self.up, self.down = (
            Adapted(width, 4 * width),
            nn.Linear(4 * width, width).requires_grad_(False),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        parts = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)  # type: ignore[misc]
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class AdaptedDecoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = Repeated([AdaptedBlock(width, width // 96) for _ in range(depth)], again)
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, words, bias=False).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks.run(self.words(tokens))))


def lora_frozen(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """A model of 384 M parameters, of which 2.2 M are trained.

    It reads 768 tokens, of which the first half are a prompt without loss.
    """
    tokens = torch.randint(32000, (batch, 769), device=device)
    targets = tokens[:, 1:].clone()
    targets[:, :384] = -100

    def forward(model: nn.Module) -> Tensor:
        return functional.cross_entropy(
            model(tokens[:, :-1]).float().flatten(0, 1), targets.flatten()
        )

    return made(AdaptedDecoder(32000, 1536, 10, checkpoint), device, forward)


# ── recurrent: state carried from step to step ────────────────────────────────────────────────────


class TiedGru(nn.Module):
    """A recurrent network under truncated backpropagation through time.

    The last state of a step is the first one of the next.
    """

    def __init__(self, words: int, width: int, layers: int):
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.uniform_(self.words.weight, -0.05, 0.05)
        self.layers = nn.GRU(width, width, layers, dropout=0.25)
        self.bias = nn.Parameter(torch.zeros(words))
        self.state: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        # One mask for all positions of a sample.
        x = x * functional.dropout(torch.ones_like(x[:1]), 0.4, self.training)
        x, state = self.layers(x, self.state)
        self.state = state.detach()
        return functional.linear(x, self.words.weight, self.bias)


def gru_tied(batch: int, device: Any) -> Made:
    """26 M parameters, 70 tokens; RMSprop."""
    tokens = torch.randint(33000, (71, batch), device=device)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.RMSprop(parameters, lr=1e-4, momentum=0.9, centered=True)

    def forward(model: nn.Module) -> Tensor:
        return functional.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten())

    return made(TiedGru(33000, 640, 2), device, forward, optimizer)


# ── a selective scan as a loop of Python ──────────────────────────────────────────────────────────


class SelectiveScan(nn.Module):
    """A state-space block in Mamba's manner, position after position."""

    def __init__(self, width: int, states: int = 16):
        super().__init__()
        inner, rank = 2 * width, width // 16
        self.norm, self.rank, self.states = nn.RMSNorm(width), rank, states
        self.into, self.out = (
            nn.Linear(width, 2 * inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )
        self.mix = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.chosen = nn.Linear(inner, rank + 2 * states, bias=False)
        self.step = nn.Linear(rank, inner)
        self.decay = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.into(self.norm(x)).chunk(2, -1)
        y = functional.silu(self.mix(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, write, read = self.chosen(y).split((self.rank, self.states, self.states), -1)
        step = functional.softplus(self.step(step))
        kept = torch.exp(step[..., None] * -self.decay.exp())
        added = (step * y)[..., None] * write[:, :, None]
        state = torch.zeros_like(added[:, 0])
        outputs = []
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            outputs.append((state * read[:, place, None]).sum(-1))
        y = (torch.stack(outputs, 1) + y * self.skip) * functional.silu(gate)
        return x + self.out(y.to(x.dtype))


class StateSpace(nn.Module):
    def __init__(self, words: int, width: int, depth: int, again: bool):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = Repeated([SelectiveScan(width) for _ in range(depth)], again)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks.run(self.words(tokens))))


def mamba_scan(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """16 M parameters, 96 tokens."""
    tokens = torch.randint(16000, (batch, 97), device=device)

    def forward(model: nn.Module) -> Tensor:
        return functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )

    return made(StateSpace(16000, 384, 4, checkpoint), device, forward)
