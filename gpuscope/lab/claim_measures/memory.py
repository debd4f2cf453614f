"""Claims about memory: accumulation, checkpointing, and what empty_cache gives back."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor, nn

from .bench import Bench, Loop, in_turn, main, peak_allocated

PEAK_REPEATS = 3


def checkpointed(model: nn.Module) -> nn.Module:
    """Every block keeps its input only and is computed again in backward."""
    model.blocks.checkpoint = True
    return model


def accumulation_equivalence(bench: Bench) -> None:
    preset = bench.preset("gpt")
    micro = 4 if bench.cuda and not bench.tiny else 2
    for seed in bench.repeats():
        large = _gradients(Loop(preset, bench.device, batch=4 * micro, seed=seed))
        small = _gradients(Loop(preset, bench.device, batch=micro, accumulate=4, seed=seed))
        apart = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(large, small, strict=True)))
        bench.value("gradients", apart / math.sqrt(sum(float(a.square().sum()) for a in large)))
        del large, small
    if bench.cuda:
        for _ in bench.repeats(PEAK_REPEATS):
            one = peak_allocated(lambda: Loop(preset, bench.device, batch=4 * micro), bench.device)
            parts = peak_allocated(lambda: Loop(preset, bench.device, batch=micro, accumulate=4), bench.device)
            bench.value("memory", parts / one)
        bench.note("peak allocated with the large batch", one / 2**30, "GiB")


def _gradients(loop: Loop) -> list[Tensor]:
    for _ in range(loop.accumulate):
        loop.backward(*loop.next_batch())
    return [parameter.grad.double() for parameter in loop.model.parameters() if parameter.grad is not None]


def checkpointing_tradeoff(bench: Bench) -> None:
    preset, amp = bench.preset("gpt"), bench.mixed if bench.cuda else "off"
    batch = bench.batch(8)
    if bench.cuda:
        for _ in bench.repeats(PEAK_REPEATS):
            plain = peak_allocated(lambda: Loop(preset, bench.device, batch=batch, amp=amp), bench.device)
            again = peak_allocated(
                lambda: Loop(preset, bench.device, batch=batch, amp=amp, change=checkpointed), bench.device
            )
            bench.value("memory", again / plain)
        bench.note("peak allocated without", plain / 2**30, "GiB")
    one = Loop(preset, bench.device, batch=batch, amp=amp)
    other = Loop(preset, bench.device, batch=batch, amp=amp, change=checkpointed)
    for took in in_turn(bench, {"plain": (one.step, bench.device), "again": (other.step, bench.device)}):
        bench.value("time", took["again"] / took["plain"])


def empty_cache_scope(bench: Bench) -> None:
    # Tiny, it takes many samples to need a block large enough to be given back.
    loop = Loop(bench.preset("gpt"), bench.device, batch=64 if bench.tiny else 8)
    for _ in bench.repeats():
        for _ in range(2):
            loop.step()
        loop.optimizer.zero_grad(set_to_none=True)
        before = _counts(bench.device)
        torch.cuda.empty_cache()
        after = _counts(bench.device)
        cached, returned = before["reserved"] - before["allocated"], before["reserved"] - after["reserved"]
        bench.value("allocated", float(after["allocated"] - before["allocated"]))
        bench.value("returned", returned / cached if cached else None)
        bench.value("driver", (after["free"] - before["free"]) / returned if returned else None)
    bench.note("in use, and left in use", after["allocated"] / 2**30, "GiB")
    bench.note("given back", returned / 2**30, "GiB")


def _counts(device: torch.device) -> dict[str, int]:
    """Bytes allocated and reserved in this process, and free on the device in the driver's view."""
    torch.cuda.synchronize(device)
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "free": torch.cuda.mem_get_info(device)[0],
    }


MEASURES = {
    "accumulation-equivalence": accumulation_equivalence,
    "checkpointing-tradeoff": checkpointing_tradeoff,
    "empty-cache-scope": empty_cache_scope,
}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
