"""Trace normalization as CUDA does it.

The mean and the standard deviation of each channel or row are kept in fp32, whatever the input's
type.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext
from torch._prims_common import suggest_memory_format

from .fakes import DEVICE
from .recorder import Recorder
from .reductions import buffer_bytes
from .same_types import HALVES

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten


def with_statistics(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Apply torch's own fake, with statistics in fp32 where the CPU's are in half precision."""
    out, *statistics = fakes.dispatch(func, (), args, kwargs)
    return out, *[
        torch.empty_like(kept, dtype=torch.float32) if kept.dtype in HALVES else kept
        for kept in statistics
    ]


_WIDE = 32
"""Columns and rows that a thread block handles, if the gradients of layer normalization are summed
in two steps.
"""
_MANY_ROWS, _MOST_GRID = 64 << 10, 32 << 10


def partial_rows(rows: int, columns: int, multiprocessors: int) -> int:
    """Return the rows of partial sums for the gradients of weight and bias.

    The gradients are made from them in a second step; 0 if a single step is enough. Images and
    similar inputs have so many more rows than columns (torch's
    ``LaunchGammaBetaBackwardCUDAKernel``).
    """
    if rows <= _MANY_ROWS or columns // _WIDE >= multiprocessors // 2:
        return 0
    return min(_MOST_GRID // -(-columns // _WIDE), -(-rows // _WIDE))


def _in_rows(fakes: Fakes, x: Any, operation: str) -> list[int]:
    """Allocate the copy of a tensor whose rows are not contiguous.

    Layer normalization's kernels need contiguous rows.
    """
    if x.device.index is None or x.is_contiguous():
        return []
    return [fakes.recorder.allocate(x.nbytes, operation, "temporary")]


def layer_forward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Allocate the rows and their statistics, and a copy of the input if it needs one."""
    copied = _in_rows(fakes, args[0], "native_layer_norm")
    out = with_statistics(fakes, func, args, kwargs)
    if copied:
        for part in out:
            fakes.hold(part, func)
        fakes.recorder.free(copied[0])
    return out


class _FusedRms(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """One kernel, which keeps its input and a factor of each row in fp32.

    It needs contiguous rows, like that of layer normalization.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, dims: int, weight: Any, multiprocessors: int) -> Any:
        rows = x.contiguous()
        out = torch.empty_like(rows)
        factor = x.new_empty((*x.shape[: x.dim() - dims], *[1] * dims), dtype=torch.float32)
        ctx.save_for_backward(x, factor, weight)
        ctx.multiprocessors = multiprocessors
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, factor, weight = ctx.saved_tensors
        rows = x.contiguous()
        dx = torch.empty_like(rows)
        if weight is None:
            return dx, None, None, None
        sums = torch.empty_like(weight)
        in_rows = grad.contiguous()
        partial = partial_rows(factor.numel(), weight.numel(), ctx.multiprocessors)
        if partial:
            sums = weight.new_empty((partial, weight.numel())).sum(0).view(weight.shape)
        del rows, in_rows
        return dx, None, sums, None


