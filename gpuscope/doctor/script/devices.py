"""Check for models, inputs and labels that stay behind on the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import comes_after, is_open_ended, key, keyword, named_calls, names, receiver
from .program import Script, ScriptMatch
from .source import Loop

_MAKERS = (
    "arange",
    "zeros",
    "ones",
    "randn",
    "rand",
    "randint",
    "linspace",
    "eye",
    "full",
    "randperm",
    "triu_indices",
)
_DEFAULTS = {"set_default_device", "set_default_tensor_type"}


def find_parts_left_behind(s: Script) -> Iterator[ScriptMatch]:
    """Find the part of a batch that is not moved, and meets one in the loss that is."""
    if s.managed or not s.cuda or s.identifiers & _DEFAULTS:
        return
    for loop in s.training_loops:
        parts = _batch_names(loop)
        if len(parts) < 2:
            continue
        moved = {name for name in parts if _moves(s, name, loop)}
        for name in parts:
            if name in moved or not moved or _is_rebound(s, name, loop):
                continue
            call = _find_loss(s, name, loop)
            if call is not None and not s.under(call, ast.If, ast.IfExp, ast.Try):
                other = next(iter(sorted(moved)))
                move = next(iter(_moves(s, other, loop)))
                yield ScriptMatch(
                    "script.labels-not-moved",
                    call,
                    figures={
                        "name": name,
                        "other": other,
                        "edited": edits.edit(
                            s, call, (call.args[1], name + edits.text(s, move)[len(other) :])
                        ),
                    },
                    more=[move],
                    severity="problem",
                )


def _batch_names(loop: Loop) -> list[str]:
    """Return the names of a batch: what the loop unpacks from its loader."""
    if isinstance(loop, ast.While):
        return []
    target: ast.expr = loop.target
    if isinstance(loop.iter, ast.Call) and key(loop.iter.func) in ("enumerate", "zip", "range"):
        if (
            key(loop.iter.func) != "enumerate"
            or not isinstance(target, ast.Tuple)
            or len(target.elts) != 2
        ):
            return []
        target = target.elts[1]
    if not isinstance(target, (ast.Tuple, ast.List)):
        return []
    return [part.id for part in target.elts if isinstance(part, ast.Name) and part.id != "_"]


def _moves(s: Script, name: str, loop: ast.AST) -> list[ast.Call]:
    """Return the calls in the loop that move ``name`` to a device, not to another type."""
    found = []
    for call in s.moves_of(name, loop):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "to"
            and call.args
            and s.resolve(call.args[0]).startswith("torch.")
            and not isinstance(call.args[0], ast.Call)
        ):
            continue  # a dtype
        found.append(call)
    return found


def _is_rebound(s: Script, name: str, loop: ast.AST) -> bool:
    """Return whether the loop rebinds ``name``, or passes it to a function that may move it."""
    return any(
        s.is_inside(where, loop) and where is not loop
        for where, _ in s.values(next(iter(ast.iter_child_nodes(loop))), name)
    )


def _find_loss(s: Script, name: str, loop: ast.AST) -> ast.Call | None:
    """Return the call of a loss that takes ``name`` and something else."""
    for call in s.calls:
        if not s.is_inside(call, loop) or len(call.args) < 2 or is_open_ended(call):
            continue
        full = s.resolve(call)
        loss = (
            full.startswith("torch.nn.functional.") and ("loss" in full or "cross_entropy" in full)
        ) or s.kind(call.func, call) == "criterion"
        if loss and key(call.args[1]) == name:
            return call
    return None


def find_moves_without_effect(s: Script) -> Iterator[ScriptMatch]:
    """Find ``inputs.to(device)`` as a statement: a tensor is not moved in place."""
    for call in s.methods("to", "cuda"):
        statement = s.statement(call)
        name = receiver(call)
        if (
            not isinstance(statement, ast.Expr)
            or statement.value is not call
            or not name
            or "." in name
        ):
            continue
        if not call.args and isinstance(call.func, ast.Attribute) and call.func.attr == "to":
            continue
        values = s.values(call, name)
        tensor = bool(values) and all(
            value is not None
            and s.resolve(value).startswith("torch.")
            and s.resolve(value).rpartition(".")[2]
            in (*_MAKERS, "tensor", "from_numpy", "stack", "cat")
            for _, value in values
        )
        batch = any(name in _batch_names(loop) for loop in s.loops(call)) and len(values) == 1
        if tensor or (batch and any(loop in s.training_loops for loop in s.loops(call))):
            yield ScriptMatch(
                "script.move-without-effect",
                call,
                figures={"name": name, "move": edits.text(s, call)},
                severity="problem",
                confidence="definite" if tensor else "likely",
            )


def find_model_left_behind(s: Script) -> Iterator[ScriptMatch]:
    """Find a program for CUDA whose model is never moved."""
    if (
        s.managed
        or s.identifiers & _DEFAULTS
        or not s.training_loops
        or any(
            s.resolve(c) == "torch.device"
            for n in s.nodes
            if isinstance(n, ast.With)
            for c in (i.context_expr for i in n.items)
        )
    ):
        return
    chosen = _cuda_devices(s)
    for node, name, made in named_calls(s.nodes):
        if not s.makes_module(made, weights=True) or len(s.values(node, name)) != 1:
            continue
        owner = s.module_classes.get(key(made.func))
        if owner is not None and any(
            word in " ".join(names(owner)) + s.code(made) for word in ("device", "cuda")
        ):
            continue
        if "device" in s.code(made) or not _is_untouched(s, name, node):
            continue
        called = [
            call
            for call in s.calls
            if key(call.func) == name and any(s.is_inside(call, loop) for loop in s.training_loops)
        ]
        optimised = [call for call in s.methods("parameters") if receiver(call) == name]
        if not called or not optimised:
            continue
        inputs = sorted(
            {arg.id for call in called for arg in call.args if isinstance(arg, ast.Name)}
        )
        moved = [
            call for loop in s.training_loops for one in inputs for call in _moves(s, one, loop)
        ]
        followed = any(
            "parameters" in s.code(value) or name in names(value)
            for call in moved
            for value in _places_moved_to(s, call)
        )
        if not chosen and not any(
            isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" for call in moved
        ):
            continue
        if not moved:
            continue
        device = next(iter(sorted(chosen)), "")
        yield ScriptMatch(
            "script.model-not-moved.inputs-follow" if followed else "script.model-not-moved",
            node,
            figures={"made": edits.text(s, node), "move": f"to({device})" if device else "cuda()"},
            more=[moved[0]],
            severity="problem",
        )


def _places_moved_to(s: Script, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the device that a move goes to, and the values of its name."""
    for arg in call.args:
        yield arg
        if isinstance(arg, ast.Name):
            yield from (value for _, value in s.values(call, arg.id) if value is not None)


