"""Run a module as ``torch.compile`` would: its graphs are partitioned, and kernels are fused.

The module is traced by AOTAutograd with the decompositions of inductor, and split by the same
partitioner that inductor uses. So what is kept for the backward pass is torch's own choice. The two
graphs then run as the code that inductor writes for them (:mod:`.inductor`), with fake tensors.

Where a version of torch differs so much that this fails, and where a CPU's own kernels are traced,
the graphs are run node by node. Which results become buffers then follows inductor's main rules:

- Results of library kernels (matrix products, convolutions, attention) and of reductions do.
- A pointwise result does if a library kernel reads it, if it leaves the graph, or if it reads more
  buffers than inductor lets a kernel compute again. Otherwise it is computed inside the kernels
  that read it, and what it is computed from lives that much longer.
- A pointwise kernel may write into an operand that nobody reads later.

What cannot be traced as one graph (data decides what is called, Python objects go in or out) runs
as it is written, which is what a graph break comes to. Of what a compilation itself takes on the
GPU, only the buffer is part of it with which inductor times the kernels that it writes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch.utils import _python_dispatch as torch_dispatch
from torch.utils._pytree import tree_flatten, tree_map

from ..request import Doubt
from . import inductor

LOWERED_PERCENT, PERCENT = 3.0, 15.0
"""What is added to the error: where inductor writes the code, and where anything else is traced.

With 2 % and the doubt of another torch nine of ten fresh trainings hold, so the first is one more
for a torch that predicts itself. For the second none was measured.
"""
TRACED = (
    "The graphs, layouts and buffers of the compiled model are those that this torch's own "
    "partitioner and inductor make, and the compilation is one with an empty cache."
)
POOL = 1
"""The number of the pool that all CUDA graphs share. Its segments serve no other block."""
SIMPLIFIED = (
    "Inductor could not lower a graph of the compiled model ({why}): its buffers follow simplified "
    "fusion rules."
)
READS = 8
"""How many buffers a pointwise kernel reads at most, where torch leaves it to its own choice."""
EAGER = "The compiled model could not be traced as one graph ({why}) and was traced in eager mode."
_LIBRARY = (
    "mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "convolution", "convolution_backward",
    "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_", "cudnn_",
    "embedding_dense_backward", "index_put", "scatter", "index_add", "sort", "topk", "cumsum",
    "cumprod", "_foreach", "max_pool", "avg_pool", "adaptive", "upsample", "grid_sampler", "_fft",
    "_thnn", "lstm", "gru", "rnn", "linalg", "_trilinear", "_cdist", "bincount", "unique",
    "nonzero", "masked_select", "rand", "bernoulli",
)  # fmt: skip
"""Beginnings of names of operators that inductor does not fuse with what reads their results."""
_REDUCTIONS = frozenset((
    "sum", "mean", "var", "var_mean", "std", "amax", "amin", "max", "min", "prod", "any", "all",
    "argmax", "argmin", "logsumexp", "linalg_vector_norm",
))  # fmt: skip


def install(module: torch.nn.Module, doubt: Callable[[Doubt], None]) -> None:
    """Compile ``module`` in place, as ``module.compile()`` does."""
    module._compiled_call_impl = Compiled(module, module._call_impl, doubt)


class Compiled:
    """A compiled call of ``module``, or of a function that calls it.

    Each kind of call has graphs of its own.
    """

    def __init__(
        self, module: torch.nn.Module, call: Callable[..., Any], doubt: Callable[[Doubt], None]
    ):
        self._module, self._call, self._doubt = module, call, doubt
        self._functions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        key = (_shapes((args, kwargs)), torch.is_grad_enabled(), module.training,
               torch.is_autocast_enabled(), torch.get_autocast_dtype("cpu"))  # fmt: skip
        function = self._functions.get(key)
        if function is not None:
            return function(*args, **kwargs)
        try:
            function = self._compiled(args, kwargs)
            text, percent = TRACED, LOWERED_PERCENT
        except Exception as error:
            function = self._call
            why = error if isinstance(error, GraphBreak) else type(error).__name__
            text, percent = EAGER.format(why=why), PERCENT
        self._doubt(Doubt("compiled", text, "torch.compile", percent))
        self._functions[key] = function
        return function(*args, **kwargs)

    def _compiled(self, args: Any, kwargs: Any) -> Callable[..., Any]:
        import torch._inductor.lowering  # noqa: F401  # decompositions use it, not importing it
        from torch._functorch.aot_autograd import aot_function
        from torch._inductor.decomposition import select_decomp_table
        from torch.nn.utils.stateless import _reparametrize_module

        module, plain = self._module, self._call
        names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]

        cells = list(_cells(plain, set()))

        def call(state: list[Any], held: list[Any], inputs: Any, named: Any) -> Any:
            given = dict(zip(names, state, strict=True))
            before = [cell.cell_contents for cell in cells]
            _fill(cells, held)
            try:
                with _reparametrize_module(module, given, tie_weights=True):
                    return plain(*inputs, **named)
            finally:
                _fill(cells, before)

        ready = aot_function(
            call,
            fw_compiler=_runner,
            bw_compiler=functools.partial(_runner, backward=True),
            inference_compiler=functools.partial(_runner, inference=True),
            partition_fn=_partition,
            decompositions=select_decomp_table(),
            num_params_buffers=len(names),
        )

        def run(*inputs: Any, **named: Any) -> Any:
            state = [part for _, part in (*module.named_parameters(), *module.named_buffers())]
            return ready(state, [cell.cell_contents for cell in cells], inputs, named)

        # AOTAutograd compiles in the first call, and runs what it has compiled
        before = {key for mode in _recording() for key in mode.doubts}
        with _unrecorded(), _recomputed(), tracing(TracingContext(_recording()[0])):
            inputs, named = _substitutes((args, kwargs))
            run(*inputs, **named)
        for mode in _recording():
            if any(code == "data_dependent" for code, _ in mode.doubts.keys() - before):
                raise GraphBreak("a tensor's value decides what it calls")
        return run


def _substitutes(given: Any) -> Any:
    """Return tensors like those given: the graphs keep the ones that they were compiled with."""
    made: dict[int, Any] = {}

    def like(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
            return value
        if id(value) not in made:
            made[id(value)] = _like(value).requires_grad_(value.requires_grad)
        return made[id(value)]

    return tree_map(like, given)


class GraphBreak(Exception):
    """The program reads a tensor's value to decide what it calls, which no graph can."""


