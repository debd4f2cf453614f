"""Trainings whose samples come too slowly."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from bench.time_gym.subjects.common import (
    Training,
    adamw,
    gpt,
    main,
    named,
    pictures,
    residual_net,
)


class Packed(Dataset[Any]):
    """Pictures that are packed, as on a disk; unpacking one takes ``times`` × 0.3 ms or so."""

    def __init__(self, side: int, times: int, length: int = 100_000) -> None:
        picture = torch.randint(0, 256, (3, side, side), dtype=torch.uint8) // 16
        self.bytes = zlib.compress(bytes(picture.flatten().tolist()) * 16)
        self.side, self.times, self.length = side, times, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for _ in range(self.times):
            values = zlib.decompress(self.bytes)
        count = 3 * self.side * self.side
        picture = torch.frombuffer(bytearray(values[:count]), dtype=torch.uint8)
        return picture.view(3, self.side, self.side).float() / 16, index % 10


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def train_from(training: Training, loader: DataLoader[Any]) -> None:
    """Train a classifier on what a loader gives, until the time is over."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    batches = endless(loader)
    for _ in training.steps():
        images, kinds = next(batches)
        images = images.to(training.device, non_blocking=True)
        kinds = kinds.to(training.device, non_blocking=True)
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def loaded(training: Training, times: int, **more: Any) -> DataLoader[Any]:
    data = Packed(training.pick(64, 8), times, more.pop("length", 100_000))
    more = {"pin_memory": training.cuda, "drop_last": True, **more}
    if more.get("num_workers"):
        more.setdefault("persistent_workers", True)
    return DataLoader(data, batch_size=training.pick(256, 4), **more)


def workers_of(training: Training) -> int:
    return training.pick(10, 1)


def no_workers(training: Training) -> None:
    """Unpacks pictures in the training thread, or in worker processes."""
    train_from(training, loaded(training, 1, num_workers=workers_of(training) * training.cured))


def one_worker(training: Training) -> None:
    """Has one worker process for what ten can do."""
    train_from(
        training, loaded(training, 1, num_workers=workers_of(training) if training.cured else 1)
    )


def workers_start_each_epoch(training: Training) -> None:
    """Starts its workers anew for each short epoch, or keeps them."""
    loader = loaded(
        training,
        1,
        num_workers=workers_of(training),
        persistent_workers=training.cured,
        length=training.pick(256 * 100, 40),  # kept workers, too, are waited for at its start
    )
    train_from(training, loader)


def as_lists(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.tensor([picture.flatten().tolist() for picture, _ in samples])
    side = samples[0][0].shape[-1]
    return images.view(-1, 3, side, side), torch.tensor([kind for _, kind in samples])


def collates_lists(training: Training) -> None:
    """Puts a batch together from lists of numbers in the training thread, or stacks tensors."""
    more: dict[str, Any] = {} if training.cured else {"collate_fn": as_lists}
    train_from(
        training,
        loaded(training, 1, num_workers=workers_of(training) * training.cured, **more),
    )


def augments_in_the_thread(training: Training) -> None:
    """Crops, flips and blurs pictures on the CPU in the training thread, or on the GPU."""
    net = residual_net(training)
    optimizer = adamw(training, net)
    where = training.device if training.cured else torch.device("cpu")
    images, kinds = pictures(training)
    stored = images.to(where)
    for step in training.steps():
        changed = augmented(stored, step)
        with training.half():
            loss = F.cross_entropy(net(changed.to(training.device)), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def augmented(images: torch.Tensor, step: int) -> torch.Tensor:
    moved = torch.roll(images, step % 7, -1).flip(-1)
    blurred = F.avg_pool2d(F.pad(moved, (1, 1, 1, 1)), 3, 1)
    return blurred * (0.8 + 0.4 * torch.rand(len(images), 1, 1, 1, device=images.device))


TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps in the warm sun " * 14


def tokenised(text: str, vocabulary: dict[str, int], length: int) -> list[int]:
    found = [vocabulary.setdefault(word, len(vocabulary)) for word in re.findall(r"\w+|\s", text)]
    return [number % 64 for number in found[:length]]


def tokenises_in_the_thread(training: Training) -> None:
    """Splits its texts into words in each step, or has done so before."""
    model = gpt(training)
    optimizer = adamw(training, model)
    vocabulary: dict[str, int] = {}
    length = min(model.length, 256)
    texts = [TEXT] * training.pick(64, 2)
    kept = torch.tensor([tokenised(text, vocabulary, length) for text in texts])
    kept = kept.to(training.device)
    for _ in training.steps():
        tokens = kept
        if not training.cured:
            rows = [tokenised(text * 4, vocabulary, length) for text in texts]
            tokens = torch.tensor(rows).to(training.device)
        with training.half():
            loss = model.loss(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def copies_from_pageable_memory(training: Training) -> None:
    """Copies large batches from memory that is not pinned, or ahead from pinned memory."""
    net = residual_net(training, each=1)
    optimizer = adamw(training, net)
    shape = (training.pick(1024, 4), 3, training.pick(96, 8), training.pick(96, 8))
    stored = [torch.randn(shape) for _ in range(2)]
    kinds = torch.randint(10, shape[:1], device=training.device)
    if training.cured and training.cuda:
        train_ahead(training, net, optimizer, [one.pin_memory() for one in stored], kinds)
        return
    for step in training.steps():
        images = stored[step % 2].to(training.device)
        with training.half():
            loss = F.cross_entropy(net(images), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_ahead(
    training: Training,
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    stored: list[torch.Tensor],
    kinds: torch.Tensor,
) -> None:
    """Train while the next batch is copied by another stream."""
    aside = torch.cuda.Stream()
    here = [torch.empty_like(one, device=training.device) for one in stored]
    copied = [torch.cuda.Event() for _ in stored]
    used = [torch.cuda.Event() for _ in stored]

    def fetch(number: int) -> None:
        with torch.cuda.stream(aside):
            used[number].wait()
            here[number].copy_(stored[number], non_blocking=True)
            copied[number].record()

    fetch(1)
    for step in training.steps():
        now = step % 2
        fetch(1 - now)
        copied[now].wait()
        with training.half():
            loss = F.cross_entropy(net(here[now]), kinds)
        loss.backward()
        used[now].record()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(
        named(
            no_workers,
            one_worker,
            workers_start_each_epoch,
            collates_lists,
            augments_in_the_thread,
            tokenises_in_the_thread,
            copies_from_pageable_memory,
        )
    )
