"""Count the bytes of each module of the training's models, on request.

It counts parameters, gradients and optimizer state.

The modules are walked in slices of at most :data:`SLICE_SECONDS` after optimizer steps, in the
thread that steps, or in the probe's thread if no step comes. Between slices only weak references
are held.

A storage is counted once, in full. If several tensors are parts of one storage (the flat parameter
of FSDP, the gradient buckets of DDP), each part is counted for its own owner, and the rest
(padding) for the first one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .ledger import GRADIENTS, PARAMETERS, SLICE_SECONDS, STATE, Ledger, address, tensor_parts

PATIENCE_SECONDS = 2.0
"""After this long without a step, the probe's own thread makes the walk."""
MAX_ROWS = 4000
MAX_JSON_BYTES = 700_000
MAX_NODES = 200_000
MAX_NAME = 200
MAX_WRAPPERS = 8
WATCH, FOUND, OPTIMIZERS = "watch", "found in the training loop", "optimizers only"
AFTER_STEPS, BY_ITSELF = (
    "after optimizer steps",
    "in the probe's own thread: no optimizer stepped meanwhile",
)
_WRAPPERS = {
    "OptimizedModule": ("_orig_mod", "compiled"),
    "DistributedDataParallel": ("module", "DDP"),
    "DataParallel": ("module", "DP"),
    "FullyShardedDataParallel": ("_fsdp_wrapped_module", "FSDP"),
    "CheckpointWrapper": ("_checkpoint_wrapped_module", "checkpoint"),
    "OffloadWrapper": ("_checkpoint_wrapped_module", "offload"),
}
"""Modules that only wrap another one: class, the attribute of the inner one, how the wrapper is
named.
"""
Row = Tuple[int, str, str, int, int, int]


class ModuleTree:
    """Call :meth:`request`, then :meth:`poll` every few milliseconds until it returns a result.

    Only one walk is made at a time.
    """

    def __init__(self, ledger: Ledger, searching: Callable[[], bool] = lambda: False) -> None:
        """Start without a walk. ``searching()`` says that a model may still be found."""
        self._ledger = ledger
        self._searching = searching
        self._lock = threading.Lock()
        self._walk: Optional[_TreeWalk] = None
        self._result: Optional[Dict[str, Any]] = None
        self._advanced = 0.0

    @property
    def wanted(self) -> bool:
        """Whether a walk is under way."""
        return self._walk is not None

    def request(self) -> None:
        """Begin a walk; a walk that is under way begins again."""
        with self._lock:
            self._result = None
            self._walk = _TreeWalk(self._ledger)
            self._advanced = time.monotonic()

    def cancel(self) -> None:
        with self._lock:
            self._walk = self._result = None

    def after_step(self, seconds: float = SLICE_SECONDS) -> None:
        """Walk for a slice of ``seconds``, in the thread that has just stepped an optimizer."""
        if self._walk is not None:
            self._advance(AFTER_STEPS, seconds)

    def poll(self) -> Optional[Dict[str, Any]]:
        """Return the result, or None while there is none; called in the probe's thread.

        The result has ``source``, ``seconds``, ``complete``, ``rows``, and ``walked``, which says
        in which thread the walk was made. A call takes a slice at most. If neither a model nor an
        optimizer is known, it has ``error`` in place of rows.
        """
        if self._result is None and time.monotonic() - self._advanced >= PATIENCE_SECONDS:
            before = self._advanced
            self._advance(BY_ITSELF, SLICE_SECONDS)
            self._advanced = before  # continue at the next poll
        result = self._result
        if result is not None and result.get("rows") is None and "error" not in result:
            result = self._result = _fit(result)
        return result

    def _advance(self, where: str, seconds: float) -> None:
        if not self._lock.acquire(False):
            return
        try:
            walk = self._walk
            if walk is None:
                return
            self._advanced = time.monotonic()
            if not walk.begun:
                if where == AFTER_STEPS and self._searching() and walk.age() < PATIENCE_SECONDS:
                    return
                walk.begin()
            done = walk.run(time.perf_counter() + seconds)
            if done:
                self._walk = None
                self._result = walk.result(where)
        except Exception as error:
            self._walk = None
            self._result = {"error": f"counting the modules failed: {type(error).__name__}"}
        finally:
            self._lock.release()


class _Node:
    __slots__ = ("bytes", "depth", "kind", "name", "parent")

    def __init__(self, depth: int, name: str, kind: str, parent: Optional[_Node]) -> None:
        self.depth, self.name, self.kind, self.parent = (
            depth,
            name[:MAX_NAME],
            kind[:MAX_NAME],
            parent,
        )
        self.bytes = [0, 0, 0]


