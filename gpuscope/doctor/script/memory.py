"""Check for mistakes that keep GPU memory allocated.

These are graphs kept by sums and lists, evaluation with gradients, cache calls, and checkpoints.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from ...text.numbers import number
from . import edits
from .nodes import comes_after, is_open_ended, key, keyword, names, receiver
from .program import Script, ScriptMatch

_NUMBERS = {"item", "detach", "detach_", "tolist", "cpu", "numpy", "size", "shape", "numel", "data"}


def find_kept_losses(s: Script) -> Iterator[ScriptMatch]:
    """Find ``total += loss`` and ``losses.append(loss)``.

    Each of them keeps the autograd graph of every loss.
    """
    for call in s.backwards:
        loops = s.loops(call)
        losses = s.losses(call)
        if not loops or not losses:
            continue
        inner = loops[0]
        function = s.scope(call)
        summed = {
            name for other in s.backwards if s.scope(other) is function for name in s.losses(other)
        }
        for node in s.descendants(inner):
            grown, added = _what_grows(node)
            if added is None or not grown or s.scope(node) is not function or grown in summed:
                continue
            loss = next(iter(sorted({part.id for part in _names_added(added)} & losses)), "")
            if (
                not loss
                or s.without_grad(node)
                or not _outlives(s, node, grown, inner)
                or _may_be_detached(s, node, loss, inner)
            ):
                continue
            kept = next(part for part in _names_added(added) if part.id == loss)
            yield ScriptMatch(
                "script.loss-kept",
                node,
                figures={
                    "loss": loss,
                    "kept_in": grown,
                    "edited": edits.edit(s, node, (kept, f"{loss}.item()")),
                },
            )


def _what_grows(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name of a sum or list that ``node`` adds to, and what is added."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return key(node.target), node.value
    if (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.value, ast.BinOp)
    ):
        name = key(node.targets[0])
        if name and isinstance(node.value.op, ast.Add):
            if key(node.value.left) == name:
                return name, node.value.right
            if key(node.value.right) == name:
                return name, node.value.left
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
        and len(node.args) == 1
    ):
        return receiver(node), node.args[0]
    return "", None


def _names_added(node: ast.expr) -> list[ast.Name]:
    """Return the names that go into ``node`` through arithmetic alone, so with their graph."""
    found: list[ast.Name] = []
    waiting: list[ast.expr] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.BinOp):
            waiting += [part.left, part.right]
        elif isinstance(part, ast.Name):
            found.append(part)
    return found


def _outlives(s: Script, node: ast.AST, grown: str, loop: ast.AST) -> bool:
    """Return whether ``grown`` lives longer than one iteration of the loop.

    It must be created as a number or a list outside the loop, and not be reset inside it.
    """
    bound = [
        (where, value)
        for where, value in s.values(node, grown)
        if not isinstance(where, ast.AugAssign)
    ]
    starts = [
        (where, value)
        for where, value in bound
        if not (isinstance(where, ast.Assign) and where is node)
    ]
    if not starts or any(s.is_inside(where, loop) for where, _ in starts):
        return False
    if any(receiver(call) == grown for call in s.methods("clear", "pop", "popleft", within=loop)):
        return False
    return all(_is_empty(value) for _, value in starts)


def _is_empty(value: ast.expr | None) -> bool:
    """Return whether a value is a number or an empty list: what sums and lists begin with."""
    if isinstance(value, ast.List):
        return not value.elts
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "list" and not value.args
    return isinstance(value, ast.Constant) and number(value.value) is not None


def _may_be_detached(s: Script, node: ast.AST, loss: str, loop: ast.AST) -> bool:
    """Return whether ``loss`` may have lost its graph before it is kept.

    It is then a plain number or a detached tensor.
    """
    for where, value in s.values(node, loss):
        if s.is_inside(where, loop) and isinstance(value, ast.Call):
            last = value.func.attr if isinstance(value.func, ast.Attribute) else key(value.func)
            if last in _NUMBERS or last in ("float", "reduce_tensor", "reduce_loss", "reduce_mean"):
                return True
    return any(receiver(call) == loss for call in s.methods("detach_", within=loop))


def find_evaluation_with_grad(s: Script) -> Iterator[ScriptMatch]:
    """Find ``model.eval()`` and then the model's outputs, with gradients on."""
    if s.managed in ("lightning", "pytorch_lightning"):
        return
    for switch in s.methods("eval"):
        name = receiver(switch)
        if not name or switch.args or name == "self" or name.startswith("torch"):
            continue
        function = s.scope(switch)
        if isinstance(function, ast.Lambda) or _needs_grad(s, function):
            continue
        if isinstance(s.statement(switch), ast.Expr) is False or s.is_conditional(switch):
            continue
        back = [
            call
            for call in s.methods("train")
            if receiver(call) == name and s.scope(call) is function and comes_after(call, switch)
        ]
        uses = [
            call
            for call in s.calls
            if key(call.func) == name
            and s.scope(call) is function
            and comes_after(call, switch)
            and s.loops(call)
            and not any(comes_after(call, again) for again in back)
        ]
        if not uses or not _is_evaluation(s, function) or s.without_grad(uses[0]):
            continue
        if any(_detaches_output(s, use) for use in uses):
            continue
        head = edits.head(s, s.loops(uses[0])[-1])
        yield ScriptMatch(
            "script.eval-with-grad",
            uses[0],
            figures={"model": name, "loop": textwrap.indent(head, "    ")},
            before=head,
        )


