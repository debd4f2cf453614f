"""Fourier transforms of half precision, which a GPU computes and a CPU refuses.

torch checks the type before the operator is called, and a traced tensor is one of the host to it.
So these functions call the operators themselves. Which sizes cuFFT takes is checked where the
operators run (``same_types``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .fakes import DEVICE

aten = torch.ops.aten
_HALVES = (torch.float16, torch.complex32)
_NO_SCALING = 0
"""What the sums are divided by changes values only."""


def _dimensions(x: Any, name: str, sizes: Any, dim: Any) -> tuple[list[int], list[int]]:
    """Return the dimensions that ``name`` transforms, and their sizes; -1 where none is asked."""
    if name[-1] in "2n":
        if dim is None:
            dim = range(-(len(sizes) if sizes is not None else x.dim()), 0)
        if sizes is None:
            sizes = [-1] * len(dim)
    else:
        dim, sizes = (dim,), (-1 if sizes is None else sizes,)
    return [one % x.dim() for one in dim], list(sizes)


def _resized(x: Any, dims: list[int], sizes: list[int]) -> Any:
    """Cut the dimensions that are too long, and fill up those that are too short."""
    padding = [0] * (2 * x.dim())
    for dim, size in zip(dims, sizes, strict=True):
        if 0 <= size < x.shape[dim]:
            x = x.narrow(dim, 0, size)
        elif size > x.shape[dim]:
            padding[-2 * dim - 1] = size - x.shape[dim]
    return torch.constant_pad_nd(x, padding) if any(padding) else x


def _transform(name: str, x: Any, sizes: Any = None, dim: Any = -1, norm: str | None = None) -> Any:
    """Compute ``torch.fft.<name>`` of ``x``, whatever its device is."""
    dims, wanted = _dimensions(x, name, sizes, dim)
    plain = name.rstrip("2n")
    if plain in ("irfft", "hfft"):
        last = wanted[-1] if wanted[-1] >= 0 else 2 * (x.shape[dims[-1]] - 1)
        x = _resized(x, dims, [*wanted[:-1], last // 2 + 1])
        return aten._fft_c2r(x.to(torch.complex32), dims, _NO_SCALING, last)
    x = _resized(x, dims, wanted)
    forward = plain in ("fft", "rfft")
    real = plain in ("rfft", "ihfft")
    if real or (len(dims) == 1 and not x.is_complex()):
        found = aten._fft_r2c(x, dims, _NO_SCALING, real)
        return found if forward else found.conj()
    return aten._fft_c2c(x.to(torch.complex32), dims, _NO_SCALING, forward)


def instead(name: str) -> Callable[..., Any]:
    """Return what takes the place of ``torch.fft.<name>``, for tensors of half precision."""
    many = name[-1] in "2n"

    def call(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("input")
        if not isinstance(x, torch.Tensor) or x.dtype not in _HALVES or x.device != DEVICE:
            return func(*args, **kwargs)
        given = {"sizes" if key in ("n", "s") else key: value for key, value in kwargs.items()}
        given.pop("input", None)
        if many:
            default = (-2, -1) if name.endswith("2") else None
            if len(args) < 3:
                given.setdefault("dim", default)
        with mode:
            return _transform(name, x, *args[1:], **given)

    return call


INSTEAD = {
    getattr(torch.fft, name): instead(name)
    for plain in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    for name in (plain, plain + "2", plain + "n")
}
