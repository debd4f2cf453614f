"""Trace the scratch memory of cuDNN's convolutions, which is freed at the end of each call.

cuDNN chooses its kernels by rules that it does not publish. The scratch memory was measured on an
H200 (torch 2.11, benchmark off), and :mod:`.convolution_scratch` gives the size for a shape. This
module has the operators, and says how much more fp32 may take if it is unknown whether cuDNN uses
Fourier transforms.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import torch

from ...text.units import bytes_text
from ..request import Doubt
from . import multiprocessors
from .convolution_rules import OF_MODELS, relaid, transforms
from .convolution_scratch import scratch_bytes
from .convolution_sizes import SIZES, Shape
from .recorder import Recorder
from .reductions import buffer_bytes
from .same_types import HALVES

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
_NEVER_SAMPLES, _NEVER_SIDE, _NEVER_AREA, _FEWEST_TILED = 3, 64, 4608, 16
"""No forward transform was seen for so few samples (with one exception, of 46 MiB) or for longer
sides, and no tiling for fewer positions or channels.
"""
BENCHMARK = {
    True: Doubt(
        "benchmark", "cuDNN tries several kernels for each convolution.", "convolution", 3.0
    ),
    False: Doubt(
        "benchmark",
        "cuDNN tries several kernels the first time it runs a convolution, with scratch memory "
        "of unknown size, or half of it if that is refused.",
        "convolution",
        300.0,
        upward=True,
    ),
}
"""What cuDNN's search for the fastest kernel adds to the error bar: for half precision, and for
fp32, where two trainings took 76 and 245 % more.
"""
VOLUMES = Doubt(
    "unmeasured",
    "The scratch memory of 3D convolutions is known only roughly.",
    "convolution3d",
    15.0,
    True,
)


LINES = Doubt(
    "unmeasured",
    "Weight gradients of fp32 1D convolutions may need copies of their inputs.",
    "convolution1d",
    8.0,
    True,
)
"""One in ten of the gradients that are predicted without scratch memory takes this much."""


def most_bytes(shape: Shape, direction: str) -> int:
    """Return the most bytes that a pass may take if the rules are not certain.

    The pass is ``forward``, or the gradient of the ``input`` or the ``weight``. cuDNN may use a
    Fourier transform although the rules predict none, if nothing similar was measured; 0 if they
    are certain.
    """
    if (
        shape.mode != "fp32"
        or shape.dims != 2
        or shape.stride > 1
        or shape.groups > 1
        or shape.taps < 9
    ):
        return 0
    if shape.plain3 and _is_measured(shape):
        return 0
    fewer = min(shape.channels, shape.filters)
    usual = shape.plain3 and fewer >= 64
    long = shape.taps > 9 and fewer >= _FEWEST_TILED and shape.side <= _NEVER_SIDE
    if direction == "input":
        tiled = fewer >= _FEWEST_TILED and shape.batch * shape.side**2 > _NEVER_AREA
        return relaid(shape, SIZES["tiles"](shape)) if tiled else 0
    if direction == "forward":
        transformed = shape.batch > _NEVER_SAMPLES and (
            long or (usual and shape.side <= _NEVER_SIDE)
        )
        return relaid(shape, SIZES["spectra"](shape)) if transformed else 0
    # For weight gradients transforms were seen if a number of channels does not suit the other
    # kernels, for long kernels, and once for usual numbers; powers of two were measured widely.
    odd = (shape.channels % 16 or shape.filters % 16) and shape.side <= 2 * _NEVER_SIDE
    powers = all(number & (number - 1) == 0 for number in (shape.channels, shape.filters))
    return (
        SIZES["spectra of weight"](shape)
        if odd or long or (usual and not powers and shape.side <= _NEVER_SIDE)
        else 0
    )


def copied_bytes(shape: Shape, direction: str) -> int:
    """Return the bytes of copies that a strided or grouped fp32 pass may make, if any.

    Of 249 weight gradients of strided convolutions that were predicted without copies, 30 made
    them. Of grouped convolutions few were measured, and some took up to half as much.
    """
    if shape.mode != "fp32" or shape.dims != 2 or shape.taps == 1 or shape.kind == "depthwise":
        return 0
    if shape.groups > 1 or (shape.stride > 1 and direction == "weight"):
        return SIZES["x y w"](shape)
    return 0


def _is_measured(shape: Shape) -> bool:
    """Tell whether the rules were fitted to this convolution with as many samples.

    A number between two that took the same kind of kernel counts too, but none beyond: with half as
    many samples again as were measured, one took a transform that it had not taken.
    """
    which = (shape.channels, shape.filters, shape.side)
    measured = sorted(samples for samples, *rest in OF_MODELS if tuple(rest) == which)
    if shape.batch in measured:
        return True
    place = bisect_left(measured, shape.batch)
    if place in (0, len(measured)):
        return False
    around = (measured[place - 1], shape.batch, measured[place])
    return len({transforms(samples, *which) for samples in around}) == 1


class Convolutions:
    def __init__(self, architecture: tuple[int, int]):
        self._processors = multiprocessors.of_gpu(architecture)
        self._largest = 0
        self._advice: Doubt | None = None

    def instead(self) -> dict[Any, Any]:
        return {
            aten.convolution.default: self.forward,
            aten.convolution_backward.default: self.backward,
        }

    def forward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate copies of operands that do not have the layout the kernel reads."""
        x, weight, _, stride, _, _, transposed, _, groups = args[:9]
        if x.device.index is None or x.numel() == 0:
            return fakes.dispatch(func, (), args, kwargs)
        recorder, size = fakes.recorder, x.nbytes
        copied = (
            None if _readable(x, groups) else recorder.allocate(size, "contiguous", "temporary")
        )
        out = fakes.dispatch(func, (), args, kwargs)
        fakes.hold(out, func)
        wide, narrow, direction = (out, x, "input") if transposed else (x, out, "forward")
        shape = Shape.of(wide, weight, narrow, stride, groups)
        _ask(recorder, shape, direction)
        if copied is not None:
            recorder.free(copied)
        return out

    def backward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate one gradient after the other, each with its own scratch memory."""
        grad, x, weight, _, stride, _, _, transposed, _, groups = args[:10]
        out = fakes.dispatch(func, (), args, kwargs)
        if grad.device.index is None or x.numel() == 0:
            return out
        if torch.backends.cudnn.benchmark:
            fakes.doubt(BENCHMARK[x.dtype in HALVES])
        if x.dim() == 5:
            fakes.doubt(VOLUMES)
        wide, narrow, direction = (grad, x, "forward") if transposed else (x, grad, "input")
        shape = Shape.of(wide, weight, narrow, stride, groups)
        if shape.mode == "fp32" and shape.dims == 1 and shape.groups == 1 and shape.taps > 1:
            fakes.doubt(LINES)
        recorder = fakes.recorder
        layout = _LAST[x.dim()] if shape.last else torch.contiguous_format
        copied = [
            recorder.allocate(part.nbytes, "contiguous", "temporary")
            for part in (grad, x)
            if not part.is_contiguous(memory_format=layout)
        ]
        for gradient, which in ((out[0], direction), (out[1], "weight")):
            if gradient is not None:
                fakes.hold(gradient, func)
                _ask(recorder, shape, which)
        self._name_largest(fakes, shape)
        recorder.free_all(copied)
        if out[2] is not None:
            fakes.hold(out[2], func)
            channels = grad.shape[1]
            steps = [
                (step, dim)
                for dim, step in enumerate(grad.stride())
                if grad.shape[dim] > 1 and step > 0
            ]
            fastest = not steps or min(steps)[1] != 1  # the gradient as it came, not its copy
            recorder.passing(
                buffer_bytes(grad.numel() // channels, channels, fastest, False, self._processors),
                "sum",
            )
        return out

    def _name_largest(self, fakes: Fakes, shape: Shape) -> None:
        """Name the convolution of uncertain scratch memory that may take most.

        The doubt says what avoids it, if this convolution may be the peak. In TF32 and half
        precision no transforms were ever seen.
        """
        recorder = fakes.recorder
        most = max(most_bytes(shape, direction) for direction in ("forward", "input", "weight"))
        if most > self._largest:
            self._largest = most
            where = recorder.module()[0] or "A convolution outside modules"
            text = (
                f"{where} ({shape.channels} to {shape.filters} channels, {shape.side} × "
                f"{shape.side}) may take up to {bytes_text(most)} of scratch memory. In TF32 or "
                f"bf16 no convolution was seen to use that much: --tf32, --amp bf16."
            )
            self._advice = Doubt("advice", text, "convolution", upward=True)
        if self._advice is not None:
            key = (self._advice.code, self._advice.operation)
            if recorder.most_bytes > recorder.peak_bytes:
                fakes.doubts[key] = self._advice
            else:
                fakes.doubts.pop(key, None)


_LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}


def _readable(x: Any, groups: int) -> bool:
    """Tell whether a forward pass reads ``x`` in its present layout.

    It does in the default layout, and in channels-last if cuDNN computes it so. torch's own
    depthwise kernels read only the default layout (``Convolution.cpp``).
    """
    if x.is_contiguous():
        return True
    if groups == x.shape[1] > 1 and x.element_size() == 4:
        return False
    if x.dim() == 3:
        return False  # so that a transposed tensor is not taken for one in channels-last layout
    return bool(x.is_contiguous(memory_format=_LAST[x.dim()]))


def _ask(recorder: Recorder, shape: Shape, direction: str) -> None:
    recorder.passing([scratch_bytes(shape, direction)], "cudnn_convolution", "workspace")
    recorder.could_take(max(most_bytes(shape, direction), copied_bytes(shape, direction)))
