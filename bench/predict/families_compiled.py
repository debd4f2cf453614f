"""Models for compiled trainings, in sizes that nothing was tuned with.

The same form as in ``families.py``; the blocks are those of the other families, and a model that
compiles its blocks one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Bert, Gated, Gpt, Made, Vit, labelled, next_token_loss
from .families_vision import ResNet, UNet


def _language(
    words: int, length: int, build: Callable[[bool], nn.Module], *, by_blocks: bool = False
) -> Callable[..., Made]:
    def factory(batch: int, device: Any, checkpoint: bool = False) -> Made:
        model = build(checkpoint).to(device)
        tokens = torch.randint(words, (batch, length + 1), device=device)
        if by_blocks:
            for block in model.blocks:
                block.compile()

        def forward() -> Tensor:
            logits = model(tokens[:, :-1].contiguous())
            return next_token_loss(logits, tokens[:, 1:].contiguous())

        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward

    return factory


gpt_narrow = _language(32768, 768, lambda again: Gpt(32768, 768, 640, 8, 10, again=again))
gpt_untied = _language(
    24576, 512, lambda again: Gpt(24576, 512, 1152, 10, 18, dropout=0.1, tied=False, again=again)
)
gpt_blocks = _language(
    32768, 512, lambda again: Gpt(32768, 512, 896, 9, 14, again=again), by_blocks=True
)
gated_narrow = _language(16000, 1024, lambda again: Gated(16000, 1024, 768, 9, 12, 4, again))
gated_deep = _language(32000, 512, lambda again: Gated(32000, 512, 1024, 14, 16, 16, again))


def bert_small(batch: int, device: Any, checkpoint: bool = False) -> Made:
    words, length = 28996, 320
    model = Bert(words, length, 576, 7, 9, checkpoint).to(device)
    tokens = torch.randint(1, words, (batch, length), device=device)
    present = torch.ones(batch, length, dtype=torch.bool, device=device)
    targets = torch.where(torch.rand(batch, length, device=device) < 0.15, tokens, -100)

    def forward() -> Tensor:
        logits = model(tokens, present)
        return functional.cross_entropy(logits.view(-1, words), targets.view(-1), ignore_index=-100)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


def resnet_short(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = ResNet((2, 3, 5, 2), checkpoint).to(device)
    images = torch.randn(batch, 3, 192, 192, device=device)
    targets = torch.randint(1000, (batch,), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(model(images), targets)

    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), forward


def vit_small(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = Vit(384, 12, 6, 256, 0.0, checkpoint).to(device)
    return labelled(model, torch.randn(batch, 3, 256, 256, device=device))


def unet_narrow(batch: int, device: Any, checkpoint: bool = False) -> Made:
    model = UNet(40, 12, lambda width: nn.GroupNorm(8, width), checkpoint).to(device)
    images = torch.randn(batch, 3, 160, 160, device=device)
    targets = torch.randint(12, (batch, 160, 160), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(model(images), targets)

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward
