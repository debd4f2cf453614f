"""Trace attention as CUDA runs it: the kernel, and what it keeps for the backward pass.

The choice follows torch's ``sdp_utils.cpp``: flash where the types and shapes allow it, else the
memory-efficient kernel, else plain mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .fakes import DEVICE
from .recorder import Recorder, operator_name
from .same_types import HALVES, check_tensors

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
FLASH_MAX_HEAD = 256
CUDNN_FIRST = {(9, 0): 256, (10, 0): 128}
"""The compute capabilities for which torch 2.11 prefers cuDNN's kernel to flash attention, each
with the widest head that the kernel takes. Keys and values may differ in width.
"""


class Attention:
    """``scaled_dot_product_attention`` of the device's tensors, for a GPU of ``architecture``."""

    def __init__(self, architecture: tuple[int, int]):
        self.architecture = architecture

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        check_tensors("scaled_dot_product_attention", (query, key, value))
        which = self.choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if which == "flash":
            head = query.shape[-1]
            root = scale if scale is not None else head**-0.5
            pad = -head % 8
            if pad:
                query, key, value = (
                    torch.nn.functional.pad(part, (0, pad)) for part in (query, key, value)
                )
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=root
            )[0]
            return out[..., :head] if pad else out
        if which == "math":
            return _plain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        needs = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
        mask = None if attn_mask is None else _prepared(attn_mask, query, key, which)
        if which == "cudnn":
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, needs, dropout_p, is_causal, False, scale=scale
            )[0]
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs, dropout_p, is_causal, scale=scale
        )[0]

    def choose(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        dropout: float,
        causal: bool,
        grouped: bool,
    ) -> str:
        """Return the kernel that is chosen: cudnn, flash, efficient or math."""
        if query.device != DEVICE or any(part.dim() != 4 for part in (query, key, value)):
            return "math"
        if (
            any(part.stride(-1) != 1 for part in (query, key, value))
            or 0 in query.shape
            or 0 in key.shape
        ):
            return "math"
        if mask is not None and mask.stride(-1) != 1:
            return "math"
        half = query.dtype in HALVES and key.dtype == query.dtype == value.dtype
        same = query.shape[-1] == key.shape[-1] == value.shape[-1]
        square = not causal or query.shape[-2] == key.shape[-2]
        heads = grouped or query.shape[:2] == key.shape[:2] == value.shape[:2]
        widths = {query.shape[-1], key.shape[-1], value.shape[-1]}
        if (
            half
            and heads
            and all(width % 8 == 0 for width in widths)
            and max(widths) <= CUDNN_FIRST.get(self.architecture, 0)
            and torch.backends.cuda.cudnn_sdp_enabled()
            and not _deterministic()
            and _cudnn_takes(query, key, mask, dropout)
        ):
            return "cudnn"
        if (
            half
            and same
            and square
            and heads
            and mask is None
            and query.shape[-1] <= FLASH_MAX_HEAD
            and self.architecture >= (8, 0)
            and torch.backends.cuda.flash_sdp_enabled()
        ):
            return "flash"
        alignment = 8 if half else 4
        aligned = query.shape[-1] % alignment == 0 and value.shape[-1] % alignment == 0
        typed = half or query.dtype == torch.float32 == key.dtype == value.dtype
        if (
            typed
            and aligned
            and query.shape[:2] == key.shape[:2] == value.shape[:2]
            and torch.backends.cuda.mem_efficient_sdp_enabled()
        ):
            return "efficient"
        return "math"


