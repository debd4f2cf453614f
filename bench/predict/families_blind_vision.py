"""Models of images that nobody has predicted: see ``families_blind.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .families import Made, Repeated
from .families_blind import made

# ── a detector's head over five scales ────────────────────────────────────────────────────────────


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(into, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = nn.Conv2d(into, out, 1, stride) if stride > 1 or into != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.skip(x) + self.body(x), inplace=True)


class Detector(nn.Module):
    """A detector with a pyramid over strides 8 … 128, whose scales share the two heads.

    There are ``ANCHORS`` boxes at every place.
    """

    ANCHORS, CLASSES = 9, 80

    def __init__(self, width: int = 256):
        super().__init__()
        sizes = (64, 128, 256, 512)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)
        )
        pairs = zip((64, *sizes[:-1]), sizes, strict=True)
        self.stages = nn.ModuleList(
            nn.Sequential(Residual(into, out, 1 if place == 0 else 2), Residual(out, out, 1))
            for place, (into, out) in enumerate(pairs)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(size, width, 1) for size in sizes[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in sizes[1:])
        self.further = nn.ModuleList(
            (nn.Conv2d(512, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1))
        )
        self.classes, self.boxes = self._head(width, self.CLASSES), self._head(width, 4)

    def _head(self, width: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(32, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(width, self.ANCHORS * outputs, 3, padding=1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x, found = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        scales = [lateral(part) for lateral, part in zip(self.lateral, found[1:], strict=True)]
        for place in (1, 0):
            scales[place] = scales[place] + functional.interpolate(
                scales[place + 1], scales[place].shape[-2:]
            )
        scales = [smooth(part) for smooth, part in zip(self.smooth, scales, strict=True)]
        scales.append(self.further[0](found[-1]))
        scales.append(self.further[1](scales[-1].relu()))
        classes = [
            self.classes(part).permute(0, 2, 3, 1).reshape(len(images), -1, self.CLASSES)
            for part in scales
        ]
        boxes = [
            self.boxes(part).permute(0, 2, 3, 1).reshape(len(images), -1, 4) for part in scales
        ]
        return torch.cat(classes, 1), torch.cat(boxes, 1)


def focal(logits: Tensor, targets: Tensor) -> Tensor:
    """The focal loss, α = 0.25 and γ = 2, summed."""
    chance = logits.sigmoid()
    missed = chance * (1 - targets) + (1 - chance) * targets
    weight = 0.25 * targets + 0.75 * (1 - targets)
    return (
        weight
        * missed**2
        * functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    ).sum()


def anchors(batch: int, device: Any) -> Made:
    """20 M parameters, images of 320²; the boxes' loss is over the anchors that have an object."""
    images = torch.randn(batch, 3, 320, 320, device=device)
    count = 9 * sum(side * side for side in (40, 20, 10, 5, 3))
    labels = torch.randint(-80 * 60, 80, (batch, count), device=device).clamp(min=-1)
    aims = torch.randn(batch, count, 4, device=device)

    def forward(model: nn.Module) -> Tensor:
        classes, boxes = model(images)
        positive = labels >= 0
        targets = (
            functional.one_hot(labels.clamp(min=0), Detector.CLASSES).float() * positive[..., None]
        )
        apart = functional.smooth_l1_loss(
            boxes[positive], aims[positive], beta=0.1, reduction="sum"
        )
        return (focal(classes.float(), targets) + apart) / positive.sum().clamp(min=1)

    return made(Detector(), device, forward)


# ── super-resolution ──────────────────────────────────────────────────────────────────────────────


class Refine(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.two(functional.relu(self.one(x)))


class Enlarge(nn.Module):
    """Residual blocks at the small size, then twice a shuffle of channels into pixels."""

    def __init__(self, width: int, depth: int, again: bool):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.blocks = Repeated([Refine(width) for _ in range(depth)], again)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        grow = [
            part
            for _ in range(2)
            for part in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))
        ]
        self.grow = nn.Sequential(*grow)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        return self.last(self.grow(x + self.middle(self.blocks.run(x))))


def super_resolution(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """1.7 M parameters, 56² to 224²; Adam."""
    small = torch.rand(batch, 3, 56, 56, device=device)
    large = torch.rand(batch, 3, 224, 224, device=device)
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-4, betas=(0.9, 0.99))  # noqa: E731
    forward = lambda model: functional.l1_loss(model(small), large)  # noqa: E731
    return made(Enlarge(72, 14, checkpoint), device, forward, optimizer)


# ── two networks against each other ───────────────────────────────────────────────────────────────


