"""Simulate the other ranks of a training that starts a process group itself.

Only one rank exists. Collectives change no size, and ``DistributedDataParallel`` only passes calls
on and allocates its buckets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..request import Doubt
from .cuda_answers import Nothing, none

RANK_PERCENT = 3.0
"""What a real rank may take in torch's allocator besides its buckets, in percent."""
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""The default size of DistributedDataParallel's first bucket."""
_TEXT = (
    "The program trains as one of several ranks: only one was traced, with its buckets, without "
    "NCCL's memory."
)
_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier",
    "send", "recv", "isend", "irecv", "broadcast_object_list",
)  # fmt: skip


class Group:
    """Whether the program has started its process group."""

    def __init__(self, doubt: Callable[[Doubt], None]):
        self._doubt = doubt
        self.started = False

    def start(self, *_: Any, **__: Any) -> None:
        self.started = True
        self._doubt(Doubt("sharding", _TEXT, "torch.distributed", RANK_PERCENT))

    def stop(self, *_: Any, **__: Any) -> None:
        self.started = False

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """Return (owner, name, value) of the replacements in torch's modules."""
        module = torch.distributed
        if module.is_available():
            yield module, "init_process_group", self.start
            yield module, "destroy_process_group", self.stop
            yield module, "is_initialized", lambda: self.started
            yield module, "get_rank", lambda *_, **__: 0
            yield module, "get_world_size", lambda *_, **__: 1
            yield module, "get_backend", lambda *_, **__: "nccl"
            yield module, "new_group", lambda *_, **__: Nothing()
            for name in _COLLECTIVES:
                yield module, name, _collective
        wrapper = torch.nn.parallel.DistributedDataParallel
        start = self.start

        def init(
            model: Any,
            module: Any,
            *_: Any,
            bucket_cap_mb: Any = None,
            gradient_as_bucket_view: bool = False,
            **__: Any,
        ) -> None:
            torch.nn.Module.__init__(model)
            model.module = module
            start()
            most = BUCKET_BYTES if not bucket_cap_mb else int(bucket_cap_mb * (1 << 20))
            model.buckets = [] if gradient_as_bucket_view else _buckets(module, most)

        yield wrapper, "__init__", init
        yield wrapper, "forward", lambda model, *args, **named: model.module(*args, **named)
        yield wrapper, "no_sync", lambda model: contextlib.nullcontext()
        yield wrapper, "train", torch.nn.Module.train
        for name in ("register_comm_hook", "_set_static_graph", "__setstate__"):
            yield wrapper, name, none


def _collective(*_: Any, async_op: bool = False, **__: Any) -> Any:
    return Nothing() if async_op else None


def _buckets(module: torch.nn.Module, most: int) -> list[torch.Tensor]:
    """Allocate flat copies of the gradients, in buckets.

    The order is from the last parameter to the first; each bucket is full before the next one
    begins.
    """
    made: list[torch.Tensor] = []
    numbers, limit = 0, FIRST_BUCKET_BYTES
    last: torch.Tensor | None = None

    def close() -> None:
        nonlocal numbers
        if numbers and last is not None:
            made.append(torch.empty(numbers, dtype=last.dtype, device=last.device))
        numbers = 0

    for parameter in reversed([one for one in module.parameters() if one.requires_grad]):
        if last is not None and last.dtype != parameter.dtype:
            close()
        last = parameter
        numbers += parameter.numel()
        if numbers * parameter.element_size() >= limit:
            close()
            limit = most
    close()
    return made
