"""Trainings whose thread does something else between the steps."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

from bench.time_gym.subjects.common import (
    GPT,
    Training,
    adamw,
    batch_of,
    gpt,
    main,
    named,
    pictures,
    residual_net,
)


def checkpoint_each_few_steps(training: Training) -> None:
    """Saves its model in the training thread: every 10 steps, or every 2,000."""
    model = gpt(training, layers=3)
    optimizer = adamw(training, model)
    path = Path(tempfile.mkdtemp()) / "last.pt"
    for step in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (2000 if training.cured else 10) == 0:
            torch.save({"model": model.state_dict(), "step": step}, path)


def evaluate(training: Training, model: GPT, batches: int) -> float:
    model.eval()
    with torch.no_grad(), training.half():
        losses = [model.loss(batch_of(training, model)) for _ in range(batches)]
    model.train()
    return torch.stack(losses).mean().item()


def validates_often(training: Training) -> None:
    """Validates on 10 batches every 5 steps, or on one every 50."""
    model = gpt(training)
    optimizer = adamw(training, model)
    for step in training.steps():
        with training.half():
            loss = model.loss(batch_of(training, model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (50 if training.cured else 5) == 0:
            evaluate(training, model, 1 if training.cured else 10)


def collects_each_step(training: Training) -> None:
    """Calls the garbage collector in each step, with a million objects alive, or never."""
    records = [
        {"id": number, "words": [number]} for number in range(training.pick(500_000, 20_000))
    ]
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training)
    for step in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not training.cured:
            gc.collect()
        assert records[step % len(records)]["words"]


def log_metrics(file: Path, step: int, net: torch.nn.Module) -> None:
    with file.open("a") as out:
        for name, weight in net.named_parameters():
            counts = torch.histc(weight.detach().float(), 64).tolist()
            out.write(json.dumps({"step": step, "name": name, "histogram": counts}) + "\n")
        out.flush()
        os.fsync(out.fileno())


def writes_histograms_each_step(training: Training) -> None:
    """Writes a histogram of each weight to a file in each step, or every 200 steps."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    images, kinds = pictures(training)
    file = Path(tempfile.mkdtemp()) / "events.jsonl"
    for step in training.steps():
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not training.cured or step % 200 == 0:
            log_metrics(file, step, net)


if __name__ == "__main__":
    main(
        named(
            checkpoint_each_few_steps,
            validates_often,
            collects_each_step,
            writes_histograms_each_step,
        )
    )
