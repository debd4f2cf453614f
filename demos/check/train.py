"""The training that `gpuscope check` predicts: `make` returns its parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from model import GPT
from torch.nn import functional

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 4096, 1024, 768, 12, 16


def make(
    batch: int, device: torch.device
) -> tuple[GPT, torch.optim.Optimizer, Callable[[], torch.Tensor]]:
    """Return a model, its optimizer, and the function that computes the loss of one micro-batch."""
    model = GPT(WORDS, LENGTH, WIDTH, HEADS, LAYERS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (batch, LENGTH), device=device)

    def forward() -> torch.Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return model, optimizer, forward