def _generator(width: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(128, 8 * width, 4, 1, 0, bias=False),
        nn.BatchNorm2d(8 * width),
    ]
    for into, out in ((8, 4), (4, 2), (2, 1)):
        layers += [
            nn.ReLU(True),
            nn.ConvTranspose2d(into * width, out * width, 4, 2, 1, bias=False),
        ]
        layers += [nn.BatchNorm2d(out * width)]
    return nn.Sequential(*layers, nn.ReLU(True), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def _critic(width: int) -> nn.Module:
    normed = nn.utils.parametrizations.spectral_norm
    layers: list[nn.Module] = [normed(nn.Conv2d(3, width, 4, 2, 1)), nn.LeakyReLU(0.2, True)]
    for into, out in ((1, 2), (2, 4), (4, 8)):
        layers += [normed(nn.Conv2d(into * width, out * width, 4, 2, 1)), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, normed(nn.Conv2d(8 * width, 1, 4)), nn.Flatten())


def gan_step(batch: int, device: Any) -> Made:
    """7.8 M and 6.2 M parameters, images of 64².

    A step of the critic with its own optimizer, then the loss of the generator.
    """
    images = torch.rand(batch, 3, 64, 64, device=device) * 2 - 1
    critic = _critic(96).to(device)
    second = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))
    kind = torch.device(device).type

    def forward(model: nn.Module) -> Tensor:
        drawn = model(torch.randn(batch, 128, 1, 1, device=device))
        real, false = critic(images), critic(drawn.detach())
        loss = functional.relu(1 - real).mean() + functional.relu(1 + false).mean()
        second.zero_grad()
        with torch.autocast(kind, enabled=False):
            loss.backward()
        second.step()
        torch.clear_autocast_cache()  # the critic's weights have changed
        return -critic(drawn).mean()

    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-4, betas=(0.0, 0.9))  # noqa: E731
    return made(_generator(96), device, forward, optimizer)


# ── frames in a row ───────────────────────────────────────────────────────────────────────────────


class ConvCell(nn.Module):
    """A cell of an LSTM whose products are convolutions, with peepholes."""

    def __init__(self, into: int, width: int):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(into + width, 4 * width, 5, padding=2)
        self.peep = nn.Parameter(torch.zeros(3, width, 1, 1))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        if state is None:
            zeros = x.new_zeros(x.shape[0], self.width, *x.shape[2:])
            state = zeros, zeros
        hidden, cell = state
        enter, forget, leave, new = self.gates(torch.cat((x, hidden), 1)).chunk(4, 1)
        cell = torch.sigmoid(forget + self.peep[0] * cell) * cell
        cell = cell + torch.sigmoid(enter + self.peep[1] * state[1]) * torch.tanh(new)
        return torch.sigmoid(leave + self.peep[2] * cell) * torch.tanh(cell), cell


class Frames(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.shrink = nn.Conv2d(1, 16, 3, 2, 1)
        self.cells = nn.ModuleList((ConvCell(16, width), ConvCell(width, width)))
        self.grow = nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, frames: Tensor) -> Tensor:
        states: list[Any] = [None for _ in self.cells]
        outputs = []
        for frame in frames.unbind(1):
            x = functional.leaky_relu(self.shrink(frame), 0.1)
            for place, cell in enumerate(self.cells):
                states[place] = cell(x, states[place])
                x = states[place][0]
            outputs.append(self.grow(x))
        return torch.stack(outputs, 1)


def conv_lstm(batch: int, device: Any) -> Made:
    """1.3 M parameters, twelve frames of 64² and their next ones; RMSprop."""
    frames = torch.rand(batch, 13, 1, 64, 64, device=device)

    def forward(model: nn.Module) -> Tensor:
        return functional.binary_cross_entropy_with_logits(model(frames[:, :-1]), frames[:, 1:])

    return made(
        Frames(64), device, forward, lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3)
    )


# ── a diffusion transformer, and the average of its weights ───────────────────────────────────────


class ModulatedBlock(nn.Module):
    """Shift, scale and gate of both halves come from the condition."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2)
        )
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        y = self.norms[0](x) * (1 + scale) + shift
        parts = self.into(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0))
        x = x + gate * self.out(mixed.transpose(1, 2).flatten(2))
        return x + gate2 * self.feed(self.norms[1](x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    def __init__(self, width: int, depth: int, again: bool):
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(256, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.kinds = nn.Embedding(1001, width)
        self.blocks = Repeated([ModulatedBlock(width, width // 64) for _ in range(depth)], again)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, latents: Tensor, when: Tensor, kinds: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(128, device=latents.device) * (-9.21 / 128))
        angles = when[:, None] * rates
        condition = self.time(torch.cat((angles.cos(), angles.sin()), 1)) + self.kinds(kinds)
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.places
        x = self.out(self.norm(self.blocks.run(x, condition)))
        return x.view(-1, 16, 16, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(latents.shape)


def dit_averaged(batch: int, device: Any, checkpoint: bool = False) -> Made:
    """87 M parameters, latents of 32². An exponential average of all weights follows every step."""
    latents = torch.randn(batch, 4, 32, 32, device=device)
    kinds = torch.randint(1000, (batch,), device=device)

    def forward(model: nn.Module) -> Tensor:
        noise, when = torch.randn_like(latents), torch.randint(1000, (batch,), device=device)
        share = (when.float() / 1000)[:, None, None, None]
        dropped = torch.where(torch.rand(batch, device=device) < 0.1, 1000, kinds)
        said = model((1 - share) * latents + share * noise, when.float(), dropped)
        return functional.mse_loss(said, noise - latents)

    model, optimizer, loss = made(DiffusionTransformer(768, 8, checkpoint), device, forward)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9999))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    return model, optimizer, loss
