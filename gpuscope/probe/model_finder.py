"""Find the model that an optimizer trains.

The search goes through what the functions that called ``optimizer.step()`` have at hand.

It is made once per optimizer, in the thread that steps it. First it collects modules from the local
variables of the callers and the attributes of their ``self``. Then, after each further step, it
checks one of them for the optimizer's parameters. Of the modules that hold these, the one that
contains the most modules is the root. Modules that hold none, and are not part of the root, are
other models: a teacher, a reference model, an average of the weights. Only weak references are
kept.

Up to Python 3.12, ``frame.f_locals`` of a running function is a dictionary that Python keeps with
the frame. It would keep the function's tensors alive until the function ends, so we clear it again.
``locals()`` returns the same dictionary, so a function whose code may have obtained it is left
alone, and so is everything while a debugger traces.
"""

from __future__ import annotations

import dis
import sys
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

MAX_FRAMES = 64
MAX_VALUES = 512
"""Limit for one namespace, list or dictionary."""
MAX_CANDIDATES = 64
MAX_OPTIMIZERS = 8
MAX_NAME = 64
ATTEMPTS = (1, 64)
"""At which of its steps the model of an optimizer is looked for; the later ones only if it was not
found before.
"""
OPTIMIZED = 1  # inspect.CO_OPTIMIZED: locals are not kept in a dictionary
# called without an argument: vars(args) returns no local variables
_GIVES_LOCALS = frozenset(("locals", "vars"))
# as functions: every training calls the method model.eval()
_RUNS_IN_LOCALS = frozenset(("eval", "exec"))
CACHED = sys.version_info < (3, 13)  # from this version on f_locals is a view, and nothing is kept


class Candidate(NamedTuple):
    """An object found in the training, and the name of its variable.

    The name is that of a variable, an attribute or a key.
    """

    name: str
    ref: weakref.ref[Any]


class Finder:
    """Finds the models of a training. :meth:`after_step` is for the thread that steps.

    ``roots`` holds the models of the optimizers, and ``parallel`` the DistributedDataParallel
    modules that were found on the way, as weak references. ``others`` are models that no optimizer
    trains.
    """

    def __init__(self) -> None:
        self.roots: List[weakref.ref[Any]] = []
        self.others: List[Candidate] = []
        self.parallel: List[weakref.ref[Any]] = []
        self._optimizers: Dict[int, Tuple[weakref.ref[Any], int]] = {}  # id: (object, steps)
        self._search: Optional[_Search] = None
        self._found: Set[int] = set()  # ids of optimizers
        self.searching = True  # until a first search is complete

    def look_at(self, root: Any) -> None:
        """Look for a DistributedDataParallel in a model that ``watch()`` was given."""
        self._note_parallel(root.modules())

    def after_step(self, optimizer: Any) -> Optional[Any]:
        """Return a root if one has just been found.

        Our hook must call this directly, because the frames above it are searched.
        """
        search = self._search
        if search is not None:
            if search.optimizer() is optimizer:
                return self._continue(search, optimizer)
            if search.optimizer() is None:
                self._search, self.searching = None, False
            return None
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            if len(self._optimizers) >= MAX_OPTIMIZERS:
                return None
            self._found.discard(id(optimizer))
            known = (weakref.ref(optimizer), 0)
        elif known[1] > ATTEMPTS[-1]:
            return None
        self._optimizers[id(optimizer)] = (known[0], known[1] + 1)
        if known[1] + 1 in ATTEMPTS and id(optimizer) not in self._found:
            owned = _first_parameters(optimizer)
            candidates = _candidates(sys._getframe(1)) if owned else []
            self.searching = bool(candidates)
            if candidates:
                self._search = _Search(known[0], owned, candidates)
        return None

    def _continue(self, search: _Search, optimizer: Any) -> Optional[Any]:
        if search.candidates:
            candidate = search.candidates.pop()
            module = candidate.ref()
            if module is not None:
                self._look_into(search, candidate, module)
            return None
        self._search, self.searching = None, False
        root = search.best() if search.best is not None else None
        parts = search.parts.union(*(inside - {id(one.ref())} for one, inside in search.others))
        self.others += [one for one, _ in search.others if id(one.ref()) not in parts]
        if root is not None:
            self._found.add(id(optimizer))
            if not any(ref() is root for ref in self.roots):
                self.roots.append(weakref.ref(root))
                return root
        return None

    def _look_into(self, search: _Search, candidate: Candidate, module: Any) -> None:
        if "_parameters" not in module.__dict__:  # not a module but an object that averages one
            search.others.append((candidate, {id(module)}))
            return
        modules = list(module.modules())
        held = {
            id(parameter)
            for item in modules
            for parameter in item._parameters.values()
            if parameter is not None
        }
        inside = {id(item) for item in modules}
        if search.owned & held:
            self._note_parallel(modules)
            search.parts |= inside
            if len(modules) > search.size:
                search.best, search.size = weakref.ref(module), len(modules)
        elif held:
            search.others.append((candidate, inside))

    def _note_parallel(self, modules: Any) -> None:
        kind = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
        if kind is None:
            return
        for module in modules:
            if isinstance(module, kind) and not any(ref() is module for ref in self.parallel):
                self.parallel.append(weakref.ref(module))


