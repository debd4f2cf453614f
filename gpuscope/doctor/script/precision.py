"""Check mixed precision: autocast, its types, and the protocol of gradient scaling."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import comes_after, is_literal, is_open_ended, key, keyword, named_calls, receiver
from .program import AUTOCASTS, Script, ScriptMatch

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_")
_OLD = {
    "torch.cuda.amp.autocast": ("torch.amp.autocast", '"cuda"'),
    "torch.cuda.amp.GradScaler": ("torch.amp.GradScaler", '"cuda"'),
    "torch.cpu.amp.autocast": ("torch.amp.autocast", '"cpu"'),
}


# The parameters of the old autocast, in order. The new one takes the device first and then the
# dtype.
_OLD_ORDER = ("enabled=", "dtype=", "cache_enabled=")


def find_old_amp(s: Script) -> Iterator[ScriptMatch]:
    """Find ``torch.cuda.amp`` called without a look at the version of torch."""
    for full, (new, device) in _OLD.items():
        found = []
        for call in s.calls_to(full):
            imported = [
                node
                for node in s.nodes
                if isinstance(node, ast.ImportFrom)
                and any((a.asname or a.name) == key(call.func) for a in node.names)
            ]
            other = "torch.autocast" if full.endswith("autocast") else new
            if any(s.are_exclusive(call, instead) for instead in s.calls_to(other)):
                continue  # the other branch uses the new one
            if any(s.is_conditional(node) for node in imported) or _asks_version(s, call):
                continue
            found.append(call)
        if not found:
            continue
        device = _device_type(s, found[0]) or device
        parts = [device]
        for name, arg in zip(
            _OLD_ORDER if "autocast" in full else [""] * 9, found[0].args, strict=False
        ):
            parts.append(f"{name}{edits.text(s, arg)}")
        parts += [
            f"{item.arg}={edits.text(s, item.value)}"
            if item.arg
            else f"**{edits.text(s, item.value)}"
            for item in found[0].keywords
        ]
        yield ScriptMatch(
            "script.old-amp",
            found[0],
            figures={
                "old": full,
                "new": new,
                "device": device,
                "since": "1.10" if "autocast" in new else "2.3",
                "arguments": ", ".join(parts),
            },
            more=found[1:],
            severity="info",
            confidence="definite",
        )


def _device_type(s: Script, call: ast.Call) -> str:
    """Return ``device.type`` where the script chooses between CUDA and the CPU, else ""."""
    for _, name, made in named_calls(s.nodes):
        if s.resolve(made) != "torch.device" or len(made.args) != 1:
            continue
        chosen = {part.value for part in ast.walk(made.args[0]) if isinstance(part, ast.Constant)}
        if (
            isinstance(made.args[0], ast.IfExp)
            and {"cuda", "cpu"} <= chosen
            and len(s.values(call, name)) == 1
        ):
            return f"{name}.type"
    return ""


def _asks_version(s: Script, call: ast.AST) -> bool:
    """Return whether a ``try`` or a look at the version decides that the old one is taken."""
    for ancestor, _ in s.ancestors(call):
        if isinstance(ancestor, ast.Try):
            return True
        if isinstance(ancestor, (ast.If, ast.IfExp)) and any(
            w in s.code(ancestor.test).lower() for w in ("version", "attr")
        ):
            return True
    return False


def find_scaler_misuse(s: Script) -> Iterator[ScriptMatch]:
    """Find clipping of scaled gradients, and steps of a scaler that are missing."""
    scaled = [call for call in s.backwards if _scale_call(call)]
    if not scaled:
        return
    for call in scaled:
        function = s.scope(call)
        here = [other for other in s.calls if s.scope(other) is function]
        scale = _scale_call(call)
        assert scale is not None
        name = receiver(scale)
        unscaled = [other for other in here if _method_name(other) == "unscale_"]
        stepping = [
            other for other in here if _method_name(other) == "step" and receiver(other) == name
        ]
        for clip in here:
            full = s.resolve(clip)
            if (
                not full.startswith("torch.nn.utils.")
                or full.rpartition(".")[2] not in _CLIPS
                or not comes_after(clip, call)
            ):
                continue
            if any(
                not comes_after(other, clip) and not s.are_exclusive(other, clip)
                for other in unscaled
            ):
                continue
            # scaler.step must come after this clipping: not in another branch, and not before it.
            if not any(
                comes_after(other, clip) and not s.are_exclusive(other, clip) for other in stepping
            ):
                continue
            if s.are_exclusive(clip, call) or any(
                comes_after(other, call) and comes_after(clip, other) for other in stepping
            ):
                continue
            optimizer = next(
                (
                    s.optimizer_of(other)
                    for other in s.steps
                    if s.scope(other) is function and receiver(other) == name
                ),
                "optimizer",
            )
            yield ScriptMatch(
                "script.clip-before-unscale",
                clip,
                figures={
                    "scaler": name,
                    "optimizer": optimizer,
                    "statement": edits.statement(s, clip),
                },
                before=edits.statement(s, clip),
                severity="problem",
                confidence="definite",
            )
            break
    yield from _find_missing_steps(s, scaled)


def _method_name(call: ast.Call) -> str:
    """Return the name of the method that a call calls, else ""."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _scale_call(call: ast.Call) -> ast.Call | None:
    """Return the ``scaler.scale(loss)`` of ``scaler.scale(loss).backward()``."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "scale"
    ):
        return value
    return None


def _find_missing_steps(s: Script, scaled: list[ast.Call]) -> Iterator[ScriptMatch]:
    """Find a scaler that scales, and never steps or never updates."""
    for call in scaled:
        scale = _scale_call(call)
        assert scale is not None
        name = receiver(scale)
        if not name or s.kind(scale.func.value, scale) != "scaler":  # type: ignore[attr-defined]
            continue
        function = s.scope(call)
        if any(
            name in {key(arg) for arg in other.args}
            or any(key(k.value) == name for k in other.keywords)
            for other in s.calls
        ):
            continue  # another function gets the scaler, and may do the rest
        own = {
            other.func.attr
            for other in s.calls
            if isinstance(other.func, ast.Attribute) and receiver(other) == name
        }
        plain = [
            step
            for step in s.steps
            if s.scope(step) is function
            and receiver(step) != name
            and comes_after(step, call)
            and not s.are_exclusive(step, call)
        ]
        if "step" not in own and plain:
            yield ScriptMatch(
                "script.optimizer-steps-scaled",
                plain[0],
                figures={
                    "scaler": name,
                    "edited": edits.statement(
                        s, plain[0], (plain[0], f"{name}.step({receiver(plain[0])})")
                    ),
                },
                before=edits.statement(s, plain[0]),
                more=[call],
                severity="problem",
                confidence="definite",
            )
        elif "step" in own and "update" not in own:
            step = next(
                other
                for other in s.calls
                if receiver(other) == name
                and isinstance(other.func, ast.Attribute)
                and other.func.attr == "step"
            )
            yield ScriptMatch(
                "script.scaler-not-updated",
                step,
                figures={"scaler": name, "statement": edits.statement(s, step)},
                before=edits.statement(s, step),
                severity="problem",
                confidence="definite",
            )
        return


def find_half_without_scaler(s: Script) -> Iterator[ScriptMatch]:
    """Find fp16 autocast whose loss goes backward without a scaler."""
    if s.managed or any("scaler" in name.lower() or name == "scale" for name in s.identifiers):
        return
    for call in s.calls_to(*AUTOCASTS):
        if not _is_half(s, call):
            continue
        function, block = s.scope(call), s.statement(call)
        if not isinstance(block, (ast.With, ast.AsyncWith)):
            continue
        made = {
            key(target)
            for node in s.descendants(block)
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        for backward in s.backwards:
            if (
                s.scope(backward) is function
                and comes_after(backward, call)
                and s.losses(backward) & made
            ):
                yield ScriptMatch(
                    "script.fp16-without-scaler",
                    backward,
                    figures={"edited": _text_in_bf16(s, call)},
                    before=edits.text(s, call),
                    more=[call],
                )
                return


def _text_in_bf16(s: Script, call: ast.Call) -> str:
    """Return the text of an autocast with bfloat16 for its type."""
    dtype = keyword(call, "dtype") or (call.args[1] if len(call.args) > 1 else None)
    if dtype is not None:
        return edits.edit(s, call, (dtype, "torch.bfloat16"))
    return edits.with_argument(s, call, "dtype=torch.bfloat16")


def _is_half(s: Script, call: ast.Call) -> bool:
    """Return whether this autocast is surely fp16 and on: said so, or the default of CUDA."""
    enabled = keyword(call, "enabled")
    if is_open_ended(call) or (enabled is not None and not is_literal(enabled, True)):
        return False
    old = s.resolve(call) == "torch.cuda.amp.autocast"
    dtype = keyword(call, "dtype") or (call.args[1] if len(call.args) > 1 and not old else None)
    if dtype is not None:
        return s.resolve(dtype) in ("torch.float16", "torch.half")
    if old:
        return not call.args
    device = call.args[0] if call.args else keyword(call, "device_type")
    return is_literal(device, "cuda")


def find_backward_in_autocast(s: Script) -> Iterator[ScriptMatch]:
    """Find ``backward()`` inside ``with autocast``."""
    for call in s.backwards:
        if any(s.resolve(context) in AUTOCASTS for context in s.contexts(call)):
            yield ScriptMatch(
                "script.backward-in-autocast", call, severity="info", confidence="definite"
            )


CHECKS = (find_old_amp, find_scaler_misuse, find_half_without_scaler, find_backward_in_autocast)
