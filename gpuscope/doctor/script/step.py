"""Check gradients between steps: accumulated, divided, zeroed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import comes_after, key, names, receiver
from .program import Script, ScriptMatch


def find_wrong_accumulation(s: Script) -> Iterator[ScriptMatch]:
    """Find gradient accumulation whose losses are summed and not averaged.

    Gradients that are zeroed before they have accumulated are reported, too.
    """
    if s.managed:
        return
    for call in s.backwards:
        loops = s.loops(call)
        if not loops:
            continue
        cycle = _find_cycle(s, call, loops[0]) or _find_inner_loop(s, loops[0])
        if cycle is None:
            continue
        step, count = cycle
        zeros = [
            zero
            for zero in s.methods("zero_grad", within=loops[0])
            if s.scope(zero) is s.scope(call)
        ]
        in_block = [zero for zero in zeros if s.statement(zero) in s.block(s.statement(call))]
        if (
            s.is_inside(step, loops[0])
            and len(zeros) == len(in_block) == 1
            and receiver(zeros[0]) == s.optimizer_of(step)
        ):
            yield ScriptMatch(
                "script.zeroed-each-micro-batch", zeros[0], more=[step], severity="problem"
            )
        elif not _may_be_divided(s, call, loops[0]):
            loss = next(iter(sorted(s.losses(call))), "")
            if not loss:
                continue
            divided = next(
                node for node in ast.walk(call) if isinstance(node, ast.Name) and node.id == loss
            )
            yield ScriptMatch(
                "script.loss-not-divided",
                call,
                figures={
                    "count": count,
                    "edited": edits.edit(s, call, (divided, f"({loss} / {count})")),
                },
                more=[step],
            )


def _find_cycle(s: Script, call: ast.Call, loop: ast.AST) -> tuple[ast.Call, str] | None:
    """Return the step that only every N-th turn of the loop takes, and N."""
    for step in s.steps:
        if (
            s.scope(step) is not s.scope(call)
            or not s.is_inside(step, loop)
            or s.loops(step)[:1] != [loop]
        ):
            continue
        for ancestor, field in s.ancestors(step):
            if ancestor is loop:
                break
            if isinstance(ancestor, ast.If) and field == "body" and not s.is_inside(call, ancestor):
                for node in ast.walk(ancestor.test):
                    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                        others = [
                            other
                            for other in s.steps
                            if s.is_inside(other, loop)
                            and s.optimizer_of(other) == s.optimizer_of(step)
                        ]
                        if (
                            all(s.is_inside(other, ancestor) for other in others)
                            and len(s.backwards) == 1
                        ):
                            count = s.code(node.right)
                            return step, f"({count})" if isinstance(
                                node.right, ast.BinOp
                            ) else count
    return None


def _find_inner_loop(s: Script, loop: ast.AST) -> tuple[ast.Call, str] | None:
    """Return the step after a loop over micro-batches, and their number."""
    if (
        not isinstance(loop, ast.For)
        or not isinstance(loop.iter, ast.Call)
        or key(loop.iter.func) != "range"
    ):
        return None
    if len(loop.iter.args) != 1 or any(s.is_inside(step, loop) for step in s.steps):
        return None
    count = s.code(loop.iter.args[0])
    if not any(word in count.lower() for word in ("accum", "micro", "grad_")):
        return None
    for step in s.steps:
        if s.statement(step) in s.block(loop) and comes_after(step, loop):
            return step, count
    return None


def _may_be_divided(s: Script, call: ast.Call, loop: ast.AST) -> bool:
    """Return whether the loss or the gradients may be divided.

    This may happen anywhere in the function, or where the loss is computed.
    """
    losses = s.losses(call)
    for node in s.descendants(loop):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, (ast.Div, ast.Mult))
            and (names(node) & losses or "loss" in s.code(node).lower())
        ) and not _is_only_shown(s, node):
            return True
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.Mult)):
            return True
        if isinstance(node, ast.Attribute) and node.attr in (
            "div",
            "div_",
            "mul",
            "mul_",
            "true_divide",
        ):
            return True
        if isinstance(node, ast.Assign) and any(key(target) in losses for target in node.targets):
            made = node.value
            if any(isinstance(part, (ast.Div, ast.Mult)) for part in ast.walk(made)):
                return True
            if not isinstance(made, ast.Call):
                if not isinstance(made, (ast.BinOp, ast.Attribute)) and not _is_only_shown(s, node):
                    return True
            elif (
                not s.resolve(made).startswith("torch.nn.functional.")
                and s.kind(made.func, made) != "criterion"
            ):
                return True  # computed elsewhere, and perhaps divided there
        if (
            isinstance(node, (ast.Tuple, ast.Subscript))
            and isinstance(node.ctx, ast.Store)
            and names(node) & losses
        ):
            return True
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node in s.descendants(s.scope(call))
    )


def _is_only_shown(s: Script, node: ast.AST) -> bool:
    """Return whether ``node`` is only printed or summed up for people."""
    statement = s.statement(node)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return key(statement.value.func).rpartition(".")[2] in (
            "print",
            "info",
            "log",
            "add_scalar",
            "write",
            "append",
            "update",
        )
    return any(
        isinstance(inner, ast.Attribute) and inner.attr in ("item", "detach")
        for inner in s.descendants(statement)
    )


def find_wrong_zeroing(s: Script) -> Iterator[ScriptMatch]:
    """Find gradients that are never zeroed, or zeroed between backward and step."""
    if s.managed:
        return
    if not s.methods("zero_grad") and not s.identifiers & {"zero_grad", "grad", "zero_", "closure"}:
        for loop in s.training_loops:
            backward = next(call for call in s.backwards if s.is_inside(call, loop))
            step = next(call for call in s.steps if s.is_inside(call, loop))
            kind = s.kind(step.func.value, step)  # type: ignore[attr-defined]
            if kind not in ("optimizer", "scaler") or s.are_exclusive(step, backward):
                continue
            yield ScriptMatch(
                "script.never-zeroed",
                backward,
                figures={
                    "optimizer": s.optimizer_of(step),
                    "statement": edits.statement(s, backward),
                },
                before=edits.statement(s, backward),
                more=[step],
                severity="problem",
                confidence="definite",
            )
            return
        return
    for zero in s.methods("zero_grad"):
        statement = s.statement(zero)
        if not isinstance(statement, ast.Expr):
            continue
        block = s.block(statement)
        at = block.index(statement)
        name = receiver(zero)
        before = any(_is_call_of(other, "backward") for other in block[:at])
        stepped = any(_is_call_of(other, "step", name) for other in block[:at])
        for other in block[at + 1 :]:
            if any(
                isinstance(node, ast.Attribute)
                and node.attr in ("backward", "autograd", "manual_backward")
                for node in s.descendants(other)
            ):
                break
            if (
                isinstance(other, (ast.Expr, ast.Assign))
                and not _is_call_of(other, "step", name)
                and any(
                    isinstance(node, ast.Call) and s.local_function(node)
                    for node in s.descendants(other)
                )
            ):
                break
            if _is_call_of(other, "step", name) and before and not stepped and name:
                yield ScriptMatch(
                    "script.zeroed-before-step",
                    zero,
                    more=[other],
                    severity="problem",
                    confidence="definite",
                )
                break


def _is_call_of(statement: ast.stmt, method: str, name: str = "") -> bool:
    """Return whether the statement is just ``name.method(…)``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != method
    ):
        return False
    return not name or receiver(call) == name


CHECKS = (find_wrong_accumulation, find_wrong_zeroing)
