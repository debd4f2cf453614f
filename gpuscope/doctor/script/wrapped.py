"""Check the use of models inside DataParallel or DistributedDataParallel.

The attributes of a wrapped model are only reachable through ``.module``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .nodes import comes_after, is_literal, key, line
from .program import DP, Script, ScriptMatch

# Attributes of nn.Module and of the two wrappers themselves, torch 1.0 to 2.13.
_WRAPPER = {
    "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu",
    "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer",
    "get_extra_state", "get_parameter", "get_submodule", "half", "ipu", "load_state_dict",
    "modules", "mtia", "named_buffers", "named_children", "named_modules", "named_parameters",
    "parameters", "register_backward_hook", "register_buffer", "register_forward_hook",
    "register_forward_pre_hook", "register_full_backward_hook", "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook", "register_module",
    "register_parameter", "register_state_dict_post_hook", "register_state_dict_pre_hook",
    "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "state_dict", "to",
    "to_empty", "train", "training", "type", "xpu", "zero_grad", "module", "device_ids", "device",
    "device_type", "dim", "output_device", "src_device_obj", "replicate", "scatter",
    "parallel_apply", "gather", "no_sync", "join", "join_hook", "join_device", "join_process_group",
    "logger", "reducer", "process_group", "find_unused_parameters", "static_graph",
    "broadcast_buffers", "broadcast_bucket_size", "bucket_bytes_cap", "gradient_as_bucket_view",
    "is_multi_device_module", "register_comm_hook", "will_sync_module_buffers",
    "require_backward_grad_sync", "require_forward_param_sync", "mixed_precision",
    "modules_buffers", "parameters_to_ignore",
}  # fmt: skip


def find_wrapped_attributes(s: Script) -> Iterator[ScriptMatch]:
    """Find ``model.predict`` of a model that is inside a wrapper by then."""
    for wrap in (*s.calls_to(DP), *s.distributed):
        statement = s.statement(wrap)
        if (
            not isinstance(statement, ast.Assign)
            or len(statement.targets) != 1
            or statement.value is not wrap
        ):
            continue
        name = key(statement.targets[0])
        if not name or name.startswith("self.") or s.is_conditional(wrap):
            continue
        scope = s.scope(wrap)
        again = [where for where, _ in s.values(wrap, name) if comes_after(where, wrap)]
        seen: set[str] = set()
        for node in s.nodes:
            if (
                not isinstance(node, ast.Attribute)
                or key(node.value) != name
                or not comes_after(node, statement)
                or s.scope(node) is not scope
            ):
                continue
            if (
                node.attr in _WRAPPER
                or node.attr.startswith("_")
                or node.attr in seen
                or not isinstance(node.ctx, ast.Load)
            ):
                continue
            if any(not comes_after(where, node) for where in again) or any(
                is_literal(arg, node.attr) for arg in _attributes_asked_for(s, name)
            ):
                continue
            if any(
                isinstance(other.ctx, ast.Store)
                and other.attr == node.attr
                and key(other.value) == name
                for other in s.nodes
                if isinstance(other, ast.Attribute)
            ):
                continue
            if isinstance(s.parents[node][0], ast.Attribute) and s.under(node, ast.Try):
                continue
            seen.add(node.attr)
            yield ScriptMatch(
                "script.attribute-of-wrapped-model",
                node,
                figures={"attribute": node.attr, "model": name, "line": line(wrap)},
                more=[wrap],
                severity="problem",
                confidence="definite",
            )


def find_wrapped_states(s: Script) -> Iterator[ScriptMatch]:
    """Find ``plain.load_state_dict(wrapped.state_dict())``.

    The wrapped model's keys begin with ``module.``, so they do not match.
    """
    for call in s.methods("load_state_dict"):
        if (
            not call.args
            or not isinstance(call.func, ast.Attribute)
            or s.kind(call.func.value, call) != "module"
        ):
            continue
        given = call.args[0]
        if (
            not isinstance(given, ast.Call)
            or not isinstance(given.func, ast.Attribute)
            or given.args
        ):
            continue
        if given.func.attr == "state_dict" and s.kind(given.func.value, given) in ("dp", "ddp"):
            yield ScriptMatch(
                "script.state-of-wrapped-model",
                given,
                figures={"wrapper": s.code(given.func.value), "model": s.code(call.func.value)},
                severity="problem",
                confidence="definite",
            )


def _attributes_asked_for(s: Script, name: str) -> Iterator[ast.expr]:
    """Yield the attributes that ``hasattr`` and ``getattr`` ask ``name`` for."""
    for call in s.calls:
        if (
            key(call.func) in ("hasattr", "getattr")
            and len(call.args) > 1
            and key(call.args[0]) == name
        ):
            yield call.args[1]


CHECKS = (find_wrapped_attributes, find_wrapped_states)
