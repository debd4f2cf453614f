"""Models that were not used to make or tune anything in ``predict``.

They show how good predictions are for models that we have not seen.

The form is that of ``families.py``. Each brings something that the other families do not have:
blocks in two dimensions at once, decoders with cross-attention, convolutions over sound, attention
inside a U-Net, scattered sums, experts, two towers, recurrence in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .families import Made, Repeated


def adamw(model: nn.Module, device: Any, forward: Callable[[nn.Module], Tensor]) -> Made:
    model = model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: forward(model)


# ── vision ────────────────────────────────────────────────────────────────────────────────────────


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.along = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class Mixer(nn.Module):
    def __init__(self, width: int, depth: int, again: bool):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = Repeated([MixerBlock(196, width) for _ in range(depth)], again)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks.run(self.patches(images).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def mixer(batch: int, device: Any, checkpoint: bool = False) -> Made:
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    forward = lambda model: functional.cross_entropy(model(images), labels, label_smoothing=0.1)  # noqa: E731
    return adamw(Mixer(512, 8, checkpoint), device, forward)


def vgg_like(batch: int, device: Any) -> Made:
    layers: list[nn.Module] = []
    into = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(into, width, 3, padding=1), nn.ReLU(inplace=True)]
            into = width
        layers.append(nn.MaxPool2d(2))
    layers += [
        nn.Flatten(),
        nn.Linear(512 * 49, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 1000),
    ]
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    return model, optimizer, lambda: functional.cross_entropy(model(images), labels)


class Inverted(nn.Module):
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        wide = into * 4
        self.body = nn.Sequential(
            nn.Conv2d(into, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 5, stride, 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.same = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


class MobileLike(nn.Module):
    def __init__(self, again: bool):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        sizes = [
            (32, 32, 1),
            (32, 64, 2),
            (64, 64, 1),
            (64, 96, 2),
            (96, 96, 1),
            (96, 160, 2),
            (160, 160, 1),
        ]
        self.blocks = Repeated([Inverted(*size) for size in sizes], again)
        self.head = nn.Linear(160, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(
            functional.adaptive_avg_pool2d(self.blocks.run(self.stem(images)), 1).flatten(1)
        )


def mobile_like(batch: int, device: Any, checkpoint: bool = False) -> Made:
    images = torch.randn(batch, 3, 192, 192, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    return adamw(
        MobileLike(checkpoint),
        device,
        lambda model: functional.cross_entropy(model(images), labels),
    )


# ── generative: a denoiser with attention, an autoencoder ─────────────────────────────────────────


class TimedBlock(nn.Module):
    def __init__(self, into: int, out: int, time: int, attention: bool):
        super().__init__()
        self.first, self.second = nn.GroupNorm(16, into), nn.GroupNorm(16, out)
        self.one, self.two = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()
        self.attention = nn.MultiheadAttention(out, 4, batch_first=True) if attention else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.one(functional.silu(self.first(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        y = self.two(functional.silu(self.second(y))) + self.skip(x)
        if self.attention is not None:
            flat = y.flatten(2).transpose(1, 2)
            y = y + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(
                y.shape
            )
        return y


class Denoiser(nn.Module):
    def __init__(self, width: int, again: bool):
        super().__init__()
        self.again = again
        self.time = nn.Sequential(
            nn.Linear(128, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = Repeated([TimedBlock(width, width, 4 * width, False)], again)
        self.shrink = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle = Repeated(
            [TimedBlock(2 * width, 2 * width, 4 * width, True) for _ in range(3)], again
        )
        self.grow = nn.Upsample(scale_factor=2, mode="nearest")
        self.up = Repeated([TimedBlock(3 * width, width, 4 * width, False)], again)
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, moments: Tensor) -> Tensor:
        waves = moments[:, None] * torch.exp(
            torch.arange(64, device=x.device) * (-math.log(10000) / 64)
        )
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        first = self.down.run(self.stem(x), time)
        deep = self.middle.run(self.shrink(first), time)
        return self.out(self.up.run(torch.cat([self.grow(deep), first], 1), time))


def denoiser(batch: int, device: Any, checkpoint: bool = False) -> Made:
    images = torch.randn(batch, 3, 64, 64, device=device)

    def forward(model: nn.Module) -> Tensor:
        noise, moments = torch.randn_like(images), torch.rand(batch, device=device)
        mixed = images * (1 - moments)[:, None, None, None] + noise * moments[:, None, None, None]
        return functional.mse_loss(model(mixed, 1000 * moments), noise)

    return adamw(Denoiser(96, checkpoint), device, forward)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(0.2),
            nn.Conv2d(128, 256, 4, 2, 1),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(0.2),
        )
        self.mean, self.spread = nn.Linear(256 * 256, 128), nn.Linear(256 * 256, 128)
        self.back = nn.Linear(128, 256 * 256)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(256, 128, 4, 2, 1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = self.down(images).flatten(1)
        mean, spread = self.mean(flat), self.spread(flat)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.up(self.back(drawn).view(-1, 256, 16, 16)), mean, spread


def autoencoder(batch: int, device: Any) -> Made:
    images = torch.rand(batch, 3, 128, 128, device=device)

    def forward(model: nn.Module) -> Tensor:
        drawn, mean, spread = model(images)
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        return functional.mse_loss(drawn.float(), images) + 1e-3 * divergence

    return adamw(Autoencoder(), device, forward)


# ── others ────────────────────────────────────────────────────────────────────────────────────────


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


class Towers(nn.Module):
    def __init__(self, again: bool):
        super().__init__()
        self.image = Mixer(384, 6, again)
        self.words = nn.Embedding(30000, 384)
        layers = [
            nn.TransformerEncoderLayer(384, 6, 1536, 0.0, "gelu", batch_first=True)
            for _ in range(6)
        ]
        self.text = Repeated(layers, again)
        self.project = nn.Linear(1000, 256), nn.Linear(384, 256)
        self.one, self.two = self.project
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        left = functional.normalize(self.one(self.image(images)), dim=-1)
        right = functional.normalize(self.two(self.text.run(self.words(tokens)).mean(1)), dim=-1)
        return self.scale.exp() * left @ right.T


def towers(batch: int, device: Any, checkpoint: bool = False) -> Made:
    images = torch.randn(batch, 3, 224, 224, device=device)
    tokens = torch.randint(30000, (batch, 64), device=device)
    own = torch.arange(batch, device=device)

    def forward(model: nn.Module) -> Tensor:
        alike = model(images, tokens)
        return (functional.cross_entropy(alike, own) + functional.cross_entropy(alike.T, own)) / 2

    return adamw(Towers(checkpoint), device, forward)


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