class _Storage:
    """The part of one storage that is not counted yet, and the owner of the rest."""

    __slots__ = ("extents", "left", "node", "what")

    def __init__(self, size: int, node: _Node, what: int) -> None:
        self.left, self.node, self.what = size, node, what
        self.extents: Dict[Tuple[int, int], bool] = {}


class _TreeWalk:
    def __init__(self, ledger: Ledger) -> None:
        self._begin = time.perf_counter()
        self._ledger = ledger
        self.begun = False
        self._nodes: List[_Node] = []
        self._stack: List[Tuple[Any, int, str, Optional[_Node]]] = []
        self._modules: Dict[int, bool] = {}
        self._parameters: Dict[int, bool] = {}
        # id of an optimizer: entries of its state that were counted
        self._keyed: Dict[int, int] = {}
        self._storages: Dict[Tuple[Any, int], _Storage] = {}
        self._settled = False
        self.cut = False
        self._torch: Any = sys.modules.get("torch")

    def age(self) -> float:
        """Return the seconds since the walk was requested."""
        return time.perf_counter() - self._begin

    def begin(self) -> None:
        """Begin with what is known now."""
        self.begun = True
        models = self._ledger.models()
        self.source = (WATCH if self._ledger.watched else FOUND) if models else OPTIMIZERS
        self._optimizers = self._ledger.optimizers()
        self._rest = _Rest(self._optimizers)
        for number, ref in reversed(list(enumerate(models, 1))):
            self._stack.append((ref, 0, f"model {number}" if len(models) > 1 else "model", None))

    def run(self, deadline: float) -> bool:
        """Walk until ``deadline``; True when everything is counted."""
        while self._advance():
            if time.perf_counter() >= deadline:
                return False
        return True

    def result(self, where: str) -> Dict[str, Any]:
        if not self._nodes:
            return {"error": "no model and no optimizer found in this process yet"}
        return {
            "source": self.source,
            "seconds": time.perf_counter() - self._begin,
            "complete": not self.cut,
            "walked": where,
            "nodes": self._nodes,
        }

    def _advance(self) -> bool:
        if self._stack:
            ref, depth, name, parent = self._stack.pop()
            module = ref()
            if module is not None:
                self._module(module, depth, name, parent)
            return True
        if not self._rest.advance(self):
            if not self._settled:
                self._settled = True
                for storage in self._storages.values():  # the part that no view covers
                    storage.node.bytes[storage.what] += storage.left
                    storage.left = 0
            return False
        return True

    def _module(self, module: Any, depth: int, name: str, parent: Optional[_Node]) -> None:
        if len(self._nodes) >= MAX_NODES:
            self.cut = True
            return
        lines: List[str] = []
        own: List[Tuple[str, Any]] = []
        while True:
            wrapper = _WRAPPERS.get(type(module).__name__)
            inner = module._modules.get(wrapper[0]) if wrapper is not None else None
            if id(module) in self._modules:
                return  # shared: counted for its first owner
            self._modules[id(module)] = True
            if inner is None or wrapper is None:
                break
            lines.append(wrapper[1])
            own.extend(module._parameters.items())
            module = inner
        own.extend(item for item in module._parameters.items() if item[0] == "_flat_param")
        kind = type(module).__name__ + (f" ({', '.join(lines)})" if lines else "")
        node = self.add(depth, name, kind, parent)
        # FSDP's flat parameter gets a row, because it holds those of all modules below
        for label, parameter in own:
            type_name = "FlatParameter" if label == "_flat_param" else type(parameter).__name__
            if parameter is not None:
                self.parameter(parameter, self.add(depth + 1, str(label), type_name, node))
        for parameter in list(module._parameters.values()):
            if parameter is not None:
                self.parameter(parameter, node)
        children = [
            (str(label), child)
            for label, child in list(module._modules.items())
            if child is not None
        ]
        for label, child in reversed(children):
            self._stack.append((weakref.ref(child), depth + 1, label, node))

    def add(self, depth: int, name: str, kind: str, parent: Optional[_Node]) -> _Node:
        node = _Node(depth, name, kind, parent)
        self._nodes.append(node)
        return node

    def known(self, parameter: Any) -> bool:
        return id(parameter) in self._parameters

    def parameter(self, parameter: Any, node: _Node) -> None:
        """Count a parameter, its gradient and its optimizer state; the second time nothing."""
        if id(parameter) in self._parameters:
            return
        self._parameters[id(parameter)] = True
        self._tensor(parameter, PARAMETERS, node)
        gradient = parameter.grad
        if gradient is not None:
            self._tensor(gradient, GRADIENTS, node)
        for ref in self._optimizers:
            optimizer = ref()
            if optimizer is not None and parameter in optimizer.state:
                self._keyed[id(optimizer)] = self._keyed.get(id(optimizer), 0) + 1
                self.value(optimizer.state[parameter], node, 4)

    def has_other_state(self, optimizer: Any) -> bool:
        """Whether there are state entries that belong to no parameter."""
        return len(optimizer.state) > self._keyed.get(id(optimizer), 0)

    def value(self, value: Any, node: _Node, depth: int) -> None:
        """Count tensors of the optimizer state, which may be in nested containers."""
        if isinstance(value, self._torch.Tensor):
            self._tensor(value, STATE, node)
        elif depth and isinstance(value, dict):
            for item in list(value.values()):
                self.value(item, node, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            for item in list(value):
                self.value(item, node, depth - 1)

    def _tensor(self, tensor: Any, what: int, node: _Node) -> None:
        for part in tensor_parts(tensor, self._torch, 4):
            if part.device.type not in ("cuda", "cpu"):
                continue
            storage = part.untyped_storage()
            size = int(storage.nbytes())
            extent = part.numel() * part.element_size()
            if what == GRADIENTS and size == extent:
                # It may be freed and allocated again at the same address between two slices (see
                # the ledger).
                node.bytes[what] += size
                continue
            key = (part.device, address(storage))
            known = self._storages.get(key)
            if known is None:
                known = self._storages[key] = _Storage(size, node, what)
            place = (int(part.storage_offset()), extent)
            if place not in known.extents:
                known.extents[place] = True
                taken = min(extent, known.left)
                known.left -= taken
                node.bytes[what] += taken


class _Rest:
    """Counts what optimizers hold and no known model does.

    Without a known model this is everything.
    """

    def __init__(self, optimizers: List[Any]) -> None:
        self._refs = list(reversed(optimizers))
        self._group = self._index = 0
        self._node: Optional[_Node] = None
        self._group_node: Optional[_Node] = None

    def advance(self, walk: _TreeWalk) -> bool:
        while self._refs:
            optimizer = self._refs[-1]()
            if optimizer is None:
                self._next_optimizer()
                continue
            if self._group >= len(optimizer.param_groups):
                self._other_state(optimizer, walk)
                self._next_optimizer()
                return True
            members = optimizer.param_groups[self._group]["params"]
            # There are many parameters that a model owns, and skipping them is quick.
            for _ in range(64):
                if self._index >= len(members):
                    self._group, self._index, self._group_node = self._group + 1, 0, None
                    return True
                parameter = members[self._index]
                self._index += 1
                if not walk.known(parameter):
                    walk.parameter(parameter, self._place(optimizer, walk, len(members)))
                    return True
            return True
        return False

    def _place(self, optimizer: Any, walk: _TreeWalk, count: int) -> _Node:
        if self._node is None:
            name = "optimizer" if walk.source == OPTIMIZERS else "in no known model"
            self._node = walk.add(0, name, type(optimizer).__name__, None)
        if self._group_node is None:
            self._group_node = walk.add(
                1, f"group {self._group}", f"{count} parameters", self._node
            )
        return self._group_node

    def _other_state(self, optimizer: Any, walk: _TreeWalk) -> None:
        if not walk.has_other_state(optimizer):
            return
        owned = {id(member) for group in optimizer.param_groups for member in group["params"]}
        others = [value for key, value in list(optimizer.state.items()) if id(key) not in owned]
        if others:
            node = walk.add(0, "state of no parameter", type(optimizer).__name__, None)
            for value in others:
                walk.value(value, node, 4)

    def _next_optimizer(self) -> None:
        self._refs.pop()
        self._group = self._index = 0
        self._node = self._group_node = None


def unwrapped(module: Any) -> Any:
    """Return the module inside of wrappers; anything else unchanged."""
    for _ in range(MAX_WRAPPERS):
        wrapper = _WRAPPERS.get(type(module).__name__)
        inner = module._modules.get(wrapper[0]) if wrapper is not None else None
        if inner is None:
            break
        module = inner
    return module


def _fit(result: Dict[str, Any]) -> Dict[str, Any]:
    """Return the rows with totals of the subtrees, deeper levels merged until they fit."""
    nodes: List[_Node] = result.pop("nodes")
    for node in reversed(nodes):  # children come after their parents
        if node.parent is not None:
            for what in (PARAMETERS, GRADIENTS, STATE):
                node.parent.bytes[what] += node.bytes[what]
    deepest = max(node.depth for node in nodes)
    while True:
        rows = list(_rows(nodes, deepest))
        if len(rows) <= MAX_ROWS and len(json.dumps(rows)) <= MAX_JSON_BYTES:
            break
        result["complete"] = False
        if deepest == 0:
            rows = rows[: MAX_ROWS // 2]
            break
        deepest -= 1
    result["rows"] = [list(row) for row in rows]
    return result


def _rows(nodes: List[_Node], deepest: int) -> Iterator[Row]:
    for node in nodes:
        if node.depth <= deepest:
            yield (node.depth, node.name, node.kind, *node.bytes)  # type: ignore[misc]
