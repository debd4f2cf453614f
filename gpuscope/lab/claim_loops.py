"""What claims need and no configuration of the Lab can express: loops of their own, and factories of odd models.

``python -m gpuscope.lab.claim_loops LOOP --device cuda --repeats N`` prints a JSON object of figures for each repeat,
or ``{"cannot": reason}``. Whatever else prints to stdout goes to stderr. It ends when its stdin does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import parallel_apply, replicate
from torch.utils.data import DataLoader, Dataset

from . import models
from .config import PRESETS, LabConfig
from .parallel import World
from .training import Training

Figures = dict[str, float | None]
Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]
COPY_BYTES = 256 << 20
MOST_WORKERS, MOST_BATCHES, LEAST_BATCHES, PREFETCH = 8, 12, 3, 2
LOAD_IN_STEPS = 2.0
"""What loading a batch costs one core, in training steps: without workers the device idles two thirds of its time."""


@dataclass(frozen=True)
class Bench:
    """Where a loop measures, how often, and whether only to see that it works."""

    device: torch.device
    repeats: int
    tiny: bool

    def training(self, model: str, **toggles: object) -> Training:
        """A training of the Lab on this device."""
        batch = {"batch": 2} if self.tiny else {}
        config = LabConfig.from_mapping({**toggles, **batch, "model": self.preset(model)})
        return Training(config, World(0, 1, 0, "", self.device))

    def preset(self, family: str) -> str:
        """The family's preset for this device; the small one where everything is to be tiny."""
        return PRESETS[family]["cpu" if self.tiny else self.device.type]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], times: int = 1) -> float:
        """Seconds that ``work`` takes; the device is waited for before and after."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - begin) / times


# ── gradients that become zero ────────────────────────────────────────────────────────────────────────────────────────


def gradscaler_underflow(bench: Bench) -> Iterator[Figures]:
    """The share of gradient elements that fp16 loses, with and without a GradScaler."""
    name = bench.preset("gpt")
    batch = 2 if bench.tiny or bench.device.type == "cpu" else models.MODELS[name].batch

    def shares(seed: int) -> Figures:
        task = models.build(name, bench.device, seed)
        optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3)

        def gradients(step: int, kind: torch.dtype | None = None, scaler: Any = None) -> list[Tensor]:
            """Those of one batch under autocast to ``kind``, as an optimizer gets them."""
            optimizer.zero_grad(set_to_none=True)
            inputs, targets = (part[step * batch : (step + 1) * batch] for part in task.pool)
            with torch.autocast(bench.device.type, dtype=kind, enabled=kind is not None):
                loss = task.criterion(task.model(inputs), targets)
            (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                still = torch.optim.SGD(task.model.parameters(), lr=0.0)
                scaler.unscale_(still)
                scaler.step(still)
                scaler.update()
            return [one.grad.clone() for one in task.model.parameters() if one.grad is not None]

        for step in range(10):
            gradients(step)
            optimizer.step()
        exact, scaler = gradients(10), torch.amp.GradScaler(bench.device.type)
        lost = _lost(exact, gradients(10, torch.float16))
        for _ in range(20):  # the scaler lowers its factor until the gradients are finite
            found = gradients(10, torch.float16, scaler)
            if all(bool(one.isfinite().all()) for one in found):
                break
        kept = _lost(exact, found)
        return {"without": lost, "with": kept, "remaining": kept / lost if lost else None}

    return (shares(seed) for seed in range(bench.repeats))


def _lost(exact: list[Tensor], found: list[Tensor]) -> float:
    """The share of the elements that are not 0 in ``exact``, but are in ``found``."""
    there = sum(int((one != 0).sum()) for one in exact)
    gone = sum(int(((one != 0) & (other == 0)).sum()) for one, other in zip(exact, found, strict=True))
    return gone / there


# ── memory, clocks and copies of a GPU ────────────────────────────────────────────────────────────────────────────────


def empty_cache_scope(bench: Bench) -> Iterator[Figures]:
    """What ``empty_cache()`` gives back to the driver, and what it leaves."""
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
    """Bytes allocated and reserved in this process, and free on the device in the driver's view."""
    bench.wait()
    device = bench.device
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)[0]


def sync_timing(bench: Bench) -> Iterator[Figures]:
    """The time that work takes, over the time a clock shows that does not wait for the device."""
    side = 512 if bench.tiny else 8192
    matrix = torch.randn(side, side, device=bench.device)
    training = bench.training("gpt", batch=8)
    work: dict[str, Callable[[], object]] = {"product": lambda: matrix @ matrix, "step": training.step}

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
    """Copies from pageable and from pinned memory."""
    pageable = torch.zeros(COPY_BYTES >> (8 if bench.tiny else 0), dtype=torch.uint8)
    pinned = pageable.pin_memory()
    there = torch.empty_like(pageable, device=bench.device)
    for index in range(-1, bench.repeats):  # the first is the warm-up
        took = [bench.seconds(lambda: there.copy_(pageable), 5), bench.seconds(lambda: there.copy_(pinned), 5)]
        if index >= 0:
            yield {"bandwidth": took[0] / took[1]}


# ── a loader whose work is known ──────────────────────────────────────────────────────────────────────────────────────


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


