"""Trainings that allocate device memory, or compile, while they train."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from bench.time_gym.subjects.common import (
    Training,
    adamw,
    batch_of,
    gpt,
    main,
    named,
    pictures,
    residual_net,
)


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


def caches_no_memory(training: Training) -> None:
    """A training of pictures; what its environment says makes the difference."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training)
    for _ in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
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
    main(named(empties_the_cache, caches_no_memory, compiles_each_length))
