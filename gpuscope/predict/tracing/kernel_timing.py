"""Tell what inductor allocates while it times variants of kernels.

Before a kernel that inductor has written first runs, its variants are timed, unless there is only
one. A buffer as large as the L2 cache is filled before each run, and each run writes into copies of
the arguments that it changes. In a backward or inference graph, a copy that would raise the peak is
made on the host instead.

In the mode ``max-autotune``, kernels for each kind of matrix product are timed while the graph is
compiled, with operands and a result made for that. So are kernels that reduce along both axes, with
arguments made for that, and with several sizes of the parts in which they reduce along the second.
"""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from ...text.units import MIB
from .compiled_record import recording
from .replaced import Replaced

L2_MIB = {(8, 0): 40, (8, 6): 6, (8, 9): 72, (9, 0): 60, (10, 0): 126}
"""Size of the L2 cache by compute capability; an H200's was measured, an H100 has 50."""
TIMED, CHOSEN = "triton autotuning", "max-autotune"
_COUNTED = ("pointwise", "persistent_reduction")
"""Kinds of kernels whose number of variants torch tells beforehand."""
_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")
)


class Kernel:
    """A kernel that inductor has written. Its first run is preceded by a timing of its variants."""

    def __init__(self, source: str, flushed_bytes: int):
        self._source, self._flushed_bytes = source, flushed_bytes
        self._changed, self._on_host, self._variants = _facts(source)

    def run(self, *args: Any, **_named: Any) -> None:
        for mode in recording():
            if not self._flushed_bytes or mode.muted:
                continue
            # the same code is one kernel in all graphs
            if self._variants > 1 and mode.recorder.once(self._source or f"kernel {id(self)}"):
                changed = [_storage_bytes(args[at]) for at in self._changed if at < len(args)]
                for _ in range(self._variants):
                    self._time(mode.recorder, changed)
            self._flushed_bytes = 0

    def _time(self, recorder: Any, changed: Sequence[int]) -> None:
        """Record the timing of one variant, which may raise the peak for the copies of the next."""
        spare = recorder.peak_bytes - recorder.live_bytes if self._on_host else math.inf
        sizes = [self._flushed_bytes]
        for size in changed:
            if size <= spare:
                sizes.append(size)
                spare -= size
        recorder.passing(sizes, TIMED)


def sources(tree: ast.AST) -> dict[str, str]:
    """Return the code of the kernels by the names under which the graph's code calls them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call)
            and getattr(node.value.func, "attr", "") == "triton"
            and len(node.value.args) > 1
            and isinstance(node.value.args[1], ast.Constant)
        ):
            found[node.targets[0].id] = str(node.value.args[1].value)
    return found


def _facts(source: str) -> tuple[list[int], bool, int]:
    """Return what the timing of a kernel depends on.

    That is the places of the arguments that it changes, whether their copies may be on the host,
    and how many variants there are: two where the code has another form.
    """
    try:
        decorator = next(
            part
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef)
            for part in node.decorator_list
            if isinstance(part, ast.Call) and "triton_heuristics" in ast.unparse(part.func)
        )
        named = {word.arg: word.value for word in decorator.keywords}
        about = _literals(named["inductor_meta"])
        order = list(_literals(named["triton_meta"])["signature"])
        changed = [order.index(name) for name in about["mutated_arg_names"] if name in order]
        return changed, bool(about.get("optimize_mem", True)), _variants(decorator)
    except (StopIteration, SyntaxError, KeyError, ValueError, TypeError):
        return [], True, 2


def _literals(node: ast.AST) -> dict[str, Any]:
    """Return the entries of a dict in code that are plain values."""
    found: dict[str, Any] = {}
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            try:
                found[ast.literal_eval(key)] = ast.literal_eval(value)  # type: ignore[arg-type]
            except (ValueError, TypeError):
                continue
    return found


def _variants(decorator: ast.Call) -> int:
    """Return how many variants of a kernel torch's own heuristics list."""
    from torch._inductor.runtime import hints, triton_heuristics

    listed: list[Any] = []
    replaced = Replaced()
    replaced.change(
        triton_heuristics, "cached_autotune", lambda _, configs, **__: listed.extend(configs)
    )
    if triton_heuristics.Config is object:  # there is no Triton
        replaced.change(triton_heuristics, "Config", _Config)
    names = {**vars(hints), "triton_heuristics": triton_heuristics, "__file__": "kernel"}
    try:
        eval(compile(ast.Expression(decorator), "<kernel>", "eval"), names)
    except Exception:  # heuristics of another version
        return 2
    finally:
        replaced.restore()
    count = len({str(config) for config in listed})
    # a looped reduction may get another one when it is compiled
    return count if getattr(decorator.func, "attr", "") in _COUNTED else max(2, count)


