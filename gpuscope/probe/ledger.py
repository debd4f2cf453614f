"""The exact bytes of parameters, gradients and optimizer state per device, counted from the tensors themselves.

Walked in the trainer's own thread, right after an optimizer step (gradients and state exist there), in slices of at
most :data:`SLICE_SECONDS`, and only when something changed or :data:`REFRESH_SECONDS` have passed. Between slices only
weak references are held, so the walk never keeps a tensor alive.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

SLICE_SECONDS = 200e-6
REFRESH_SECONDS = 60.0
CPU = -1
PARAMETERS, GRADIENTS, STATE = 0, 1, 2
_Signature = Tuple[int, int, int]


class Bytes(NamedTuple):
    parameters: int
    gradients: int
    optimizer_state: int


class Ledger:
    """``bytes`` is None until a walk is complete, then {ordinal: Bytes}; ordinal -1 is the CPU."""

    def __init__(self) -> None:
        self.wanted = False  # somebody looks: without that nothing is walked
        self.bytes: Optional[Dict[int, Bytes]] = None
        self.watched = False  # the models are those that watch() was given
        self.apart_sizes: Dict[int, Tuple[int, ...]] = {}  # by ordinal: storages of these sizes are remembered
        self.kept_apart: Set[Tuple[int, int]] = set()  # (ordinal, address of the data) of such
        self._optimizers: Dict[int, weakref.ref[Any]] = {}
        self._models: List[weakref.ref[Any]] = []
        self._signatures: Dict[int, _Signature] = {}
        self._walk: Optional[_Walk] = None
        self._walked = 0.0
        self._dirty = True
        self._lock = threading.Lock()

    def add_model(self, model: Any) -> None:
        """Count this module's parameters too, frozen ones included. Raises TypeError without weak references."""
        if not self.watched:
            self.watched, self._models = True, []  # what the user names is right, what we found a guess
        self._add(model)

    def add_found(self, model: Any) -> None:
        """The same for a model that was found in the training loop; nothing where the user has named one that lives."""
        self.watched = self.watched and bool(self.models())
        if not self.watched:
            self._add(model)

    def _add(self, model: Any) -> None:
        if not any(ref() is model for ref in self._models):
            self._models = [*self._models, weakref.ref(model, self._gone)]
            self._dirty = True

    def models(self) -> List[weakref.ref[Any]]:
        """Weak references of the known models that are alive, in the order in which they became known."""
        return [ref for ref in self._models if ref() is not None]

    def optimizers(self) -> List[weakref.ref[Any]]:
        """Weak references of the optimizers that stepped, or that watch() was given."""
        return [ref for ref in list(self._optimizers.values()) if ref() is not None]

    def add_optimizer(self, optimizer: Any) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer, self._gone)
            self._dirty = True

    def after_step(self, optimizer: Any, now: float) -> None:
        """To be called when ``optimizer`` has stepped, in the thread that stepped it. ``now`` is perf_counter."""
        if not self._lock.acquire(False):
            return  # another thread is in here: not worth waiting in a training step
        try:
            self.add_optimizer(optimizer)
            if not self.wanted:
                return
            signature = _signature(optimizer)
            if self._signatures.get(id(optimizer)) != signature:
                self._signatures[id(optimizer)] = signature
                self._dirty = True
            self._slice(now)
        finally:
            self._lock.release()

    def without_steps(self, now: float) -> None:
        """To be called in the probe's thread of a process in which no optimizer steps: a slice, as after a step, if
        ``watch()`` has named something that can be counted."""
        if not self.wanted or not (self._models or self._optimizers) or not self._lock.acquire(False):
            return
        try:
            self._slice(now)
        finally:
            self._lock.release()

    def _slice(self, now: float) -> None:
        if self._walk is None:
            if not self._dirty and now - self._walked < REFRESH_SECONDS:
                return
            self._dirty = False
            self._forget_dead()
            self._walk = _Walk(list(self._optimizers.values()), self._models, self.apart_sizes)
        if self._walk.run(time.perf_counter() + SLICE_SECONDS):
            if not self._dirty:  # else it changed on the way: what was counted belongs to no single moment
                self.bytes = self._walk.totals()
                self._walked = now
                self.kept_apart = self._walk.apart
            self._walk = None

    def _gone(self, _: Any) -> None:
        self._dirty = True
        self.bytes = None

    def _forget_dead(self) -> None:
        self._optimizers = {key: ref for key, ref in list(self._optimizers.items()) if ref() is not None}
        self._models = [ref for ref in self._models if ref() is not None]
        self._signatures = {key: self._signatures[key] for key in self._optimizers if key in self._signatures}


def _signature(optimizer: Any) -> _Signature:
    groups = optimizer.param_groups
    return len(groups), sum(len(group["params"]) for group in groups), len(optimizer.state)


