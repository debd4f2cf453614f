"""Trainings whose products run in a type that the tensor cores do not take, or take slowly."""

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
    rows_for,
)


def products_in_fp32(training: Training) -> None:
    """Trains a language model in float32, or lets products use TF32."""
    torch.set_float32_matmul_precision("high" if training.cured else "highest")
    model = gpt(training, layers=4)
    optimizer = adamw(training, model)
    for _ in training.steps():
        model.loss(batch_of(training, model, rows=8)).backward()
        optimizer.step()
        optimizer.zero_grad()


def convolutions_in_fp32(training: Training) -> None:
    """Trains on pictures with TF32 forbidden for convolutions, or allowed as by default."""
    torch.backends.cudnn.allow_tf32 = training.cured
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training, rows=256)
    for _ in training.steps():
        F.cross_entropy(net(images), kinds).backward()
        optimizer.step()
        optimizer.zero_grad()


def products_in_fp64(training: Training) -> None:
    """Has got doubles from numpy, and trains with them, or in float32 with TF32."""
    torch.set_float32_matmul_precision("high")
    number = torch.float32 if training.cured else torch.float64
    model = deep(training, training.pick(12, 2), training.pick(2048, 16), dtype=number)
    optimizer = adamw(training, model)
    inputs = rows_for(model, training.pick(8192, 4))
    for _ in training.steps():
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(named(products_in_fp32, convolutions_in_fp32, products_in_fp64))
