"""Factories whose shapes and branches follow from values.

Here is also what else programs do that no fake tensor can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[Any, Any, Callable[[], Any]]
WIDTH, EXPERTS, CHOSEN, TOKENS = 64, 4, 2, 32


def _made(model: nn.Module, forward: Callable[[], Any]) -> Made:
    return model, torch.optim.SGD(model.parameters(), lr=0.1), forward


def _linear(batch: int, device: Any, loss: Callable[[nn.Module, Any], Any]) -> Made:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    x = torch.randn(batch, TOKENS, WIDTH, device=device)
    return _made(model, lambda: loss(model, x))


class Experts(nn.Module):
    """``how``: which operator finds the tokens of an expert."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.router(flat).softmax(-1).topk(CHOSEN, -1)
        out = torch.zeros_like(flat)
        if self.how == "sorted":
            order = chosen.flatten().argsort()
            counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
            parts = flat[order // CHOSEN].split(counts)
            made = torch.cat(
                [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
            )
            return out.index_add(0, order // CHOSEN, made)
        if self.how == "grouped":
            ids, order = chosen.flatten().sort()
            counts = torch.histc(ids.int() if ids.is_cuda else ids.float(), EXPERTS, 0, EXPERTS - 1)
            weight = torch.stack([expert.weight.t() for expert in self.experts])
            ends = counts.cumsum(0, dtype=torch.int32)
            return out.index_add(
                0, order // CHOSEN, functional.grouped_mm(flat[order // CHOSEN], weight, offs=ends)
            )
        for number, expert in enumerate(self.experts):
            if self.how == "where":
                token, place = torch.where(chosen == number)
                out = out.index_add(0, token, expert(flat[token]) * weights[token, place, None])
            else:
                mask = (functional.one_hot(chosen, EXPERTS)[..., number] > 0).any(-1)
                if mask.any():
                    out[mask] = out[mask] + expert(flat[mask])
        return out


def _experts(how: str) -> Callable[[int, Any], Made]:
    def factory(batch: int, device: Any) -> Made:
        model = Experts(how).to(device)
        x = torch.randn(batch, TOKENS, WIDTH, device=device)
        return _made(model, lambda: model(x).square().mean())

    return factory


experts_where, experts_sorted, experts_masked = (
    _experts("where"),
    _experts("sorted"),
    _experts("masked"),
)
experts_grouped = _experts("grouped")


def validates(batch: int, device: Any) -> Made:
    """Looks at values and raises; waits for values in a loop."""

    def loss(model: nn.Module, x: Any) -> Any:
        out = model(x)
        assert torch.isfinite(out).all(), "not finite"
        assert torch.allclose(x, x)
        if torch.allclose(out, x):
            out = out + x
        if (out > 1e6).any() or (out < -1e6).any():
            raise ValueError("too large")
        if not (out < 1e6).all():
            raise ValueError("too large")
        while (x.abs() > 3).any():
            x = x / 2
        while True:
            if (x < 5).all():
                break
        value = out.square().mean()
        if torch.isnan(value):
            raise FloatingPointError("nan")
        normal = torch.distributions.Normal(out, torch.ones_like(out))
        return value - normal.log_prob(x).mean()

    return _linear(batch, device, loss)


def draws(batch: int, device: Any) -> Made:
    """A mask of 15 %."""

    def loss(model: nn.Module, x: Any) -> Any:
        out = model(x)
        return out[torch.rand(out.shape, device=device) < 0.15].sum()

    return _linear(batch, device, loss)


def lists_uniques(batch: int, device: Any) -> Made:
    def loss(model: nn.Module, x: Any) -> Any:
        words = torch.randint(9, (batch, TOKENS), device=device)
        rows = torch.unique(words, dim=0)
        return (
            model(x)[:, : rows.shape[1]].sum()
            * torch.unique_consecutive(words).numel()
            * torch.bincount(words.flatten()).numel()
        )

    return _linear(batch, device, loss)


def knows_its_device(batch: int, device: Any) -> Made:
    """Asks tensors where they lie, and the older way of naming types."""
    old = torch.zeros(batch, TOKENS, WIDTH).type("torch.cuda.FloatTensor")
    assert torch.cuda.HalfTensor(3, 4).dtype == torch.float16
    assert isinstance(old, torch.cuda.FloatTensor)
    assert old.type() == "torch.cuda.FloatTensor"

    def loss(model: nn.Module, x: Any) -> Any:
        weight = next(model.parameters())
        assert weight.device.type == "cuda"
        assert weight.device == x.device
        assert weight.get_device() == 0
        assert torch.zeros(3).device.type == "cpu"
        with torch.autocast(weight.device.type, dtype=torch.bfloat16):
            out = model(x + old)
        assert out.dtype == torch.bfloat16
        return out.float().sum() + torch.zeros(3, device=weight.device).sum()

    return _linear(batch, device, loss)


def from_meta(batch: int, device: Any) -> Made:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.trunc_normal_(parameter)
    x = torch.randn(batch, TOKENS, WIDTH, device=device)
    return _made(model, lambda: model(x).square().mean())


def into_samples(batch: int, device: Any) -> Made:
    """Sound to a spectrum and back."""
    model = nn.Linear(33, 33).to(device)
    window = torch.hann_window(64, device=device)
    sound = torch.randn(batch, 1024, device=device)

    def forward() -> Any:
        spectrum = torch.stft(sound, 64, 16, window=window, return_complex=True)
        masked = spectrum * model(spectrum.abs().transpose(1, 2)).transpose(1, 2)
        back = torch.istft(masked, 64, 16, window=window, length=1024)
        assert back.shape == sound.shape
        return (back - sound).abs().mean()

    return _made(model, forward)


def parallel(batch: int, device: Any) -> Made:
    model = nn.DataParallel(nn.Linear(WIDTH, WIDTH).to(device))
    x = torch.randn(batch, WIDTH, device=device)
    return _made(model, lambda: model(x).sum())


def _flex(compiled: bool) -> Callable[[int, Any], Made]:
    def factory(batch: int, device: Any) -> Made:
        from torch.nn.attention.flex_attention import flex_attention

        attend = torch.compile(flex_attention) if compiled else flex_attention

        def loss(model: nn.Module, x: Any) -> Any:
            query = model(x).view(batch, TOKENS, 4, WIDTH // 4).transpose(1, 2)
            return (
                attend(query, query, query, score_mod=lambda score, b, h, q, k: score + (q - k))
                .square()
                .mean()
            )

        return _linear(batch, device, loss)

    return factory


flex_eager, flex_compiled = _flex(False), _flex(True)


class Two:
    """Two optimizers as one, without groups."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)


def two_optimizers(batch: int, device: Any) -> Made:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)
    x = torch.randn(batch, WIDTH, device=device)
    return (
        model,
        Two(*(torch.optim.Adam(part.parameters()) for part in model)),
        lambda: model(x).sum(),
    )


def closure(batch: int, device: Any) -> Made:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    return (
        model,
        torch.optim.LBFGS(model.parameters()),
        lambda: model(torch.zeros(1, WIDTH, device=device)).sum(),
    )


def lazy(batch: int, device: Any) -> Made:
    model = nn.Sequential(nn.LazyLinear(WIDTH)).to(device)
    return _made(model, lambda: model(torch.zeros(batch, WIDTH, device=device)).sum())


def nested(batch: int, device: Any) -> Made:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    samples = [torch.randn(3 + place, WIDTH, device=device) for place in range(batch)]

    def forward() -> Any:
        return model(torch.nested.nested_tensor(samples, layout=torch.jagged)).values().sum()

    return _made(model, forward)
