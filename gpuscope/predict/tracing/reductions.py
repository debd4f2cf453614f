"""Compute the scratch memory of CUDA's sums and means.

A reduction whose outputs are too few to fill the GPU is split over thread blocks, which leave
partial results in a buffer in global memory with a counter (semaphore) behind it. The launch is
chosen as in torch's ``Reduce.cuh`` (``setReduceConfig``); the arithmetic below gives the same
sizes, to the byte on an H200.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from . import multiprocessors
from .recorder import Recorder
from .same_types import HALVES

aten = torch.ops.aten
_WARP = 32
_MOST_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""The number of values that one thread sums, at least and at most."""
_VECTOR = 4


def _last_power(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _up(value: int, by: int) -> int:
    return -(-value // by)


def buffer_bytes(
    inputs: int,
    outputs: int,
    fastest: bool,
    one_dimension: bool,
    processors: tuple[int, int],
    element: int = 4,
    neighbours: int = _VECTOR,
) -> tuple[int, int]:
    """Return the bytes of the buffer and of the semaphores, 0 if there are none.

    ``inputs``: how many numbers are summed for one output. ``fastest``: whether neighbours in
    memory are summed. ``element``: bytes of a partial result. ``neighbours``: how many adjacent
    outputs one thread can read at once.
    """
    vector = 1
    wide, high = (inputs, outputs) if fastest else (outputs, inputs)
    if fastest:
        if wide > 128 and one_dimension:
            wide //= _VECTOR
    else:
        vector = math.gcd(outputs, neighbours)
        wide //= vector
    most = _MOST_THREADS // vector
    width_bound, height_bound = (min(_last_power(value), most) for value in (wide, high))
    width = min(width_bound, _WARP)
    height = min(height_bound, most // width)
    width = min(width_bound, most // height)
    step_in, step_out = (width, 1) if fastest else (1, width)
    if _up(inputs, step_in) < min(height * 16, _MOST_VALUES):
        return 0, 0
    step_in *= height
    count, threads = processors
    target = count * (threads // (width * height))
    grid = _up(outputs // vector, step_out)
    values = _up(inputs, step_in)
    if values < _MOST_VALUES or grid > target:
        return 0, 0
    blocks = max(min(_up(target, grid), _up(values, _LEAST_VALUES)), _up(values, _MOST_VALUES))
    if blocks <= 1:
        return 0, 0
    size = element * outputs * blocks
    if not fastest:
        size *= width * vector
    return size, 4 * grid


class Reductions:
    """Allocates the scratch memory of sums."""

    def __init__(self, architecture: tuple[int, int]):
        self._processors = multiprocessors.of_gpu(architecture)

    def around(self) -> dict[Any, Any]:
        ops = (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim)
        return dict.fromkeys((*ops, aten.linalg_vector_norm.default), self.sum)

    def sum(self, recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        x = args[0]
        if (
            not isinstance(out, torch.Tensor)
            or x.device.index is None
            or x.numel() == 0
            or out.numel() == x.numel()
        ):
            return
        whole = out.numel() == 1
        dims = [] if whole or len(args) < 2 else args[1]
        if func is aten.linalg_vector_norm.default:
            dims = args[2] if len(args) > 2 and args[2] is not None else []
        dims = {dim % x.dim() for dim in ([dims] if isinstance(dims, int) else dims)} or set(
            range(x.dim())
        )
        steps = [
            (x.stride(dim), dim) for dim in range(x.dim()) if x.shape[dim] > 1 and x.stride(dim) > 0
        ]
        fastest = whole or not steps or min(steps)[1] in dims
        flat = whole and x.is_contiguous()
        element = 8 if out.dtype in (torch.float64, torch.int64) else 4
        outputs = out.numel()
        inputs = x.numel() // outputs
        side_by_side = _VECTOR if fastest else _neighbours(x, dims)
        buffers = buffer_bytes(
            inputs, outputs, fastest, flat, self._processors, element, side_by_side
        )
        recorder.passing([_cast_bytes(x, out), *buffers], "sum")


def _neighbours(x: Any, dims: set[int]) -> int:
    """Return how many adjacent outputs one thread can read at once.

    It is limited by their number, their offset and all other strides (``get_output_vec_size``). A
    gradient that is a part of a wider one, as for ``cat``, may have to be read one by one.
    """
    places = sorted(
        (x.stride(dim), x.shape[dim], dim) for dim in range(x.dim()) if x.shape[dim] > 1
    )
    found, side, end = math.gcd(_VECTOR, x.storage_offset()), 1, 1
    for step, count, dim in places:
        if dim not in dims and step == end:
            side, end = side * count, step * count
        else:
            found = math.gcd(found, step)
    return math.gcd(found, side)


def _cast_bytes(x: Any, out: Any) -> int:
    """Return the bytes of a copy in the result's type, for example of booleans that are counted.

    Half-precision inputs are summed in fp32 without a copy.
    """
    if x.dtype == out.dtype or x.dtype in HALVES:
        return 0
    return int(x.numel() * out.element_size())
