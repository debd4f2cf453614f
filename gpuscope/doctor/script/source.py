"""Parse one Python file, and answer what the checks ask about its syntax tree.

They ask about names, scopes, loops, order and comments that suppress a check. Names are resolved
only through the imports of the file. No function recurses over the tree, because a hostile file may
nest as deeply as the parser allows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate

from ...wire.clean import limited
from .nodes import is_main_guard, key, line, position, targets_of

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMMENT = re.compile(r"#\s*gpuscope:\s*ignore(-file)?(?:\[([\w\-, ]*)\])?", re.ASCII)
_MAX_CODE = 160

# One name for each function that torch offers under several names.
_SAME = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",  # noqa: E501
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.amp.autocast": "torch.autocast",
    "torch.amp.autocast_mode.autocast": "torch.autocast",
    "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "torch.nn.modules.Module": "torch.nn.Module",
    "torch.nn.modules.module.Module": "torch.nn.Module",
}


class SourceTooLarge(Exception):
    """The file is so large or so entangled that checking it would take long."""


class SourceFile:
    """A parsed file. Raises what ``ast.parse`` raises."""

    _LOOKS = 3_000_000  # about five seconds

    def __init__(self, path: str, text: str):
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        self.tree = ast.parse(text)
        self._looks = 0
        self.parents: dict[ast.AST, tuple[ast.AST, str]] = {}
        self.nodes: list[ast.AST] = []
        for node in ast.walk(self.tree):
            for field, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else (value,):
                    if isinstance(child, ast.AST):
                        # Context and operator nodes are shared objects without a position, so their
                        # parents are not recorded.
                        self.parents[child] = (node, field)
            if hasattr(node, "lineno"):
                self.nodes.append(node)
        self.nodes.sort(key=position)
        self.imports = dict(self._read_imports())

    def _read_imports(self) -> Iterator[tuple[str, str]]:
        """Yield each name that an import binds, with the full name of the imported object."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield (
                        (alias.asname, alias.name)
                        if alias.asname
                        else (alias.name.split(".")[0],) * 2
                    )
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"

    # ── names ─────────────────────────────────────────────────────────────────────────────────────

    def resolve(self, node: ast.AST | None) -> str:
        """Return the full dotted name of ``node``, resolved through the imports.

        ``F.relu`` gives ``torch.nn.functional.relu``. The result is "" where the name does not
        begin with an imported one.
        """
        if isinstance(node, ast.Call):
            node = node.func
        raw = key(node)
        if not raw:
            return ""
        head, _, rest = raw.partition(".")
        if head not in self.imports:
            return ""
        full = f"{self.imports[head]}.{rest}" if rest else self.imports[head]
        return _SAME.get(full, full)

    @property
    def calls(self) -> list[ast.Call]:
        """Return every call, in the order of the text."""
        self._spend(len(self._calls))
        return self._calls

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def _spend(self, looks: int) -> None:
        """Count looks at nodes. Raises :class:`SourceTooLarge` where they are too many."""
        self._looks += looks
        if self._looks > self._LOOKS:
            raise SourceTooLarge

    def calls_to(self, *names: str) -> list[ast.Call]:
        """Return the calls of these full names."""
        return [call for call in self.calls if self.resolve(call.func) in names]

    def methods(self, *names: str, within: ast.AST | None = None) -> list[ast.Call]:
        """Return the calls whose last name is one of these: ``x.NAME(…)``."""
        found = [
            call
            for call in self.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in names
        ]
        return found if within is None else [call for call in found if self.is_inside(call, within)]

    @cached_property
    def bindings(self) -> dict[tuple[ast.AST, str], list[tuple[ast.AST, ast.expr | None]]]:
        """Return the places that bind each (scope, name).

        Each place has its value if that is a single expression. ``self.x`` belongs to the class.
        """
        found: dict[tuple[ast.AST, str], list[tuple[ast.AST, ast.expr | None]]] = {}
        for node in self.nodes:
            for target, value in targets_of(node):
                name = key(target)
                if name:
                    found.setdefault((self._home(node, name), name), []).append((node, value))
        return found

    def _home(self, node: ast.AST, name: str) -> ast.AST:
        """Return the scope, or for ``self.x`` the class, that binds ``name`` at ``node``."""
        if name.startswith("self."):
            return self.owner(node) or self.tree
        if isinstance(node, ast.arg):
            return self.parents[self.parents[node][0]][0]
        return self.scope(node)

    def values(self, node: ast.AST, name: str) -> list[tuple[ast.AST, ast.expr | None]]:
        """Return every place that binds ``name`` as seen from ``node``.

        These are in the innermost enclosing scope that binds it.
        """
        if name.startswith("self."):
            return self.bindings.get((self.owner(node) or self.tree, name), [])
        scope: ast.AST = self.scope(node)
        while True:
            if (scope, name) in self.bindings:
                return self.bindings[scope, name]
            if isinstance(scope, ast.Module):
                return []
            scope = self.scope(scope)

    # ── positions ─────────────────────────────────────────────────────────────────────────────────

    def ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
        """Yield (ancestor, field that holds the child) from the parent outwards."""
        while node in self.parents:
            self._spend(1)
            node, field = self.parents[node]
            yield node, field

    def scope(self, node: ast.AST) -> Scope:
        """Return the function that contains ``node``, or the module.

        For a function it is the enclosing one.
        """
        for ancestor, field in self.ancestors(node):
            if isinstance(ancestor, _FUNCTIONS) and field == "body":
                return ancestor
        return self.tree

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class around ``node``."""
        return next(
            (
                ancestor
                for ancestor, _ in self.ancestors(node)
                if isinstance(ancestor, ast.ClassDef)
            ),
            None,
        )

    def loops(self, node: ast.AST) -> list[Loop]:
        """Return the loops around ``node``, innermost first, within its own function."""
        found: list[Loop] = []
        for ancestor, field in self.ancestors(node):
            if isinstance(ancestor, _FUNCTIONS):
                break
            if isinstance(ancestor, _LOOPS) and field in ("body", "test"):
                found.append(ancestor)
        return found

    def is_inside(self, node: ast.AST, outer: ast.AST) -> bool:
        """Return whether ``node`` is ``outer`` or below it."""
        return node is outer or any(ancestor is outer for ancestor, _ in self.ancestors(node))

    def under(self, node: ast.AST, *kinds: type[ast.AST]) -> bool:
        """Return whether one of these kinds is between ``node`` and its loop or function."""
        for ancestor, field in self.ancestors(node):
            if isinstance(ancestor, (*_FUNCTIONS, *_LOOPS)):
                return False
            if isinstance(ancestor, kinds) and field != "test":
                return True
        return False

    def are_exclusive(self, one: ast.AST, other: ast.AST) -> bool:
        """Return whether the two nodes can never both run.

        They are in different branches of one condition then.
        """
        branches = {
            ancestor: field
            for ancestor, field in self.ancestors(one)
            if isinstance(ancestor, (ast.If, ast.IfExp, ast.Try))
        }
        for ancestor, field in self.ancestors(other):
            if ancestor in branches and branches[ancestor] != field:
                return "test" not in (field, branches[ancestor])
        return False

    def is_conditional(self, node: ast.AST) -> bool:
        """Return whether a condition or ``try`` in its function decides if ``node`` runs."""
        for ancestor, field in self.ancestors(node):
            if isinstance(ancestor, _FUNCTIONS):
                return False
            if isinstance(ancestor, (ast.If, ast.IfExp, ast.Try)) and field != "test":
                return not is_main_guard(ancestor)
        return False

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that ``node`` belongs to."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node][0]
        return node

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """Return the statements of the block that contains ``statement``."""
        parent, field = self.parents[statement]
        value = getattr(parent, field)
        return value if isinstance(value, list) else []

    def contexts(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield what the ``with`` statements around ``node`` enter, within its own function."""
        for ancestor, field in self.ancestors(node):
            if isinstance(ancestor, _FUNCTIONS):
                return
            if isinstance(ancestor, (ast.With, ast.AsyncWith)) and field == "body":
                for item in ancestor.items:
                    yield item.context_expr

    def descendants(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield ``node`` and everything under it."""
        for inner in ast.walk(node):
            self._spend(1)
            yield inner

    # ── text ──────────────────────────────────────────────────────────────────────────────────────

    def code(self, node: ast.AST) -> str:
        """Return the text of ``node`` on one line, shortened."""
        first, last = line(node), getattr(node, "end_lineno", None) or line(node)
        # The columns of ast nodes count bytes of UTF-8.
        parts = [text.encode("utf-8", "replace") for text in self.lines[first - 1 : last]]
        if not parts:
            return ""
        parts[-1] = parts[-1][: getattr(node, "end_col_offset", None)]
        parts[0] = parts[0][getattr(node, "col_offset", 0) :]
        joined = " ".join(part.decode("utf-8", "replace").strip() for part in parts)
        return limited(joined, _MAX_CODE)

    @cached_property
    def encoded(self) -> bytes:
        """Return the file in UTF-8: columns of the syntax tree count its bytes."""
        return self.text.encode("utf-8", "replace")

    @cached_property
    def _line_starts(self) -> list[int]:
        sizes = (len(line) + 1 for line in self.encoded.split(b"\n"))
        return [0, *accumulate(sizes)]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where ``node`` begins and ends in ``encoded``; (0, -1) if it has no place."""
        last, column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if last is None or column is None:
            return 0, -1
        starts = self._line_starts
        return starts[line(node) - 1] + getattr(node, "col_offset", 0), starts[last - 1] + column

    def place(self, node: ast.AST) -> str:
        """Return ``file:line`` of ``node``."""
        return f"{self.path}:{line(node)}"

    @cached_property
    def _suppressions(self) -> dict[int, frozenset[str]]:
        """Return what a comment suppresses on each line; line 0 is the whole file.

        An empty set means every check.
        """
        found: dict[int, frozenset[str]] = {}
        for number, text in enumerate(self.lines, 1):
            if "gpuscope" in text and (match := _COMMENT.search(text)):
                where = 0 if match[1] else number
                ids = frozenset(
                    part.strip() for part in (match[2] or "").split(",") if part.strip()
                )
                before = found.get(where)
                found[where] = (
                    ids if before is None else (before | ids if before and ids else frozenset())
                )
        return found

    def is_ignored(self, node: ast.AST, pitfall: str) -> bool:
        """Return whether a comment suppresses this pitfall at ``node``.

        The comment is on one of the lines of the expression, or applies to the whole file.
        """
        for number in (
            0,
            *range(line(node), (getattr(node, "end_lineno", None) or line(node)) + 1),
        ):
            ids = self._suppressions.get(number)
            if ids is not None and (not ids or pitfall in ids):
                return True
        return False