def workers(bench: Bench) -> Iterator[Figures]:
    """The share of a step that waits for the loader, with a worker for each core but the trainer's own and without."""
    cuda = bench.device.type == "cuda"
    batch = 2 if bench.tiny else 64 if cuda else 32
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(1, min(MOST_WORKERS, cores - 1))
    training = bench.training("conv", batch=batch, amp="bf16" if cuda else "off")
    bench.seconds(training.step, 3)
    step = min(bench.seconds(training.step) for _ in range(10))  # others of the machine can only make it longer
    pixels = 64 if cuda and not bench.tiny else 32
    images = Images(pixels, LOAD_IN_STEPS * step / batch)
    loaders = {
        number: iter(DataLoader(images, batch, num_workers=number, prefetch_factor=PREFETCH if number else None))
        for number in (0, count)
    }
    times = LEAST_BATCHES if bench.tiny else max(LEAST_BATCHES, min(MOST_BATCHES, round(1.0 / step)))
    for index in range(bench.repeats):
        found = {}
        for number in sorted(loaders, reverse=bool(index % 2)):
            # What the workers had prepared while they were not asked is no part of their pace.
            _epoch(bench, training, loaders[number], number * (PREFETCH + 1) + 1)
            found[number] = _epoch(bench, training, loaders[number], times)
        shares = {number: waited / total for number, (waited, total) in found.items()}
        yield {"idle": shares[count], "idle_without": shares[0], "step": found[0][1] / found[count][1]}


def _epoch(bench: Bench, training: Training, batches: Iterator[list[Tensor]], count: int) -> tuple[float, float]:
    """Seconds waited for the loader, and in all, over ``count`` steps. The device is waited for after each step, so
    that it idles while the loader is waited for."""
    waited = 0.0
    bench.wait()
    begun = time.perf_counter()
    for _ in range(count):
        asked = time.perf_counter()
        for part in next(batches):
            part.to(bench.device)
        waited += time.perf_counter() - asked
        training.step()
        bench.wait()
    return waited, time.perf_counter() - begun


# ── DataParallel ──────────────────────────────────────────────────────────────────────────────────────────────────────


def dp_bottleneck(bench: Bench) -> Iterator[Figures]:
    """Peak memory of the first GPU against the others, and what threads add to launching a forward pass: 0 where they
    run beside each other, 1 where each waits for the one before. One sample each: launching sets the pace."""
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

    runs: list[Callable[[], object]] = [
        lambda: parallel_apply(replicas, inputs, devices=devices),
        lambda: replicas[0](*inputs[0]),
    ]
    for _ in range(bench.repeats):
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        bench.seconds(training.step, 3)
        peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
        every, one = (statistics.median(launch(run) for _ in range(13)) for run in runs)
        yield {"memory": peaks[0] / statistics.fmean(peaks[1:]), "gil": (every / one - 1) / (len(devices) - 1)}


# ── factories: what a cell of a claim may name as its model ───────────────────────────────────────────────────────────


def _preset(name: str, batch: int, device: torch.device, half: bool) -> Made:
    task = models.build(name, device, 0)
    model = task.model.half() if half else task.model
    inputs, targets = (part[:batch].clone() for part in task.pool)
    task.pool = (inputs[:0], targets[:0])  # what is not trained on is no part of what training needs
    if half:
        inputs, targets = (part.half() if part.is_floating_point() else part for part in (inputs, targets))
    optimizer = torch.optim.AdamW(model.parameters(), lr=models.MODELS[name].learning_rate)
    return model, optimizer, lambda: task.criterion(model(inputs), targets)


def conv_single(batch: int, device: torch.device) -> Made:
    return _preset("conv-large", batch, device, half=False)


def conv_half(batch: int, device: torch.device) -> Made:
    return _preset("conv-large", batch, device, half=True)


def gpt_single(batch: int, device: torch.device) -> Made:
    return _preset("gpt-small", batch, device, half=False)


def gpt_half(batch: int, device: torch.device) -> Made:
    return _preset("gpt-small", batch, device, half=True)


def _layers(width: int, batch: int, device: torch.device) -> Made:
    layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)]
    model = nn.Sequential(*layers).to(device)
    inputs, targets = torch.randn(batch, width, device=device), torch.randn(batch, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, lambda: functional.mse_loss(model(inputs), targets)


def width_16(batch: int, device: torch.device) -> Made:
    return _layers(16, batch, device)


def width_1024(batch: int, device: torch.device) -> Made:
    return _layers(1024, batch, device)


def broken(batch: int, device: torch.device) -> Made:
    """Its forward pass has a graph break in the middle."""
    model, optimizer, _ = _layers(8, batch, device)
    inputs = torch.randn(batch, 8, device=device)

    def forward() -> Tensor:
        between = model[0](inputs)
        torch._dynamo.graph_break()
        loss: Tensor = model[2](between).square().mean()
        return loss

    return model, optimizer, forward


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────

LOOPS = {
    loop.__name__: loop
    for loop in (gradscaler_underflow, empty_cache_scope, sync_timing, pin_memory, workers, dp_bottleneck)
}


def end_with_parent() -> None:
    """Runs in a thread: stdin ends when whoever started this process is gone; then its whole group goes too."""
    while os.read(0, 4096):
        pass
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures one claim; prints a JSON object for each repeat.")
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    threading.Thread(target=end_with_parent, daemon=True).start()
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    bench = Bench(device, given.repeats, given.tiny)
    if given.loop == "gradscaler_underflow" and not hasattr(torch.amp, "GradScaler"):
        print(json.dumps({"cannot": f"torch {torch.__version__} has no GradScaler for a CPU"}), file=stream)
        return 0
    for figures in LOOPS[given.loop](bench):
        found = {key: value if value is not None and math.isfinite(value) else None for key, value in figures.items()}
        print(json.dumps(found), file=stream, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
