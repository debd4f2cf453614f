"""Check for layers that the module does not know of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import key, receiver
from .program import Script, ScriptMatch


def find_lists_of_modules(s: Script) -> Iterator[ScriptMatch]:
    """Find a plain list of layers as an attribute: its parameters are not the module's."""
    for name, owner in s.module_classes.items():
        for function in owner.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                yield from _find_plain_lists(s, name, owner, function)


def _find_plain_lists(
    s: Script, name: str, owner: ast.ClassDef, function: ast.FunctionDef
) -> Iterator[ScriptMatch]:
    """Find the plain lists of layers that one ``__init__`` makes."""
    grown = {
        receiver(call): call
        for call in s.methods("append", within=function)
        if len(call.args) == 1 and s.makes_module(call.args[0], weights=True)
    }
    for node in s.descendants(function):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        attribute = key(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        value = node.value
        if not attribute.startswith("self.") or attribute.count(".") != 1 or value is None:
            continue
        if isinstance(value, ast.List):
            made = any(s.makes_module(part, weights=True) for part in value.elts) or (
                not value.elts and attribute in grown
            )
        elif isinstance(value, ast.ListComp):
            made = s.makes_module(value.elt, weights=True)
        else:
            continue
        if not made or not _is_used_unregistered(s, owner, attribute, node):
            continue
        text = edits.text(s, value)
        yield ScriptMatch(
            "script.plain-list-of-modules",
            node,
            figures={
                "module": name,
                "attribute": attribute,
                "maker": "nn.ModuleList"
                if s.imports.get("nn") == "torch.nn"
                else "torch.nn.ModuleList",
                "layers": "" if text == "[]" else text,
            },
            more=[grown[attribute]] if attribute in grown else [],
            severity="problem",
            confidence="definite",
        )


def _is_used_unregistered(s: Script, owner: ast.ClassDef, attribute: str, node: ast.AST) -> bool:
    """Return whether another method uses the list, and nothing in the class registers it."""
    used = False
    for other in s.descendants(owner):
        if (
            not isinstance(other, ast.Attribute)
            or key(other) != attribute
            or s.is_inside(other, node)
        ):
            continue
        if isinstance(other.ctx, ast.Store):
            return False
        call = next(
            (
                ancestor
                for ancestor, _ in s.ancestors(other)
                if isinstance(ancestor, (ast.Call, ast.stmt))
            ),
            None,
        )
        if isinstance(call, ast.Call) and not (
            isinstance(call.func, ast.Attribute) and call.func.value is other
        ):
            last = call.func.attr if isinstance(call.func, ast.Attribute) else key(call.func)
            if last in (
                "ModuleList",
                "Sequential",
                "add_module",
                "register_module",
                "setattr",
                "ModuleDict",
            ):
                return False
        used = used or s.scope(other) is not s.scope(node)
    registers = any(
        (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("add_module", "register_module")
        )
        or key(call.func) == "setattr"
        for call in s.calls
        if s.is_inside(call, owner)
    )
    return used and not registers


CHECKS = (find_lists_of_modules,)
