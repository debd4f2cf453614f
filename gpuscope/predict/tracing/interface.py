"""Replace functions of torch's Python interface that read a tensor's memory.

They must work for tensors without data.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from ..request import Doubt
from .fakes import DEVICE

SCALAR_PERCENT = 2.0
"""What zeros in place of values add to the error bar, in percent."""


def istft(
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Compute ``torch.istft``.

    Frames are transformed back to samples, added where they overlap, and divided by the sum of
    squared windows. torch's own function checks that this sum is nowhere zero.
    """
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    real = x.real.dtype
    if window is None:
        window = torch.ones(width, dtype=real, device=x.device)
    left = (n_fft - width) // 2
    if width != n_fft:
        window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    frames = (x if x.dim() == 3 else x.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        pieces = torch.fft.ifft(frames, n_fft, -1, norm)
    else:
        half = onesided is None or onesided
        pieces = torch.fft.irfft(frames if half else frames[..., : n_fft // 2 + 1], n_fft, -1, norm)
    pieces = pieces * window.view(1, 1, n_fft)
    whole = n_fft + hop * (pieces.shape[1] - 1)
    added = torch.ops.aten.unfold_backward(pieces, [pieces.shape[0], whole], 1, n_fft, hop)
    squares = window.pow(2).expand(1, pieces.shape[1], n_fft)
    weights = torch.ops.aten.unfold_backward(squares, [1, whole], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - (n_fft // 2 if center else 0)
    out = added[:, start:end] / weights[:, start:end]
    if length is not None and end > whole:
        out = torch.nn.functional.pad(out, (0, end - whole))
    return out if x.dim() == 3 else out.squeeze(0)


def into_numpy(tensor: Any, doubt: Callable[[Doubt], None]) -> Any:
    """Replace ``Tensor.numpy``: return zeros of the tensor's shape.

    Raises what torch raises for a tensor on a GPU, or if numpy is not installed.
    """
    if tensor.device == DEVICE:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it to the "
            "host first."
        )
    if tensor.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    numpy = importlib.import_module("numpy")
    text = "The program reads a tensor's values through numpy, and gets zeros."
    doubt(Doubt("data_dependent", text, "numpy", SCALAR_PERCENT))
    name = str(tensor.dtype).removeprefix("torch.")
    return numpy.zeros(tuple(tensor.shape), dtype="bool" if name == "bool" else name)


TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


def from_shape_or_numbers(given: tuple[Any, ...], dtype: torch.dtype, device: Any) -> Any:
    """Return a tensor as constructors of old programs do: of a shape, or of a list of numbers."""
    first = given[0] if given else None
    if len(given) == 1 and isinstance(first, (list, tuple)) and not isinstance(first, torch.Size):
        return torch.tensor(first, dtype=dtype, device=device)
    shape = tuple(first) if isinstance(first, torch.Size) else given or (0,)
    return torch.empty(shape, dtype=dtype, device=device)


def legacy(name: str, dtype: torch.dtype) -> type:
    """Replace ``torch.cuda.FloatTensor`` and similar classes, whose call makes a tensor."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return (
                isinstance(instance, torch.Tensor)
                and instance.device == DEVICE
                and instance.dtype == dtype
            )

        def __call__(cls, *given: Any) -> Any:
            return from_shape_or_numbers(given, dtype, DEVICE)

    return Meta(name, (), {"__module__": "torch.cuda"})