class Rows:
    """The gradients of weights in normalization by rows.

    How they are summed depends on the GPU's multiprocessors. ``processors`` holds their number, and
    that of the threads on each.
    """

    def __init__(self, processors: tuple[int, int]):
        self._processors = processors

    def instead(self) -> dict[Any, Any]:
        return {aten.native_layer_norm_backward.default: self.layer_backward}

    def layer_backward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate the gradients; that of the input has contiguous rows in any case."""
        grad, x, shape = args[:3]
        out = fakes.dispatch(func, (), args, kwargs)
        if x.device.index is None or not x.numel():
            return out
        operation, recorder = "native_layer_norm_backward", fakes.recorder
        copied = _in_rows(fakes, x, operation)
        dx, *sums = out
        if dx is not None:
            if not dx.is_contiguous():
                dx = torch.empty_like(dx, memory_format=torch.contiguous_format)
            fakes.hold(dx, func)
        columns = math.prod(shape)
        wanted = [one for one in sums if one is not None]
        partial = partial_rows(x.numel() // columns, columns, self._processors[0]) if wanted else 0
        if not partial:
            for one in wanted:
                fakes.hold(one, func)
            copied += _in_rows(fakes, grad, operation)
        else:
            first = [recorder.allocate(one.nbytes, operation, "temporary") for one in wanted]
            copied += _in_rows(fakes, grad, operation)
            for one in wanted:
                copied.append(recorder.allocate(partial * one.nbytes, operation, "temporary"))
            for one, before in zip(wanted, first, strict=True):
                fakes.hold(one, func)
                recorder.passing(
                    buffer_bytes(partial, columns, False, False, self._processors), operation
                )
                recorder.free(before)
        recorder.free_all(copied)
        return (dx, *sums)

    def rms_norm(self, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        """Compute ``aten::rms_norm``.

        It is composed of single operators only if the weight has another type, for channels-last
        inputs, before torch 2.9, and in graphs that are compiled: there the fused kernel's result
        would not depend on its input.
        """
        fused = hasattr(aten, "_fused_rms_norm") and x.device == DEVICE and not x.is_complex()
        if (
            not fused
            or TracingContext.try_get() is not None
            or suggest_memory_format(x) is not torch.contiguous_format
            or (weight is not None and weight.dtype != x.dtype)
        ):
            return aten.rms_norm.default.decompose(x, shape, weight, eps)
        return _FusedRms.apply(x, len(shape), weight, self._processors[0])


def group_forward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Allocate a factor and a summand for each sample's channels."""
    samples, channels = args[3], args[4]
    if out[0].device.index is not None:
        recorder.passing([4 * samples * channels] * 2, "native_group_norm")


def group_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    samples, channels, groups = args[5], args[6], args[8]
    if args[0].device.index is not None:
        each, group = 4 * samples * channels, 4 * samples * groups
        recorder.passing([each, each, group, group, each], "native_group_norm_backward")


_ROWS_EACH, _THREADS, _MOST_BLOCKS, _FEWEST_BLOCKS = 16, 512, 128, 8
"""Rows that a thread of the kernel handles, threads of a block, the most blocks of rows, and the
number below which there is only one block.
"""


def row_blocks(rows: int, channels: int) -> tuple[int, int]:
    """Return the number of blocks over rows and over channels of kernels that reduce by channel.

    They reduce ``(rows, channels)`` (torch's ``batch_norm_stats_channels_last`` and its backward
    pass). 1 means that no block waits for another.
    """
    wide = min(_power_below(channels), 32)
    high = min(_power_below(-(-rows // _ROWS_EACH)), _THREADS // wide)
    if wide * high != _THREADS:
        wide = min(_power_below(channels), _THREADS // high)
    blocks = min(-(-rows // (high * _ROWS_EACH)), _MOST_BLOCKS)
    return (blocks if blocks >= _FEWEST_BLOCKS else 1), -(-channels // wide)


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _staged(recorder: Recorder, x: Any, parts: int, operation: str) -> None:
    """Allocate what the blocks of rows exchange, for inputs without spatial dimensions.

    These are the results of each block of rows, and a flag for each block of channels.
    """
    if x.device.index is None or x.dim() != 2 or not x.numel():
        return
    rows, across = row_blocks(*x.shape)
    if rows > 1:
        recorder.passing([4 * parts * x.shape[1] * rows, 4 * across], operation)


def batch_forward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Allocate mean, variance and count of each block, and the total count."""
    if args[5]:  # in training
        _staged(recorder, args[0], 4, "native_batch_norm")


def batch_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Allocate two sums for each channel, from which the gradient of the input is made."""
    x, recorder = args[1], fakes.recorder
    flat = x.device.index is not None and x.dim() == 2
    sums = [
        recorder.allocate(4 * x.shape[1], "native_batch_norm_backward", "temporary")
        for _ in range(2 * flat)
    ]
    _staged(recorder, x, 2, "native_batch_norm_backward")
    out = fakes.dispatch(func, (), args, kwargs)
    for made in out:
        if made is not None:
            fakes.hold(made, func)
    recorder.free_all(sums)
    return out


AROUND = {
    aten.native_batch_norm.default: batch_forward,
    aten.native_group_norm.default: group_forward,
    aten.native_group_norm_backward.default: group_backward,
}
INSTEAD = {
    **dict.fromkeys(
        (aten.native_batch_norm.default, aten.native_group_norm.default), with_statistics
    ),
    aten.native_layer_norm.default: layer_forward,
    aten.native_batch_norm_backward.default: batch_backward,
}
