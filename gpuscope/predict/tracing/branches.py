"""Choose the branch of a condition whose value is unknown.

A branch that raises an exception is never chosen, nor one that loops forever.

Code that validates its input reads values and may raise: ``if (x < 0).any(): raise``, ``assert
x.isfinite().all()``. A training that is worth predicting passes such checks, and a ``while`` that
waits for values ends. So the source of the running line shows which value the condition must have.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from types import FrameType
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_BENEATH = (
    "_subclasses",
    "_ops.py",
    "_tensor.py",
    "overrides.py",
    os.path.join("utils", "_device.py"),
)
_BETWEEN = tuple(os.path.join("torch", name) for name in _BENEATH)


class Way(NamedTuple):
    """The value that a boolean must have for the program to continue."""

    holds: bool
    checked: bool
    """Whether it is only checked: any other value would raise an exception, so nothing else depends
    on it.
    """


def must_be() -> Way | None:
    """Return what a boolean that is read now must be.

    None: the program continues with either value.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        _ours(frame.f_code.co_filename) or _only_returns(frame.f_code.co_filename, frame.f_lineno)
    ):
        frame = frame.f_back
    return None if frame is None else _expected_way(frame.f_code.co_filename, frame.f_lineno)


def _ours(filename: str) -> bool:
    return filename.startswith((_PACKAGE, "<")) or any(place in filename for place in _BETWEEN)


@functools.lru_cache(maxsize=1024)
def _only_returns(filename: str, line: int) -> bool:
    """Tell whether this line is ``return bool(…)``.

    Then the caller is the one that branches.
    """
    for node in _nodes(filename):
        if isinstance(node, ast.Return) and node.lineno <= line <= (node.end_lineno or node.lineno):
            called = node.value.func if isinstance(node.value, ast.Call) else None
            return isinstance(called, ast.Name) and called.id == "bool"
    return False


@functools.lru_cache(maxsize=1024)
def _expected_way(filename: str, line: int) -> Way | None:
    best: _Condition | None = None
    for node in _conditions(filename):
        last = node.test.end_lineno or node.test.lineno
        if node.test.lineno <= line <= last and (best is None or node.lineno >= best.lineno):
            best = node
    if best is None:
        return None
    checked = True
    if isinstance(best, ast.Assert):
        holds = True
    elif isinstance(best, ast.While):
        holds, checked = False, False
    elif _raises(best.body):
        holds = False
    elif _raises(best.orelse):
        holds = True
    elif _has(best.body, ast.Break) and _waits(filename, line):
        holds, checked = True, False
    else:
        return None
    parts = best.test.values if isinstance(best.test, ast.BoolOp) else [best.test]
    negated = {isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in parts}
    if len(negated) > 1:
        return None
    return Way(holds != negated.pop(), checked)


_Condition = ast.If | ast.Assert | ast.While


def _conditions(filename: str) -> list[_Condition]:
    return [node for node in _nodes(filename) if isinstance(node, (ast.If, ast.Assert, ast.While))]


def _waits(filename: str, line: int) -> bool:
    """Whether the innermost loop around a line is a ``while``."""
    loops = [node for node in _nodes(filename) if isinstance(node, (ast.For, ast.While))]
    around = [loop for loop in loops if loop.lineno < line <= (loop.end_lineno or loop.lineno)]
    return bool(around) and isinstance(max(around, key=lambda loop: loop.lineno), ast.While)


@functools.lru_cache(maxsize=64)
def _nodes(filename: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    kinds = (ast.If, ast.Assert, ast.While, ast.For, ast.Return)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Raise) or _fails(statement) for statement in body)


def _fails(statement: ast.stmt) -> bool:
    """Tell whether a statement is ``assert False`` or ``torch._assert(False, …)``."""
    if isinstance(statement, ast.Assert):
        tested: ast.expr | None = statement.test
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = ast.unparse(statement.value.func)
        tested = (
            statement.value.args[0] if name == "torch._assert" and statement.value.args else None
        )
    else:
        return False
    return isinstance(tested, ast.Constant) and tested.value is False


def _has(body: list[ast.stmt], kind: type[ast.stmt]) -> bool:
    return any(isinstance(statement, kind) for statement in body)
