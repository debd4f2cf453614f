"""Checks of what cuDNN is asked for: speed or repeatable results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .facts import Found, Script
from .source import constant

_CONVOLUTIONS = {"Conv2d", "Conv3d", "ConvTranspose2d"}


def cudnn_conflict(s: Script) -> Iterator[Found]:
    """``benchmark`` beside what asks for reproducible results."""
    settings: dict[str, ast.Assign] = {}
    for node in s.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            full = s.resolve(node.targets[0])
            if full in ("torch.backends.cudnn.benchmark", "torch.backends.cudnn.deterministic"):
                settings[full.rpartition(".")[2]] = node
    benchmark, deterministic = settings.get("benchmark"), settings.get("deterministic")
    if benchmark is None or not constant(benchmark.value, True):
        return
    code = edits.edited(s, benchmark, (benchmark.value, "False"))
    if deterministic is not None:
        if (
            constant(deterministic.value, True)
            and not s.exclusive(benchmark, deterministic)
            and s.scope(benchmark) is s.scope(deterministic)
        ):
            yield Found(
                node=benchmark,
                pitfall="deterministic",
                cause="script.benchmark-and-deterministic",
                more=[deterministic],
                title="cudnn.benchmark works against cudnn.deterministic",
                confidence="definite",
                why="it picks algorithms by the clock, which differs from run to run; deterministic wants the same.",
                fix="Switch benchmark off where results must repeat; switch deterministic off where speed matters.",
                code=code,
            )
        return
    seeded = [call for call in s.calls_to("torch.manual_seed") if call.args and isinstance(call.args[0], ast.Constant)]
    seeded = [call for call in seeded if _of_the_training(s, call, benchmark)]
    if seeded and "use_deterministic_algorithms" not in s.identifiers:
        yield Found(
            node=benchmark,
            pitfall="deterministic",
            cause="script.benchmark-with-seed",
            severity="info",
            more=seeded[:1],
            title="Seeded, but not reproducible",
            why="cuDNN chooses algorithms by the clock: the same seed may give other weights.",
            fix="Where results must repeat: benchmark off, torch.use_deterministic_algorithms(True).",
            code=code,
        )


def _of_the_training(s: Script, seed: ast.Call, benchmark: ast.AST) -> bool:
    """Whether a seed is there for the whole program: one in some other function may be for a split or a sample, and
    promises nothing about the weights."""
    scope = s.scope(seed)
    if scope in (s.scope(benchmark), s.tree) or "seed" in getattr(scope, "name", "").lower():
        return True
    return any(s.scope(loop) is scope for loop in s.training_loops)


def convolutions(s: Script) -> Iterator[Found]:
    """Convolutions on pictures of one size, and nobody asks cuDNN to try its algorithms."""
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
            if s.resolve(call).startswith("torch.nn.") and s.resolve(call).rpartition(".")[2] in _CONVOLUTIONS
        ),
        None,
    )
    if layer is None or not _fixed_shape(s):
        return
    yield Found(
        node=layer,
        pitfall="cudnn-benchmark-on",
        cause="script.no-cudnn-benchmark",
        severity="info",
        title="Convolutions of one shape without cudnn.benchmark",
        why="cuDNN takes what its heuristics name; another algorithm may be faster.",
        fix="Where all batches have one shape, and results need not repeat to the bit.",
        before="",
        code="torch.backends.cudnn.benchmark = True",
    )


def _fixed_shape(s: Script) -> bool:
    """Whether the training's pictures are of one size: made with literal sizes in the step."""
    for call in s.calls_to("torch.randn", "torch.rand"):
        sizes = [arg for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int)]
        if len(sizes) == len(call.args) == 4 and any(s.inside(call, loop) for loop in s.training_loops):
            return True
    return False


CHECKS = (cudnn_conflict, convolutions)