class _Config:
    """Stands for ``triton.Config``, as far as heuristics make and read one."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 2, **_: Any):
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages

    def __str__(self) -> str:
        return f"{self.kwargs} {self.num_warps} {self.num_stages}"


def _storage_bytes(value: Any) -> int:
    """Return the bytes between the first and the last element of a tensor."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0
    return int(_span(value.shape, value.stride()) * value.element_size())


def _span(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements lie from the first to the last one of a tensor."""
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


@dataclass(frozen=True)
class Product:
    """A matrix product for which the fastest kernel is searched."""

    operation: Any
    operands: list[FakeTensor]
    out: FakeTensor

    @property
    def kind(self) -> str:
        """What products have in common that are timed only once."""
        parts = (*self.operands, self.out)
        return f"{self.operation} {[(tuple(x.shape), x.stride(), str(x.dtype)) for x in parts]}"

    def search(self, recorder: Any, around: Callable[..., None] | None, flushed_bytes: int) -> None:
        """Record operands and a result made for the timing, and the buffer that is filled."""
        blocks = [
            recorder.allocate(_storage_bytes(part), CHOSEN, "temporary")
            for part in (*self.operands, self.out)
        ]
        if around is not None:  # the library's kernel is one of those that are timed
            around(recorder, self.operation, self.operands, {}, self.out)
        recorder.passing([flushed_bytes], CHOSEN)
        recorder.free_all(blocks)


def products(module: fx.GraphModule) -> list[Product]:
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _PRODUCTS:
            operands = [part.meta.get("val") for part in node.all_input_nodes]
            out = node.meta.get("val")
            if all(isinstance(part, FakeTensor) for part in (*operands, out)):
                found.append(Product(node.target, operands, out))
    return found


class _Captured(Exception):
    """Carries the code of a kernel that is about to be timed."""


@contextlib.contextmanager
def split_sizes_sought() -> Iterator[list[str]]:
    """Let inductor seek the split size of reductions along both axes, as ``max-autotune`` does.

    Yields a list that gets the code of the kernels that it times first: with half of the size that
    it begins with, and with the double. It goes on from the faster one, which is not known, and
    whose arguments are hardly larger. A torch that does not seek split sizes times nothing.
    """
    from torch._inductor import codecache, config
    from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner

    found: list[str] = []

    def capture(source: str, *_: Any, **__: Any) -> Any:
        raise _Captured(source)

    def seek(
        measure: Callable[[int], float], first: int, least: int = 1, most: int = 1 << 30
    ) -> int:
        for size in (first // 2, first * 2):
            try:
                measure(min(max(size, least), most))
            except _Captured as captured:
                found.append(str(captured))
        return first

    if not hasattr(config.triton, "mix_order_reduction_autotune_split_size"):
        yield found
        return
    replaced = Replaced()
    replaced.change(CoordescTuner, "autotune_single_field", staticmethod(seek))
    replaced.change(codecache.PyCodeCache, "load", capture)
    try:
        with config.patch({"triton.mix_order_reduction_autotune_split_size": True}):
            yield found
    finally:
        replaced.restore()


def argument_bytes(source: str) -> list[int]:
    """Return the sizes of the tensors that inductor makes to time the kernel of ``source``.

    They are its arguments, and one more of each that it changes.
    """
    made = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "get_args"
    )
    sizes = [_made_bytes(node.value) for node in made.body if isinstance(node, ast.Assign)]
    changed = _facts(source)[0]
    return [size for size in sizes if size] + [sizes[at] for at in changed if at < len(sizes)]


def _made_bytes(value: ast.expr) -> int:
    """Return the bytes of ``rand_strided(size, stride, …)`` or ``torch.zeros(count, …)``."""
    if not isinstance(value, ast.Call):
        return 0  # a number
    dtype = next(word.value for word in value.keywords if word.arg == "dtype")
    itemsize: int = getattr(torch, ast.unparse(dtype).removeprefix("torch.")).itemsize
    given = [ast.literal_eval(part) for part in value.args]
    size, stride = given if len(given) == 2 else ((given[0],), (1,))
    return _span(size, stride) * itemsize


def flushed(architecture: tuple[int, int]) -> int:
    """Return the size of the buffer that is filled before each run, in bytes."""
    return L2_MIB.get(architecture, 0) * MIB


def search(sought: Sequence[Product], split: Sequence[str], flushed_bytes: int) -> None:
    """Record the search for the fastest kernels of what was not timed before.

    Those are the products ``sought``, and the kernels whose code with another split size is in
    ``split``.
    """
    for mode in recording():
        for product in sought:
            if not mode.muted and mode.recorder.once(product.kind):
                product.search(mode.recorder, mode.around.get(product.operation), flushed_bytes)
        for source in split:
            if not mode.muted and mode.recorder.once(source):
                mode.recorder.passing([*argument_bytes(source), flushed_bytes], CHOSEN)
