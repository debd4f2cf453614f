"""The scratch memory of cuDNN's convolutions, freed at the end of each call.

cuDNN chooses its kernels by rules that it does not publish. The formulas below are fitted to what its heuristics ask
for on an H200 (torch 2.11, benchmark off): exact for halves in the ordinary layout, where the tensor cores want another
layout and all operands are copied, and for most of fp32; within some MiB for gradients of weights in halves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..request import Doubt
from .recorder import Recorder
from .reductions import Reductions, buffer_bytes

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_MIB = 1 << 20
_TILE_BYTES = 4352
"""Of the tiles of 32 × 32 that a gradient of an input is transformed by: 8 · 32 · 17."""
_TRANSFORMED = {
    *((16, 256, 256, 64), (16, 512, 1024, 16), (16, 1024, 1024, 16)),
    *((32, 64, 128, 48), (32, 512, 512, 12)),
}
"""(samples, channels, filters, pixels of a side) of fp32 convolutions that were seen to go by a Fourier transform,
besides those of :func:`_transforms`."""
_MEASURED = {
    16: "64-64@56 64-64@256 64-128@128 128-32@7 128-32@14 128-32@28 128-32@56 128-64@256 128-128@28 128-128@128 "
    "128-256@64 256-128@128 256-256@14 256-256@64 256-512@32 512-256@64 512-512@7 512-512@32 512-1024@16 "
    "1024-512@32 1024-1024@16",
    32: "32-32@192 32-64@96 64-32@192 64-64@96 64-128@48 128-64@96 128-128@48 128-256@24 256-128@48 256-256@24 "
    "256-512@12 512-256@24 512-512@12",
    64: "64-64@56 128-32@7 128-32@14 128-32@28 128-32@56 128-128@28 256-256@14 512-512@7",
}
"""Channels, filters and side of fp32 convolutions of 3 × 3 that the rules here were fitted to, by samples. Forward
passes of up to eight samples were never seen to be transformed."""
_NEAR = 1.5
"""By how much the number of samples may differ from a measured one."""
_NEVER_SAMPLES, _NEVER_SIDE, _NEVER_AREA = 8, 64, 4608
"""No forward transform of so few samples or of wider sides was seen, no tiling of fewer positions."""
BENCHMARK = {
    True: Doubt("benchmark", "cuDNN tries several kernels for each convolution.", "convolution", 3.0),
    False: Doubt(
        "benchmark",
        "cuDNN tries several kernels for each convolution when it meets it first, with scratch memory of unknown size, "
        "and where that is refused with half of it.",
        "convolution",
        300.0,
        upward=True,
    ),
}
"""What cuDNN's search for the fastest kernel adds to the error bar: among halves, and in fp32, where two trainings took
76 and 245 % more."""
VOLUMES = Doubt(
    "unmeasured",
    "The scratch memory of convolutions in three dimensions is known only roughly.",
    "convolution3d",
    15.0,
    True,
)


def _transforms(samples: int, channels: int, filters: int, side: int) -> bool:
    if samples >= 36:
        return 8 <= side <= 32 and min(channels, filters) >= 128 and max(channels, filters) <= 512
    return (samples, channels, filters, side) in _TRANSFORMED


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class _Shape:
    """One convolution: bytes of its operands, and what the choice depends on. ``x`` is the wide side, whose channels
    are the weight's second dimension, also of a transposed convolution."""

    x: int
    y: int
    y_copy: int
    plain_x: int
    w: int
    w_copy: int
    w32: int
    kernel: int
    pixels: int
    pixels_out: int
    side: int
    padded: int
    batch: int
    channels: int
    filters: int
    half: bool
    last: bool
    depthwise: bool
    pointwise: bool
    plain3: bool
    dense: bool
    volume: bool
    single: bool
    each: int
    grouped_copy: int

    def __init__(self, x: Any, weight: Any, y: Any, stride: Any, groups: int):
        size = x.element_size()
        channels = x.shape[1]
        self.half = x.dtype in _HALVES or (x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32)
        unit = 16 // size if self.half else 8
        self.x = x.numel() // channels * _up(channels, unit) * size
        self.y = y.numel() * size
        self.y_copy = y.numel() // y.shape[1] * _up(y.shape[1], unit) * size if groups == 1 else self.y
        self.plain_x = x.numel() * size
        inner = weight.shape[1]
        self.w = weight.numel() // inner * _up(inner, unit) * size
        self.w_copy = self.w // weight.shape[0] * _up(weight.shape[0], unit) if groups == 1 else self.w
        self.volume, self.single = x.dim() == 5, size == 4
        self.dense = groups == 1
        # In groups, channels and filters of each are copied to the same number of both, a power of two.
        self.each, filters = inner, weight.shape[0] // groups
        wide = 1 << (max(inner, filters) - 1).bit_length()
        places = x.numel() // channels + y.numel() // y.shape[1]
        self.grouped_copy = groups * wide * size * (places + (wide * math.prod(weight.shape[2:]) if wide > 2 else 0))
        self.w32 = weight.numel() * 4
        self.kernel = math.prod(weight.shape[2:])
        self.pointwise = self.kernel == 1 and all(step == 1 for step in stride)
        self.pixels, self.pixels_out = math.prod(x.shape[2:]), math.prod(y.shape[2:])
        self.side = math.isqrt(self.pixels)
        self.batch = x.shape[0]
        self.channels, self.filters = channels, weight.shape[0]
        self.plain3 = self.kernel == 9 and x.dim() == 4 and groups == 1 and all(step == 1 for step in stride)
        rounded = [math.prod(-(-pixels // 4) * 4 for pixels in part.shape[2:]) for part in (x, y)]
        self.padded = size * (x.shape[0] * channels * rounded[0] + y.shape[0] * y.shape[1] * rounded[1])
        self.depthwise = groups > 1 and groups == channels
        self.last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)

    def forward(self) -> int:
        if self.depthwise:
            return 0
        if self.half:
            few = self._few_inputs() or (not self.dense and self.each < 4)
            return 0 if few else self._copies()
        return self._relaid(self._fp32_forward())

    def _fp32_forward(self) -> int:
        taken = self.plain3 and _transforms(self.batch, self.channels, self.filters, self.side)
        return self._transform_bytes() if taken else 0

    def _transform_bytes(self) -> int:
        size = 1 << (self.side + 1).bit_length()
        each = 8 * size * (size // 2 + 1)
        return each * 2 * self.channels * (self.filters + self.batch) + self.w

    def input_gradient(self) -> int:
        if self.depthwise:
            return 0
        if self.half:
            return 0 if self.single and self._few_inputs() else self._copies()
        return self._relaid(self._fp32_input_gradient())

    def _relaid(self, size: int) -> int:
        """cuDNN copies fp32 operands into the ordinary layout where they come with their channels last."""
        return size + self.plain_x + self.y + (self.w if self.kernel > 1 else 0) + 16 if self.last else size

    def _fp32_input_gradient(self) -> int:
        area, side = self.batch * self.side**2, self.side
        shrinks = self.channels >= self.filters and self.batch >= 4 and area >= 9216 and side >= 24
        grows = self.channels < self.filters and self.batch >= 8 and area >= 65536
        if self.plain3 and (shrinks or grows):
            return self._tiled_bytes()
        return 0

    def _tiled_bytes(self) -> int:
        tiles = self.batch * (1 if self.side <= 30 else 2)
        return _TILE_BYTES * (self.channels * self.filters + tiles * (self.channels + self.filters))

    def weight_gradient(self) -> int:
        if self.depthwise:
            return 0
        if self.half:
            if self.pixels == 1:
                return 0
            if self.last:
                small = self.batch * self.pixels_out <= 12544
                return 0 if small else min(8 * _MIB, max(_MIB, 8 * self.w32))
            if self.channels < 8:
                return self.x + self.y + 2 * _MIB
            if self.pointwise and self._direct():
                return self.x + self.y + 2 * _MIB if self.pixels % 8 == 4 else self.batch * self.w32
            if not self.dense and self.kernel > 1:
                return self.grouped_copy if self.each > 4 else 0
            return self.x + self.y + (self.w if self.kernel > 1 else 0) + 391 + self._partial()
        if self.channels < 16:
            return 0
        if self.plain3:
            copied = self.plain_x + self.y + self.w if self.last else 0
            wide = self.channels >= 64 and (self.filters >= 64 or (self.filters >= 32 and self.side <= 96))
            return copied + (int(2.25 * self.padded) + 4 * self.w if wide else 0)
        if self.last:
            return 0
        if self.pixels_out <= 256 or self.batch * self.pixels_out <= 4608:
            return self.plain_x + self.y + (self.w if self.kernel > 1 else 0) + 16
        return 0

    def _partial(self) -> int:
        """Partial gradients of a weight in fp32, where many positions add up to few weights."""
        positions = self.batch * self.pixels_out
        if self.w32 > 4_700_000 or positions < 12544:
            return 0
        if positions >= 65536:
            return min(16 * _MIB, 13 * self.w32) if self.w32 < 1_300_000 else 4 * self.w32
        return 4 * self.w32

    def _measured(self) -> bool:
        """Whether it, or one with nearly as many samples, is among those that the rules were fitted to."""
        name = f"{self.channels}-{self.filters}@{self.side}"
        return any(
            samples / _NEAR <= self.batch <= samples * _NEAR and name in names.split()
            for samples, names in _MEASURED.items()
        )

    def _open(self) -> bool:
        """Whether cuDNN may transform where the rules say that it does not."""
        return not self.half and self.plain3 and min(self.channels, self.filters) >= 64 and not self._measured()

    def most_forward(self) -> int:
        """What the forward pass may take at most, where nothing near was measured; 0 where the rules are sure."""
        if not self._open() or self.batch <= _NEVER_SAMPLES or self.side > _NEVER_SIDE:
            return 0
        return self._relaid(self._transform_bytes())

    def most_input(self) -> int:
        """The same of the gradient of the input."""
        few = self.batch < 4 or self.batch * self.side**2 <= _NEVER_AREA
        return 0 if few or not self._open() else self._relaid(self._tiled_bytes())

    def most_weight(self) -> int:
        """The same of the gradient of the weight. Transforms were seen once; numbers of channels that are powers of two
        were measured widely."""
        both = (self.channels, self.filters)
        if not self._open() or self.side > _NEVER_SIDE or all(number & (number - 1) == 0 for number in both):
            return 0
        size = 1 << (self.side + 1).bit_length()
        return 8 * size * (size // 2 + 1) * 2 * self.channels * self.filters + self.y

    def _direct(self) -> bool:
        """Whether rows of pixels can be read as they lie."""
        return self.pixels % 8 == 0 or self.channels * self.filters < 512 << 10

    def _copies(self) -> int:
        """Halves in the layout that the tensor cores want."""
        if self.last:
            return 131
        if self.pixels == 1 or (self.pointwise and self._direct()):
            return 0
        if self.single and self.kernel == 1 and self.dense and self.channels < 192:
            return 0
        if not self.dense and self.kernel > 1:
            return self.grouped_copy
        return self.x + self.y_copy + (self.w_copy if self.kernel > 1 else 0) + 147

    def _few_inputs(self) -> bool:
        """A forward pass over as few channels as images and volumes come with has kernels of its own."""
        if self.last or not self.dense:
            return False
        if self.volume:
            return self.channels < 3 and self.filters < 128 and 1 < self.kernel <= 27
        return (self.channels < 5 and self.kernel <= 16) or (self.channels < 8 and self.kernel == 9)


class Convolutions:
    def __init__(self, architecture: tuple[int, int]):
        self._processors = Reductions(architecture).processors
        self._largest = 0
        self._advice: Doubt | None = None

    def around(self) -> dict[Any, Any]:
        return {aten.convolution.default: self.forward}

    def instead(self) -> dict[Any, Any]:
        return {aten.convolution_backward.default: self.backward}

    def forward(self, recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        x, weight, _, stride, _, _, transposed, _, groups = args[:9]
        if out.device.index is None or x.numel() == 0:
            return
        shape = _Shape(out, weight, x, stride, groups) if transposed else _Shape(x, weight, out, stride, groups)
        recorder.passing([shape.input_gradient() if transposed else shape.forward()], "cudnn_convolution", "workspace")
        recorder.could_take(shape.most_input() if transposed else shape.most_forward())

    def backward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """One gradient after the other, each with its own scratch memory."""
        grad, x, weight, _, stride, _, _, transposed, _, groups = args[:10]
        out = fakes.dispatch(func, (), args, kwargs)
        if grad.device.index is None or x.numel() == 0:
            return out
        if torch.backends.cudnn.benchmark:
            fakes.doubt(BENCHMARK[x.dtype in _HALVES])
        if x.dim() == 5:
            fakes.doubt(VOLUMES)
        shape = _Shape(grad, weight, x, stride, groups) if transposed else _Shape(x, weight, grad, stride, groups)
        recorder = fakes.recorder
        copied = [
            recorder.allocate(part.numel() * part.element_size(), "contiguous", "temporary")
            for part in (grad, x)
            if not _dense(part)
        ]
        for gradient, bytes_beside, most in (
            (out[0], shape.forward(), shape.most_forward())
            if transposed
            else (out[0], shape.input_gradient(), shape.most_input()),
            (out[1], shape.weight_gradient(), shape.most_weight()),
        ):
            if gradient is not None:
                fakes.hold(gradient, func)
                recorder.passing([bytes_beside], "cudnn_convolution", "workspace")
                recorder.could_take(most)
        self._name_largest(fakes, shape)
        if out[2] is not None:
            fakes.hold(out[2], func)
            channels = grad.shape[1]
            last = shape.last
            recorder.passing(buffer_bytes(grad.numel() // channels, channels, not last, False, self._processors), "sum")
        for block in copied:
            recorder.free(block)
        return out

    def _name_largest(self, fakes: Fakes, shape: _Shape) -> None:
        """Which of the convolutions whose scratch memory is not known may take most, and what keeps it from that; as
        long as it may be the peak. TF32 and halves were never seen to be transformed."""
        recorder = fakes.recorder
        most = max(shape.most_forward(), shape.most_input(), shape.most_weight())
        if most > self._largest:
            self._largest = most
            where = recorder.module()[0] or "A convolution outside of modules"
            text = (
                f"{where} ({shape.channels} to {shape.filters} channels, {shape.side} × {shape.side}) may take up to "
                f"{most / (1 << 30):.2f} GiB of scratch memory. In TF32 or bf16 no convolution was seen to take that: "
                "--tf32, --amp bf16."
            )
            self._advice = Doubt("advice", text, "convolution", upward=True)
        if self._advice is not None:
            key = (self._advice.code, self._advice.operation)
            if recorder.most_bytes > recorder.peak_bytes:
                fakes.doubts[key] = self._advice
            else:
                fakes.doubts.pop(key, None)


def _dense(x: Any) -> bool:
    return bool(x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)))