class _Walk:
    """One count over all optimizers and models. A cursor, not a generator: a generator's frame would hold tensors."""

    def __init__(
        self,
        optimizers: List[weakref.ref[Any]],
        models: List[weakref.ref[Any]],
        apart_sizes: Dict[int, Tuple[int, ...]],
    ) -> None:
        self.apart: Set[Tuple[int, int]] = set()
        self._apart_sizes = apart_sizes
        self._optimizers = optimizers
        self._modules = list(models)
        self._group = self._index = 0
        self._keyed = 0  # entries of the current optimizer's state that belong to its parameters
        self._known_modules: Set[int] = set()
        self._known_parameters: Set[int] = set()
        self._known_storages: Set[Tuple[int, int]] = set()
        self._totals: Dict[int, List[int]] = {}
        self._torch: Any = sys.modules.get("torch")

    def run(self, deadline: float) -> bool:
        """Count until ``deadline``; True when all is counted."""
        while self._advance():
            if time.perf_counter() >= deadline:
                return False
        return True

    def totals(self) -> Dict[int, Bytes]:
        return {ordinal: Bytes(*counts) for ordinal, counts in self._totals.items()}

    def _advance(self) -> bool:
        if self._optimizers:
            if not self._advance_optimizer(self._optimizers[-1]()):
                self._optimizers.pop()
                self._group = self._index = self._keyed = 0
            return True
        if self._modules:
            module = self._modules.pop()()
            if module is not None and id(module) not in self._known_modules:
                self._known_modules.add(id(module))
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._parameter(parameter)
                self._modules.extend(weakref.ref(child) for child in module._modules.values() if child is not None)
            return True
        return False

    def _advance_optimizer(self, optimizer: Any) -> bool:
        if optimizer is None:
            return False
        state = optimizer.state
        if self._group >= len(optimizer.param_groups):
            if len(state) > self._keyed:  # entries under other keys: few, so in one go
                parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
                for key, value in list(state.items()):
                    if id(key) not in parameters:
                        self._value(value, STATE, 4)
            return False
        parameters_of_group = optimizer.param_groups[self._group]["params"]
        if self._index >= len(parameters_of_group):
            self._group, self._index = self._group + 1, 0
            return True
        parameter = parameters_of_group[self._index]
        self._index += 1
        self._parameter(parameter)
        if parameter in state:  # get() and [] of a defaultdict differ: only this never creates an entry
            self._keyed += 1
            self._value(state[parameter], STATE, 4)
        return True

    def _parameter(self, parameter: Any) -> None:
        if id(parameter) in self._known_parameters:
            return
        self._known_parameters.add(id(parameter))
        self._tensor(parameter, PARAMETERS)
        gradient = parameter.grad
        if gradient is not None:
            self._tensor(gradient, GRADIENTS)

    def _value(self, value: Any, kind: int, depth: int) -> None:
        """Tensors in nested containers, as optimizers keep them (LBFGS: lists of tensors)."""
        if isinstance(value, self._torch.Tensor):
            self._tensor(value, kind)
        elif depth and isinstance(value, dict):
            for item in list(value.values()):
                self._value(item, kind, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for item in list(value):
                self._value(item, kind, depth - 1)

    def _tensor(self, tensor: Any, kind: int) -> None:
        for part in tensor_parts(tensor, self._torch, 4):
            device = part.device
            if device.type not in ("cuda", "cpu"):
                continue
            ordinal = device.index if device.type == "cuda" else CPU
            storage = part.untyped_storage()
            size = int(storage.nbytes())
            if size in self._apart_sizes.get(ordinal, ()):
                self.apart.add((ordinal, _data_address(part, self._torch)))
            # A gradient that owns its storage may be freed and made anew at the same address between two slices: by
            # address alone the next one there would be taken for it. It is counted once because its parameter is.
            owned = kind == GRADIENTS and size == part.numel() * part.element_size()
            key = (ordinal, address(storage))
            if size == 0 or (not owned and key in self._known_storages):
                continue
            if not owned:
                self._known_storages.add(key)
            self._totals.setdefault(ordinal, [0, 0, 0])[kind] += size


def tensor_parts(tensor: Any, torch: Any, depth: int) -> Iterator[Any]:
    """The plain strided tensors that hold the data: of a DTensor its local shard, of a wrapper what it wraps."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter and depth:
        local = getattr(tensor, "_local_tensor", None)
        if local is not None:
            yield from tensor_parts(local, torch, depth - 1)
            return
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if flatten is not None:
            for name in flatten()[0]:
                yield from tensor_parts(getattr(tensor, name), torch, depth - 1)
            return
    layout = tensor.layout
    if layout is torch.strided:
        yield tensor
    elif layout is torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()
    elif layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def _data_address(part: Any, torch: Any) -> int:
    """Where the storage of a tensor begins in memory, without making a lazy copy real; 0 where torch cannot say so."""
    ask = getattr(torch._C, "_data_address", None)
    return int(ask(part)) - int(part.storage_offset()) * int(part.element_size()) if ask is not None else 0


def address(storage: Any) -> int:
    """What identifies a storage: its implementation object. Its data pointer would make a lazy copy real."""
    cdata = getattr(storage, "_cdata", None)
    return int(storage.data_ptr() if cdata is None else cdata)
