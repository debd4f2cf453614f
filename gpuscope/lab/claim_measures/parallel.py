"""Claims about several GPUs: DataParallel, DistributedDataParallel, and how far each carries."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel, parallel_apply, replicate

from ...text.units import GIB
from .bench import AMP_TYPES, Bench, Cannot, Loop, release, wait_for, window
from .ranks import World, main

LARGE = (("gpt-1.3b", 110 * GIB), ("gpt-large", 75 * GIB), ("gpt-medium", 32 * GIB), ("gpt-small", 0))
"""What is trained for scaling, and the free memory it needs: rank 0 has the model three times, alone and in 2 DDPs."""
STEP_SECONDS = 0.2
"""The micro-batch is doubled until a step takes this long: the exchange of gradients needs work to hide behind."""
MOST_SAMPLES = 8
PEAK_REPEATS = 3


def _ddp(world: World, size: int) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        devices = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(
            model, device_ids=devices, process_group=world.groups[size], gradient_as_bucket_view=True
        )

    return wrap


class Autocast(nn.Module):  # type: ignore[misc]  # torch is not type-checked
    """A model that casts by itself. DataParallel runs its replicas in threads, and the type of autocast is a thread's
    own: under bf16 around it, the replicas would compute in fp16."""

    def __init__(self, model: nn.Module, kind: torch.dtype):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=self.kind):
            output: Tensor = self.model(inputs)
            return output


def _data_parallel(bench: Bench, world: World) -> Callable[[nn.Module], nn.Module]:
    kind = AMP_TYPES[bench.mixed]
    return lambda model: nn.DataParallel(Autocast(model, kind), device_ids=list(range(world.size)))


def _need_two(world: World) -> None:
    if world.device.type != "cuda":
        raise Cannot("needs 2 CUDA devices: DataParallel passes everything through on a CPU")


def dp_vs_ddp(bench: Bench, world: World) -> None:
    _need_two(world)
    micro, preset = bench.batch(8), bench.preset("gpt")
    ddp = Loop(preset, world.device, batch=micro, amp=bench.mixed, seed=world.rank, change=_ddp(world, world.size))
    step = None
    if world.rank == 0:
        batch = micro * world.size
        bench.configuration(
            f"{preset} {bench.mixed}, global batch {batch} on {world.size} GPUs, AdamW; windows in turn"
        )
        step = Loop(preset, world.device, batch=batch, amp=bench.mixed, change=_data_parallel(bench, world)).step
    for took in world.in_turn(bench, {"dp": step, "ddp": ddp.step}, 0.02 if bench.tiny else 0.6):
        bench.value("ratio", took["dp"] / took["ddp"])
    bench.note("step with DataParallel", took["dp"] * 1e3, "ms")
    bench.note("step with DDP", took["ddp"] * 1e3, "ms")


def dp_bottleneck(bench: Bench, world: World) -> None:
    _need_two(world)
    if world.rank == 0:
        _memory_of_each(bench, world)
        _one_after_the_other(bench, world)
        _overhead(bench, world)
    world.hold()


def _memory_of_each(bench: Bench, world: World) -> None:
    devices = range(world.size)
    for _ in bench.repeats(PEAK_REPEATS, share=0.3):
        loop = _dp_loop(bench, world)
        loop.keep_one_step()
        release()
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(3):
            loop.step()
        for device in devices:
            torch.cuda.synchronize(device)
        peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
        bench.value("memory", peaks[0] / statistics.fmean(peaks[1:]))
        del loop
    bench.note("peak allocated on GPU 0", peaks[0] / GIB, "GiB")


def _dp_loop(bench: Bench, world: World) -> Loop:
    batch = bench.batch(8) * world.size
    return Loop(bench.preset("gpt"), world.device, batch=batch, amp=bench.mixed, change=_data_parallel(bench, world))


def _one_after_the_other(bench: Bench, world: World) -> None:
    """The host's time to launch the forward of all replicas in threads, against that of one: each further thread adds 0
    where they run beside each other, 1 where each waits for the one before, and more where they get in each other's
    way. One sample each: launching sets the pace."""
    devices = list(range(world.size))
    kind = AMP_TYPES[bench.mixed]
    loop = Loop(bench.preset("gpt"), world.device, batch=1, change=lambda model: Autocast(model, kind))
    inputs = [(loop.next_batch()[0].to(device),) for device in devices]
    replicas = replicate(loop.model, devices)

    def every() -> object:
        return parallel_apply(replicas, inputs, devices=devices)

    def one() -> object:
        return replicas[0](*inputs[0])

    for run in (every, one):
        for _ in range(3):
            _launch(run, devices)
    for _ in bench.repeats(share=0.5):
        took = {run: statistics.median(_launch(run, devices) for _ in range(10)) for run in (every, one)}
        bench.value("gil", (took[every] / took[one] - 1) / (world.size - 1))
    bench.note("launching one forward", took[one] * 1e3, "ms")


def _launch(run: Callable[[], object], devices: list[int]) -> float:
    """Seconds until ``run`` returns, from idle GPUs; their own work is not waited for."""
    for device in devices:
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _overhead(bench: Bench, world: World) -> None:
    many = _dp_loop(bench, world)
    alone = Loop(bench.preset("gpt"), world.device, batch=bench.batch(8), amp=bench.mixed)
    for loop in (many, alone):
        window(loop.step, 5, world.device)
    for index in bench.repeats():
        took = {loop: window(loop.step, 5, world.device) for loop in ((many, alone) if index % 2 else (alone, many))}
        bench.value("overhead", 1 - took[alone] / took[many])


def ddp_scaling(bench: Bench, world: World) -> None:
    preset = _large(bench, world)
    amp = bench.mixed if bench.cuda else "off"
    sizes = [size for size in (2, 4) if size in world.groups]
    sides: dict[str, Callable[[], object] | None] = {"1": None}
    with bench.apart():
        alone = None
        if world.rank == 0:
            alone = Loop(preset, world.device, batch=None if bench.cuda else bench.batch(128), amp=amp)
            sides["1"] = alone.step
        micro = int(world.share(_micro_batch(bench, alone) if alone else 0))
        for size in sizes:
            sides[str(size)] = None
            if world.rank < size:
                wrap = _ddp(world, size)
                sides[str(size)] = Loop(preset, world.device, batch=micro, amp=amp, seed=world.rank, change=wrap).step
    bench.configuration(
        f"{preset} {amp if bench.cuda else 'float32'}, {micro} samples in each process, weak scaling over "
        f"{'NCCL' if bench.cuda else f'gloo, {torch.get_num_threads()} threads each'}, AdamW; windows in turn"
    )
    count = 0
    for took in world.in_turn(bench, sides, 0.05 if bench.tiny else 2.0 if bench.cuda else 0.4):
        count += 1
        for size in sizes:
            bench.value(str(size), took["1"] / took[str(size)])
    bench.note("windows on each side", float(count))
    for name, seconds in took.items():
        bench.note(f"step of {name} process{'' if name == '1' else 'es'}", seconds * 1e3, "ms")
    wait_for(world.device)


def _large(bench: Bench, world: World) -> str:
    if not bench.cuda:
        return "mlp-small"
    if bench.tiny:
        return bench.preset("gpt")
    free = world.least(torch.cuda.mem_get_info(world.device)[0])
    return next(preset for preset, needs in LARGE if free >= needs)


def _micro_batch(bench: Bench, loop: Loop) -> int:
    """Doubles the loop's batch until a step takes ``STEP_SECONDS``; on a CPU the batch stays."""
    if bench.cuda and not bench.tiny:
        window(loop.step, 3, loop.device)
        while loop.batch * 2 <= MOST_SAMPLES and window(loop.step, 2, loop.device) < STEP_SECONDS:
            loop.batch *= 2
            window(loop.step, 1, loop.device)
    return loop.batch


MEASURES = {"dp-vs-ddp": dp_vs_ddp, "dp-bottleneck": dp_bottleneck, "ddp-scaling": ddp_scaling}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
