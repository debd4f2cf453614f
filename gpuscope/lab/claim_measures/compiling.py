"""Claims about torch.compile: speed, warm-up, and what fullgraph refuses."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .bench import WARM_SECONDS, Bench, Cannot, Loop, fitted, in_turn, main, release, wait_for, window
from .sides import Side

BLOCKS = 4
"""Of gpt-small's 12: compiling takes a third of the time, and the blocks are alike."""
COLD_REPEATS = 3


def compile_warmup(bench: Bench) -> None:
    _check(bench)
    eager = _loop(bench)
    for index in bench.repeats(COLD_REPEATS):
        with fresh_caches():
            torch._dynamo.reset()
            compiled = _loop(bench, "default")
            wait_for(bench.device)
            begin = time.perf_counter()
            compiled.step()
            wait_for(bench.device)
            first = time.perf_counter() - begin
            later = {name: _steady(loop, bench) for name, loop in (("eager", eager), ("compiled", compiled))}
        bench.value("first", first / later["compiled"])
        bench.value("seconds", first)
        bench.value("gain", later["eager"] / later["compiled"])
        if not index:
            bench.note("steps until compiling has paid", break_even(first, later["eager"], later["compiled"]))
        del compiled
        release()


def break_even(first: float, eager: float, compiled: float) -> float | str:
    """The step by which a compiled run has caught up with an eager one, in words where it never does: ``first`` seconds
    go to the first step, every later one saves ``eager − compiled``."""
    return 1 + (first - eager) / (eager - compiled) if eager > compiled else "never: compiled steps are no faster"


def compile_speed(bench: Bench) -> None:
    _check(bench)
    modes = ["default", "reduce-overhead", "max-autotune"]
    if not bench.cuda or bench.tiny:  # without graphs and GPU kernels to choose from, the others are the default
        modes = modes[: 2 if bench.cuda else 1]
    torch._dynamo.reset()
    eager = _loop(bench)
    for left, mode in zip(range(len(modes), 0, -1), modes, strict=True):
        begin = time.perf_counter()
        with bench.apart():
            compiled = _loop(bench, mode)
            for _ in range(4):  # reduce-overhead records its graphs in the second and third
                compiled.step()
            wait_for(bench.device)
        bench.note(f"{mode}: first four steps, compiling included", time.perf_counter() - begin, "s")
        sides = {"eager": (eager.step, bench.device), "compiled": (compiled.step, bench.device)}
        for took in in_turn(bench, sides, share=1 / left):
            bench.value(mode, took["eager"] / took["compiled"])
        del compiled, sides
        release()
    bench.note("eager step", took["eager"] * 1e3, "ms")


def compile_fullgraph(bench: Bench) -> None:
    _check(bench)
    # Within one process the second to be compiled would be handed the graph of the first.
    sides = {whole: Side(Compiled, bench.device.type, bench.tiny, whole) for whole in (False, True)}
    try:
        for _ in bench.repeats(COLD_REPEATS):
            bench.value("refuses", float(_refuses_a_break(bench.device)))
        with bench.apart():
            for side in sides.values():
                side.ready()
        for index in bench.repeats():
            took = {whole: sides[whole].ask() for whole in ((False, True) if index % 2 else (True, False))}
            bench.value("speed", took[False] / took[True])
    finally:
        for side in sides.values():
            side.close()


class Compiled:
    """Steady steps of a compiled loop, in a process of its own."""

    def __init__(self, device: str, tiny: bool, fullgraph: bool):
        place = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        bench = Bench("", place, lambda _: None, tiny=tiny)
        self.loop = _loop(bench, "default", fullgraph)
        self.steps = fitted(self.loop.step, bench.device, bench.window, 0.0 if tiny else WARM_SECONDS[device])

    def __call__(self) -> float:
        """Seconds a step takes."""
        window(self.loop.step, 2, self.loop.device)
        return window(self.loop.step, self.steps, self.loop.device)


def _refuses_a_break(device: torch.device) -> bool:
    """Whether fullgraph raises for a model with a break that the default mode runs through."""
    torch._dynamo.reset()
    inputs = torch.randn(4, 8, device=device)
    kwargs: dict[str, Any] = {"backend": "eager"}  # breaks are found before any backend sees the graph
    torch.compile(Breaking(device), **kwargs)(inputs)
    torch._dynamo.reset()  # or it would be handed what was compiled in pieces
    try:
        torch.compile(Breaking(device), fullgraph=True, **kwargs)(inputs)
    except torch._dynamo.exc.Unsupported:
        return True
    return False


class Breaking(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A model with a graph break in its middle."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, device=device) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        torch._dynamo.graph_break()
        y: Tensor = self.layers[1](x)
        return y


def _check(bench: Bench) -> None:
    if not hasattr(torch, "compile"):
        raise Cannot(f"torch {torch.__version__} has no torch.compile")
    if sys.version_info >= (3, 12) and torch.__version__.startswith(("2.1.", "2.2.", "2.3.")):
        raise Cannot(
            f"torch {torch.__version__} cannot compile under Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    if bench.cuda:
        if torch.cuda.get_device_capability(bench.device) < (7, 0):
            raise Cannot("torch.compile needs a GPU of compute capability 7.0 or newer")
        if importlib.util.find_spec("triton") is None:
            raise Cannot("torch.compile needs triton for a GPU, and this Python has none")
    elif not _has_compiler():
        raise Cannot("torch.compile needs a C++ compiler for a CPU, and there is none: install g++")
    elif " " in torch.__file__:
        raise Cannot(f"torch.compile fails on a CPU where torch's path has a blank in it: {torch.__file__}")


def _has_compiler() -> bool:
    try:
        from torch._inductor import cpp_builder, exc
    except ImportError:  # torch before 2.5
        return shutil.which(os.environ.get("CXX", "g++")) is not None
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return False
    return True


def _loop(bench: Bench, mode: str = "off", fullgraph: bool = False) -> Loop:
    graphs = mode in ("reduce-overhead", "max-autotune")

    def change(model: nn.Module) -> nn.Module:
        if len(model.blocks) > BLOCKS:
            model.blocks = type(model.blocks)(*list(model.blocks)[:BLOCKS])
        return model if mode == "off" else torch.compile(model, mode=mode, fullgraph=fullgraph)

    amp = bench.mixed if bench.cuda else "off"
    loop = Loop(bench.preset("gpt"), bench.device, batch=bench.batch(8), amp=amp, change=change)
    if graphs:
        plain = loop.step

        def step() -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()
            return plain()

        loop.step = step  # type: ignore[method-assign]
    return loop


def _steady(loop: Loop, bench: Bench) -> float:
    """Median seconds of later steps, each waited for."""
    took = []
    for _ in range(23):
        begin = time.perf_counter()
        loop.step()
        wait_for(bench.device)
        took.append(time.perf_counter() - begin)
    return sorted(took[3:])[10]


def fresh_caches() -> AbstractContextManager[None]:
    """An empty inductor cache, on disk and in memory, thrown away at the end."""
    from torch._inductor import utils

    make: Callable[[], AbstractContextManager[None]] = (
        utils.fresh_cache if hasattr(utils, "fresh_cache") else utils.fresh_inductor_cache
    )
    return make()


MEASURES = {
    "compile-warmup": compile_warmup,
    "compile-speed": compile_speed,
    "compile-fullgraph": compile_fullgraph,
}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
