"""Models of text for compiled trainings, of architectures that no rule was made with.

The same form as in ``families.py``. Each was declared before it was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated, next_token_loss


def _language(
    words: int, length: int, build: Callable[[bool], nn.Module]
) -> Callable[[int, Any, bool], Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        model = build(checkpoint).to(device)
        tokens = torch.randint(words, (batch, length), device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return model, optimizer, lambda: next_token_loss(model(tokens), tokens)

    return factory


def _feed_forward(width: int, times: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, times * width), nn.GELU(), nn.Linear(times * width, width)
    )


def _heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def qwen3(batch: int, device: Any) -> Made:
    """Root mean squares of queries and keys, grouped queries, and gated linear units."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=36000, hidden_size=640, intermediate_size=1728, num_hidden_layers=10,
        num_attention_heads=10, num_key_value_heads=2, head_dim=64, max_position_embeddings=1024,
        use_cache=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(device).train()
    tokens = torch.randint(36000, (batch, 896), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, lambda: model(input_ids=tokens, labels=tokens).loss


class Scan(nn.Module):
    """A state that decays at rates which the input selects, summed over positions in chunks."""

    def __init__(self, width: int, states: int, chunk: int):
        super().__init__()
        self.states, self.chunk = states, chunk
        self.norm, self.inner = nn.RMSNorm(width), nn.Linear(width, 4 * width)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.select, self.rates = nn.Linear(2 * width, 2 * states), nn.Linear(2 * width, 16)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        u, gate = self.inner(self.norm(x)).chunk(2, -1)
        u = functional.silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        write, read = (
            part.view(batch, -1, self.chunk, self.states) for part in self.select(u).chunk(2, -1)
        )
        rates = functional.softplus(self.rates(u)).view(batch, -1, self.chunk, 16).cumsum(2)
        u = u.view(batch, -1, self.chunk, 16, width // 8)
        within = torch.exp((rates[:, :, None] - rates[:, :, :, None]).clamp(max=0).float())
        scores = torch.einsum("bcis,bcjs->bcij", read, write).tril()
        y = torch.einsum("bcij,bcijh,bcjhd->bcihd", scores, within.to(scores.dtype), u)
        state = torch.einsum("bcjs,bcjhd->bcshd", write, u).cumsum(1)
        before = functional.pad(state[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
        y = y + torch.einsum("bcis,bcshd->bcihd", read, before)
        y = y.reshape(batch, length, 2 * width) * functional.silu(gate)
        return x + self.outer(y)


scan_text = _language(
    20000, 512, lambda again: nn.Sequential(
        nn.Embedding(20000, 512), *(Scan(512, 32, 32) for _ in range(6)), nn.RMSNorm(512),
        nn.Linear(512, 20000, bias=False),
    ),
)  # fmt: skip


class TopTwo(nn.Module):
    """Experts of which each token goes to two, up to what an expert has room for."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 3 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 3 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights, chosen = self.gate(y).softmax(-1).topk(2, -1)
        experts = self.up.shape[0]
        room = 2 * x.shape[1] // experts
        sent = functional.one_hot(chosen, experts).flatten(1, 2)
        place = (sent.cumsum(1) - 1) * sent
        kept = (sent > 0) & (place < room)
        slots = functional.one_hot(place.clamp(max=room - 1), room) * kept.unsqueeze(-1)
        slots = slots.unflatten(1, (-1, 2)).to(y.dtype)
        given = torch.einsum("btkes,btd->ebsd", slots, y).flatten(1, 2)
        made = torch.bmm(functional.relu(torch.bmm(given, self.up)), self.down)
        made = made.unflatten(1, (x.shape[0], room))
        return x + torch.einsum("btkes,btk,ebsd->btd", slots, weights.to(y.dtype), made)


class Attention(nn.Module):
    """Attention over ``seen``, or over the input itself, with a bias by distance."""

    def __init__(self, width: int, heads: int, causal: bool, buckets: int = 0):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.RMSNorm(width)
        self.queries, self.others = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.outer = nn.Linear(width, width)
        self.bias = nn.Embedding(buckets, heads) if buckets else None

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        source = y if seen is None else seen
        q = _heads(self.queries(y), self.heads)
        k, v = (_heads(part, self.heads) for part in self.others(source).chunk(2, -1))
        bias = None
        if self.bias is not None:
            place = torch.arange(x.shape[1], device=x.device)
            away = (place[:, None] - place).abs().float()
            bucket = (4 * torch.log2(away + 1)).long().clamp(max=self.bias.num_embeddings - 1)
            bias = self.bias(bucket).permute(2, 0, 1).unsqueeze(0).to(q.dtype)
            if self.causal:
                bias = bias.masked_fill(place[:, None] < place, float("-inf"))
        causal = self.causal and bias is None
        mixed = functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
        return x + self.outer(mixed.transpose(1, 2).flatten(2))


class MixtureBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention, self.experts = Attention(width, 8, True), TopTwo(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(self.attention(x))


experts_text = _language(
    16000, 512, lambda again: nn.Sequential(
        nn.Embedding(16000, 512), *(MixtureBlock(512) for _ in range(5)), nn.LayerNorm(512),
        nn.Linear(512, 16000, bias=False),
    ),
)  # fmt: skip


class EncoderDecoder(nn.Module):
    """Biases by distance, root mean squares, and a decoder that reads what was encoded."""

    def __init__(self, words: int, width: int, depth: int):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.reads = nn.ModuleList(Attention(width, 8, False, 32) for _ in range(depth))
        self.thinks = nn.ModuleList(_feed_forward(width, 4) for _ in range(depth))
        self.writes = nn.ModuleList(Attention(width, 8, True, 32) for _ in range(depth))
        self.looks = nn.ModuleList(Attention(width, 8, False) for _ in range(depth))
        self.says = nn.ModuleList(_feed_forward(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.table(source)
        for read, think in zip(self.reads, self.thinks, strict=True):
            x = read(x)
            x = x + think(x)
        y = self.table(target)
        for write, look, say in zip(self.writes, self.looks, self.says, strict=True):
            y = look(write(y), x)
            y = y + say(y)
        return self.head(y)


def encoder_decoder(batch: int, device: Any) -> Made:
    words = 24000
    model = EncoderDecoder(words, 512, 5).to(device)
    source = torch.randint(words, (batch, 384), device=device)
    target = torch.randint(words, (batch, 256), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, lambda: next_token_loss(model(source, target), target)


class Parallel(nn.Module):
    """Attention and multilayer perceptron read the same normalised input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 7 * width), nn.Linear(5 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        *parts, wide = self.inner(self.norm(x)).split([width, width, width, 4 * width], -1)
        q, k, v = (_heads(part, self.heads) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        both = torch.cat((mixed.transpose(1, 2).flatten(2), functional.gelu(wide)), -1)
        return x + self.outer(both)


parallel_text = _language(
    16384, 640, lambda again: nn.Sequential(
        nn.Embedding(16384, 640), *(Parallel(640, 10) for _ in range(8)), nn.LayerNorm(640),
        nn.Linear(640, 16384, bias=False),
    ),
)  # fmt: skip


class Logged(nn.Module):
    """A decoder that notes between its halves how large its activations are."""

    def __init__(self, words: int, width: int, again: bool):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.first = Repeated([Parallel(width, 8) for _ in range(5)], again)
        self.second = Repeated([Parallel(width, 8) for _ in range(5)], again)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.noted: list[float] = []

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.first.run(self.table(tokens))
        self.noted.append(x.detach().abs().mean().item())
        return self.head(self.norm(self.second.run(x)))


logged_text = _language(18000, 512, lambda again: Logged(18000, 512, again))


class Halting(nn.Module):
    """Blocks that are left out once the activations change little: data decides."""

    def __init__(self, words: int, width: int, depth: int):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(Attention(width, 8, True), nn.LayerNorm(width), _feed_forward(width, 3))
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            change = block(x)
            if change.detach().abs().max().item() < 1e-6:
                break
            x = x + change
        return self.head(self.norm(x))


halting_text = _language(18000, 384, lambda again: Halting(18000, 512, 8))