def _is_evaluation(s: Script, function: ast.AST) -> bool:
    """Return whether the code after ``.eval()`` is an evaluation that no other file can wrap.

    Either this file calls it, or its name says so, or it is the main program.
    """
    if isinstance(function, ast.Module):
        return True
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if not s.callers(function) and (function.name.startswith("_") or s.owner(function) is not None):
        return False  # code elsewhere that calls the method may disable gradients
    return bool(s.callers(function)) or any(
        word in function.name.lower() for word in ("eval", "valid", "test")
    )


def _needs_grad(s: Script, function: ast.AST) -> bool:
    """Return whether this function needs gradients.

    It does if it calls backward, asks for gradients, or has frozen the weights.
    """
    for node in s.descendants(function):
        if isinstance(node, ast.Attribute) and node.attr in (
            "backward",
            "requires_grad",
            "requires_grad_",
            "grad",
        ):
            return True
        if isinstance(node, ast.keyword) and node.arg == "requires_grad":
            return True
    return False


def _detaches_output(s: Script, use: ast.Call) -> bool:
    """Return whether the call's output is cut from its graph where it is made."""
    for ancestor, _ in s.ancestors(use):
        if isinstance(ancestor, ast.Attribute) and ancestor.attr in ("detach", "data", "item"):
            return True
        if isinstance(ancestor, ast.stmt):
            return False
    return False


def find_emptied_caches(s: Script) -> Iterator[ScriptMatch]:
    """Find ``empty_cache()`` in every step, and with a list that keeps outputs on the GPU."""
    for call in s.calls_to("torch.cuda.empty_cache"):
        loops = s.loops(call)
        if not loops:
            continue
        kept = _find_kept_output(s, loops[0])
        if kept is not None:
            yield ScriptMatch(
                "script.outputs-kept",
                kept,
                figures={"list": receiver(kept), "output": s.code(kept.args[0])},
                more=[call],
            )
        elif loops[0] in s.training_loops and not s.under(
            call, ast.If, ast.ExceptHandler, ast.IfExp
        ):
            yield ScriptMatch("script.empty-cache-each-step", call, severity="info")


def _find_kept_output(s: Script, loop: ast.AST) -> ast.Call | None:
    """Return the call that appends a model's output to a list that outlives the loop."""
    for call in s.methods("append", within=loop):
        if len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
            continue
        made = [
            value for where, value in s.values(call, call.args[0].id) if s.is_inside(where, loop)
        ]
        if (
            len(made) != 1
            or not isinstance(made[0], ast.Call)
            or s.kind(made[0].func, made[0]) not in ("module", "dp", "ddp")
        ):
            continue
        if _outlives(s, call, receiver(call), loop):
            return call
    return None


def find_loads_without_place(s: Script) -> Iterator[ScriptMatch]:
    """Find ``torch.load`` of a checkpoint without ``map_location``.

    Without it, the tensors are loaded to the GPU from which they were saved.
    """
    if not s.cuda and not s.distributed:
        return
    found = []
    for call in s.calls_to("torch.load"):
        if (
            keyword(call, "map_location")
            or len(call.args) != 1
            or is_open_ended(call)
            or not _is_checkpoint(s, call)
        ):
            continue
        if any("device" in (s.resolve(context) or key(context)) for context in s.contexts(call)):
            continue
        if any(
            keyword(other, "map_location")
            for other in s.calls_to("torch.load")
            if s.scope(other) is s.scope(call)
        ):
            continue  # the function uses map_location elsewhere, so it is omitted on purpose
        if not s.is_ignored(call, "load-checkpoint-map-location-cpu"):
            found.append(call)
    if found:
        ranks = any(s.scope(call) is s.scope(wrap) for call in found for wrap in s.distributed)
        yield ScriptMatch(
            "script.load-without-map-location.ranks"
            if ranks
            else "script.load-without-map-location",
            found[0],
            figures={"edited": edits.with_argument(s, found[0], 'map_location="cpu"')},
            more=found[1:],
            severity="warning" if ranks else "info",
        )


def _is_checkpoint(s: Script, call: ast.Call) -> bool:
    """Return whether the loaded object is passed to a ``load_state_dict`` in the same function.

    Only those of models and optimizers count.
    """
    function, statement = s.scope(call), s.statement(call)
    target = ""
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and statement.value is call
    ):
        target = key(statement.targets[0])
    for other in s.methods("load_state_dict", within=function):
        if any(word in receiver(other).lower() for word in ("scaler", "sched")):
            continue
        if s.is_inside(call, other) or (target and other.args and target in names(other.args[0])):
            return True
    return False


CHECKS = (
    find_kept_losses,
    find_evaluation_with_grad,
    find_emptied_caches,
    find_loads_without_place,
)
