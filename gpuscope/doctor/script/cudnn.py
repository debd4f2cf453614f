"""Check what cuDNN is asked for: speed or repeatable results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import is_literal
from .program import Script, ScriptMatch

_CONVOLUTIONS = {"Conv2d", "Conv3d", "ConvTranspose2d"}


def find_cudnn_conflict(s: Script) -> Iterator[ScriptMatch]:
    """Find ``benchmark`` in a script that also asks for reproducible results."""
    settings: dict[str, ast.Assign] = {}
    for node in s.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            full = s.resolve(node.targets[0])
            if full in ("torch.backends.cudnn.benchmark", "torch.backends.cudnn.deterministic"):
                settings[full.rpartition(".")[2]] = node
    benchmark, deterministic = settings.get("benchmark"), settings.get("deterministic")
    if benchmark is None or not is_literal(benchmark.value, True):
        return
    edited = edits.edit(s, benchmark, (benchmark.value, "False"))
    if deterministic is not None:
        if (
            is_literal(deterministic.value, True)
            and not s.are_exclusive(benchmark, deterministic)
            and s.scope(benchmark) is s.scope(deterministic)
        ):
            yield ScriptMatch(
                "script.benchmark-and-deterministic",
                benchmark,
                figures={"edited": edited},
                more=[deterministic],
                confidence="definite",
            )
        return
    seeded = [
        call
        for call in s.calls_to("torch.manual_seed")
        if call.args and isinstance(call.args[0], ast.Constant)
    ]
    seeded = [call for call in seeded if _seeds_the_training(s, call, benchmark)]
    if seeded and "use_deterministic_algorithms" not in s.identifiers:
        yield ScriptMatch(
            "script.benchmark-with-seed",
            benchmark,
            figures={"edited": edited},
            more=seeded[:1],
            severity="info",
        )


def _seeds_the_training(s: Script, seed: ast.Call, benchmark: ast.AST) -> bool:
    """Return whether a seed applies to the whole program.

    A seed in some other function may be for a data split or a sample, and does not make the weights
    reproducible.
    """
    scope = s.scope(seed)
    if scope in (s.scope(benchmark), s.tree) or "seed" in getattr(scope, "name", "").lower():
        return True
    return any(s.scope(loop) is scope for loop in s.training_loops)


def find_untuned_convolutions(s: Script) -> Iterator[ScriptMatch]:
    """Find convolutions on pictures of one size without cuDNN's search for algorithms."""
    if (
        not s.cuda
        or not s.training_loops
        or s.identifiers & {"benchmark", "deterministic", "use_deterministic_algorithms"}
    ):
        return
    layer = next(
        (
            call
            for call in s.calls
            if s.resolve(call).startswith("torch.nn.")
            and s.resolve(call).rpartition(".")[2] in _CONVOLUTIONS
        ),
        None,
    )
    if layer is None or not _has_fixed_shape(s):
        return
    yield ScriptMatch("script.no-cudnn-benchmark", layer, before="", severity="info")


def _has_fixed_shape(s: Script) -> bool:
    """Return whether the step makes its pictures with literal sizes."""
    for call in s.calls_to("torch.randn", "torch.rand"):
        sizes = [
            arg for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int)
        ]
        if len(sizes) == len(call.args) == 4 and any(
            s.is_inside(call, loop) for loop in s.training_loops
        ):
            return True
    return False


CHECKS = (find_cudnn_conflict, find_untuned_convolutions)
