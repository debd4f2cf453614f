"""Claims about cuDNN's switches: benchmark and deterministic."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

# Deterministic cuBLAS needs a workspace of fixed size, and reads this when its first handle is made.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional

from .bench import WARM_SECONDS, Bench, Loop, fitted, in_turn, main, release, window
from .sides import Side

# ── benchmark ─────────────────────────────────────────────────────────────────────────────────────────────────────────
# torch keeps the algorithm it has chosen for a shape, whichever way it chose: within one process the switch would do
# nothing for a shape that was seen before. So each setting has a process of its own, and they are asked in turn.


class Convolutions:
    """Training steps of the conv model with ``cudnn.benchmark`` on or off, at one shape or at shapes never seen."""

    def __init__(self, preset: str, batch: int, benchmark: bool, seconds: float):
        torch.backends.cudnn.benchmark = benchmark
        self.device = torch.device("cuda", 0)
        self.loop = Loop(preset, self.device, batch=batch)
        self.small = max(1, batch // 8)
        self.steps = fitted(self.loop.step, self.device, seconds, WARM_SECONDS["cuda"])

    def __call__(self, sizes: tuple[int, ...]) -> float:
        """Seconds a step takes: at the fixed shape, or one step for each of ``sizes`` (pixels) where some are given."""
        if not sizes:
            window(self.loop.step, 2, self.device)  # the other process had the GPU until now
            return window(self.loop.step, self.steps, self.device)
        pictures = iter([torch.randn(self.small, 3, size, size, device=self.device) for size in sizes])
        targets = torch.zeros(self.small, dtype=torch.int64, device=self.device)

        def step() -> None:
            self.loop.optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(self.loop.model(next(pictures)), targets).backward()
            self.loop.optimizer.step()

        return window(step, len(sizes), self.device)


def cudnn_benchmark(bench: Bench) -> None:
    if not torch.backends.cudnn.is_available():
        raise RuntimeError("this torch has no cuDNN")
    arguments = (bench.preset("conv"), bench.batch(256))
    sides = {switch: Side(Convolutions, *arguments, switch, bench.window) for switch in (False, True)}
    try:
        with bench.apart():
            for side in sides.values():
                side.ready()
        for index in bench.repeats(share=0.6):
            took = {on: sides[on].ask(()) for on in _order(index)}
            bench.value("fixed", took[False] / took[True])
        bench.note("fixed shapes, off", took[False] * 1e3, "ms")
        for index in bench.repeats():
            sizes = tuple(range(66 + 4 * index, 66 + 4 * index + (2 if bench.tiny else 4)))
            took = {on: sides[on].ask(sizes) for on in _order(index)}
            bench.value("changing", took[False] / took[True])
        bench.note("new shapes, off", took[False] * 1e3, "ms")
    finally:
        for side in sides.values():
            side.close()


def _order(index: int) -> tuple[bool, bool]:
    return (False, True) if index % 2 == 0 else (True, False)


# ── deterministic ─────────────────────────────────────────────────────────────────────────────────────────────────────


def cudnn_deterministic(bench: Bench) -> None:
    preset, batch = bench.preset("conv"), bench.batch(64 if bench.cuda else 16)
    steps = 3 if bench.tiny else 10
    try:
        for seed in bench.repeats(share=0.6):
            for on, figure in ((True, "equal"), (False, "equal_without")):
                _deterministic(on)
                first, second = (_losses(preset, batch, seed, steps, bench.device) for _ in range(2))
                bench.value(figure, float(first == second))
        loops = {}
        for on in (True, False):
            _deterministic(on)
            loops[on] = Loop(preset, bench.device, batch=batch)
            loops[on].step()

        def side(on: bool) -> Callable[[], Any]:
            def step() -> None:
                _deterministic(on)
                loops[on].step()

            return step

        for took in in_turn(bench, {"off": (side(False), bench.device), "on": (side(True), bench.device)}):
            bench.value("cost", took["on"] / took["off"])
    finally:
        _deterministic(False)


def _deterministic(on: bool) -> None:
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on


def _losses(preset: str, batch: int, seed: int, steps: int, device: torch.device) -> list[float]:
    """The loss of every step of a run from ``seed``; equal numbers are equal bits."""
    loop = Loop(preset, device, batch=batch, seed=seed)
    losses = torch.stack([loop.step() for _ in range(steps)]).tolist()
    del loop
    release()
    return [float(loss) for loss in losses]


MEASURES = {"cudnn-benchmark": cudnn_benchmark, "cudnn-deterministic": cudnn_deterministic}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
