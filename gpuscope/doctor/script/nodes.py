"""Answer questions about single nodes of a syntax tree: names, arguments, place and targets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator


def key(node: ast.AST | None) -> str:
    """Return ``a.b.c`` of names and attributes as written; "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def behind(node: ast.AST | None, methods: Collection[str]) -> ast.AST | None:
    """Return what a chain of these methods is called on: ``model`` of ``model.to(0).eval()``."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
    ):
        node = node.func.value
    return node


def receiver(call: ast.Call) -> str:
    """Return ``a.b`` of ``a.b.method(…)``."""
    return key(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def is_open_ended(call: ast.Call) -> bool:
    """Return whether arguments come through ``*`` or ``**``, so that which ones is unknown."""
    return any(item.arg is None for item in call.keywords) or any(
        isinstance(arg, ast.Starred) for arg in call.args
    )


def is_literal(node: ast.AST | None, value: object) -> bool:
    """Return whether ``node`` is just this literal."""
    if not isinstance(node, ast.Constant):
        return False
    if value is None or isinstance(value, bool):
        return node.value is value
    return node.value == value and not isinstance(node.value, bool)


def line(node: ast.AST) -> int:
    """Return the first line of ``node``."""
    return int(getattr(node, "lineno", 0))


def names(node: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Return every plain name in ``node``."""
    tops = [node] if isinstance(node, ast.AST) else node
    return {inner.id for top in tops for inner in ast.walk(top) if isinstance(inner, ast.Name)}


def comes_after(one: ast.AST, other: ast.AST) -> bool:
    """Return whether ``one`` begins later in the text than ``other``."""
    return position(one) > position(other)


def position(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column where ``node`` begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def is_main_guard(node: ast.AST) -> bool:
    """Return whether ``node`` is ``if __name__ == …``."""
    return isinstance(node, ast.If) and "__name__" in names(node.test)


def named_calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Assign, str, ast.Call]]:
    """Yield each call whose value gets one name and nothing else, with its statement and name."""
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            yield node, node.targets[0].id, node.value


def targets_of(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Yield (target, value) for each name that ``node`` binds.

    The value is None where the target gets only a part of the value, as in unpacking.
    """
    pairs: list[tuple[ast.AST, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        pairs = [(node.target, node.value)]
    elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor)):
        pairs = [(node.target, None)]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        pairs = [
            (item.optional_vars, None) for item in node.items if item.optional_vars is not None
        ]
    elif isinstance(node, ast.arg):
        yield ast.Name(id=node.arg, ctx=ast.Store()), None
        return
    while pairs:
        target, value = pairs.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(parts) == len(target.elts) and not any(
                isinstance(part, ast.Starred) for part in (*parts, *target.elts)
            ):
                pairs += list(zip(target.elts, parts, strict=True))
            else:
                pairs += [(part, None) for part in target.elts]
        elif isinstance(target, ast.Starred):
            pairs.append((target.value, None))
        else:
            yield target, value
