"""Measure what no configuration of the Lab can express, with models beyond its presets.

``python -m gpuscope.lab.claim_loops LOOP --device cuda --repeats N`` prints a JSON object of
figures for each repeat, or ``{"cannot": reason}``. Anything else that is printed to stdout goes to
stderr. The process dies with its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate
from torch.utils.data import DataLoader, IterableDataset

from ..process.parent import die_with
from . import models
from .config import PRESETS, LabConfig
from .device_selection import cores
from .loaders import begin_worker
from .parallel import World
from .training import Training
from .worker import take_stdout

Figures = dict[str, float | str | None]
Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]
COPY_BYTES = 256 << 20
MOST_WORKERS, MOST_BATCHES, LEAST_BATCHES, PREFETCH = 8, 12, 3, 2
LOAD_IN_STEPS = 2.0
"""Time that loading a batch takes one core, in training steps.

Without workers the device is therefore idle for two thirds of its time.
"""


@dataclass(frozen=True)
class Bench:
    """The device of a loop, its number of repeats, and whether it only checks that it works."""

    device: torch.device
    repeats: int
    tiny: bool

    def training(self, model: str, **toggles: object) -> Training:
        """Return a training of the Lab on this device."""
        batch = {"batch": 2} if self.tiny else {}
        config = LabConfig.from_mapping({**toggles, **batch, "model": self.preset(model)})
        return Training(config, World(0, 1, 0, "", self.device))

    def preset(self, family: str) -> str:
        """Return the family's preset for this device, or the smallest one in a check."""
        return PRESETS[family]["cpu" if self.tiny else self.device.type]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 1) -> float:
        """Return the seconds that ``work`` takes.

        The device is synchronized before and after it.
        """
        self.wait()
        begin = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - begin) / times


def gradscaler_underflow(bench: Bench) -> Iterator[Figures]:
    """Measure the share of gradient elements that fp16 loses, with and without a GradScaler."""
    if not hasattr(torch.amp, "GradScaler"):
        yield {"cannot": f"torch {torch.__version__} has no GradScaler for a CPU"}
        return
    name = bench.preset("gpt")
    batch = 2 if bench.tiny or bench.device.type == "cpu" else models.MODELS[name].batch

    def shares(seed: int) -> Figures:
        task = models.build(name, bench.device, seed)
        optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3)

        def gradients(
            step: int, kind: torch.dtype | None = None, scaler: Any = None
        ) -> list[Tensor]:
            """Return one batch's gradients under autocast to ``kind``, as optimizers get them."""
            optimizer.zero_grad(set_to_none=True)
            inputs, targets = (part[step * batch : (step + 1) * batch] for part in task.pool)
            with torch.autocast(bench.device.type, dtype=kind, enabled=kind is not None):
                loss = task.criterion(task.model(inputs), targets)
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.unscale_(optimizer)
                scaler.update()
            return [one.grad.clone() for one in task.model.parameters() if one.grad is not None]

        for step in range(10):
            gradients(step)
            optimizer.step()
        exact, scaler = gradients(10), torch.amp.GradScaler(bench.device.type)
        lost = _share_lost(exact, gradients(10, torch.float16))
        for _ in range(20):  # the scaler lowers its factor until the gradients are finite
            found = gradients(10, torch.float16, scaler)
            if all(bool(one.isfinite().all()) for one in found):
                break
        kept = _share_lost(exact, found)
        return {"without": lost, "with": kept, "remaining": kept / lost if lost else None}

    yield from map(shares, range(bench.repeats))


def _share_lost(exact: list[Tensor], found: list[Tensor]) -> float:
    """Return the share of the elements that are not 0 in ``exact`` but 0 in ``found``."""
    there = sum(int((one != 0).sum()) for one in exact)
    gone = sum(
        int(((one != 0) & (other == 0)).sum()) for one, other in zip(exact, found, strict=True)
    )
    return gone / there


