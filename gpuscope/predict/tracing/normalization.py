"""Normalization as CUDA does it: the mean and the spread of each channel or row are kept in fp32, whatever comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .fakes import DEVICE
from .recorder import Recorder

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def with_statistics(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own fake, with its statistics in fp32 where those of a CPU are halves."""
    out, *statistics = fakes.dispatch(func, (), args, kwargs)
    return out, *[torch.empty_like(kept, dtype=torch.float32) if kept.dtype in _HALVES else kept for kept in statistics]


class _FusedRms(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """One kernel, which keeps its input and a factor of each row in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Any, dims: int, weight: Any) -> Any:
        out = torch.empty_like(x)
        factor = x.new_empty((*x.shape[: x.dim() - dims], *[1] * dims), dtype=torch.float32)
        ctx.save_for_backward(x, factor, weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, _, weight = ctx.saved_tensors
        return torch.empty_like(x), None, None if weight is None else torch.empty_like(weight)


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """``aten::rms_norm``: composed of single operators only where the weight has another type, and before 2.9."""
    fused = hasattr(aten, "_fused_rms_norm") and x.device == DEVICE and x.is_contiguous()
    if not fused or (weight is not None and weight.dtype != x.dtype):
        return aten.rms_norm.default.decompose(x, shape, weight, eps)
    return _FusedRms.apply(x, len(shape), weight)


def group_forward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """A factor and a summand for each sample's channels."""
    samples, channels = args[3], args[4]
    if out[0].device.index is not None:
        recorder.passing([4 * samples * channels] * 2, "native_group_norm")


def group_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    samples, channels, groups = args[5], args[6], args[8]
    if args[0].device.index is not None:
        each, group = 4 * samples * channels, 4 * samples * groups
        recorder.passing([each, each, group, group, each], "native_group_norm_backward")


AROUND = {
    aten.native_group_norm.default: group_forward,
    aten.native_group_norm_backward.default: group_backward,
}
INSTEAD = dict.fromkeys(
    (aten.native_batch_norm.default, aten.native_layer_norm.default, aten.native_group_norm.default), with_statistics
)
