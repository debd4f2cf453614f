"""This module turns the answer to ``modules`` into a tree that a screen can fold and sort.

Each module has the bytes of all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...text.numbers import amount, whole

MAX_ROWS = 8000
"""More than a probe sends; what comes is not trusted."""


@dataclass(slots=True)
class Module:
    """One module of a model, with the totals of its subtree.

    A storage that several modules share is counted at its first owner. ``key`` is the module's
    path.
    """

    key: str
    name: str
    kind: str
    depth: int
    parameters: int
    gradients: int
    optimizer_state: int
    children: list[Module] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All three together."""
        return self.parameters + self.gradients + self.optimizer_state

    @property
    def height(self) -> int:
        """Levels below it."""
        deepest, level = 0, self.children
        while level:
            deepest, level = deepest + 1, [child for one in level for child in one.children]
        return deepest


@dataclass(frozen=True, slots=True)
class Tree:
    """The modules of an answer, ``roots`` in the order of the answer.

    ``source`` says where the models were found, ``complete`` whether all of their levels are
    here, and ``seconds`` what the walk took.
    """

    roots: tuple[Module, ...]
    source: str
    complete: bool
    seconds: float | None
    dropped: int = 0

    @property
    def total(self) -> int:
        """The bytes of all roots."""
        return sum(root.total for root in self.roots)


def tree_of(value: Mapping[str, Any]) -> Tree:
    """Return the tree of an answer.

    Rows that are malformed are counted and left out: nothing that a probe sends raises here.
    """
    rows = value.get("rows")
    rows = rows[:MAX_ROWS] if isinstance(rows, (list, tuple)) else []
    roots: list[Module] = []
    path: list[Module] = []
    used: set[str] = set()
    dropped = 0
    for row in rows:
        module = _module(row, path)
        if module is None:
            dropped += 1
            continue
        del path[module.depth :]
        module.key = _unique(f"{path[-1].key}/{module.name}" if path else module.name, used)
        (path[-1].children if path else roots).append(module)
        path.append(module)
    took = amount(value.get("seconds"))
    complete = value.get("complete") is True and not dropped
    return Tree(
        tuple(roots), str(value.get("source") or "unknown source")[:60], complete, took, dropped
    )


def _module(row: object, path: list[Module]) -> Module | None:
    match row:
        case [int(depth), str(name), str(kind), *sizes] if len(sizes) >= 3 and 0 <= depth <= len(
            path
        ):
            numbers = [whole(size) for size in sizes[:3]]
            if None not in numbers:
                return Module("", name or "(model)", kind, depth, *numbers)  # type: ignore[arg-type]
    return None


def _unique(key: str, used: set[str]) -> str:
    number, found = 1, key
    while found in used:
        number += 1
        found = f"{key}#{number}"
    used.add(found)
    return found


class Folding:
    """Which branches are open, and in which order children stand.

    Both are kept by path, so that they outlive an answer.
    """

    def __init__(self) -> None:
        self.depth = 1
        """Levels that are open by themselves."""
        self.by_size = True
        self._turned: dict[str, bool] = {}

    def is_open(self, module: Module) -> bool:
        """Return whether its children are shown."""
        return bool(module.children) and self._turned.get(module.key, module.depth < self.depth)

    def turn(self, module: Module, opened: bool | None = None) -> None:
        """Open or close one branch; by default what it is not."""
        self._turned[module.key] = not self.is_open(module) if opened is None else opened

    def deepen(self, by: int, tree: Tree) -> None:
        """Open one level more of everything, or one fewer."""
        deepest = max((root.height for root in tree.roots), default=0)
        self.depth = max(0, min(self.depth + by, deepest))
        self._turned.clear()

    def shown(self, tree: Tree) -> Iterator[Module]:
        """Return the modules on screen, in order."""
        stack = list(self._sort(list(tree.roots)))[::-1]
        while stack:
            module = stack.pop()
            yield module
            if self.is_open(module):
                stack += self._sort(module.children)[::-1]

    def _sort(self, modules: list[Module]) -> list[Module]:
        return sorted(modules, key=lambda module: -module.total) if self.by_size else modules
