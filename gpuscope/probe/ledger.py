"""Count the exact bytes of parameters, gradients, optimizer state and other models.

They are counted from the tensors, for each device.

The count is made in the trainer's own thread, right after an optimizer step, because gradients and
state exist then. It is made in slices of at most :func:`slice_seconds`, one after each step, and
only if something changed or :data:`REFRESH_SECONDS` have passed. Between slices only weak
references are held, so the count never keeps a tensor alive. What becomes known meanwhile is
counted too; the count begins again only if something was removed.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from operator import attrgetter
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

SLICE_SECONDS, LONGEST_SLICE_SECONDS = 200e-6, 20e-3
SLICE_SHARE = 0.005
"""The share of a step that a slice may take, between the shortest and the longest slice."""
REFRESH_SECONDS = 60.0
CPU = -1
PARAMETERS, GRADIENTS, STATE, OTHERS = 0, 1, 2, 3
_Signature = Tuple[int, int, int]


def slice_seconds(step_seconds: float) -> float:
    """Return how long a slice may take after a step that usually takes ``step`` seconds."""
    return max(SLICE_SECONDS, min(SLICE_SHARE * step_seconds, LONGEST_SLICE_SECONDS))


class Bytes(NamedTuple):
    parameters: int
    gradients: int
    optimizer_state: int
    others: int = 0
    """Parameters and buffers of models that no optimizer trains: a teacher, a reference model, an
    average.
    """


class Ledger:
    """Counts a training's tensors.

    ``bytes`` is None until a count is complete, then {ordinal: Bytes}; ordinal -1 is the CPU.
    """

    def __init__(self) -> None:
        self.wanted = False  # whether somebody watches; otherwise nothing is counted
        self.bytes: Optional[Dict[int, Bytes]] = None
        # by ordinal: the bytes of each other model by its name
        self.other_models: Dict[int, Dict[str, int]] = {}
        self.watched = False  # whether the models are those that watch() was given
        # by ordinal: storages of these sizes are remembered
        self.apart_sizes: Dict[int, Tuple[int, ...]] = {}
        self.kept_apart: Set[Tuple[int, int]] = set()  # (ordinal, data address) of these storages
        self._optimizers: Dict[int, weakref.ref[Any]] = {}
        self._models: List[weakref.ref[Any]] = []
        self._others: List[Tuple[weakref.ref[Any], str]] = []
        self._signatures: Dict[int, _Signature] = {}
        self._walk: Optional[_Walk] = None
        self._walked = 0.0
        self._dirty = True  # the last count is no longer valid
        self._grown = False  # there is more to count than was known when the count began
        self._between = False  # it was counted while a backward pass may have been under way
        self._lock = threading.Lock()

    def add_model(self, model: Any) -> None:
        """Count this module's parameters too, frozen ones included.

        Raises TypeError without weak references.
        """
        if not self.watched:
            # a model that the user names takes precedence over one that we guessed
            self.watched, self._models = True, []
            self._dirty = True
        self._add(model)

    def add_found(self, model: Any) -> None:
        """Count a model that was found in the training loop.

        Does nothing where the user has named a model that is alive.
        """
        self.watched = self.watched and bool(self.models())
        if not self.watched:
            self._add(model)

    def add_other(self, model: Any, name: str) -> None:
        """Count a model, or an object that averages one, that no optimizer is known to train.

        If an optimizer does train it after all, it counts as trained.
        """
        if not any(ref() is model for ref, _ in self._others):
            self._others = [*self._others, (weakref.ref(model, self._mark_dirty), name)]
            self._grown = True

    def _add(self, model: Any) -> None:
        if not any(ref() is model for ref in self._models):
            self._models = [*self._models, weakref.ref(model, self._mark_dirty)]
            self._grown = True

    def models(self) -> List[weakref.ref[Any]]:
        """Return weak references of the known models that are alive.

        They come in the order in which they became known.
        """
        return [ref for ref in self._models if ref() is not None]

    def optimizers(self) -> List[weakref.ref[Any]]:
        """Return weak references of the optimizers that have stepped or that watch() was given."""
        return [ref for ref in list(self._optimizers.values()) if ref() is not None]

    def add_optimizer(self, optimizer: Any) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer, self._mark_dirty)
            self._grown = True

    def after_step(
        self, optimizer: Any, now: float, primary: bool = True, usual: float = 0.0
    ) -> None:
        """Count a slice in the thread in which ``optimizer`` has just stepped.

        ``now`` is perf_counter. ``primary`` says that this was the end of a step, which usually
        takes ``usual`` seconds; only then is anything counted.
        """
        if not self._lock.acquire(False):
            return  # another thread is counting: a training step must not wait for it
        try:
            self.add_optimizer(optimizer)
            if not self.wanted:
                return
            signature = _signature(optimizer)
            before = self._signatures.get(id(optimizer))
            if before != signature:
                self._signatures[id(optimizer)] = signature
                if before is None or all(new >= old for new, old in zip(signature, before)):
                    self._grown = True
                else:
                    self._dirty = True
            if primary:
                self._dirty, self._between = self._dirty or self._between, False
                self._slice(now, slice_seconds(usual))
        finally:
            self._lock.release()

    def without_steps(self, now: float) -> None:
        """Count a slice in the probe's thread, for a process in which no optimizer steps.

        It does so if ``watch()`` has named something that can be counted.
        """
        if (
            not self.wanted
            or not (self._models or self._optimizers)
            or not self._lock.acquire(False)
        ):
            return
        try:
            self._between = True
            self._slice(now, SLICE_SECONDS)
        finally:
            self._lock.release()

    def count_now(self, seconds: float) -> None:
        """Count again in the caller's thread, for at most ``seconds``, while no step is under way.

        If the time is too short, the result of the last complete count stays.
        """
        if not (self._models or self._optimizers) or not self._lock.acquire(False):
            return
        try:
            self._dirty = True
            self._slice(time.perf_counter(), seconds)
        finally:
            self._lock.release()

    def _slice(self, now: float, seconds: float) -> None:
        if self._dirty:
            self._dirty, self._walk = False, None
            self._walked = -REFRESH_SECONDS
        if self._walk is None:
            if not self._grown and now - self._walked < REFRESH_SECONDS:
                return
            self._forget_dead()
            self._walk = _Walk(self.apart_sizes)
            self._grown = True
        if self._grown:
            self._grown = False
            self._walk.extend(list(self._optimizers.values()), self._models, self._others)
        if self._walk.run(time.perf_counter() + seconds) and not self._dirty and not self._grown:
            self.bytes, self.other_models = self._walk.totals(), self._walk.others
            self.kept_apart = self._walk.apart
            self._walked = now
            self._walk = None

    def _mark_dirty(self, _: Any) -> None:
        self._dirty = True
        self.bytes = None

    def _forget_dead(self) -> None:
        self._optimizers = {
            key: ref for key, ref in list(self._optimizers.items()) if ref() is not None
        }
        self._models = [ref for ref in self._models if ref() is not None]
        self._others = [other for other in self._others if other[0]() is not None]
        self._signatures = {
            key: self._signatures[key] for key in self._optimizers if key in self._signatures
        }


def _signature(optimizer: Any) -> _Signature:
    groups = optimizer.param_groups
    return len(groups), sum(len(group["params"]) for group in groups), len(optimizer.state)


class _Walk:
    """One count over all optimizers and models.

    It is a cursor and not a generator, because a generator's frame would hold tensors.
    """

    def __init__(self, apart_sizes: Dict[int, Tuple[int, ...]]) -> None:
        self.apart: Set[Tuple[int, int]] = set()
        self.others: Dict[int, Dict[str, int]] = {}
        self._apart_sizes = apart_sizes
        self._optimizers: List[weakref.ref[Any]] = []
        self._modules: List[weakref.ref[Any]] = []
        self._other_modules: List[Tuple[weakref.ref[Any], str]] = []
        self._name = ""  # name of the other model that is being counted
        self._group = self._index = 0
        # by id of an optimizer: ids of the keys whose state was counted
        self._known_state: Dict[int, Set[int]] = {}
        self._known_modules: Set[int] = set()
        self._known_parameters: Set[int] = set()
        self._known_storages: Set[int] = set()
        self._ordinals: Dict[Any, Optional[int]] = {}
        self._totals: Dict[int, List[int]] = {}
        self._torch: Any = sys.modules["torch"]
        self._tensor_class, self._parameter_class = self._torch.Tensor, self._torch.nn.Parameter
        self._strided = self._torch.strided
        has_address = hasattr(getattr(self._torch, "UntypedStorage", None), "_cdata")
        self._address = attrgetter("_cdata") if has_address else address

    def extend(
        self,
        optimizers: List[weakref.ref[Any]],
        models: List[weakref.ref[Any]],
        others: List[Tuple[weakref.ref[Any], str]],
    ) -> None:
        """Include all of these, without counting again what was counted already."""
        self._optimizers = list(optimizers)
        self._group = self._index = 0
        self._modules.extend(ref for ref in models if id(ref()) not in self._known_modules)
        self._other_modules = [
            other for other in others if id(other[0]()) not in self._known_modules
        ]

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
                self._group = self._index = 0
            return True
        if self._modules:
            module = self._modules.pop()()
            if module is not None and id(module) not in self._known_modules:
                self._known_modules.add(id(module))
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._parameter(parameter)
                self._modules.extend(
                    weakref.ref(child) for child in module._modules.values() if child is not None
                )
            return True
        if self._other_modules:
            ref, self._name = self._other_modules.pop()
            self._other(ref())
            return True
        return False

    def _other(self, module: Any) -> None:
        if module is None or id(module) in self._known_modules:
            return
        self._known_modules.add(id(module))
        for tensor in other_tensors(module):
            if id(tensor) not in self._known_parameters:
                self._tensor(tensor, OTHERS)
        children = getattr(module, "_modules", None) or {}
        self._other_modules.extend(
            (weakref.ref(child), self._name) for child in children.values() if child is not None
        )

    def _advance_optimizer(self, optimizer: Any) -> bool:
        if optimizer is None:
            return False
        state = optimizer.state
        known = self._known_state.setdefault(id(optimizer), set())
        if self._group >= len(optimizer.param_groups):
            if len(state) > len(known):  # entries under other keys: few, so in one go
                for key, value in list(state.items()):
                    if id(key) not in known:
                        known.add(id(key))
                        self._value(value, STATE, 4)
            return False
        parameters_of_group = optimizer.param_groups[self._group]["params"]
        if self._index >= len(parameters_of_group):
            self._group, self._index = self._group + 1, 0
            return True
        parameter = parameters_of_group[self._index]
        self._index += 1
        self._parameter(parameter)
        # get() and [] of a defaultdict may create an entry; only "in" never does.
        if id(parameter) not in known and parameter in state:
            known.add(id(parameter))
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
        """Count tensors in nested containers, as optimizers keep them (LBFGS: lists of tensors)."""
        if isinstance(value, self._tensor_class):
            self._tensor(value, kind)
        elif depth and isinstance(value, dict):
            for item in list(value.values()):
                self._value(item, kind, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for item in list(value):
                self._value(item, kind, depth - 1)

    def _tensor(self, tensor: Any, kind: int) -> None:
        """Count a tensor's storages.

        All tensors of a model go through here, so anything that can be computed beforehand is.
        """
        own_class = type(tensor)
        plain = own_class is self._tensor_class or own_class is self._parameter_class
        parts = (
            (tensor,)
            if plain and tensor.layout is self._strided
            else tensor_parts(tensor, self._torch, 4)
        )
        for part in parts:
            device = part.device
            # asking a device for its type takes longer than everything else here
            if device not in self._ordinals:
                self._ordinals[device] = {"cuda": device.index, "cpu": CPU}.get(device.type)
            ordinal = self._ordinals[device]
            if ordinal is None:
                continue
            storage = part.untyped_storage()
            size = storage.nbytes()
            if size == 0:
                continue
            if self._apart_sizes and size in self._apart_sizes.get(ordinal, ()):
                self.apart.add((ordinal, _data_address(part, self._torch)))
            # A gradient that owns its storage may be freed and allocated again at the same address
            # between two slices. By its address alone the new one would be taken for the old one.
            # So it is counted once because its parameter is.
            if kind != GRADIENTS or size != part.numel() * part.element_size():
                key = self._address(storage)
                if key in self._known_storages:
                    continue
                self._known_storages.add(key)
            totals = self._totals.get(ordinal)
            if totals is None:
                totals = self._totals[ordinal] = [0, 0, 0, 0]
            totals[kind] += int(size)
            if kind == OTHERS:
                names = self.others.setdefault(ordinal, {})
                names[self._name] = names.get(self._name, 0) + int(size)


def other_tensors(holder: Any) -> List[Any]:
    """Return the tensors that a module itself holds.

    This includes those of an object that averages a model in a list (``shadow_params``).
    """
    found: List[Any] = []
    for name in ("_parameters", "_buffers"):
        found += [
            tensor for tensor in (holder.__dict__.get(name) or {}).values() if tensor is not None
        ]
    averages = holder.__dict__.get("shadow_params")
    if isinstance(averages, (list, tuple)):
        found += averages
    torch: Any = sys.modules.get("torch")
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def tensor_parts(tensor: Any, torch: Any, depth: int) -> Iterator[Any]:
    """Return the plain strided tensors that hold the data of a tensor.

    For a DTensor this is its local shard, for a wrapper what it wraps.
    """
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
    """Return the address at which a tensor's storage begins.

    A lazy copy stays lazy. 0 if torch cannot tell.
    """
    ask = getattr(torch._C, "_data_address", None)
    return (
        int(ask(part)) - int(part.storage_offset()) * int(part.element_size())
        if ask is not None
        else 0
    )


def address(storage: Any) -> int:
    """Return what identifies a storage: the address of its implementation object.

    Reading its data pointer would make a lazy copy real.
    """
    cdata = getattr(storage, "_cdata", None)
    return int(storage.data_ptr() if cdata is None else cdata)
