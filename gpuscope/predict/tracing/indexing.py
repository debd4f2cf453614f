"""Gradients of embeddings and of indexing: on CUDA they are sorted by row first, with scratch memory for it.

Measured on an H200 with torch 2.11; what depends on how often an index repeats is taken as on random indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .recorder import Recorder

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
UNSORTED = 3072
"""Up to so many indices a kernel adds without sorting."""
_RADIX_BYTES = 18943
_SCAN_BYTES = 1279


def embedding_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``embedding_dense_backward``."""
    grad, indices, rows = args[:3]
    count, width = indices.numel(), grad.shape[-1]
    recorder = fakes.recorder
    if count <= UNSORTED or grad.device.index is None:
        return fakes.dispatch(func, (), args, kwargs)
    name = "embedding_dense_backward"
    kept = [recorder.allocate(8 * count, name, "temporary") for _ in range(2)]
    recorder.passing([8 * count, 16 * count + _RADIX_BYTES], name)
    out = fakes.dispatch(func, (), args, kwargs)
    fakes.hold(out, func)
    unique = min(count, rows)
    parts = unique + count // 10
    kept += [recorder.allocate(size, name, "temporary") for size in (8 * count, 8)]
    recorder.passing([8 * count, _SCAN_BYTES], name)
    kept.append(recorder.allocate(8 * unique, name, "temporary"))
    recorder.passing([8 * unique, _SCAN_BYTES, 8], name)
    recorder.passing([8 * parts, 4 * parts * width], name)
    for block in reversed(kept):
        recorder.free(block)
    return out


def embedding(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """The rows' numbers are laid out one after the other first."""
    indices = args[1]
    if not indices.is_contiguous() and out.device.index is not None:
        recorder.passing([8 * indices.numel()], "embedding")


AROUND = {aten.embedding.default: embedding}
INSTEAD = {aten.embedding_dense_backward.default: embedding_backward}
