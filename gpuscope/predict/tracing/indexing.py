"""Trace the gradients of embeddings and of indexing.

On CUDA the indices are sorted by row first, which needs scratch memory.

This was measured on an H200 with torch 2.11. Where the size depends on how often an index occurs,
random indices are assumed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import value_statistics
from .fakes import running_node
from .recorder import BACKWARD, Recorder, operator_name

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
UNSORTED = 3072
"""Up to this many indices a kernel adds without sorting."""
_SCAN_BYTES = 1279
_DIGIT_BITS, _DIGITS, _TILE, _KEY_BITS = 8, 256, 4608, 64
"""cub's radix sort of 64-bit keys and values: bits in a pass, their number of values, pairs that a
thread block sorts, bits of a key.
"""
_ROWS_A_PART = 10
"""How many rows of one index a thread adds up (``EmbeddingBackwardKernel.cu``)."""
_MODE, _MAX = 4, 2
"""The position of an embedding bag's mode among the arguments, and the mode "max"."""
_ADDING = {"IndexBackward0", "IndexSelectBackward0", "GatherBackward0", "MaskedSelectBackward0"}
"""Nodes of autograd that add into zeros of their own, in place unless a mode watches tensors."""


def sort_bytes(count: int, bits: int = _KEY_BITS) -> int:
    """Return the scratch memory of a radix sort of ``count`` pairs by ``bits`` of their keys.

    It consists of second copies of keys and values, and of counts of each digit in each pass and
    each thread block, in the layout of ``DeviceRadixSort``, each rounded up to 256 bytes.
    """
    passes = -(-bits // _DIGIT_BITS)
    copies = 2 * (-(-8 * count // 256) * 256)
    counts = 8 * _DIGITS * passes + 4 * _DIGITS * -(-count // _TILE) + 256
    return copies + counts + 255


def embedding_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    grad, indices, rows = args[:3]
    count, width = indices.numel(), grad.shape[-1]
    recorder = fakes.recorder
    if grad.device.index is None:
        return fakes.dispatch(func, (), args, kwargs)
    name = "embedding_dense_backward"
    size = 0 if grad.is_contiguous() else grad.nbytes
    kept = [recorder.allocate(size, name, "temporary")] if size else []
    if count <= UNSORTED:
        out = fakes.dispatch(func, (), args, kwargs)
        fakes.hold(out, func)
        recorder.free_all(kept)
        return out
    return _sorted(fakes, func, args, kwargs, kept, (count, rows, width))


def _sorted(
    fakes: Fakes, func: Any, args: Any, kwargs: Any, kept: list[int], sizes: tuple[int, int, int]
) -> Any:
    """Allocate what adding rows by sorted indices needs (``embedding_backward_cuda_kernel``).

    ``sizes`` are the number of indices, of rows and of their columns. ``kept`` holds blocks that
    are freed at the end.
    """
    count, rows, width = sizes
    recorder, name = fakes.recorder, operator_name(func)
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
    recorder.free_all(kept)
    return out


def bag(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_embedding_bag``.

    The number of indices in each bag, and the bag of each index, are allocated before the result
    (``EmbeddingBag.cu``); the sizes in the CPU's kernel differ.
    """
    out, of_index, sizes, largest = fakes.dispatch(func, (), args, kwargs)
    if out.device.index is None or (len(args) > _MODE and args[_MODE] == _MAX):
        return out, of_index, sizes, largest
    sizes, of_index, largest = (args[at].new_empty(args[at].shape if at else 0) for at in (2, 1, 0))
    for made in (sizes, of_index, out):
        fakes.hold(made, func)
    return out, of_index, sizes, largest


def bag_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_embedding_bag_backward`` for sums and means."""
    grad, count, rows, mode, sparse = args[0], args[1].numel(), args[6], args[8], args[9]
    if grad.device.index is None or mode == _MAX or sparse or not count:
        return fakes.dispatch(func, (), args, kwargs)
    return _sorted(fakes, func, args, kwargs, [], (count, rows, grad.shape[-1]))


def embedding(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Trace an embedding, for which the indices are made contiguous first."""
    indices = args[1]
    if not indices.is_contiguous() and out.device.index is not None:
        recorder.passing([8 * indices.numel()], "embedding")


def index_put(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``index_put``, ``index_put_`` and ``_index_put_impl_``.

    If the same position may be written twice, the positions are sorted first.
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
        kept.append(recorder.allocate(value.nbytes, name, "temporary"))
    bits = max(1, (_rows(into, indices) - 1).bit_length())
    recorder.passing([8 * count, 8 * count, 8 * count, sort_bytes(count, bits)], name)
    recorder.free_all(kept)
    return out


def _rows(into: Any, indices: list[Any]) -> int:
    """Return how many different positions the indices can name.

    A mask covers as many dimensions as it has.
    """
    rows, dim = 1, 0
    for index in indices:
        wide = index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        if index is not None:
            rows *= math.prod(into.shape[dim : dim + wide])
        dim += wide
    return rows


def _places(indices: list[Any]) -> int:
    """Return how many positions are written.

    For a mask this is the number of its set elements, or of all elements if that is not known.
    """
    shapes = [
        (value_statistics.count(part),) if part.dtype in (torch.bool, torch.uint8) else part.shape
        for part in indices
    ]
    return math.prod(torch.broadcast_shapes(*shapes))


def added(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Add a gradient of indexed elements into zeros in place.

    Autograd does not do so with fake tensors.
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
