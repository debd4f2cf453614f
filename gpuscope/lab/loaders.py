"""Provide the Lab's micro-batches.

They are made on the device beforehand, or come from a DataLoader, or from a slow one. All of them
use the samples of the same pool. On one rank they do so in the same order, so that runs which
differ only in their input see the same data at the same step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from ..process.parent import die_with
from .config import LabConfig
from .models import Samples

SLOW_SECONDS = 0.2
"""How long the slow loader sleeps for each batch, in the process that prepares it."""
WORKERS = 2
"""The number of worker processes of a DataLoader if it is not given."""


class BatchSource(Protocol):
    """Gives micro-batches on the device, one after the other."""

    def next(self) -> Samples: ...

    def close(self) -> None: ...


def open_source(
    config: LabConfig, pool: Samples, batch: int, device: torch.device, rank: int, size: int
) -> BatchSource:
    """Return the source that ``config.loader`` names.

    It gives micro-batches of ``batch`` samples for this rank of ``size``.
    """
    if config.loader == "synthetic":
        return SyntheticBatches(pool, batch, rank, size)
    return LoaderBatches(config, pool, batch, device, rank, size)


class SyntheticBatches:
    """Returns slices of a pool that is already on the device.

    Each rank takes its own slice of the global batch, which is ``size`` micro-batches long. So N
    ranks with micro-batches of B samples see what one process sees with N·B.
    """

    def __init__(self, pool: Samples, batch: int, rank: int = 0, size: int = 1):
        self._inputs, self._targets = pool
        self._batch = batch
        self._place, self._stride = rank * batch, size * batch

    def next(self) -> Samples:
        pool = len(self._inputs)
        start, end = self._place, self._place + self._batch
        self._place = (start + self._stride) % pool
        if end <= pool:
            return self._inputs[start:end], self._targets[start:end]
        chosen = torch.arange(start, end, device=self._inputs.device) % pool
        return self._inputs[chosen], self._targets[chosen]

    def close(self) -> None:
        pass


class Endless(Sampler[int]):  # type: ignore[misc]  # torch is not type-checked
    """Returns one epoch after the other without end.

    Workers stay alive, and batches may reach into the next epoch. A DistributedSampler is told the
    epoch; otherwise every epoch would have the order of the first one.
    """

    def __init__(self, sampler: Sampler[int]):
        self._sampler = sampler

    def __iter__(self) -> Iterator[int]:
        epoch = 0
        while True:
            if isinstance(self._sampler, DistributedSampler):
                self._sampler.set_epoch(epoch)
            yield from self._sampler
            epoch += 1


def make_sampler(dataset: Dataset[Any], seed: int, rank: int, size: int) -> Endless:
    """Return a sampler that goes through the pool in order on one rank.

    On several ranks it gives each rank its share of an order that changes with every epoch.
    """
    if size == 1:
        return Endless(SequentialSampler(dataset))
    return Endless(
        DistributedSampler(
            dataset, num_replicas=size, rank=rank, shuffle=True, seed=seed, drop_last=True
        )
    )


class LoaderBatches:
    """Reads the pool in the host's memory with a DataLoader, and copies to the device."""

    def __init__(
        self,
        config: LabConfig,
        pool: Samples,
        batch: int,
        device: torch.device,
        rank: int,
        size: int,
    ):
        dataset = TensorDataset(*(part.cpu() for part in pool))
        workers = WORKERS if config.workers is None else config.workers
        slow = config.loader == "slow"
        self._device = device
        self._non_blocking = config.non_blocking
        options: dict[str, Any] = (
            {"persistent_workers": True, "worker_init_fn": begin_worker} if workers else {}
        )
        if workers and config.prefetch is not None:
            options["prefetch_factor"] = config.prefetch
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch,
            sampler=make_sampler(dataset, config.seed, rank, size),
            num_workers=workers,
            pin_memory=config.pin_memory and device.type == "cuda",
            collate_fn=_slow_collate if slow else _collate,
            **options,
        )
        self._batches: Iterator[Samples] | None = iter(loader)

    def next(self) -> Samples:
        assert self._batches is not None
        inputs, targets = next(self._batches)
        device = self._device
        return inputs.to(device, non_blocking=self._non_blocking), targets.to(
            device, non_blocking=self._non_blocking
        )

    def close(self) -> None:
        """End the loader's processes."""
        batches, self._batches = self._batches, None
        shut = getattr(batches, "_shutdown_workers", None)
        if shut is not None:
            shut()


def _collate(samples: list[tuple[Tensor, Tensor]]) -> Samples:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def _slow_collate(samples: list[tuple[Tensor, Tensor]]) -> Samples:
    time.sleep(SLOW_SECONDS)
    return _collate(samples)


def begin_worker(number: int) -> None:
    """Make a loader's process end with the training, and not by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # on other systems than Linux, torch itself watches the parent and ends the process within
    # seconds
    die_with(os.getppid())