def _deterministic() -> bool:
    """Whether an algorithm that is not deterministic raises an error and not only a warning."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )


def _cudnn_takes(query: Any, key: Any, mask: Any, dropout: float) -> bool:
    """Tell whether cuDNN takes these lengths and this mask.

    The mask needs no gradient. It has two or four dimensions, not three, each that of the scores or
    1 (``check_attn_mask_shape`` and ``check_cudnn_tensor_shapes`` in ``sdp_utils``).
    """
    if key.shape[-2] == 1 or (query.shape[-2] == 1 and dropout > 0):
        return False
    if mask is None:
        return True
    if mask.requires_grad:
        return False
    scores = (*query.shape[:-1], key.shape[-2])
    return mask.dim() in (2, 4) and all(
        size in (1, whole)
        for size, whole in zip(reversed(mask.shape), reversed(scores), strict=False)
    )


def _plain(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    """Compute attention in plain mathematics.

    Halves are computed in fp32, and a mask is added in place, which torch does not do for fake
    tensors.
    """
    dtype = query.dtype
    if mask is not None and mask.dtype == torch.bool:
        mask = _added(mask, dtype)
    if dtype in HALVES and not _halves_allowed():
        query, key, value = query.float(), key.float(), value.float()
    root = (scale if scale is not None else query.shape[-1] ** -0.5) ** 0.5
    scaled = query * root  # torch's kernel holds it until its end
    if causal:
        mask = torch.ones(
            query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device
        ).tril()
        mask = _added(mask, query.dtype)
    if grouped:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    weights = scaled @ (key.transpose(-2, -1) * root)
    if mask is not None:
        weights = weights.add_(mask)
    weights = (
        aten._safe_softmax(weights, -1) if hasattr(aten, "_safe_softmax") else weights.softmax(-1)
    )
    if dropout > 0:
        weights = torch.nn.functional.dropout(weights, dropout)
    kept = weights.to(dtype)  # torch's kernel also returns the weights
    out = (weights @ value).to(dtype)
    del kept
    return out


def _halves_allowed() -> bool:
    return bool(
        getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: True)()
    )


def _added(mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask of booleans as one that is added to the scores."""
    zero, never = (
        torch.scalar_tensor(value, dtype=dtype, device=mask.device)
        for value in (0.0, float("-inf"))
    )
    return torch.where(mask, zero, never)


def _prepared(mask: Any, query: Any, key: Any, kernel: str) -> Any:
    """Return a mask as a fused kernel needs it: added to the scores, and expanded without a copy.

    The memory-efficient kernel needs rows whose length is a multiple of 16.
    """
    if mask.dtype == torch.bool:
        mask = _added(mask, query.dtype)
    length = mask.shape[-1]
    if kernel == "efficient" and length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


# ── scratch memory of the kernels ─────────────────────────────────────────────────────────────────


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


