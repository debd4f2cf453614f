"""Let the quantised layers of bitsandbytes hold weights without data, and trace their CUDA kernels.

The library's own Python code runs: it packs a weight when the weight moves to the GPU, and unpacks
it for products. Two things stand in its way. Its parameters are classes of their own, which lose
what makes a tensor fake; :func:`subclass_maker` keeps it. And its operators say what they return,
not what they allocate besides; :func:`kernels` has that, by the library's public sources (0.50).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from ..request import Doubt
from .quantised import UNMEASURED

FUSED_ROWS = 4
"""Up to this many rows one kernel unpacks and multiplies, on every card. Up to 1,536 that depends
on the card and the shape; the weight is taken to be unpacked then, which needs more.
"""
OUTLIERS = Doubt(
    "unmeasured",
    "Which inputs of an 8-bit layer are outliers depends on their values. None is assumed; each "
    "one is kept in 16 bits, and so is its row of weights for a moment.",
    "bitsandbytes outliers",
    3.0,
    upward=True,
)
Doubts = Callable[[Doubt], None]


def _data_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.Tensor.data.__get__(tensor)


def _set_data(tensor: Any, value: torch.Tensor) -> None:
    torch.Tensor.data.__set__(tensor, value)
    if isinstance(value, FakeTensor):
        tensor.fake_device, tensor.constant = value.fake_device, None


@functools.cache
def _fake_class(kind: type) -> type:
    if issubclass(kind, FakeTensor):
        return kind
    return type(kind)(kind.__name__, (kind, FakeTensor), {"data": property(_data_of, _set_data)})


def subclass_maker(plain: Any, doubt: Doubts, learn: Callable[[dict[Any, Any]], None]) -> Any:
    """Return a ``Tensor._make_subclass`` that makes a library's own parameters of fake tensors.

    ``learn`` takes the kernels of the library, once it is known to be imported.
    """

    def make(kind: type, data: Any, require_grad: bool = False, **more: Any) -> Any:
        if kind is FakeTensor or not isinstance(data, FakeTensor):
            return plain(kind, data, require_grad, **more)
        if not issubclass(kind, nn.Parameter) or kind is nn.Parameter:
            return plain(kind, data, require_grad, **more)
        made = torch.Tensor.detach(data).requires_grad_(require_grad)
        made.__class__ = _fake_class(kind)
        if kind.__module__.partition(".")[0] == "bitsandbytes":
            doubt(UNMEASURED)
            learn(kernels(doubt))
        return made

    return make


def kernels(doubt: Doubts) -> dict[Any, Any]:
    """Return what the library's operators do on CUDA, in torch's operators, by operator.

    Operators that this version of the library does not have are left out.
    """
    library = torch.ops.bitsandbytes
    own: dict[str, Callable[..., Any]] = {
        "gemm_4bit": _product_in_four_bits,
        "int8_vectorwise_quant": functools.partial(_rows_to_eight_bits, doubt=doubt),
        "int8_double_quant": functools.partial(_rows_and_columns_to_eight_bits, doubt=doubt),
        "int8_scaled_mm": _product_in_eight_bits,
        "int8_mixed_scaled_mm": _product_without_outliers,
    }
    named = {name: _as_special(kernel) for name, kernel in own.items() if hasattr(library, name)}
    packets = {getattr(library, name): kernel for name, kernel in named.items()}
    return packets | {packet.default: kernel for packet, kernel in packets.items()}


def _as_special(kernel: Callable[..., Any]) -> Any:
    return lambda mode, func, args, kwargs: kernel(*args, **kwargs)


def _product_in_four_bits(
    x: torch.Tensor,
    packed: torch.Tensor,
    shape: Any,
    scales: torch.Tensor,
    block: int,
    kind: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    inputs = x.shape[-1]
    if x.numel() // inputs <= FUSED_ROWS and inputs % block == 0:
        return torch.empty((*x.shape[:-1], shape[0]), dtype=x.dtype, device=x.device)
    held: list[torch.Tensor] = []
    if absmax_8bit is not None:
        held.append(torch.empty(absmax_8bit.shape, dtype=torch.float32, device=x.device))
        held.append(held[0] + absmax_offset)  # both are alive during the product
    weight = torch.empty(tuple(shape), dtype=x.dtype, device=x.device)
    return functional.linear(x, weight, bias)


def _rows_to_eight_bits(x: torch.Tensor, threshold: float = 0.0, *, doubt: Doubts) -> Any:
    scales = torch.empty(math.prod(x.shape[:-1]), dtype=torch.float32, device=x.device)
    rows = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    if threshold <= 0.0:
        return rows, scales, None
    doubt(OUTLIERS)
    outliers = x.abs() >= threshold
    del outliers
    return rows, scales, torch.empty(0, dtype=torch.int64, device=x.device)


def _rows_and_columns_to_eight_bits(
    x: torch.Tensor, threshold: float = 0.0, *, doubt: Doubts
) -> Any:
    rows, row_scales, outliers = _rows_to_eight_bits(x, threshold, doubt=doubt)
    sizes = x.abs().view(-1, x.shape[-1])
    if threshold > 0.0:
        mask = sizes >= threshold
        sizes.masked_fill_(mask, 0.0)
        x = x.masked_fill(mask.view(x.shape), 0.0)
    scales = sizes.amax(dim=0).float()
    columns = torch.round(x.mul(127.0) / scales.unsqueeze(0)).to(torch.int8)
    return rows, columns, row_scales, scales.flatten().float(), outliers


def _product_in_eight_bits(
    x: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    shape = (*x.shape[:-1], weight.shape[0])
    sums = torch.empty(shape, dtype=torch.int32, device=x.device)
    half = torch.empty(shape, dtype=torch.float16, device=x.device)
    if bias is not None and bias.dtype != torch.float16:
        half.add_(bias)
    made = half.to(dtype or torch.float16)
    del sums
    return made


def _product_without_outliers(
    x: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    outliers: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> Any:
    none = torch.empty(0, dtype=x.dtype, device=x.device)
    return _product_in_eight_bits(
        rows, weight, row_scales, column_scales, bias, dtype=x.dtype
    ), none
