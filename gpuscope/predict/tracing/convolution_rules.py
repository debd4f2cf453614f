"""Estimate the scratch memory of cuDNN's convolutions by rules of thumb.

The trees of :mod:`.convolution_scratch` correct them.

The rules were fitted by hand to the scratch memory that convolutions of common models take on an
H200. For these they are exact in half precision in the default memory layout, and for most
convolutions in fp32.
"""

from __future__ import annotations

from ...text.units import MIB
from .. import tables
from .convolution_sizes import SIZES, Shape, fitting, up

OF_MODELS = {
    (row["samples"], row["channels"], row["filters"], row["side"]): bool(row["transformed"])
    for row in tables.read(
        tables.FOLDER / "convolutions_of_models.json",
        {
            **dict.fromkeys(("samples", "channels", "filters", "side"), tables.whole(1)),
            "transformed": tables.yes_no,
        },
    )
}
"""Samples, channels, filters and side of fp32 convolutions of 3 × 3 that the rules were made for,
and whether the forward pass used a Fourier transform, in addition to those of :func:`transforms`.
"""


def transforms(samples: int, channels: int, filters: int, side: int) -> bool:
    """Tell whether a forward pass of 3 × 3 in fp32 uses a Fourier transform."""
    if samples >= 36:
        return (
            channels == filters
            and 128 <= channels <= 512
            and (8 if samples >= 60 else 24) <= side <= 32
        )
    return OF_MODELS.get((samples, channels, filters, side), False)


def forward(shape: Shape) -> int:
    if shape.kind == "depthwise":
        return 0
    if shape.mode != "fp32":
        few = _few_inputs(shape) or (shape.groups > 1 and shape.each < 4)
        if (
            shape.mode == "tf32"
            and shape.plain3
            and shape.channels <= 64
            and shape.filters == 128
            and not shape.last
        ):
            return SIZES["x w"](shape)
        return 0 if few else _copies(shape)
    taken = shape.plain3 and transforms(shape.batch, shape.channels, shape.filters, shape.side)
    return relaid(shape, SIZES["spectra"](shape) if taken else 0)


def input_gradient(shape: Shape) -> int:
    if shape.kind == "depthwise":
        return 0
    if shape.mode != "fp32":
        return 0 if shape.mode == "tf32" and _few_inputs(shape) else _copies(shape)
    area, side = shape.batch * shape.side**2, shape.side
    shrinks = shape.channels >= shape.filters and shape.batch >= 4 and area >= 9216 and side >= 24
    grows = shape.channels < shape.filters and shape.batch >= 8 and area >= 65536
    return relaid(shape, SIZES["tiles"](shape) if shape.plain3 and (shrinks or grows) else 0)


def weight_gradient(shape: Shape) -> int:
    return _weight_fp32(shape) if shape.mode == "fp32" else _weight(shape)


def relaid(shape: Shape, size: int) -> int:
    """Add the copies of fp32 operands in channels-last layout.

    cuDNN copies them into the default layout.
    """
    if not shape.last:
        return size
    return size + shape.x + shape.y + (shape.w if shape.taps > 1 else 0) + 16


def _weight(shape: Shape) -> int:
    if shape.pixels == 1:
        return 0
    if shape.kind == "depthwise":
        return _depthwise(shape)
    if shape.groups > 1 and shape.taps > 1:
        return (
            shape.grouped + _grouped_partial(shape) if shape.each > 4 or shape.mode == "tf32" else 0
        )
    if shape.last:
        small = shape.positions <= 12544
        return 0 if small else min(8 * MIB, max(MIB, 8 * shape.w32))
    if shape.kind == "pointwise":
        return _pointwise(shape)
    if (
        shape.mode == "tf32"
        and shape.dims == 2
        and shape.channels < 5
        and shape.taps < 10
        and shape.filters <= 128
    ):
        return 0
    if shape.mode == "tf32" and shape.dims == 3 and shape.channels < 4:
        plain = shape.pixels * shape.channels + shape.pixels_out * shape.filters
        return shape.batch * plain * shape.size + MIB // 4
    if shape.channels < 8:
        return shape.x + shape.y + 2 * MIB
    return shape.x + shape.y + (shape.w if shape.taps > 1 else 0) + 391 + _partial(shape)