def _cells(function: Any, seen: set[int]) -> Iterator[Any]:
    """Return the cells of a function, and of functions that it calls, which hold tensors.

    Their tensors are inputs of the graph.
    """
    for cell in getattr(function, "__closure__", None) or ():
        if id(cell) in seen:
            continue
        seen.add(id(cell))
        try:
            content = cell.cell_contents
        except ValueError:  # it is still empty
            continue
        leaves = tree_flatten(content)[0]
        if leaves and all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            yield cell
        elif callable(content) and not isinstance(content, torch.nn.Module):
            yield from _cells(content, seen)


def _fill(cells: Sequence[Any], contents: Sequence[Any]) -> None:
    for cell, content in zip(cells, contents, strict=True):
        cell.cell_contents = content


def _shapes(value: Any) -> Any:
    leaves, structure = tree_flatten(value)
    return str(structure), tuple(
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves
    )


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """Record nothing: neither what compilation makes, nor results inside of kernels."""
    modes = _recording()
    before = [mode.muted for mode in modes]
    for mode in modes:
        mode.muted = True
    try:
        yield
    finally:
        for mode, was in zip(modes, before, strict=True):
            mode.muted = was


def _recording() -> list[Any]:
    """Return the mode of the fake tensors, in a list."""
    modes = torch_dispatch._get_current_dispatch_mode_stack()
    return [mode for mode in modes if hasattr(mode, "muted")]


@contextlib.contextmanager
def _pooled(mode: Any) -> Iterator[None]:
    """Take blocks from the pool of CUDA graphs, if the graphs are captured."""
    mode.recorder.pool = POOL if mode.cuda_graphs else 0
    try:
        yield
    finally:
        mode.recorder.pool = 0


@contextlib.contextmanager
def _recomputed() -> Iterator[None]:
    """Leave it to the partitioner to recompute what is checkpointed, as torch.compile does."""
    from torch.fx import traceback
    from torch.utils import checkpoint

    name = "_checkpoint_without_reentrant_generator"
    regions = itertools.count()

    def tagged(*_: Any, **__: Any) -> Iterator[None]:
        tags = {
            "recompute": checkpoint.CheckpointPolicy.PREFER_RECOMPUTE,
            "ac_graph_id": next(regions),
        }
        with traceback.preserve_node_meta():
            before = dict(traceback.current_meta)
            traceback.current_meta.update(tags)
            try:
                yield
            finally:
                traceback.current_meta.clear()
                traceback.current_meta.update(before)

    was = getattr(checkpoint, name)
    setattr(checkpoint, name, tagged)
    try:
        yield
    finally:
        setattr(checkpoint, name, was)


