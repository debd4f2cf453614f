"""Claims about the input: pinned memory, and the workers of a DataLoader."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .bench import Bench, Loop, in_turn, main, wait_for, window

MOST_WORKERS = 8
PREFETCH = 2
"""Batches a worker prepares ahead, torch's default."""
MOST_BATCHES, LEAST_BATCHES = 12, 3
WINDOW_SECONDS = 1.0
"""A window has as many batches as it needs for this, within those bounds."""
LOAD_IN_STEPS = 2.0
"""What loading a batch costs one core, in training steps: without workers the device idles two thirds of its time."""


# ── pinned memory ─────────────────────────────────────────────────────────────────────────────────────────────────────


def pin_memory(bench: Bench) -> None:
    size = (1 << 20) if bench.tiny else (256 << 20)
    pageable = torch.zeros(size, dtype=torch.uint8)
    pinned = torch.zeros(size, dtype=torch.uint8).pin_memory()
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    sides = {
        "pageable": (lambda: there.copy_(pageable), bench.device),
        "pinned": (lambda: there.copy_(pinned, non_blocking=True), bench.device),
    }
    for took in in_turn(bench, sides, seconds=0.01 if bench.tiny else 0.15, share=0.5):
        bench.value("bandwidth", took["pageable"] / took["pinned"])
    for name, seconds in took.items():
        bench.note(f"{name} copies", size / seconds / 1e9, "GB/s")
    _steps_with_copies(bench)


def _steps_with_copies(bench: Bench) -> None:
    """Whole steps whose batch comes from the host: pinned before the clock starts, as a loader's pin thread does it."""
    loop = Loop(bench.preset("conv"), bench.device, batch=bench.batch(256), amp=bench.mixed)
    host = [part.cpu() for part in loop.next_batch()]
    locked = [part.pin_memory() for part in host]

    def step(parts: list[Tensor], non_blocking: bool) -> None:
        inputs, targets = (part.to(bench.device, non_blocking=non_blocking) for part in parts)
        loop.optimizer.zero_grad(set_to_none=True)
        loop.backward(inputs, targets)
        loop.update()

    sides = {
        "pageable": (lambda: step(host, False), bench.device),
        "pinned": (lambda: step(locked, True), bench.device),
    }
    for took in in_turn(bench, sides):
        bench.value("step", took["pageable"] / took["pinned"])


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Images(Dataset[tuple[Tensor, int]]):  # type: ignore[misc]  # torch is not type-checked
    """Random pictures; making one takes one core about ``seconds``, as decoding a picture would."""

    def __init__(self, pixels: int, seconds: float):
        self.pixels, self.seconds = pixels, seconds

    def __len__(self) -> int:
        return 1 << 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        ends = time.thread_time() + self.seconds
        image = torch.randn(3, self.pixels, self.pixels)
        while time.thread_time() < ends:
            image = image.flip(-1)
        return image, index % 10


def workers(bench: Bench) -> None:
    batch, count = bench.batch(64 if bench.cuda else 32), worker_count()
    pixels = 64 if bench.preset("conv") == "conv-large" else 32
    loop = Loop(bench.preset("conv"), bench.device, batch=batch, amp=bench.mixed if bench.cuda else "off")
    inputs, targets = loop.next_batch()
    step = _undisturbed(lambda: _train(loop, inputs, targets), bench.device)
    images = Images(pixels, LOAD_IN_STEPS * step / batch)
    bench.configuration(
        f"{bench.preset('conv')}, batch {batch}, {step * 1e3:.1f} ms a step; loading one takes a core "
        f"{LOAD_IN_STEPS * step * 1e3:.1f} ms; no workers against {count}"
    )
    loaders: dict[int, Iterator[list[Tensor]]] = {
        number: iter(DataLoader(images, batch, num_workers=number, prefetch_factor=PREFETCH if number else None))
        for number in (0, count)
    }
    fitting = 0 if bench.tiny else round(WINDOW_SECONDS / step)
    measured = max(LEAST_BATCHES, min(MOST_BATCHES, fitting))
    for index in bench.repeats():
        found = {}
        for number in sorted(loaders, reverse=bool(index % 2)):
            # What the workers had prepared while they were not asked is no part of their pace.
            _epoch(loop, loaders[number], number * (PREFETCH + 1) + 1)
            found[number] = _epoch(loop, loaders[number], measured)
        for number, figure in ((0, "idle_without"), (count, "idle")):
            waited, total = found[number]
            bench.value(figure, waited / total)
        bench.value("step", found[0][1] / found[count][1])


def worker_count() -> int:
    """One for each core but the trainer's own, 1 to ``MOST_WORKERS``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores - 1))


def _undisturbed(step: Callable[[], object], device: torch.device) -> float:
    """The fewest seconds a step took, waited for: other programs of the machine can only make it longer."""
    window(step, 3, device)
    return min(window(step, 1, device) for _ in range(10))


def _train(loop: Loop, inputs: Tensor, targets: Tensor) -> None:
    loop.optimizer.zero_grad(set_to_none=True)
    loop.backward(inputs, targets)
    loop.update()


def _epoch(loop: Loop, batches: Iterator[list[Tensor]], count: int) -> tuple[float, float]:
    """Seconds waited for the loader, and in all, over ``count`` steps. The device is waited for after each step, so
    that it idles while the loader is waited for."""
    waited = 0.0
    wait_for(loop.device)
    begun = time.perf_counter()
    for _ in range(count):
        asked = time.perf_counter()
        inputs, targets = next(batches)
        waited += time.perf_counter() - asked
        _train(loop, inputs.to(loop.device), targets.to(loop.device))
        wait_for(loop.device)
    return waited, time.perf_counter() - begun


MEASURES = {"pin-memory": pin_memory, "workers": workers}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