def _grouped_partial(shape: Shape) -> int:
    """Return the partial gradients of four groups together, in fp32.

    Fewer if a group has more channels.
    """
    wide = 1 << (max(shape.each, shape.filters // shape.groups) - 1).bit_length()
    if shape.mode == "tf32":
        count = max(2, 64 // wide)
    else:
        count = 0 if shape.positions < 12544 else 16 if wide <= 8 else 8
    return count * up(shape.groups, 4) * wide * wide * shape.taps * 4


def _pointwise(shape: Shape) -> int:
    """Return the scratch memory of a pointwise convolution's weight gradient.

    There is a gradient for each sample. If these are large compared with the operands, there are
    copies instead.
    """
    pairs = shape.channels * shape.filters
    if shape.mode == "tf32" or shape.pixels % 4:
        many = 512 << 10
    elif shape.pixels % 8 == 0:
        many = 256 << 10
    else:
        many = (96 if shape.batch <= 32 else 192) << 10
    if pairs < many or 4 * pairs <= (shape.channels + shape.filters) * shape.pixels * shape.size:
        return shape.batch * shape.w32
    return shape.x + shape.y + (2 * shape.w32 if pairs < 512 << 10 else 391 + _partial(shape))


def _weight_fp32(shape: Shape) -> int:
    if shape.groups > 1:
        return 0
    if shape.dims == 3 and shape.taps > 1 and shape.each * shape.taps >= 200:
        large = shape.pixels >= 8000 or (
            shape.stride > 1 and shape.pixels >= 4096 and shape.filters >= 64
        )
        return SIZES["x y w"](shape) if large else _small_fp32(shape)
    if shape.channels < 16:
        return 0
    if shape.plain3:
        wide = shape.channels >= 64 and (
            shape.filters >= 64 or (shape.filters >= 32 and shape.side <= 96)
        )
        return (SIZES["x y w"](shape) if shape.last else 0) + (
            SIZES["winograd"](shape) if wide else 0
        )
    return 0 if shape.last else _small_fp32(shape)


def _small_fp32(shape: Shape) -> int:
    """Return the scratch memory of a kernel for few positions, which needs copies."""
    if shape.pixels_out <= 256 or shape.positions <= 4608:
        return shape.x + shape.y + (shape.w if shape.taps > 1 else 0) + 16
    return 0


def _partial(shape: Shape) -> int:
    """Return a weight's partial gradients in fp32, for many positions and few weights."""
    if shape.mode == "tf32":
        return fitting(shape) if shape.w32 <= 10_000_000 and shape.positions >= 3000 else 0
    if shape.w32 > 4_700_000 or shape.positions < 12544:
        return 0
    if shape.positions >= 65536:
        return min(16 * MIB, 13 * shape.w32) if shape.w32 < 1_300_000 else 4 * shape.w32
    return 4 * shape.w32


def _direct(shape: Shape) -> bool:
    """Whether rows of pixels can be read in their present layout."""
    return (
        shape.pixels % 8 == 0 or shape.pixels >= 196 or shape.channels * shape.filters < 512 << 10
    )


def _copies(shape: Shape) -> int:
    """Return the copies of operands in the layout that the tensor cores need."""
    if shape.groups > 1 and shape.taps > 1:
        return shape.grouped
    if shape.last:
        return 131
    if shape.pixels == 1 or (shape.taps == 1 and shape.stride == 1 and _direct(shape)):
        return 0
    if shape.mode == "tf32" and shape.taps == 1 and shape.groups == 1 and shape.channels < 128:
        return 0
    return shape.x + shape.y + (shape.w if shape.taps > 1 else 0) + 147


def _few_inputs(shape: Shape) -> bool:
    """Tell whether a forward pass has a special kernel for few channels.

    Images and volumes have so few.
    """
    if shape.last or shape.groups > 1:
        return False
    if shape.dims == 3:
        return shape.channels < 3 and shape.filters < 128 and 1 < shape.taps <= 27
    patches = shape.kernel == shape.stride > 7
    return (shape.channels < 5 and (shape.taps <= 16 or patches)) or (
        shape.channels < 8 and shape.taps == 9
    )


def _depthwise(shape: Shape) -> int:
    """Return the scratch memory of a depthwise convolution.

    In channels-last layout, tensor cores sum eight gradients for each sample; TF32 pads a channel
    to a group.
    """
    if not shape.last or shape.mode == "fp32" or shape.kernel % 2 == 0:
        return 0
    if shape.mode == "half":
        return 8 * shape.batch * shape.w32
    return 4 * (shape.x + shape.y) + 8 * MIB if shape.kernel > 5 and shape.pixels >= 784 else 0


RULES = {"forward": forward, "input": input_gradient, "weight": weight_gradient}
