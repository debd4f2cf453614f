"""Trainings that ask tensors for their values, or bring them to the host.

The GPU of each has some 20 ms of work a step, which is more than the host needs to launch it: what
a cure brings would otherwise depend on how fast the host is in that minute. The cured variants
compute what the faulty ones do, and do not wait for it.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from bench.time_gym.subjects.common import (
    GPT,
    Training,
    adamw,
    batch_of,
    deep,
    main,
    named,
    rows_for,
)


def item_after_each_layer(training: Training) -> None:
    """Notes the mean of each layer's output on the host, or keeps the means on the device."""
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for _ in training.steps():
        x, means = inputs, []
        for layer in model:
            x = layer(x)
            mean = x.detach().mean()
            means.append(mean if training.cured else mean.item())
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def gradient_norms_one_by_one(training: Training) -> None:
    """Reads the norm of each gradient, or has them all read at once every 50 steps."""
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for step in training.steps():
        model(inputs).square().mean().backward()
        if not training.cured:
            norms = [weight.grad.norm().item() for weight in model.parameters()]
            assert len(norms)
        else:
            kept = torch.stack([weight.grad.norm() for weight in model.parameters()])
            if step % 50 == 0:
                kept.tolist()
        optimizer.step()
        optimizer.zero_grad()


def checks_each_gradient(training: Training) -> None:
    """Asks each gradient whether it is finite, or all at once every 50 steps."""
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for step in training.steps():
        model(inputs).square().mean().backward()
        if not training.cured:
            for weight in model.parameters():
                if torch.isnan(weight.grad).any():
                    raise FloatingPointError("a gradient is not a number")
        else:
            bad = torch.stack([torch.isnan(weight.grad).any() for weight in model.parameters()])
            if step % 50 == 0 and bad.any():
                raise FloatingPointError("a gradient is not a number")
        optimizer.step()
        optimizer.zero_grad()


def masks_by_index(training: Training) -> None:
    """Takes the positive values out by a mask, whose number the host must know, or weighs them."""
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for _ in training.steps():
        x, firsts = inputs, []
        for number, layer in enumerate(model):
            x = layer(x)
            if number % 2:
                first = x[:, 0]
                firsts.append(first if training.cured else masked(first))
        kept = torch.stack(firsts)
        if training.cured:
            kept = (kept * (kept > 0)).sum(1) / (kept > 0).sum(1).clamp(min=1)
        (x.square().mean() + kept.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def masked(values: torch.Tensor) -> torch.Tensor:
    chosen = values[values > 0]
    return chosen.sum() / max(1, chosen.numel())


def synchronizes_around_layers(training: Training) -> None:
    """Waits for the device after each layer, to time it, or does not."""
    model = deep(training, training.pick(60, 4), training.pick(2048, 16))
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for _ in training.steps():
        x = inputs
        for layer in model:
            x = layer(x)
            if training.cuda and not training.cured:
                torch.cuda.synchronize()
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def logits_to_the_host(training: Training) -> None:
    """Brings all logits of each step to the host, or which word is likeliest, every 50 steps."""
    model = GPT(
        training.pick(4, 1),
        training.pick(1024, 16),
        training.pick(32_000, 64),
        training.pick(512, 8),
    ).to(training.device)
    optimizer = adamw(training, model)
    for step in training.steps():
        tokens = batch_of(training, model)
        with training.half():
            logits = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        if not training.cured:
            logits.detach().float().cpu()
        elif step % 50 == 0:
            logits.detach().argmax(-1).cpu()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(
        named(
            item_after_each_layer,
            gradient_norms_one_by_one,
            checks_each_gradient,
            masks_by_index,
            synchronizes_around_layers,
            logits_to_the_host,
        )
    )
