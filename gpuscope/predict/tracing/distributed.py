"""Simulate the other ranks of a training that starts a process group itself.

Only one rank exists, and collectives change no size. What ``DistributedDataParallel`` allocates is
in :mod:`.ddp`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch

from ..request import Doubt
from . import ddp
from .cuda_answers import Nothing, none

RANK_PERCENT = 1.0
"""What a real rank may take in torch's allocator that is not traced, in percent."""
_TEXT = (
    "The program trains as one of several ranks: only one was traced, with its buckets, without "
    "NCCL's memory."
)
_COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier",
    "send", "recv", "isend", "irecv", "broadcast_object_list",
)  # fmt: skip
_OPTIONS = tuple(field.name for field in fields(ddp.DdpOptions))


class Group:
    """The program's process group, and its wrappers of models."""

    def __init__(self, doubt: Callable[[Doubt], None], shelf: ddp.KeptTensors):
        self._doubt, self._shelf = doubt, shelf
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
            yield module, "new_group", lambda *_, **__: _Members()
            yield module, "group", _World
            for name in _COLLECTIVES:
                yield module, name, self._collective
        wrapper = torch.nn.parallel.DistributedDataParallel
        yield wrapper, "__init__", lambda model, *args, **named: self._wrap(model, *args, **named)
        yield wrapper, "forward", _forward
        yield wrapper, "no_sync", _no_sync
        yield wrapper, "join", lambda *_, **__: contextlib.nullcontext()
        yield wrapper, "train", torch.nn.Module.train
        yield wrapper, "register_comm_hook", lambda *args: self._register(*args)
        yield wrapper, "_register_builtin_comm_hook", lambda *args: self._register_builtin(*args)
        yield wrapper, "_set_static_graph", lambda model: model.reducer.set_static()
        yield wrapper, "__setstate__", none

    def _wrap(self, model: Any, module: Any, *_: Any, **options: Any) -> None:
        torch.nn.Module.__init__(model)
        model.module = module
        self.start()
        if options.get("mixed_precision") is not None:
            text = "DistributedDataParallel's own mixed precision is traced as full precision."
            self._doubt(Doubt("sharding", text, "mixed_precision", MIXED_PERCENT))
        chosen = {name: options[name] for name in _OPTIONS if name in options}
        model.process_group = _Members()
        model.require_backward_grad_sync = True
        model.reducer = ddp.Reducer(module, ddp.DdpOptions(**chosen), self._shelf)

    def _register(self, model: Any, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        def run(bucket: Any) -> Any:
            try:
                return hook(state, bucket)
            except Exception as error:
                text = f"The communication hook could not be traced: {type(error).__name__}."
                self._doubt(Doubt("sharding", text, "register_comm_hook", HOOK_PERCENT))
                return None

        model.reducer.hook = run

    def _register_builtin(self, model: Any, kind: Any) -> None:
        if "FP16" in str(kind):
            self._register(model, None, self._compressed)

    def _compressed(self, _: Any, bucket: Any) -> Any:
        """Reduce a bucket in 16 bits, as the hook that is built into torch."""
        flat = bucket.buffer()
        short = flat.to(torch.float16)
        return self._collective(short, async_op=True).then(lambda _: flat.copy_(short))

    def _collective(self, *tensors: Any, async_op: bool = False, **__: Any) -> Any:
        if not async_op:
            return None
        found = tensors[0] if tensors and isinstance(tensors[0], torch.Tensor) else None
        if found is not None:
            self._shelf.put(found)
        return _Work(self._shelf, found)


MIXED_PERCENT, HOOK_PERCENT = 15.0, 10.0


class _Members(Nothing):
    """A process group of one member."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


class _World:
    WORLD = _Members()


class _Work(Nothing):
    """A collective that has ended, and its future."""

    def __init__(self, shelf: ddp.KeptTensors, tensor: torch.Tensor | None, result: Any = None):
        self._shelf, self._tensor = shelf, tensor
        self._result = [tensor] if result is None else result

    def wait(self, *_: Any, **__: Any) -> Any:
        if self._tensor is not None:
            self._shelf.take(self._tensor)
        return self._result

    def get_future(self) -> _Work:
        return _Work(self._shelf, None, self._result)

    def value(self) -> Any:
        return self._result

    def then(self, function: Callable[[Any], Any]) -> _Work:
        return _Work(self._shelf, None, function(self))

    def is_completed(self) -> bool:
        return True

    done = is_completed


def _forward(model: Any, *inputs: Any, **named: Any) -> Any:
    synchronised = model.require_backward_grad_sync
    model.reducer.before_forward()
    return model.reducer.after_forward(model.module(*inputs, **named), synchronised)


_forward._torchdynamo_disable = True  # type: ignore[attr-defined]  # a graph holds what it wraps


@contextlib.contextmanager
def _no_sync(model: Any) -> Iterator[None]:
    before, model.require_backward_grad_sync = model.require_backward_grad_sync, False
    try:
        yield
    finally:
        model.require_backward_grad_sync = before
