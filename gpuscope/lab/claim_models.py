"""Make what claims train beyond the presets: factories that the Lab's runner can train.

Where a claim is not about the speed or the memory of a training, the loss of its model is the
figure itself (:func:`reading`). So its runs are made, repeated and kept like all others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate
from torch.utils.data import DataLoader, IterableDataset

from . import models
from .config import PRESETS, LabConfig
from .device_selection import cores
from .loaders import begin_worker
from .parallel import World
from .training import Training

Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]
LAUNCHES = 13
MOST_WORKERS, PREFETCH = 8, 2
LOAD_IN_STEPS = 2.0
"""Time that loading a batch takes one core, in training steps.

Without workers the device is therefore idle for two thirds of its time.
"""


def reading(measure: Callable[[], float], device: torch.device) -> Made:
    """Make a model whose loss is what ``measure`` returns; its one layer stays as it is."""
    model = nn.Linear(1, 1).to(device)

    def forward() -> Tensor:
        return 0.0 * model.bias.sum() + measure()

    return model, torch.optim.SGD(model.parameters(), lr=0.0), forward


def _training(model: str, device: torch.device, batch: int, **toggles: object) -> Training:
    config = LabConfig.from_mapping({**toggles, "model": model, "batch": batch})
    return Training(config, World(0, 1, 0, "", device))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fp16_lost(batch: int, device: torch.device, scaled: bool = False) -> Made:
    """Measure the share of gradient elements that fp16 loses after ten steps in float32."""
    task = models.build(PRESETS["gpt"][device.type], device, torch.initial_seed())
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)

    def gradients(step: int, half: bool = False) -> list[Tensor]:
        """Return one batch's gradients as an optimizer gets them."""
        optimizer.zero_grad(set_to_none=True)
        inputs, targets = (part[step * batch : (step + 1) * batch] for part in task.pool)
        torch.clear_autocast_cache()
        with torch.autocast(device.type, torch.float16, enabled=half):
            loss = task.criterion(task.model(inputs), targets)
        if half:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.update()
        else:
            loss.backward()
        return [one.grad.clone() for one in task.model.parameters() if one.grad is not None]

    def lost() -> float:
        # the Lab's own autocast would also reach into the backward passes
        with torch.autocast(device.type, enabled=False):
            for step in range(10):
                gradients(step)
                optimizer.step()
            exact, found = gradients(10), gradients(10, half=True)
            for _ in range(19 if scaled else 0):  # it lowers its factor until they are finite
                if all(bool(one.isfinite().all()) for one in found):
                    break
                found = gradients(10, half=True)
            return share_lost(exact, found)

    return reading(lost, device)


fp16_lost_scaled = partial(fp16_lost, scaled=True)


def share_lost(exact: list[Tensor], found: list[Tensor]) -> float:
    """Return the share of the elements that are not 0 in ``exact`` but 0 in ``found``."""
    there = sum(int((one != 0).sum()) for one in exact)
    pairs = zip(exact, found, strict=True)
    return sum(int(((one != 0) & (other == 0)).sum()) for one, other in pairs) / there


def _cache(figure: Callable[[int, int, int, int], float], batch: int, device: torch.device) -> Made:
    """Measure what ``empty_cache()`` does to the memory, as a ``figure`` of four amounts of bytes.

    They are how many more are allocated than before, how many were cached, how many fewer are
    reserved, and how many more the driver calls free.
    """
    training = _training("gpt", device, batch)

    def counts() -> tuple[int, int, int]:
        _wait(device)
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        return allocated, reserved, torch.cuda.mem_get_info()[0]

    def measure() -> float:
        training.step()
        training.step()
        training.work.optimizer.zero_grad(set_to_none=True)
        allocated, reserved, free = counts()
        torch.cuda.empty_cache()
        after = counts()
        return figure(
            after[0] - allocated, reserved - allocated, reserved - after[1], after[2] - free
        )

    return reading(measure, device)


cache_allocated = partial(_cache, lambda more, cached, returned, freed: more)
cache_returned = partial(_cache, lambda more, cached, returned, freed: returned / cached)
cache_driver = partial(_cache, lambda more, cached, returned, freed: freed / returned)


def _unsynchronized(run: Callable[[], object], device: torch.device) -> Made:
    """Measure the true duration of ``run`` against a clock that does not wait for the device."""

    def ratio() -> float:
        _wait(device)
        begin = time.perf_counter()
        run()
        launched = time.perf_counter()
        _wait(device)
        return (time.perf_counter() - begin) / (launched - begin)

    for _ in range(5):  # the warm-up
        run()
    return reading(lambda: statistics.median(ratio() for _ in range(5)), device)


