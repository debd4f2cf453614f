"""Trained heads on backbones that are frozen and run under ``no_grad``, and a student of such one.

Nothing is kept of what a backbone computes, so its largest moments follow each other in the same
blocks, and the reserved peak depends on how the allocator splits these. No measurement of such
trainings is committed yet: ``python -m bench.predict.truth --frozen --out DIR`` makes it on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Bert, Made, Vit
from .families_vision import ResNet, UNet


class Headed(nn.Module):
    """A frozen backbone without gradients, and a head that is trained on its outputs."""

    def __init__(self, backbone: nn.Module, width: int, classes: int):
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, classes))

    def forward(self, *inputs: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.backbone(*inputs)
        return self.head(features)


def _images(backbone: Callable[[], nn.Module]) -> Callable[..., Made]:
    def factory(batch: int, device: Any) -> Made:
        model = Headed(backbone(), 1000, 100).to(device)
        images = torch.randn(batch, 3, 224, 224, device=device)
        targets = torch.randint(100, (batch,), device=device)

        def forward() -> Tensor:
            return functional.cross_entropy(model(images), targets)

        return model, torch.optim.AdamW(model.head.parameters()), forward

    return factory


headed_resnet = _images(lambda: ResNet((3, 4, 6, 3), False))
headed_vit = _images(lambda: Vit(768, 12, 12, 224, 0.0, False))


class Encoder(Bert):
    """Return the mean of the last hidden states."""

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places))
        return self.blocks.run(x, present[:, None, None, :]).mean(dim=1)


def headed_bert(batch: int, device: Any) -> Made:
    model = Headed(Encoder(30522, 256, 768, 12, 12, False), 768, 20).to(device)
    tokens = torch.randint(1, 30522, (batch, 256), device=device)
    present = torch.ones_like(tokens, dtype=torch.bool)
    targets = torch.randint(20, (batch,), device=device)

    def forward() -> Tensor:
        return functional.cross_entropy(model(tokens, present), targets)

    return model, torch.optim.AdamW(model.head.parameters()), forward


def student(batch: int, device: Any) -> Made:
    """A small network learns what a large frozen one says."""
    teacher = ResNet((3, 8, 36, 3), False).eval().requires_grad_(False).to(device)
    model = ResNet((2, 2, 2, 2), False).to(device)
    images = torch.randn(batch, 3, 224, 224, device=device)

    def forward() -> Tensor:
        with torch.no_grad():
            wanted = teacher(images).softmax(dim=1)
        return functional.cross_entropy(model(images), wanted)

    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), forward


def headed_unet(batch: int, device: Any) -> Made:
    """A trained layer on the maps of a frozen U-Net, whose skips live long."""
    model = nn.ModuleList([UNet(48, 2, nn.BatchNorm2d, False), nn.Conv2d(2, 2, 3, 1, 1)]).to(device)
    trunk, last = model[0].eval().requires_grad_(False), model[1]
    images = torch.randn(batch, 3, 192, 192, device=device)
    targets = torch.randint(2, (batch, 192, 192), device=device)

    def forward() -> Tensor:
        with torch.no_grad():
            maps = trunk(images)
        return functional.cross_entropy(last(maps), targets)

    return model, torch.optim.AdamW(last.parameters()), forward
