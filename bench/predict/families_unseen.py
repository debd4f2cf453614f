"""Models of several kinds beside those of ``families.py``, in its form.

They were made to show how good predictions are for models that were not used to make ``predict``.
Trainings compiled and tuned, and tests of tracing, take them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made


def adamw(model: nn.Module, device: Any, forward: Callable[[nn.Module], Tensor]) -> Made:
    model = model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: forward(model)


# ── own ───────────────────────────────────────────────────────────────────────────────────────────


class Graph(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.into = nn.Linear(64, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(4))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(4))
        self.head = nn.Linear(width, 16)

    def forward(self, features: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        x = self.into(features).relu()
        for message, update in zip(self.messages, self.updates, strict=True):
            said = message(torch.cat([x[sources], x[targets]], 1)).relu()
            gathered = torch.zeros_like(said[: x.shape[0]]).index_add(0, targets, said)
            x = update(gathered, x)
        return self.head(x)


def graph(batch: int, device: Any) -> Made:
    nodes, edges = 2000 * batch, 16000 * batch
    features = torch.randn(nodes, 64, device=device)
    sources, targets = torch.randint(nodes, (2, edges), device=device)
    labels = torch.randint(16, (nodes,), device=device)
    forward = lambda model: functional.cross_entropy(model(features, sources, targets), labels)  # noqa: E731
    return adamw(Graph(128), device, forward)


class Table(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(12))
        self.into = nn.Linear(12 * 32 + 40, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width),
                nn.Linear(width, 2 * width),
                nn.ReLU(),
                nn.Dropout(0.2),
                nn.Linear(2 * width, width),
            )
            for _ in range(6)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat(
            [table(kinds[:, place]) for place, table in enumerate(self.kinds)] + [numbers], 1
        )
        x = self.into(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x.relu())[:, 0]


def tabular(batch: int, device: Any) -> Made:
    kinds = torch.randint(1000, (batch, 12), device=device)
    numbers, target = (
        torch.randn(batch, 40, device=device),
        torch.rand(batch, device=device).round(),
    )

    def forward(model: nn.Module) -> Any:
        return functional.binary_cross_entropy_with_logits(model(kinds, numbers), target)

    return adamw(Table(1024), device, forward)


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


# ── public ────────────────────────────────────────────────────────────────────────────────────────


def tv_mobilenet(batch: int, device: Any) -> Made:
    import torchvision

    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    model = torchvision.models.mobilenet_v3_large(weights=None)
    return adamw(model, device, lambda model: functional.cross_entropy(model(images), labels))


def tv_regnet(batch: int, device: Any) -> Made:
    import torchvision

    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    model = torchvision.models.regnet_y_800mf(weights=None)
    return adamw(model, device, lambda model: functional.cross_entropy(model(images), labels))


def hf_opt(batch: int, device: Any, checkpoint: bool = False) -> Made:
    from transformers import OPTConfig, OPTForCausalLM

    model = OPTForCausalLM(OPTConfig())  # 125M
    if checkpoint:
        model.gradient_checkpointing_enable()
    model.train()
    tokens = torch.randint(4, 50000, (batch, 512), device=device)
    return adamw(model, device, lambda model: model(input_ids=tokens, labels=tokens).loss)


def hf_bart(batch: int, device: Any) -> Made:
    from transformers import BartConfig, BartForConditionalGeneration

    model = BartForConditionalGeneration(
        BartConfig(d_model=768, encoder_layers=6, decoder_layers=6)
    )
    model.train()
    tokens = torch.randint(4, 50000, (batch, 256), device=device)
    labels = torch.randint(4, 50000, (batch, 64), device=device)
    return adamw(model, device, lambda model: model(input_ids=tokens, labels=labels).loss)
