"""Claims about the device: how much faster a GPU is, where it is not, and how to time it."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from .bench import Bench, Loop, in_turn, main, release, wait_for

CPU = torch.device("cpu")
BATCHES = {"mlp": 512, "conv": 16, "gpt": 4}
"""Samples a step for both devices: small enough that a CPU ends, large enough that a GPU has work."""
WIDTHS = (16, 64, 256, 1024, 4096)


def gpu_vs_cpu(bench: Bench) -> None:
    bench.note("CPU threads", float(torch.get_num_threads()))
    for left, (family, batch) in zip((3, 2, 1), BATCHES.items(), strict=True):
        preset = bench.preset(family)
        loops = {device.type: Loop(preset, device, batch=bench.batch(batch)) for device in (CPU, bench.device)}
        sides = {name: (loop.step, loop.device) for name, loop in loops.items()}
        for took in in_turn(bench, sides, seconds=0.02 if bench.tiny else 0.1, share=1 / left):
            bench.value(family, took["cpu"] / took["cuda"])
        bench.note(f"{preset}: step on the GPU", took["cuda"] * 1e3, "ms")
        del loops, sides
        release()


def tiny_model(bench: Bench) -> None:
    widths = WIDTHS[:2] if bench.tiny else WIDTHS
    ratios = {width: _width(bench, width, 1 / (len(widths) - at)) for at, width in enumerate(widths)}
    for ratio in ratios[widths[0]]:
        bench.value("tiny", ratio)
    for curve in zip(*ratios.values()):  # noqa: B905  # the time may have ended before the last width had them all
        bench.value("crossing", crossing(widths, curve))
    for width, measured in ratios.items():
        bench.note(f"width {width:,}: CPU / GPU", math.exp(statistics.fmean(map(math.log, measured))), "×")


def _width(bench: Bench, width: int, share: float) -> list[float]:
    """CPU step time over GPU step time, one for each repeat."""
    sides = {device.type: (_mlp_step(width, device), device) for device in (CPU, bench.device)}
    return [took["cpu"] / took["cuda"] for took in in_turn(bench, sides, 0.01 if bench.tiny else 0.06, share)]


def _mlp_step(width: int, device: torch.device) -> Callable[[], object]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = torch.randn(32, width, device=device), torch.randn(32, width, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def crossing(widths: tuple[int, ...], ratios: tuple[float, ...]) -> float | None:
    """The width at which ``ratios`` (CPU / GPU) passes 1 for good, between the widths on a logarithmic scale; None
    where it does not pass 1 within them."""
    for index in range(len(ratios) - 1, 0, -1):
        low, high = math.log(ratios[index - 1]), math.log(ratios[index])
        if low <= 0 < high:
            share = -low / (high - low)
            return math.exp((1 - share) * math.log(widths[index - 1]) + share * math.log(widths[index]))
    return None


def sync_timing(bench: Bench) -> None:
    side = 512 if bench.tiny else 8192
    matrix = torch.randn(side, side, device=bench.device)
    loop = Loop(bench.preset("gpt"), bench.device, batch=bench.batch(8))
    work: dict[str, Callable[[], object]] = {"product": lambda: matrix @ matrix, "step": loop.step}
    for name, run in work.items():
        for _ in range(5):
            run()
        for _ in bench.repeats(share=0.5):
            pairs = [_with_and_without(run, bench.device) for _ in range(5)]
            bench.value(name, statistics.median(real / shown for real, shown in pairs))
        real, shown = pairs[-1]
        bench.note(f"{name}: timed right", real * 1e3, "ms")
        bench.note(f"{name}: timed without synchronize", shown * 1e3, "ms")


def _with_and_without(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds that ``run`` really takes, and those a clock shows that does not wait for the device."""
    wait_for(device)
    begin = time.perf_counter()
    run()
    launched = time.perf_counter()
    wait_for(device)
    return time.perf_counter() - begin, launched - begin


MEASURES = {"gpu-vs-cpu": gpu_vs_cpu, "tiny-model": tiny_model, "sync-timing": sync_timing}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