def _partition(graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Split the joint graph as inductor does, after its passes over the joint graph."""
    from torch._functorch import partitioners
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(_recording()[0]):
        graph = joint_graph_passes(graph)
    # the states of random numbers that recomputation needs are on the host
    was = partitioners.has_recomputable_rng_ops
    partitioners.has_recomputable_rng_ops = lambda _: False
    try:
        return partitioners.min_cut_rematerialization_partition(
            graph, inputs, compiler="inductor", **options
        )
    finally:
        partitioners.has_recomputable_rng_ops = was


def _runner(
    graph: fx.GraphModule, inputs: Any, backward: bool = False, inference: bool = False
) -> Callable[[list[Any]], Any]:
    mode, function = _recording()[0], None
    if mode.architecture is not None:
        try:
            function = _written(graph, inputs, mode.architecture, backward, inference)
        except Exception as error:  # inductor's own parts change between versions of torch
            text = SIMPLIFIED.format(why=type(error).__name__)
            mode.doubt(Doubt("compiled", text, "inductor", PERCENT))
    if function is None:
        function = _Nodes(graph).run

    def run(inputs: list[Any]) -> Any:
        values = list(inputs)
        inputs.clear()
        with _pooled(mode):
            return function(values)

    run._boxed_call = True  # type: ignore[attr-defined]  # the caller gives its inputs away
    return run


def _written(
    graph: fx.GraphModule, inputs: Any, chip: tuple[int, int], backward: bool, inference: bool
) -> inductor.Run:
    """Return what inductor writes for the graph, and tell the backward graph its strides."""
    context = TracingContext.try_get()
    known = context.fw_metadata
    start = 0 if inference else known.num_mutated_inp_runtime_indices
    visible = () if backward else range(start, start + len(known.output_info))
    written = inductor.write(
        graph, inputs, chip, _recording, backward=backward, inference=inference, visible=visible
    )
    with _unrecorded(), torch.no_grad():  # so that what it cannot run shows here
        written.run([_like(value) for value in inputs])
    if not backward and context.output_strides is not None:
        context.output_strides.extend(written.strides)
    return written.run


def _like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.fake_device
    )


class _Nodes:
    """The nodes of a graph, which of them make buffers, and until when each value is read."""

    def __init__(self, module: fx.GraphModule):
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._place = {node: number for number, node in enumerate(self._nodes)}
        self._makes: dict[fx.Node, bool] = {}
        reads: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in self._nodes:
            found = frozenset[fx.Node]().union(*(reads[part] for part in node.all_input_nodes))
            self._makes[node] = _is_kernel(node) or (
                self._is_read_whole(node) or (not _is_view(node) and _reads_much(node, found))
            )
            kept = node.op != "call_function" or (self._makes[node] and not _is_view(node))
            reads[node] = frozenset((node,)) if kept else found
        self._ends: dict[fx.Node, int] = {}
        for node in reversed(self._nodes):
            self._ends[node] = max(
                [self._place[node], *(self._read_until(user) for user in node.users)]
            )

    def _is_read_whole(self, node: fx.Node) -> bool:
        """Whether a library kernel reads this result, or a later graph does."""
        return any(
            user.op == "output"
            or _is_library(user)
            or (_is_view(user) and self._is_read_whole(user))
            for user in node.users
        )

    def _read_until(self, user: fx.Node) -> int:
        """Return the place of the kernel in which ``user`` is computed, or read as a view."""
        if user.op == "output" or (self._makes[user] and not _is_view(user)):
            return self._place[user]
        return self._ends[user]

    def run(self, inputs: list[Any]) -> Any:
        values: dict[fx.Node, Any] = {}
        inputs.reverse()
        dying: dict[int, list[fx.Node]] = {}
        for node, end in self._ends.items():
            dying.setdefault(end, []).append(node)
        for number, node in enumerate(self._nodes):
            if node.op == "placeholder":
                values[node] = inputs.pop()
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            elif node.op == "get_attr":
                values[node] = getattr(self._module, str(node.target))
            else:
                args, kwargs = (
                    fx.node.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs)
                )
                if not _is_library(node):
                    self._drop(values, dying.pop(number, ()), node)
                with contextlib.nullcontext() if self._makes[node] else _unrecorded():
                    values[node] = node.target(*args, **kwargs)
                del args, kwargs
            self._drop(values, dying.pop(number, ()), None)
        raise AssertionError("a graph ends with its outputs")

    def _drop(self, values: dict[fx.Node, Any], nodes: Sequence[fx.Node], but: Any) -> None:
        for node in nodes:
            if node is not but:
                values.pop(node, None)


def _name(node: fx.Node) -> str:
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.rpartition("::")[2]


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        return True
    return bool(getattr(node.target, "is_view", False))


def _is_library(node: fx.Node) -> bool:
    return node.op == "call_function" and _name(node).startswith(_LIBRARY)


def _reads_much(node: fx.Node, buffers: frozenset[fx.Node]) -> bool:
    """Whether inductor computes a pointwise result once, because it reads that many buffers."""
    from torch._inductor import config

    once = config.realize_acc_reads_threshold or READS
    most = config.realize_reads_threshold if len(node.users) > 1 else once
    return node.op == "call_function" and len(buffers) > most


def _is_kernel(node: fx.Node) -> bool:
    """Whether the node makes a buffer whoever reads it."""
    return _is_library(node) or _name(node) in _REDUCTIONS