def empty_cache_scope(bench: Bench) -> Iterator[Figures]:
    """Measure what ``empty_cache()`` returns to the driver, and what it leaves."""
    training = bench.training("gpt", batch=8)
    for _ in range(bench.repeats):
        training.step()
        training.step()
        training.work.optimizer.zero_grad(set_to_none=True)
        before = _counts(bench)
        torch.cuda.empty_cache()
        after = _counts(bench)
        cached, returned = before[1] - before[0], before[1] - after[1]
        yield {
            "allocated": float(after[0] - before[0]),
            "returned": returned / cached if cached else None,
            "driver": (after[2] - before[2]) / returned if returned else None,
        }


def _counts(bench: Bench) -> tuple[int, int, int]:
    """Return the bytes allocated and reserved here, and those that the driver calls free."""
    bench.wait()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    return allocated, reserved, torch.cuda.mem_get_info()[0]


def sync_timing(bench: Bench) -> Iterator[Figures]:
    """Measure the true duration of work against a clock that does not wait for the device."""
    side = 512 if bench.tiny else 8192
    matrix = torch.randn(side, side, device=bench.device)
    training = bench.training("gpt", batch=8)
    work: dict[str, Callable[[], object]] = {
        "product": lambda: matrix @ matrix,
        "step": training.step,
    }

    def ratio(run: Callable[[], object]) -> float:
        bench.wait()
        begin = time.perf_counter()
        run()
        launched = time.perf_counter()
        bench.wait()
        return (time.perf_counter() - begin) / (launched - begin)

    for run in work.values():
        bench.seconds(run, 5)
    for _ in range(bench.repeats):
        yield {name: statistics.median(ratio(run) for _ in range(5)) for name, run in work.items()}


def pin_memory(bench: Bench) -> Iterator[Figures]:
    """Measure copies from pageable and from pinned memory."""
    pageable = torch.zeros(COPY_BYTES >> (8 if bench.tiny else 0), dtype=torch.uint8)
    pinned = pageable.pin_memory()
    there = torch.empty_like(pageable, device=bench.device)
    for index in range(-1, bench.repeats):  # the first is the warm-up
        slow = bench.seconds(lambda: there.copy_(pageable), 5)
        fast = bench.seconds(lambda: there.copy_(pinned), 5)
        if index >= 0:
            yield {"bandwidth": slow / fast}


class Images(IterableDataset[tuple[Tensor, int]]):  # type: ignore[misc]  # torch is not type-checked
    """Random images, each of which takes one core about ``seconds``, as decoding would."""

    def __init__(self, pixels: int, seconds: float):
        self.pixels, self.seconds = pixels, seconds

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            ends = time.thread_time() + self.seconds
            image = torch.randn(3, self.pixels, self.pixels)
            while time.thread_time() < ends:
                image = image.flip(-1)
            yield image, 0


def workers(bench: Bench) -> Iterator[Figures]:
    """Measure the share of a step that waits for the loader, with workers and without.

    There is one worker for each core except the trainer's own.
    """
    cuda = bench.device.type == "cuda"
    batch = 2 if bench.tiny else 64 if cuda else 32
    count = max(1, min(MOST_WORKERS, cores() - 1))
    training = bench.training("conv", batch=batch, amp="bf16" if cuda else "off")
    bench.seconds(training.step, 3)
    # other programs on the machine can only make it longer, so the minimum is taken
    step = min(bench.seconds(training.step) for _ in range(10))
    images = Images(64 if cuda and not bench.tiny else 32, LOAD_IN_STEPS * step / batch)
    several = {"num_workers": count, "prefetch_factor": PREFETCH, "worker_init_fn": begin_worker}
    loaders = {
        0: iter(DataLoader(images, batch)),
        count: iter(DataLoader(images, batch, **several)),
    }
    times = max(LEAST_BATCHES, 0 if bench.tiny else min(MOST_BATCHES, round(1.0 / step)))
    for index in range(bench.repeats):
        found = {}
        for number in sorted(loaders, reverse=bool(index % 2)):
            # Batches that the workers prepared before the measurement do not count.
            _epoch(bench, training, loaders[number], number * (PREFETCH + 1) + 1)
            found[number] = _epoch(bench, training, loaders[number], times)
        (idle_without, without), (idle, helped) = found[0], found[count]
        yield {
            "idle": idle / helped,
            "idle_without": idle_without / without,
            "step": without / helped,
        }