class _Search:
    def __init__(
        self, optimizer: weakref.ref[Any], owned: Set[int], candidates: List[Candidate]
    ) -> None:
        self.optimizer = optimizer
        self.owned = owned  # ids of parameters
        self.candidates = candidates
        self.parts: Set[int] = set()  # ids of the modules inside those that hold one of these
        # modules that hold none, with the ids of the modules inside them
        self.others: List[Tuple[Candidate, Set[int]]] = []
        self.best: Optional[weakref.ref[Any]] = None
        self.size = 0


def _first_parameters(optimizer: Any) -> Set[int]:
    """Return ids of a few parameters.

    A module that holds one of them is the one that is trained.
    """
    return {
        id(parameter) for group in optimizer.param_groups[:8] for parameter in group["params"][:8]
    }


def _candidates(frame: Any) -> List[Candidate]:
    """Return the modules at hand in ``frame`` and its callers, innermost last."""
    torch: Any = sys.modules.get("torch")
    if sys.gettrace() is not None or torch is None:
        return []
    module_class = torch.nn.Module
    found: Dict[int, Candidate] = {}
    for _ in range(MAX_FRAMES):
        if frame is None or len(found) >= MAX_CANDIDATES:
            break
        if not frame.f_globals.get("__name__", "").startswith(
            ("torch.optim", __name__.partition(".")[0] + ".probe")
        ):
            for name, module in _modules_of(frame, module_class):
                if id(module) not in found and len(found) < MAX_CANDIDATES:
                    found[id(module)] = Candidate(str(name)[:MAX_NAME], weakref.ref(module))
        frame = frame.f_back
    return list(found.values())[::-1]


def _modules_of(frame: Any, module_class: Any) -> List[Tuple[str, Any]]:
    names, attributes = _names_in(frame)
    found = list(_modules_in(names, module_class, 1))
    if attributes is not None and not issubclass(type(attributes.owner), module_class):
        found.extend(_modules_in(attributes.items, module_class, 1))
    return found


def at_hand(frame: Any) -> List[Tuple[str, Any]]:
    """Return what the function of ``frame`` has at hand.

    These are its variables and the attributes of its first argument.
    """
    if sys.gettrace() is not None:
        return []
    names, attributes = _names_in(frame)
    return names + (attributes.items if attributes is not None else [])


class _Attributes(NamedTuple):
    owner: Any
    items: List[Tuple[str, Any]]


def _names_in(frame: Any) -> Tuple[List[Tuple[str, Any]], Optional[_Attributes]]:
    code = frame.f_code
    optimized = bool(code.co_flags & OPTIMIZED)
    if frame.f_trace is not None or (optimized and _has_its_dictionary(code)):
        return [], None
    space = frame.f_locals
    try:
        names = list(space.items())[:MAX_VALUES]
        me = space.get(code.co_varnames[0]) if optimized and code.co_argcount else None
    finally:
        if optimized and CACHED:
            space.clear()
    attributes = None
    if me is not None and not issubclass(type(me), (type, list, dict, tuple)):
        attributes = _attributes(me)
    if attributes is None:
        return names, None
    return names, _Attributes(me, list(attributes.items())[:MAX_VALUES])


def _attributes(value: Any) -> Optional[Dict[str, Any]]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return attributes if type(attributes) is dict else None


def _has_its_dictionary(code: Any) -> bool:
    """Whether the function may have obtained the dictionary of its own local variables.

    Code that loads a name like ``vars`` may do so, unless it loads an argument for it next: the
    function object could be passed on and called without one under another name.
    """
    if not CACHED:
        return False
    if "f_locals" in code.co_names:
        return True
    if (_GIVES_LOCALS | _RUNS_IN_LOCALS).isdisjoint(code.co_names):
        return False
    steps = [
        step
        for step in dis.get_instructions(code)
        if step.opname not in ("EXTENDED_ARG", "PUSH_NULL")
    ]
    for step, following in zip(steps, steps[1:]):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in _RUNS_IN_LOCALS:
            return True
        given = following.opname.startswith("LOAD_")
        if step.opname.startswith("LOAD_") and step.argval in _GIVES_LOCALS and not given:
            return True
    return False


def _modules_in(values: Any, module_class: Any, depth: int) -> Iterator[Tuple[str, Any]]:
    """Return the modules among ``values`` with their names, and objects that average one in a list.

    It only looks at types and dictionaries: no code of the user's objects runs.
    """
    for name, value in values:
        kind = type(value)
        if issubclass(kind, module_class):
            yield name, value
        elif depth and (kind is list or kind is tuple) and len(value) <= MAX_VALUES:
            yield from _modules_in(
                [(f"{name}[{i}]", item) for i, item in enumerate(value)], module_class, depth - 1
            )
        elif depth and kind is dict and len(value) <= MAX_VALUES:
            yield from _modules_in(list(value.items()), module_class, depth - 1)
        elif type((_attributes(value) or {}).get("shadow_params")) is list:
            yield name, value
