"""The sizes that the scratch memory of a cuDNN convolution may have.

Sizes measured on an H200 (torch 2.11, benchmark off) are nearly always sums of a few parts:
operands copied into the layout of the tensor cores, partial gradients of a weight, Fourier
transforms. Each function of :data:`SIZES` is one such sum. :mod:`.convolution_rules` and the trees
of :mod:`.convolution_scratch` choose one for a shape; the trees use the numbers of
:data:`FEATURES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from .multiprocessors import HOPPER

PROCESSORS = HOPPER[0]
"""The multiprocessors of an H200, on which the choices were measured."""


def up(number: int, unit: int) -> int:
    """Return ``number`` rounded up to a multiple of ``unit``."""
    return -(-number // unit) * unit


def tf32_allowed() -> bool:
    """Whether fp32 convolutions may use TF32.

    If a program has used the newer switches for convolutions alone, the older switch cannot be
    read.
    """
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


@dataclass(frozen=True)
class Shape:
    """One convolution.

    ``x`` is the side whose channels are the weight's second dimension, also for a transposed
    convolution; ``y`` is the other. Sizes are in bytes unless the name says otherwise.
    """

    mode: str
    """``half``, ``tf32`` or ``fp32`` (without TF32)."""
    dims: int
    batch: int
    channels: int
    filters: int
    pixels: int
    pixels_out: int
    side: int
    """The longest side of ``x``."""
    kernel: int
    """The longest side of the kernel."""
    taps: int
    """The number of positions of the kernel."""
    stride: int
    padding: int
    groups: int
    last: bool
    """Whether the layout is channels-last."""

    @classmethod
    def of(cls, x: Any, weight: Any, y: Any, stride: Any, groups: int) -> Shape:
        mode = "half" if x.element_size() == 2 else "fp32"
        if x.dtype == torch.float32 and tf32_allowed():
            mode = "tf32"
        sides = zip(x.shape[2:], y.shape[2:], weight.shape[2:], stride, strict=True)
        padding = max(
            -(-((out - 1) * step + kernel - side) // 2) for side, out, kernel, step in sides
        )
        last = (
            x.dim() == 4
            and not x.is_contiguous()
            and x.is_contiguous(memory_format=torch.channels_last)
        )
        return cls(
            mode,
            x.dim() - 2,
            x.shape[0],
            x.shape[1],
            y.shape[1],
            math.prod(x.shape[2:]),
            math.prod(y.shape[2:]),
            max(x.shape[2:]),
            max(weight.shape[2:]),
            math.prod(weight.shape[2:]),
            max(stride),
            max(padding, 0),
            groups,
            last,
        )

    @property
    def size(self) -> int:
        return 2 if self.mode == "half" else 4

    @cached_property
    def each(self) -> int:
        """Return the channels of one group."""
        return self.channels // self.groups

    @property
    def kind(self) -> str:
        """Return the kind of a convolution; each kind has its own kernels and choices.

        ``even`` means as many channels as filters in each group.
        """
        if self.groups == 1:
            if self.taps == 1 and self.stride == 1:
                return "pointwise"
            if self.dims == 3:
                return "volume"
            if self.channels < 8 and not self.last:
                return "stem"
            return "last" if self.last else "dense"
        if self.groups == self.channels:
            return "depthwise"
        return "even" if self.channels == self.filters else "grouped"

    @property
    def key(self) -> tuple[str, str]:
        """Return the key of its trees.

        Half precision and TF32 share one, because both use the tensor cores.
        """
        return "fp32" if self.mode == "fp32" else "cores", self.kind

    @property
    def plain3(self) -> bool:
        """Whether it is a 3 × 3 convolution of images, for which cuDNN has transforms."""
        return (self.dims, self.taps, self.stride, self.groups) == (2, 9, 1, 1)

    @cached_property
    def unit(self) -> int:
        """Return the multiple, 16 bytes of channels, to which kernels for tensor cores pad."""
        return 16 // self.size if self.groups == 1 and self.mode != "fp32" else 1

    @cached_property
    def x(self) -> int:
        return self.batch * self.pixels * up(self.channels, self.unit) * self.size

    @cached_property
    def y(self) -> int:
        return self.batch * self.pixels_out * up(self.filters, self.unit) * self.size

    @cached_property
    def w(self) -> int:
        return self.taps * up(self.each, self.unit) * up(self.filters, self.unit) * self.size

    @cached_property
    def w32(self) -> int:
        """Return the bytes of one partial gradient."""
        return self.w * 4 // self.size

    @cached_property
    def grouped(self) -> int:
        """Return the bytes of the copies that a grouped convolution takes.

        Channels and filters of each group are padded to the same power of two. In channels-last
        layout, an operand that already has this number is not copied.
        """
        filters = self.filters // self.groups
        wide = 1 << (max(self.each, filters) - 1).bit_length()
        places = self.pixels * (self.each < wide or not self.last) + self.pixels_out * (
            filters < wide or not self.last
        )
        weight = wide * self.taps if places and (wide > 2 or self.last) else 0
        return self.groups * wide * self.size * (self.batch * places + weight)

    @cached_property
    def positions(self) -> int:
        """Return the number of positions that a weight gradient sums over."""
        return self.batch * self.pixels_out

    @cached_property
    def spectrum(self) -> int:
        """Return the bytes of one transformed image, whose side is padded to a power of two."""
        side = max(16, 1 << (self.side + 2 * self.padding - 1).bit_length())
        return 8 * side * (side // 2 + 1)

    @cached_property
    def padded(self) -> int:
        sides = [up(math.isqrt(pixels), 4) ** 2 for pixels in (self.pixels, self.pixels_out)]
        return self.size * self.batch * (self.channels * sides[0] + self.filters * sides[1])


def partial(shape: Shape, rows: int, columns: int, flat: bool) -> int:
    """Return the bytes of partial gradients that fill the card.

    Their number is that of the tiles of ``rows`` filters and ``columns`` channels (of one tap; with
    ``flat``, of all taps in a row).
    """
    wide = up(shape.each * shape.taps, columns) if flat else up(shape.each, columns) * shape.taps
    high = up(shape.filters, rows)
    count = PROCESSORS * rows * columns // (high * wide)
    return count * high * wide * 4 if count > 1 else 0


def fitting(shape: Shape) -> int:
    """Return the bytes of partial gradients by tiles that fit the shape.

    The tiles are as large as filters and channels, among the sizes that kernels have. If there are
    too many tiles for two of each, those of the last round are split over all processors (TF32).
    """
    rows = max(64, min(1 << (shape.filters - 1).bit_length(), 256 if shape.mode == "half" else 128))
    columns = max(32, min(1 << (shape.each - 1).bit_length(), 128))
    tiles = up(shape.filters, rows) // rows * (up(shape.each, columns) // columns) * shape.taps
    if tiles * 2 <= PROCESSORS or shape.mode == "half":
        return partial(shape, rows, columns, False)
    places = PROCESSORS if tiles > PROCESSORS else PROCESSORS // 2
    last = tiles % places
    count = places // last if last else 0
    return count * last * rows * columns * 4 if count > 1 else 0


def _tiled(shape: Shape) -> int:
    """Return the size of an input gradient by transforms of 32 × 32 tiles."""
    tiles = shape.batch * (1 if shape.side + 2 * shape.padding <= 32 else 2)
    return 4352 * (shape.channels * shape.filters + tiles * (shape.channels + shape.filters))


def _raw(shape: Shape) -> int:
    """Return the size of copies without padding; one channel has the same layout in both."""
    wide = shape.pixels * shape.channels if shape.channels > 1 else 0
    narrow = shape.pixels_out * shape.filters if shape.filters > 1 else 0
    return shape.size * shape.batch * (wide + narrow)


def _copies(shape: Shape) -> int:
    return shape.x + shape.y + shape.w + 147


SIZES: dict[str, Callable[[Shape], int]] = {
    "none": lambda s: 0,
    "x": lambda s: s.x,
    "y": lambda s: s.y,
    "x y": lambda s: s.x + s.y,
    "x w": lambda s: s.x + s.w,
    "y w": lambda s: s.y + s.w,
    "x y w": _copies,
    "raw": _raw,
    "grouped": lambda s: s.grouped,
    "spectra": lambda s: (
        s.spectrum * 2 * max(s.channels * (s.filters + s.batch), s.filters * s.batch) + s.w
    ),
    "spectra of weight": lambda s: (
        s.spectrum * 2 * max(s.batch * (s.filters + s.channels), s.channels * s.filters) + s.y
    ),
    "tiles": _tiled,
    "winograd": lambda s: int(2.25 * s.padded) + 4 * s.w,
}
SIZES["x y w +fit"] = lambda s: _copies(s) + fitting(s)


def _splits(count: int) -> Callable[[Shape], int]:
    return lambda s: _copies(s) + count * s.w32


def _splits_by(rows: int, columns: int, flat: bool) -> Callable[[Shape], int]:
    return lambda s: _copies(s) + partial(s, rows, columns, flat)


SIZES |= {f"x y w +{count}": _splits(count) for count in (1, 2, 3, 4, 6, 8, 13, 16, 26)}
for _rows, _columns in ((64, 32), (64, 64), (128, 64), (128, 128), (256, 128)):
    SIZES[f"x y w +{_rows}x{_columns}"] = _splits_by(_rows, _columns, flat=False)
for _rows, _columns in (
    (64, 64),
    (128, 64),
    (128, 128),
    (256, 128),
    (128, 256),
    (64, 128),
    (64, 256),
):
    SIZES[f"x y w +{_rows}x{_columns} flat"] = _splits_by(_rows, _columns, flat=True)


def _two(number: int) -> int:
    """Return the largest power of two, up to 64, that divides the number."""
    return math.gcd(number, 64)


FEATURES: dict[str, Callable[[Shape], float]] = {
    "size": lambda s: s.size,
    "dims": lambda s: s.dims,
    "batch": lambda s: s.batch,
    "channels": lambda s: s.each,
    "filters": lambda s: s.filters // s.groups,
    "pixels": lambda s: s.pixels,
    "pixels out": lambda s: s.pixels_out,
    "side": lambda s: s.side,
    "kernel": lambda s: s.kernel,
    "stride": lambda s: s.stride,
    "groups": lambda s: s.groups,
    "last": lambda s: int(s.last),
    "pointwise": lambda s: int(s.taps == 1 and s.stride == 1),
    "positions": lambda s: s.positions,
    "positions in": lambda s: s.batch * s.pixels,
    "products": lambda s: s.each * s.taps,
    "products back": lambda s: s.filters // s.groups * s.taps,
    "weights": lambda s: s.each * s.filters * s.taps,
    "x": lambda s: s.x,
    "y": lambda s: s.y,
    "pairs": lambda s: s.each * s.filters,
    "aligned pixels": lambda s: _two(s.pixels),
    "aligned out": lambda s: _two(s.pixels_out),
    "aligned channels": lambda s: _two(s.each),
    "aligned filters": lambda s: _two(s.filters // s.groups),
    "fewer": lambda s: min(s.each, s.filters // s.groups),
    "more": lambda s: max(s.each, s.filters // s.groups),
    "growth": lambda s: s.filters / s.channels,
    "positions per weight": lambda s: s.positions / (s.each * s.filters * s.taps),
    "padding": lambda s: s.padding,
    "work": lambda s: s.positions * s.each * s.filters * s.taps,
    "intensity": lambda s: s.positions * s.each * s.filters * s.taps / (s.x + s.y + s.w),
    "tiles": lambda s: -(-s.positions // 128) * -(-s.filters // 128),
    "tiles back": lambda s: -(-s.batch * s.pixels // 128) * -(-s.each // 128),
    "tiles weight": lambda s: -(-s.each * s.taps // 128) * -(-s.filters // 128),
    "tiles per tap": lambda s: -(-s.each // 64) * s.taps * -(-s.filters // 64),
    "bytes": lambda s: s.x + s.y + s.w,
    "w": lambda s: s.w,
    "padded channels": lambda s: up(s.each, 8) / s.each,
    "padded filters": lambda s: up(s.filters, 8) / s.filters,
    "splits": lambda s: s.positions / (-(-s.each * s.taps // 128) * -(-s.filters // 128)),
}
