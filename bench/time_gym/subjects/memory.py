"""Trainings that allocate device memory, or compile, while they train."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from bench.time_gym.subjects.common import (
    Training,
    adamw,
    batch_of,
    deep,
    gpt,
    main,
    named,
    pictures,
    residual_net,
)

GIB = 1 << 30


def empties_the_cache(training: Training) -> None:
    """Gives all cached memory back in each step, or keeps it."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training)
    for _ in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if training.cuda and not training.cured:
            torch.cuda.empty_cache()


def sizes_change_near_the_cap(training: Training) -> None:
    """Has batches of many sizes in little memory, so that blocks never fit, or of one size."""
    width, layers = training.pick(512, 16), training.pick(8, 2)
    model = deep(training, layers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    most = training.pick(393_216, 8)
    if training.cuda:
        total = torch.cuda.get_device_properties(training.device).total_memory
        needed = (layers + 5) * most * width * 2
        torch.cuda.set_per_process_memory_fraction((1.1 * needed + 0.3 * GIB) / total)
    rows = torch.Generator().manual_seed(0)
    for _ in training.steps():
        size = most - most // 8
        if not training.cured:
            size = most - int(torch.randint(0, most // 4, (1,), generator=rows))
        weight = model[0].weight
        inputs = torch.randn(size, width, device=weight.device, dtype=weight.dtype)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def compiles_each_length(training: Training) -> None:
    """Compiles its function for each new length, or pads to one length."""
    torch._dynamo.config.recompile_limit = 100_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000
    model = gpt(training, layers=6)
    compiled = torch.compile(model, dynamic=False, backend="aot_eager")
    optimizer = adamw(training, model)
    for step in training.steps():
        tokens = batch_of(training, model)
        if not training.cured:
            tokens = tokens[:, : model.length - step % (model.length // 2)]
        with training.half():
            logits = compiled(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(named(empties_the_cache, sizes_change_near_the_cap, compiles_each_length))