class Backward:
    """The backward passes of the fused kernels.

    ``processors`` holds the number of multiprocessors of the GPU and of threads on each;
    ``architecture`` is its compute capability.
    """

    def __init__(self, architecture: tuple[int, int], processors: tuple[int, int]):
        self._large = architecture in ((8, 0), *CUDNN_FIRST)
        """Whether a thread block has enough shared memory for tiles of 128 rows."""
        self._processors = processors[0]

    def instead(self) -> dict[Any, Any]:
        return {
            aten._scaled_dot_product_cudnn_attention_backward.default: self.cudnn,
            aten._scaled_dot_product_flash_attention_backward.default: self.flash,
            aten._scaled_dot_product_efficient_attention_backward.default: self.efficient,
        }

    def flash(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate what the flash kernel's backward pass needs.

        These are a row of softmax sums, and the gradient of the query in fp32, in deterministic
        mode once for each part of the keys. If several query heads share a key, there are also the
        gradients of key and value for each of these heads (``mha_bwd`` in ``flash_api.cpp``).
        """
        grad, query, key, _, out = args[:5]
        batch, heads, length, head = query.shape
        rows = batch * heads * _up(length, 128)
        parts = -(-self._processors // (batch * heads)) if _deterministic() else 1
        sizes = [4 * rows, 4 * parts * rows * _up(head, 32 if head <= 128 else 64)]
        if key.shape[1] != heads:
            sizes += [batch * key.shape[2] * heads * head * query.element_size()] * 2
        copied = [part for part in (grad, out) if not part.transpose(1, 2).is_contiguous()]
        return _around(
            fakes, func, args, kwargs, copied, lambda name: fakes.recorder.passing(sizes, name)
        )

    def efficient(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate what the memory-efficient kernel's backward pass needs.

        This is a row of sums (delta) in fp32, of a product that is not stored for half precision,
        and the workspace of :meth:`workspace_bytes` (``_efficient_attention_backward`` in
        ``attention_backward.cu``).
        """
        grad, query, key, value = args[:4]
        recorder = fakes.recorder
        rows = query.numel() // max(1, query.shape[-1])
        half = query.dtype in HALVES

        def scratch(name: str) -> None:
            sums = [] if half else [rows * value.shape[-1] * query.element_size(), 4 * rows]
            summed = [recorder.allocate(size, name, "temporary") for size in sums]
            delta = recorder.allocate(4 * rows, name, "temporary")
            recorder.free_all(summed)
            workspace = self.workspace_bytes(query.shape, key.shape[2], value.shape[3], half)
            tiles = recorder.allocate(workspace, name, "temporary")
            recorder.free(delta)
            recorder.free(tiles)

        copied = [] if grad.transpose(1, 2).is_contiguous() else [grad]
        return _around(fakes, func, args, kwargs, copied, scratch)

    def workspace_bytes(self, query: Any, keys: int, value_head: int, half: bool) -> int:
        """Return the bytes of the memory-efficient backward kernel's workspace.

        It holds the gradient of the query in fp32, in tiles with a lock each. For half precision
        that is too wide for the registers, it also holds the gradients of key and value
        (``workspace_size`` in ``kernel_backward.h``, whose tiles ``generate_kernels.py`` lists).
        ``query`` is the query's shape.
        """
        batch, heads, length, head = query
        widest = max(head, value_head)
        special = half and not self._large and widest <= 96  # made for GPUs with less shared memory
        high = 128 if widest > 64 and (self._large or special) else 64
        in_registers = half and (widest <= 64 or widest <= high == 128 or special)
        wide = 128 if in_registers and self._large and widest > 64 else 64
        size = -(-length // high) * -(-head // wide) * (16 + 4 * high * wide)
        if half and not in_registers:
            parts = -(-keys // wide)
            if batch * heads >= 256 and keys <= 2 * wide:
                parts = 1
            parts = 1 if _deterministic() else max(1, min(parts, 200 // (batch * heads)))
            size += 4 * parts * wide * (_up(head, high) + _up(value_head, high))
        return int(batch * heads * _up(size, 16))

    def cudnn(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        """Allocate the workspace of cuDNN's backward pass.

        It holds the gradient of the query in fp32, a row of sums, and 256 bytes, as measured on an
        H200 (``CompositeSDPABackwardNode`` of cuDNN's frontend has the same without the last). If
        several query heads share a key, cuDNN may take more, by an unknown amount. Rows that are
        not contiguous are copied first (``MHA.cpp``).
        """
        batch, heads, length, head = args[1].shape
        rows = 4 * batch * heads * length
        copied = [] if args[0].stride(-1) == 1 else [args[0]]
        sizes = [rows * head + rows + 256]
        return _around(
            fakes, func, args, kwargs, copied, lambda name: fakes.recorder.passing(sizes, name)
        )


def _around(
    fakes: Fakes,
    func: Any,
    args: Any,
    kwargs: Any,
    copied: list[Any],
    scratch: Callable[[str], None],
) -> Any:
    """Allocate copies of gradients as the kernel reads them, its results, its scratch memory."""
    name = operator_name(func).replace("_scaled_dot_product_", "")
    recorder = fakes.recorder
    if args[1].device.index is None or not args[1].numel():
        return fakes.dispatch(func, (), args, kwargs)
    copies = [recorder.allocate(part.nbytes, name, "temporary") for part in copied]
    made = fakes.dispatch(func, (), args, kwargs)
    for part in made:
        if part is not None:
            fakes.hold(part, func)
    scratch(name)
    recorder.free_all(copies)
    return made


def safe_softmax(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Compute a softmax in which rows that are masked completely become zeros."""
    numbers = out.numel()
    if out.device.index is not None and numbers:
        recorder.passing([numbers, numbers // out.shape[args[1]], 4], "_safe_softmax")


def softmax_backward(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Allocate the product of the gradient and the result."""
    if out.device.index is not None:
        recorder.passing([args[0].nbytes], "_softmax_backward_data")


AROUND = {
    **({aten._safe_softmax.default: safe_softmax} if hasattr(aten, "_safe_softmax") else {}),
    aten._softmax_backward_data.default: softmax_backward,
}


def _cudnn_forward(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own fake, with where the random numbers begin on the device, where cuDNN reads it."""
    out = list(fakes.dispatch(func, (), args, kwargs))
    query = args[0]
    for at in (6, 7):
        out[at] = query.new_empty((), dtype=torch.int64)
        fakes.hold(out[at], func)
    fakes.hold(out[0], func)
    fakes.hold(out[1], func)
    fakes.recorder.passing([256], "cudnn_attention", "workspace")
    return tuple(out)


def _efficient_forward(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Torch's own fake, with where the random numbers begin on the host."""
    out = list(fakes.dispatch(func, (), args, kwargs))
    for at in (2, 3):
        out[at] = torch.empty((), dtype=torch.int64)
    return tuple(out)


INSTEAD = {
    aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_forward,
}
