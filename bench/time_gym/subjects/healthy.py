"""Trainings in which nothing is worth curing."""

from __future__ import annotations

import copy
import os
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bench.time_gym.subjects.common import (
    Block,
    Training,
    adamw,
    batch_of,
    gpt,
    main,
    named,
    pictures,
    residual_net,
)
from bench.time_gym.subjects.inputs import endless, loaded, workers_of
from bench.time_gym.subjects.pauses import evaluate


def gpt_in_bf16(training: Training) -> None:
    """A language model in bfloat16."""
    model = gpt(training)
    optimizer = adamw(training, model)
    for _ in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def gpt_in_tf32(training: Training) -> None:
    """A language model in float32 whose products use TF32, with its gradients clipped."""
    torch.set_float32_matmul_precision("high")
    model = gpt(training)
    optimizer = adamw(training, model)
    for _ in training.steps():
        model.loss(batch_of(training, model)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def reads_its_loss_each_step(training: Training) -> None:
    """Reads the loss of each step, long before the GPU has nothing to do."""
    model = gpt(training)
    optimizer = adamw(training, model)
    mean = 0.0
    for _ in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean += 0.01 * (loss.item() - mean)


def residual_net_with_autocast(training: Training) -> None:
    """A classifier of pictures in bfloat16, channels last."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training)
    for _ in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def gpt_compiled(training: Training) -> None:
    """A compiled language model."""
    model = gpt(training, layers=4)
    compiled = torch.compile(model, backend="inductor" if training.cuda else "aot_eager")
    optimizer = adamw(training, model)
    for _ in training.steps():
        tokens = batch_of(training, model)
        with training.half():
            logits = compiled(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def blocks_from_graphs(training: Training) -> None:
    """Replays forward and backward passes from CUDA graphs."""
    model = gpt(training)
    optimizer = adamw(training, model)
    if training.cuda:
        shape = (8, model.length, model.places.weight.shape[1])
        sample = torch.randn(shape, device=training.device, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            for number, block in enumerate(model.blocks):
                made = torch.cuda.make_graphed_callables(block, (sample,))
                model.blocks[number] = made
    for _ in training.steps():
        with torch.autocast(
            training.device.type, torch.bfloat16, training.cuda, cache_enabled=False
        ):
            loss = model.loss(batch_of(training, model, rows=8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def accumulates_gradients(training: Training) -> None:
    """Has four micro-batches in each step."""
    model = gpt(training, layers=4)
    optimizer = adamw(training, model)
    for _ in training.steps():
        for _ in range(4):
            with training.half():
                loss = model.loss(batch_of(training, model)) / 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def two_optimizers(training: Training) -> None:
    """A generator and a discriminator, each with an optimizer."""
    width = training.pick(128, 8)
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    ).to(training.device, memory_format=torch.channels_last)
    judge = residual_net(training, each=1)
    first, second = adamw(training, generator), adamw(training, judge)
    images, _ = pictures(training, rows=256)
    side = images.shape[-1] // 8
    for _ in training.steps():
        noise = torch.randn(len(images), 64, side, side, device=training.device)
        with training.half():
            made = generator(noise)
            real, false = judge(images)[:, 0], judge(made.detach())[:, 0]
            loss = F.softplus(-real.float()).mean() + F.softplus(false.float()).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        with training.half():
            loss = F.softplus(-judge(made)[:, 0].float()).mean()
        first.zero_grad()
        loss.backward()
        first.step()


def recurrent(training: Training) -> None:
    """An LSTM of several layers over long sequences, in bfloat16."""
    width = training.pick(1024, 8)
    net = nn.LSTM(width, width, num_layers=3, batch_first=True).to(training.device)
    optimizer = adamw(training, net)
    x = torch.randn(training.pick(256, 2), training.pick(128, 4), width, device=training.device)
    for _ in training.steps():
        with training.half():
            loss = net(x)[0].float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Vision(nn.Module):
    """A transformer over patches of pictures."""

    def __init__(self, layers: int, width: int, patch: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


def vision_transformer(training: Training) -> None:
    """A transformer over patches of pictures, with dropout."""
    side = training.pick(224, 8)
    net = Vision(training.pick(12, 2), training.pick(768, 16), training.pick(16, 4), side).to(
        training.device
    )
    optimizer = adamw(training, net)
    images, kinds = pictures(training, rows=128, side=224)
    for _ in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.part(3, width), self.part(width, 2 * width)])
        self.deep = self.part(2 * width, 4 * width)
        self.up = nn.ModuleList([self.part(6 * width, 2 * width), self.part(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    @staticmethod
    def part(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 1, 1),
            nn.GroupNorm(8, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1),
            nn.GroupNorm(8, outputs),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for part in self.down:
            x = part(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.deep(x)
        for part in self.up:
            x = part(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.out(x)


def unet(training: Training) -> None:
    """A net that takes noise out of pictures."""
    net = UNet(training.pick(96, 8)).to(training.device, memory_format=torch.channels_last)
    optimizer = adamw(training, net)
    images, _ = pictures(training, rows=32, side=128)
    for _ in training.steps():
        noise = torch.randn_like(images)
        with training.half():
            loss = F.mse_loss(net(images + noise), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Adapter(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        where = {"device": layer.weight.device}
        self.down = nn.Linear(layer.in_features, rank, bias=False, **where)
        self.up = nn.Linear(rank, layer.out_features, bias=False, **where)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


def frozen_with_adapters(training: Training) -> None:
    """A frozen language model with small trained matrices beside some of its own."""
    model = gpt(training).requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.qkv, block.out = Adapter(block.qkv, 16), Adapter(block.out, 16)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    more = {"fused": True} if training.cuda else {}
    optimizer = torch.optim.AdamW(trained, lr=1e-4, **more)
    for _ in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def recomputes_activations(training: Training) -> None:
    """Computes each block again in the backward pass."""
    model = gpt(training)
    for block in model.blocks:
        whole = block.forward
        block.forward = lambda x, whole=whole: checkpoint(whole, x, use_reentrant=False)
    optimizer = adamw(training, model)
    for _ in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def validates_rarely(training: Training) -> None:
    """Validates on two batches every 100 steps."""
    model = gpt(training, layers=4)
    optimizer = adamw(training, model)
    for step in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            evaluate(training, model, 2)


def saves_in_another_thread(training: Training) -> None:
    """Copies its weights every 200 steps, which another thread saves."""
    model = gpt(training, layers=4)
    optimizer = adamw(training, model)
    path = Path(tempfile.mkdtemp()) / "last.pt"
    for step in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 200 == 0:
            kept = copy.deepcopy(model.state_dict())
            threading.Thread(target=torch.save, args=(kept, path), daemon=True).start()


def loads_with_workers(training: Training) -> None:
    """A classifier whose workers read ahead, and which is fed from pinned memory."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    batches = endless(loaded(training, 1, num_workers=workers_of(training)))
    for _ in training.steps():
        images, kinds = next(batches)
        images = images.to(training.device, non_blocking=True, memory_format=torch.channels_last)
        with training.half():
            loss = F.cross_entropy(net(images), kinds.to(training.device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def data_parallel_of_one(training: Training) -> None:
    """Under DistributedDataParallel, in a world of one."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(
        "nccl" if training.cuda else "gloo", store=store, rank=0, world_size=1
    )
    model = gpt(training)
    ids = [0] if training.cuda else None
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = adamw(training, model)
    for _ in training.steps():
        tokens = batch_of(training, model)
        with training.half():
            logits = wrapped(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(
        named(
            gpt_in_bf16,
            gpt_in_tf32,
            reads_its_loss_each_step,
            residual_net_with_autocast,
            gpt_compiled,
            blocks_from_graphs,
            accumulates_gradients,
            two_optimizers,
            recurrent,
            vision_transformer,
            unet,
            frozen_with_adapters,
            recomputes_activations,
            validates_rarely,
            saves_in_another_thread,
            loads_with_workers,
            data_parallel_of_one,
        )
    )
