"""Claims about mixed and lower precision: memory, speed, accuracy, and gradients that become zero."""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch import Tensor, nn

from .bench import Bench, Cannot, Loop, in_turn, main, peak_allocated, release

PEAK_REPEATS = 3
"""Peaks do not vary from run to run; three show that."""


def amp_memory(bench: Bench) -> None:
    mixed = bench.mixed
    for family in ("conv", "gpt"):
        preset = bench.preset(family)
        for _ in bench.repeats(PEAK_REPEATS):
            plain = peak_allocated(partial(Loop, preset, bench.device), bench.device)
            other = peak_allocated(partial(Loop, preset, bench.device, amp=mixed), bench.device)
            bench.value(family, other / plain)
        bench.note(f"{preset}: peak allocated in float32", plain / 2**30, "GiB")


def amp_speed(bench: Bench) -> None:
    mixed = bench.mixed
    for share, family in ((0.5, "conv"), (1.0, "gpt")):
        preset = bench.preset(family)
        batch = 2 if bench.tiny else None
        plain, other = Loop(preset, bench.device, batch=batch), Loop(preset, bench.device, batch=batch, amp=mixed)
        sides = {"plain": (plain.step, bench.device), "mixed": (other.step, bench.device)}
        for took in in_turn(bench, sides, share=share):
            bench.value(family, took["plain"] / took["mixed"])
        bench.note(f"{preset}: float32 step", took["plain"] * 1e3, "ms")
        del plain, other, sides
        release()


def amp_accuracy(bench: Bench) -> None:
    steps = 10 if bench.tiny else 150 if bench.cuda else 60
    for seed in bench.repeats():
        losses = {
            amp: _final_loss(bench, amp, seed, steps) for amp in ("off", "bf16", "fp16")[: 3 if bench.cuda else 2]
        }
        for amp in losses:
            if amp != "off":
                bench.value(amp, losses[amp] / losses["off"])
        if not seed:
            bench.note("loss in float32, first seed", losses["off"])


def _final_loss(bench: Bench, amp: str, seed: int, steps: int) -> float:
    """The mean loss of the last tenth of ``steps`` steps."""
    loop = Loop("gpt-tiny", bench.device, batch=bench.batch(8), amp=amp, seed=seed)
    losses = [loop.step() for _ in range(steps)]
    return float(torch.stack(losses[-max(1, steps // 10) :]).mean())


def lower_precision_memory(bench: Bench) -> None:
    for family in ("conv", "gpt"):
        preset = bench.preset(family)
        for _ in bench.repeats(PEAK_REPEATS):
            plain = peak_allocated(partial(Loop, preset, bench.device), bench.device)
            half = peak_allocated(partial(Loop, preset, bench.device, half=True), bench.device)
            bench.value(family, half / plain)
        bench.note(f"{preset}: loss after 10 steps in float16", _half_loss(bench, preset))


def _half_loss(bench: Bench, preset: str) -> str:
    """What pure float16 does to the training itself: the loss, or that it is no number any more."""
    loop = Loop(preset, bench.device, half=True)
    for _ in range(9):
        loop.step()
    loss = float(loop.step())
    return f"{loss:.3g}" if abs(loss) < float("inf") else "not a finite number"


def gradscaler_underflow(bench: Bench) -> None:
    preset = bench.preset("gpt")
    batch = 2 if not bench.cuda or bench.tiny else None
    for seed in bench.repeats():
        loop = Loop(preset, bench.device, batch=batch, amp="fp16", seed=seed)
        batches = [loop.next_batch() for _ in range(11)]
        plain = torch.optim.AdamW(loop.model.parameters(), lr=1e-3)
        for inputs, targets in batches[:10]:
            plain.zero_grad()
            loop.loss(inputs, targets).backward()
            plain.step()
        inputs, targets = batches[10]
        model = loop.model
        exact = _gradients(model, loop.loss(inputs, targets).backward)
        with torch.autocast(bench.device.type, dtype=torch.float16):
            unscaled = loop.loss(inputs, targets)
        lost = _lost(exact, _gradients(model, unscaled.backward))
        kept = _lost(exact, _scaled_gradients(loop, inputs, targets))
        bench.value("without", lost)
        bench.value("with", kept)
        bench.value("remaining", kept / lost if lost else None)
        del loop, plain, exact, unscaled, batches


def _gradients(model: nn.Module, backward: object) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    assert callable(backward)
    backward()
    return [parameter.grad.detach().clone() for parameter in model.parameters() if parameter.grad is not None]


def _scaled_gradients(loop: Loop, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Gradients as the optimizer gets them: the scaler lowers its factor until they are finite."""
    model = loop.model
    for group in loop.optimizer.param_groups:
        group.update(lr=0.0, weight_decay=0.0)
    for _ in range(20):
        _gradients(model, lambda: loop.backward(inputs, targets))
        loop.scaler.unscale_(loop.optimizer)
        found = [parameter.grad.detach().clone() for parameter in model.parameters() if parameter.grad is not None]
        loop.update()
        if all(bool(torch.isfinite(gradient).all()) for gradient in found):
            return found
    raise Cannot("fp16 gradients were not finite at any factor of the scaler")


def _lost(exact: list[Tensor], found: list[Tensor]) -> float:
    """The share of the elements that are not 0 in ``exact``, but are in ``found``."""
    there = sum(int((one != 0).sum()) for one in exact)
    gone = sum(int(((one != 0) & (other == 0)).sum()) for one, other in zip(exact, found, strict=True))
    return gone / there


MEASURES = {
    "amp-memory": amp_memory,
    "amp-speed": amp_speed,
    "amp-accuracy": amp_accuracy,
    "lower-precision-memory": lower_precision_memory,
    "gradscaler-underflow": gradscaler_underflow,
}

if __name__ == "__main__":
    sys.exit(main(MEASURES))
