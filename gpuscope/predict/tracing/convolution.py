"""Trace the scratch memory of cuDNN's convolutions, which is freed at the end of each call.

cuDNN chooses its kernels by rules that it does not publish. The scratch memory was measured on an
H200 (torch 2.11, benchmark off), and :mod:`.convolution_scratch` gives the size for a shape. This
module has the operators, and says how much more fp32 may take if it is unknown whether cuDNN uses
Fourier transforms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...text.units import bytes_text
from ..request import Doubt
from .convolution_rules import OF_MODELS
from .convolution_scratch import scratch_bytes
from .convolution_sizes import SIZES, Shape
from .recorder import Recorder
from .reductions import Reductions, buffer_bytes

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_NEAR = 1.5
"""By how much the number of samples may differ from a measured one."""
_NEVER_SAMPLES, _NEVER_SIDE, _NEVER_AREA, _FEWEST_TILED = 3, 64, 4608, 16
"""No forward transform of so few samples (but one, of 46 MiB) or of wider sides was seen, no tiling
of fewer positions or channels.
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
"""What cuDNN's search for the fastest kernel adds to the error bar: among halves, and in fp32,
where two trainings took 76 and 245 % more.
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
"""Of such gradients without scratch memory one in ten takes it."""


def most_bytes(shape: Shape, direction: str) -> int:
    """Return the most bytes that a pass may take where the rules are not sure.

    The pass is ``forward``, or the gradient of the ``input`` or the ``weight``. cuDNN may transform
    although the rules say that it does not and nothing near was measured; 0 where they are sure.
    """
    if (
        shape.mode != "fp32"
        or shape.dims != 2
        or shape.stride > 1
        or shape.groups > 1
        or shape.taps < 9
    ):
        return 0
    if shape.plain3 and _measured(shape):
        return 0
    fewer = min(shape.channels, shape.filters)
    usual = shape.plain3 and fewer >= 64
    if direction == "input":
        tiled = fewer >= _FEWEST_TILED and shape.batch * shape.side**2 > _NEVER_AREA
        return _relaid(shape, SIZES["tiles"](shape)) if tiled else 0
    if direction == "forward":
        transformed = usual and shape.side <= _NEVER_SIDE and shape.batch > _NEVER_SAMPLES
        return _relaid(shape, SIZES["spectra"](shape)) if transformed else 0
    # Of weights it was seen where a number of channels is odd for the other kernels, and once where
    # they are usual; powers of two were measured widely.
    odd = (shape.channels % 16 or shape.filters % 16) and shape.side <= 2 * _NEVER_SIDE
    powers = all(number & (number - 1) == 0 for number in (shape.channels, shape.filters))
    return (
        SIZES["spectra of weight"](shape)
        if odd or (usual and not powers and shape.side <= _NEVER_SIDE)
        else 0
    )


def _measured(shape: Shape) -> bool:
    """Tell whether the rules were fitted to this convolution.

    One with nearly as many samples counts too.
    """
    which = (shape.channels, shape.filters, shape.side)
    return any(
        samples / _NEAR <= shape.batch <= samples * _NEAR and which == (channels, filters, side)
        for samples, channels, filters, side in OF_MODELS
    )


def _relaid(shape: Shape, size: int) -> int:
    """Add the copies of fp32 operands that come with their channels last.

    cuDNN copies them into the ordinary layout.
    """
    return size + SIZES["x y w"](shape) if shape.last else size


class Convolutions:
    def __init__(self, architecture: tuple[int, int]):
        self._processors = Reductions(architecture).processors
        self._largest = 0
        self._advice: Doubt | None = None

    def instead(self) -> dict[Any, Any]:
        return {
            aten.convolution.default: self.forward,
            aten.convolution_backward.default: self.backward,
        }

    def forward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """What does not lie as the kernel reads it is copied first."""
        x, weight, _, stride, _, _, transposed, _, groups = args[:9]
        if x.device.index is None or x.numel() == 0:
            return fakes.dispatch(func, (), args, kwargs)
        recorder, size = fakes.recorder, x.numel() * x.element_size()
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
        """One gradient after the other, each with its own scratch memory."""
        grad, x, weight, _, stride, _, _, transposed, _, groups = args[:10]
        out = fakes.dispatch(func, (), args, kwargs)
        if grad.device.index is None or x.numel() == 0:
            return out
        if torch.backends.cudnn.benchmark:
            fakes.doubt(BENCHMARK[x.dtype in _HALVES])
        if x.dim() == 5:
            fakes.doubt(VOLUMES)
        wide, narrow, direction = (grad, x, "forward") if transposed else (x, grad, "input")
        shape = Shape.of(wide, weight, narrow, stride, groups)
        if shape.mode == "fp32" and shape.dims == 1 and shape.groups == 1 and shape.taps > 1:
            fakes.doubt(LINES)
        recorder = fakes.recorder
        layout = _LAST[x.dim()] if shape.last else torch.contiguous_format
        copied = [
            recorder.allocate(part.numel() * part.element_size(), "contiguous", "temporary")
            for part in (grad, x)
            if not part.is_contiguous(memory_format=layout)
        ]
        for gradient, which in ((out[0], direction), (out[1], "weight")):
            if gradient is not None:
                fakes.hold(gradient, func)
                _ask(recorder, shape, which)
        self._name_largest(fakes, shape)
        for block in copied:
            recorder.free(block)
        if out[2] is not None:
            fakes.hold(out[2], func)
            channels = grad.shape[1]
            steps = [
                (step, dim)
                for dim, step in enumerate(grad.stride())
                if grad.shape[dim] > 1 and step > 0
            ]
            fastest = not steps or min(steps)[1] != 1  # of the gradient as it came, not of its copy
            recorder.passing(
                buffer_bytes(grad.numel() // channels, channels, fastest, False, self._processors),
                "sum",
            )
        return out

    def _name_largest(self, fakes: Fakes, shape: Shape) -> None:
        """Name the convolution of unknown scratch memory that may take most.

        It says what keeps it from that, as long as it may be the peak. TF32 and halves were never
        seen to be transformed.
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
    """Tell whether a forward pass takes ``x`` as it lies.

    It does in the ordinary layout, or where cuDNN runs it with the channels last. Depthwise kernels
    of torch's own take the ordinary layout only (``Convolution.cpp``).
    """
    if x.is_contiguous():
        return True
    if groups == x.shape[1] > 1 and x.element_size() == 4:
        return False
    if x.dim() == 3:
        return False  # lest a transposed one be taken for one with channels last
    return bool(x.is_contiguous(memory_format=_LAST[x.dim()]))


def _ask(recorder: Recorder, shape: Shape, direction: str) -> None:
    recorder.passing([scratch_bytes(shape, direction)], "cudnn_convolution", "workspace")
    recorder.could_take(most_bytes(shape, direction))
