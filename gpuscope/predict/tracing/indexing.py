"""Trace the gradients of embeddings and of indexing.

On CUDA they are sorted by row first, with scratch memory for it.

Measured on an H200 with torch 2.11; what depends on how often an index repeats is taken as on
random indices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import value_statistics
from .fakes import running_node
from .recorder import BACKWARD, Recorder

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
UNSORTED = 3072
"""Up to so many indices a kernel adds without sorting."""
_SCAN_BYTES = 1279
_DIGIT_BITS, _DIGITS, _TILE, _KEY_BITS = 8, 256, 4608, 64
"""Of cub's radix sort of 64-bit keys and values: bits in a pass, their values, pairs that a block
of threads sorts.
"""
_ROWS_A_PART = 10
"""Of one index, that one thread adds up (``EmbeddingBackwardKernel.cu``)."""
_MODE, _MAX = 4, 2
"""The place of an embedding bag's mode among the arguments, and the mode that takes the largest."""
_ADDING = {"IndexBackward0", "IndexSelectBackward0", "GatherBackward0", "MaskedSelectBackward0"}
"""Nodes of autograd that add into zeros of their own, in place unless a mode watches tensors."""


def sort_bytes(count: int, bits: int = _KEY_BITS) -> int:
    """Return the scratch memory of a radix sort of ``count`` pairs by ``bits`` of their keys.

    That is second copies of keys and values, and counts of each digit in each pass and in each
    block, as ``DeviceRadixSort`` lays them out, each rounded to 256.
    """
    passes = -(-bits // _DIGIT_BITS)
    copies = 2 * (-(-8 * count // 256) * 256)
    counts = 8 * _DIGITS * passes + 4 * _DIGITS * -(-count // _TILE) + 256
    return copies + counts + 255


def embedding_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``embedding_dense_backward``."""
    grad, indices, rows = args[:3]
    count, width = indices.numel(), grad.shape[-1]
    recorder = fakes.recorder
    if grad.device.index is None:
        return fakes.dispatch(func, (), args, kwargs)
    name = "embedding_dense_backward"
    size = 0 if grad.is_contiguous() else grad.numel() * grad.element_size()
    kept = [recorder.allocate(size, name, "temporary")] if size else []
    if count <= UNSORTED:
        out = fakes.dispatch(func, (), args, kwargs)
        fakes.hold(out, func)
        for block in kept:
            recorder.free(block)
        return out
    return _sorted(fakes, func, args, kwargs, kept, (count, rows, width))


def _sorted(
    fakes: Fakes, func: Any, args: Any, kwargs: Any, kept: list[int], sizes: tuple[int, int, int]
) -> Any:
    """Adds up rows by sorted indices, as ``embedding_backward_cuda_kernel`` does.

    ``sizes``: the number of indices, of rows and of their columns. ``kept``: blocks that go at the
    end.
    """
    count, rows, width = sizes
    recorder, name = fakes.recorder, func._schema.name[6:]
    kept += [recorder.allocate(8 * count, name, "temporary") for _ in range(2)]
    recorder.passing([8 * count, sort_bytes(count)], name)
    out = fakes.dispatch(func, (), args, kwargs)
    fakes.hold(out, func)
    unique = min(count, rows)
    parts = unique + count // _ROWS_A_PART
    kept += [recorder.allocate(size, name, "temporary") for size in (8 * count, 8)]
    recorder.passing([8 * count, _SCAN_BYTES], name)
    kept += [recorder.allocate(8 * unique, name, "temporary") for _ in range(2)]
    recorder.passing([_SCAN_BYTES], name)
    kept.append(recorder.allocate(8, name, "temporary"))
    recorder.passing([8 * parts, 4 * parts * width], name)
    for block in reversed(kept):
        recorder.free(block)
    return out


def bag(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_embedding_bag``.

    How many indices each bag has, and which bag each index is of, are made before the result
    (``EmbeddingBag.cu``); the CPU's has other sizes.
    """
    out, of_index, sizes, largest = fakes.dispatch(func, (), args, kwargs)
    if out.device.index is None or (len(args) > _MODE and args[_MODE] == _MAX):
        return out, of_index, sizes, largest
    sizes, of_index, largest = (args[at].new_empty(args[at].shape if at else 0) for at in (2, 1, 0))
    for made in (sizes, of_index, out):
        fakes.hold(made, func)
    return out, of_index, sizes, largest


def bag_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``_embedding_bag_backward``, of sums and means."""
    grad, count, rows, mode, sparse = args[0], args[1].numel(), args[6], args[8], args[9]
    if grad.device.index is None or mode == _MAX or sparse or not count:
        return fakes.dispatch(func, (), args, kwargs)
    return _sorted(fakes, func, args, kwargs, [], (count, rows, grad.shape[-1]))


def embedding(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """The rows' numbers are laid out one after the other first."""
    indices = args[1]
    if not indices.is_contiguous() and out.device.index is not None:
        recorder.passing([8 * indices.numel()], "embedding")


def index_put(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``index_put``, ``index_put_`` and ``_index_put_impl_``.

    Where the same place may be written twice, the places are sorted first.
    """
    into, indices, value = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    sorts = accumulate or torch.are_deterministic_algorithms_enabled()
    if into.device.index is None or not sorts or into.numel() == 0:
        return added(fakes, func, args, kwargs)
    out = added(fakes, func, args, kwargs)
    fakes.hold(out, func)
    places = [index for index in indices if index is not None]
    count = _places(places)
    recorder, name = fakes.recorder, "index_put"
    linear = None
    for _ in places:
        wrapped = recorder.allocate(8 * count, name, "temporary")
        scaled = recorder.allocate(8 * count, name, "temporary")
        recorder.free(wrapped)
        if linear is not None:
            both = recorder.allocate(8 * count, name, "temporary")
            recorder.free(scaled)
            recorder.free(linear)
            scaled = both
        linear = scaled
    kept = [] if linear is None else [linear]
    if not value.is_contiguous():
        kept.append(recorder.allocate(value.numel() * value.element_size(), name, "temporary"))
    bits = max(1, (_rows(into, indices) - 1).bit_length())
    recorder.passing([8 * count, 8 * count, 8 * count, sort_bytes(count, bits)], name)
    for block in reversed(kept):
        recorder.free(block)
    return out


def _rows(into: Any, indices: list[Any]) -> int:
    """Return how many different places the indices can name.

    A mask stands for as many dimensions as it has.
    """
    rows, dim = 1, 0
    for index in indices:
        wide = index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        if index is not None:
            rows *= math.prod(into.shape[dim : dim + wide])
        dim += wide
    return rows


def _places(indices: list[Any]) -> int:
    """Return how many places are written to.

    Masks have as many as elements that are set, all where that is not known.
    """
    shapes = [
        (value_statistics.count(part),) if part.dtype in (torch.bool, torch.uint8) else part.shape
        for part in indices
    ]
    return math.prod(torch.broadcast_shapes(*shapes))


def added(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Add a gradient of picked elements into zeros in place.

    Autograd does not do so with fakes.
    """
    if fakes.recorder.phase == BACKWARD and not torch.is_grad_enabled():
        running = running_node()
        if running is not None and running.name() in _ADDING and fakes.block(args[0]) is not None:
            return args[0]
    return fakes.dispatch(func, (), args, kwargs)


AROUND = {aten.embedding.default: embedding}
INSTEAD = {
    aten.embedding_dense_backward.default: embedding_backward,
    aten._embedding_bag.default: bag,
    aten._embedding_bag_forward_only.default: bag,
    aten._embedding_bag_backward.default: bag_backward,
    **dict.fromkeys(
        (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default), index_put
    ),
    **dict.fromkeys(
        (aten.index_add.default, aten.scatter_add.default, aten.masked_scatter.default), added
    ),
}
