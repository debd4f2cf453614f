"""Decide which matrix products inductor pads, as it would on a GPU.

Tensor cores are slow where a side of an operand is no multiple of 16 bytes, such as a vocabulary of
50,257 words. If a product is not bound by the memory, inductor times it with padding and without,
and pads where that is faster. Operands that it can make padded at once cost nothing. Here the times
are estimated. An H200 decided about 720 products of layers whose outputs are words
(``python -m bench.predict.measure_padding``): the estimate agrees with all 504 in half precision,
and with 192 of 216 with TF32. Plain fp32 uses no tensor cores, and was never padded.

What the timing takes is recorded: the operands and the result, and the padded ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...model.card_peaks import card_named
from ..request import Doubt
from .kernel_timing import flushed
from .replaced import Replaced
from .same_types import HALVES

CARDS = {
    (8, 0): "NVIDIA A100-SXM4-40GB",
    (8, 6): "NVIDIA GeForce RTX 3090",
    (8, 9): "NVIDIA GeForce RTX 4090",
    (9, 0): "NVIDIA H200",
    (10, 0): "NVIDIA B200",
}
"""The card that stands for each compute capability."""
TRIED = "pad_mm"
ALIGNED, MISALIGNED = (0.75, 0.6), ({2: 0.14, 4: 0.25, 8: 0.25}, {4: 0.18, 8: 0.15})
"""The share of the tensor cores' speed that products reach in half precision and with TF32.

With padding, and without it where all sides are multiples of that many bytes.
"""
PASSES, TRANSPOSED = 4, 4
"""How often the bytes of an operand pass through the memory to pad it: its copy is filled, it is
read and written. A transposed one takes that many times longer.
"""
GAIN = 1.1
"""What inductor pads must be faster by this factor."""
CLOSE = 1.5
PADDED = Doubt(
    "compiled",
    "The sides of a matrix product are no multiple of 16 bytes. Torch pads its operands if it "
    "times that as faster, which is estimated.",
    TRIED,
    3.0,
)


def speeds_of(architecture: Any) -> tuple[float, float, float] | None:
    """Return TFLOP/s in half precision and with TF32, and GB/s of the memory; None if unknown."""
    card = card_named(CARDS.get(architecture, ""))
    return None if card is None else (card.peaks["fp16"], card.peaks["tf32"], card.bandwidth)


@contextlib.contextmanager
def decided(mode: Any) -> Iterator[None]:
    """Let inductor's passes over a joint graph pad as on the GPU of ``mode``."""
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm

    speeds = speeds_of(mode.architecture)
    known = speeds is not None and hasattr(pad_mm, "_should_pad")
    replaced = Replaced()

    def should_pad(match: Any, a: Any, b: Any, op: Any, *_: Any) -> bool:
        kind = int(a.dtype not in HALVES)
        assert speeds is not None
        if kind and not torch.backends.cuda.matmul.allow_tf32:
            return False
        product = Product((*a.shape[-2:], b.shape[-1]), math.prod(a.shape[:-2]), a.dtype)
        if not pad_mm.is_mm_compute_bound(*product.sides, a.dtype):
            return False
        product.time(mode)
        copied = {
            number: operand.is_contiguous()
            for number, operand in enumerate((a, b))
            if not pad_mm.should_exclude_padding_time(match, f"mat{number + 1}")
        }
        found = product.gain(copied, speeds) / GAIN
        if 1 / CLOSE < found < CLOSE:
            mode.doubt(PADDED)
        return found > 1

    if speeds is not None:
        utils = pad_mm.utils
        replaced.change(utils, "get_device_tflops", lambda kind: speeds[kind not in HALVES])
        replaced.change(utils, "get_gpu_dram_gbps", lambda: speeds[2])
    replaced.change(pad_mm, "_should_pad", should_pad)
    replaced.change(pad_mm, "check_device", lambda *_: True)
    replaced.change(pad_mm, "has_triton", lambda: True)
    try:
        with config.patch(shape_padding=known):
            yield
    finally:
        replaced.restore()


class Product:
    """``many`` matrix products, whose ``sides`` are rows, inner size and columns."""

    def __init__(self, sides: tuple[int, int, int], many: int, dtype: torch.dtype):
        self.sides, self._many, self._dtype = sides, many, dtype
        self._kind = int(dtype not in HALVES)
        multiple = (8, 4)[self._kind]
        self._alignment = min(math.gcd(side, multiple) * dtype.itemsize for side in sides)
        self._sizes = _sizes(sides)
        self._padded = _sizes([-(-side // multiple) * multiple for side in sides])

    def gain(self, copied: Mapping[int, bool], speeds: tuple[float, float, float]) -> float:
        """Return by what factor it is faster with padding.

        ``copied``: the operands (0, 1) that are copied for it, and whether each is contiguous.
        """
        passed = sum(
            PASSES * (1 if plain else TRANSPOSED) * self._sizes[number]
            for number, plain in copied.items()
            if self.grows(number)
        )
        copying = passed * self._many * self._dtype.itemsize / (1e9 * speeds[2])
        work: float = 2 * self._many * math.prod(self.sides) / (1e12 * speeds[self._kind])
        without = work / MISALIGNED[self._kind][self._alignment]
        return float(without / (copying + work / ALIGNED[self._kind]))

    def grows(self, number: int) -> bool:
        """Whether padding makes an operand (0 or 1) larger."""
        return self._padded[number] > self._sizes[number]

    def time(self, mode: Any) -> None:
        """Record what the timing takes, once for each kind of product."""
        if not mode.recorder.once(f"pad {self._many} {self.sides} {self._dtype}"):
            return
        numbers = [*self._sizes[:2], self._padded[2]]
        numbers += [size for at, size in enumerate(self._padded[:2]) if self.grows(at)]
        scale = self._many * self._dtype.itemsize
        sizes = [scale * number for number in numbers]
        mode.recorder.passing([*sizes, flushed(mode.architecture)], TRIED)


def _sizes(sides: Any) -> list[int]:
    """Return the numbers of both operands and of the result."""
    rows, inner, columns = sides
    return [rows * inner, inner * columns, rows * columns]