def product_unsynchronized(batch: int, device: torch.device) -> Made:
    """Time a product of matrices with ``batch`` rows and columns."""
    matrix = torch.randn(batch, batch, device=device)
    return _unsynchronized(lambda: matrix @ matrix, device)


def step_unsynchronized(batch: int, device: torch.device) -> Made:
    return _unsynchronized(_training("gpt", device, batch).step, device)


def copies(batch: int, device: torch.device, pinned: bool = False) -> Made:
    """Copy ``batch`` MiB to the device in each step."""
    source = torch.zeros(batch << 20, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty_like(source, device=device)

    def copy() -> float:
        there.copy_(source)
        return 0.0

    return reading(copy, device)


pinned_copies = partial(copies, pinned=True)


class Images(IterableDataset[tuple[Tensor, int]]):  # type: ignore[misc]  # torch is not type-checked
    """Random images, each of which takes one core ``seconds``, as decoding would."""

    def __init__(self, pixels: int, seconds: float):
        self.pixels, self.seconds = pixels, seconds

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            ends = time.thread_time() + self.seconds
            image = torch.randn(3, self.pixels, self.pixels)
            while time.thread_time() < ends:
                image = image.flip(-1)
            yield image, 0


def loaded(batch: int, device: torch.device, workers: int = 0) -> Made:
    """Measure the share of the time that waits for the loader.

    The device is synchronized after each step, so that it is idle while the loader is waited for.
    """
    cuda = device.type == "cuda"
    training = _training("conv", device, batch, amp="bf16" if cuda else "off")

    def step(clock: Callable[[], float] = time.perf_counter) -> float:
        begin = clock()
        training.step()
        _wait(device)
        return clock() - begin

    for _ in range(3):  # the warm-up
        step()
    # A step that no worker slows down. Other programs can only make it longer: hence the shortest,
    # and on a CPU in time on the core, as loading is counted, without the waits for a core.
    alone = min(step(time.perf_counter if cuda else time.thread_time) for _ in range(20))
    images = Images(64 if cuda else 32, LOAD_IN_STEPS * alone / batch)
    several = {"num_workers": workers, "prefetch_factor": PREFETCH, "worker_init_fn": begin_worker}
    batches = iter(DataLoader(images, batch, **(several if workers else {})))
    waited = trained = 0.0

    def share() -> float:
        nonlocal waited, trained
        begin = time.perf_counter()
        for part in next(batches):
            part.to(device)
        waited += time.perf_counter() - begin
        trained += step()
        return waited / (waited + trained)

    for _ in range(workers * (PREFETCH + 1) + 1):
        share()
    waited = trained = 0.0  # what the workers had prepared before the first step does not count
    return reading(share, device)


loaded_by_workers = partial(loaded, workers=max(1, min(MOST_WORKERS, cores() - 1)))


def dp_memory(batch: int, device: torch.device) -> Made:
    """Measure the first GPU's peak under DataParallel against the mean of the others'."""
    devices = range(min(4, torch.cuda.device_count()))
    count = len(devices)
    training = _training("gpt", device, batch * count, parallel="dp", nproc=count)

    def measure() -> float:
        for index in devices:
            torch.cuda.reset_peak_memory_stats(index)
        for _ in range(3):
            training.step()
        _wait(device)
        first, *others = (torch.cuda.max_memory_allocated(index) for index in devices)
        return float(first / statistics.fmean(others))

    return reading(measure, device)


def dp_launches(batch: int, device: torch.device) -> Made:
    """Measure what each further thread adds to launching a forward pass.

    That is 0 if the threads run at the same time, and 1 if each waits for the one before. A small
    batch makes sure that launching dominates.
    """
    devices = list(range(min(4, torch.cuda.device_count())))
    task = models.build(PRESETS["gpt"][device.type], device, 0)
    replicas = replicate(task.model, devices)
    inputs = [(task.pool[0][:batch].to(index),) for index in devices]

    def launch(run: Callable[[], object]) -> float:
        for index in devices:
            torch.cuda.synchronize(index)
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def median(run: Callable[[], object]) -> float:
        return statistics.median(launch(run) for _ in range(LAUNCHES))

    def measure() -> float:
        every = median(lambda: parallel_apply(replicas, inputs, devices=devices))
        return (every / median(lambda: replicas[0](*inputs[0])) - 1) / (len(devices) - 1)

    return reading(measure, device)


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