def _epoch(
    bench: Bench, training: Training, batches: Iterator[list[Tensor]], count: int
) -> tuple[float, float]:
    """Return the seconds of waiting for the loader, and in total, over ``count`` steps.

    The device is synchronized after each step, so that it is idle while the loader is waited for.
    """
    waited = 0.0
    bench.wait()
    begun = time.perf_counter()
    for _ in range(count):
        asked_at = time.perf_counter()
        for part in next(batches):
            part.to(bench.device)
        waited += time.perf_counter() - asked_at
        training.step()
        bench.wait()
    return waited, time.perf_counter() - begun


def dp_bottleneck(bench: Bench) -> Iterator[Figures]:
    """Measure the first GPU's peak against the others', and what each further thread costs.

    The latter is the time that a thread adds to launching a forward pass: 0 if the threads run at
    the same time, 1 if each waits for the one before. Each thread has one sample, so that launching
    dominates.
    """
    devices = list(range(min(4, torch.cuda.device_count())))
    training = bench.training("gpt", parallel="dp", nproc=len(devices), batch=8 * len(devices))
    alone = models.build(bench.preset("gpt"), bench.device, 0)
    replicas = replicate(alone.model, devices)
    inputs = [(alone.pool[0][:1].to(device),) for device in devices]

    def launch(run: Callable[[], object]) -> float:
        for device in devices:
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    for _ in range(bench.repeats):
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        bench.seconds(training.step, 3)
        peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
        every = statistics.median(
            launch(lambda: parallel_apply(replicas, inputs, devices=devices)) for _ in range(13)
        )
        one = statistics.median(launch(lambda: replicas[0](*inputs[0])) for _ in range(13))
        yield {
            "memory": peaks[0] / statistics.fmean(peaks[1:]),
            "gil": (every / one - 1) / (len(devices) - 1),
        }


def _half(name: str, batch: int, device: torch.device) -> Made:
    """Make a preset of the Lab whose weights and inputs are wholly in float16."""
    task = models.build(name, device, 0)
    model = task.model.half()
    parts = (part[:batch] for part in task.pool)
    inputs, targets = (part.half() if part.is_floating_point() else part.clone() for part in parts)
    # data that is only held out is not part of what training needs
    task.pool = (inputs[:0], targets[:0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=models.MODELS[name].learning_rate)
    return model, optimizer, lambda: task.criterion(model(inputs), targets)


conv_half = partial(_half, "conv-large")
gpt_half = partial(_half, "gpt-small")


def broken(batch: int, device: torch.device) -> Made:
    """Make a model whose forward pass has a graph break in the middle."""
    first, second = nn.Linear(8, 8).to(device), nn.Linear(8, 8).to(device)
    model = nn.Sequential(first, second)
    inputs = torch.randn(batch, 8, device=device)

    def forward() -> Tensor:
        between = first(inputs)
        torch._dynamo.graph_break()
        loss: Tensor = second(between).square().mean()
        return loss

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), forward


_ALL = (
    *(gradscaler_underflow, empty_cache_scope, sync_timing),
    *(pin_memory, workers, dp_bottleneck),
)
LOOPS = {loop.__name__: loop for loop in _ALL}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures one claim; prints a JSON object for each repeat."
    )
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    die_with(os.getppid())
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    with take_stdout() as stream:
        for figures in LOOPS[given.loop](Bench(device, given.repeats, given.tiny)):
            stream.write(json.dumps(figures).encode() + b"\n")
            stream.flush()


if __name__ == "__main__":
    main()