def _cuda_devices(s: Script) -> set[str]:
    """Return the names bound to a CUDA device, also as one of two."""
    found = set()
    for node in s.nodes:
        if (
            (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and isinstance(node.value, (ast.Call, ast.Constant, ast.IfExp))
            )
            and (s.resolve(node.value) == "torch.device" or not isinstance(node.value, ast.Call))
            and any(
                isinstance(part, ast.Constant) and str(part.value).startswith("cuda")
                for part in ast.walk(node.value)
            )
        ):
            found.add(node.targets[0].id)
    return found


def _is_untouched(s: Script, name: str, made: ast.AST) -> bool:
    """Return whether this file does nothing with the model except plain calls.

    The model is not moved, not wrapped and not passed to another function.
    """
    for node in s.nodes:
        if (
            not isinstance(node, ast.Name)
            or node.id != name
            or s.is_inside(node, made)
            or not isinstance(node.ctx, ast.Load)
        ):
            continue
        parent, field = s.parents[node]
        if isinstance(parent, ast.Call) and field == "func":
            continue
        if isinstance(parent, ast.Attribute) and parent.attr in (
            "parameters",
            "named_parameters",
            "train",
            "eval",
            "state_dict",
            "zero_grad",
        ):
            continue
        if isinstance(parent, ast.Call) and key(parent.func) in (
            "print",
            "len",
            "id",
            "repr",
            "str",
        ):
            continue
        return False
    return True


def find_made_on_cpu(s: Script) -> Iterator[ScriptMatch]:
    """Find a tensor that ``forward`` makes without a device and hands to a layer."""
    if s.identifiers & _DEFAULTS:
        return
    for owner in s.module_classes.values():
        layers = {
            key(target)
            for node in s.descendants(owner)
            if isinstance(node, ast.Assign) and s.makes_module(node.value, weights=True)
            for target in node.targets
        }
        for function in owner.body:
            if isinstance(function, ast.FunctionDef) and function.name == "forward":
                yield from _find_made_in(s, function, layers)


def _find_made_in(s: Script, function: ast.FunctionDef, layers: set[str]) -> Iterator[ScriptMatch]:
    """Find tensors made on the CPU in one ``forward`` that meet one of these layers."""
    for node in s.nodes:
        if (
            not isinstance(node, ast.Assign)
            or len(node.targets) != 1
            or s.scope(node) is not function
        ):
            continue
        name, made = key(node.targets[0]), node.value
        if not isinstance(made, ast.Call) or not name or "." in name or is_open_ended(made):
            continue
        full = s.resolve(made)
        if (
            full.rpartition(".")[0] != "torch"
            or full.rpartition(".")[2] not in _MAKERS
            or keyword(made, "device")
        ):
            continue
        if (
            keyword(made, "out")
            or len(s.values(node, name)) != 1
            or (s.moves_of(name, function) and any(True for _ in s.moves_of(name, function)))
        ):
            continue
        if any(
            receiver(call) == name
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("type_as", "to", "cuda")
            for call in s.calls
        ):
            continue
        for call in s.calls:
            if (
                s.scope(call) is function
                and key(call.func) in layers
                and len(call.args) == 1
                and key(call.args[0]) == name
                and comes_after(call, node)
            ):
                argument = next(arg.arg for arg in function.args.args[1:] or function.args.args)
                yield ScriptMatch(
                    "script.made-on-cpu",
                    node,
                    figures={
                        "name": name,
                        "layer": key(call.func),
                        "made": edits.with_argument(s, made, f"device={argument}.device"),
                    },
                    more=[call],
                    severity="problem",
                )
                break


CHECKS = (
    find_parts_left_behind,
    find_moves_without_effect,
    find_model_left_behind,
    find_made_on_cpu,
)
