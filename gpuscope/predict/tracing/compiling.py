"""Run a module as ``torch.compile`` would: its graphs are partitioned, and kernels are fused.

The module is traced by AOTAutograd with the decompositions of inductor, and split by the same
partitioner that inductor uses. So what is kept for the backward pass is torch's own choice. The two
graphs then run as the code that inductor writes for them (:mod:`.inductor`), with fake tensors.

Where a version of torch differs so much that this fails, and where a CPU's own kernels are traced,
the graphs are run node by node (:mod:`.simplified_fusion`).

What cannot be traced as one graph (data decides what is called, Python objects go in or out) runs
as it is written, and the modules in it are compiled one by one, which is what a graph break in a
loop over modules comes to.

Where the compiled graphs are captured as CUDA graphs, the first step runs in the graphs' pool, and
the second one captures. For that, inputs that are no parameters and in no pool are copied into it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_map

from ..measured_kernels import measured, minor_version
from ..request import CUDA_GRAPHS, SEARCHING, Doubt
from . import inductor
from .compiled_record import recording, unrecorded
from .fakes import DEVICE
from .replaced import Replaced
from .simplified_fusion import Nodes

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
BROKEN = (
    "The compiled model could not be traced as one graph ({why}): its modules are compiled one by "
    "one, and what is between them was traced in eager mode."
)
BROKEN_PERCENT = 10.0
CAPTURING = 1
"""Which call of a graph is captured; the one before is its warm-up."""
CAPTURED = Doubt(
    "compiled",
    "CUDA graphs have a pool of their own, which is simulated with its copies of inputs.",
    "reduce-overhead",
    2.0,
)
POOLED = Doubt(
    "compiled",
    "Whether a compiled graph keeps the inputs of max pooling differs between versions of torch: "
    "it keeps them with torch 2.11, with which trainings were measured.",
    "max_pool",
    15.0,
    upward=True,
)
SEARCHED = Doubt(
    "compiled",
    "The search for the fastest kernels takes operands and results of each product, and of "
    "reductions along both axes, once more. Which kernels it chooses, and what they fuse, is not "
    "predicted.",
    "max-autotune",
    5.0,
)


@dataclass(frozen=True)
class CompileOptions:
    """What the mode of ``torch.compile`` adds."""

    cuda_graphs: bool = False
    max_autotune: bool = False

    @classmethod
    def of(cls, mode: object) -> CompileOptions:
        """Return the options of a mode, as a program names it."""
        return cls(mode in CUDA_GRAPHS, mode in SEARCHING)


PLAIN = CompileOptions()


def install(
    module: torch.nn.Module, doubt: Callable[[Doubt], None], options: CompileOptions = PLAIN
) -> None:
    """Compile ``module`` in place, as ``module.compile()`` does."""
    module._compiled_call_impl = Compiled(module, module._call_impl, doubt, options)


def _install_below(
    module: torch.nn.Module, doubt: Callable[[Doubt], None], options: CompileOptions
) -> None:
    """Compile the modules of ``module`` one by one, as where a graph breaks in a loop over them."""
    for child in module.children():
        if type(child).forward is torch.nn.Module.forward:  # a list of modules is never called
            _install_below(child, doubt, options)
        elif child._compiled_call_impl is None:
            install(child, doubt, options)


class Compiled:
    """A compiled call of ``module``, or of a function that calls it.

    Each kind of call has graphs of its own.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        doubt: Callable[[Doubt], None],
        options: CompileOptions = PLAIN,
    ):
        self._module, self._call, self._doubt, self._options = module, call, doubt, options
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._rest: Compiled | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        key = (_shapes((args, kwargs)), torch.is_grad_enabled(), module.training,
               torch.is_autocast_enabled(), torch.get_autocast_dtype("cpu"))  # fmt: skip
        function = self._functions.get(key)
        if function is not None:
            return function(*args, **kwargs)
        try:
            function = self._compiled(args, kwargs)
            self._doubt(Doubt("compiled", TRACED, "torch.compile", LOWERED_PERCENT))
        except Exception as error:
            function = self._call
            why = error if isinstance(error, GraphBreak) else type(error).__name__
            self._doubt(Doubt("compiled", BROKEN.format(why=why), "graph break", BROKEN_PERCENT))
            if self._call == module._call_impl:
                _install_below(module, self._doubt, self._options)
            else:
                if module._compiled_call_impl is None:
                    install(module, self._doubt, self._options)
                function = self._in_parts
        if self._options.cuda_graphs:
            self._doubt(CAPTURED)
        if self._options.max_autotune:
            self._doubt(SEARCHED)
        self._functions[key] = function
        return function(*args, **kwargs)

    def _in_parts(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, whose graph breaks, and then what follows, which is one graph again."""
        module, call = self._module, self._call

        def stop(*inputs: Any, **named: Any) -> Any:
            raise _Called(inputs, named)

        def rest(output: Any, *inputs: Any, **named: Any) -> Any:
            with _called_as(module, lambda *_, **__: output):
                return call(*inputs, **named)

        try:
            with _called_as(module, stop):
                return call(*args, **kwargs)
        except _Called as called:
            inputs, named = called.inputs, called.named
        if self._rest is None:
            self._rest = Compiled(module, rest, self._doubt, self._options)
        return self._rest(module(*inputs, **named), *args, **kwargs)

    def _compiled(self, args: Any, kwargs: Any) -> Callable[..., Any]:
        import torch._inductor.lowering  # decompositions use it, not importing it
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

        given = functools.partial(_runner, self._options, len(names))
        ready = aot_function(
            call,
            fw_compiler=given,
            bw_compiler=functools.partial(given, backward=True),
            inference_compiler=functools.partial(given, inference=True),
            partition_fn=_partition,
            decompositions=select_decomp_table(),
            num_params_buffers=len(names),
        )

        def run(*inputs: Any, **named: Any) -> Any:
            state = [part for _, part in (*module.named_parameters(), *module.named_buffers())]
            return ready(state, [cell.cell_contents for cell in cells], inputs, named)

        # AOTAutograd compiles in the first call, and runs what it has compiled
        before = {key for mode in recording() for key in mode.doubts}
        with unrecorded(), _as_compiled(), _recomputed(), tracing(TracingContext(recording()[0])):
            inputs, named = _substitutes((args, kwargs))
            # a checkpoint around it must not count what this call saves
            with torch.autograd.graph.saved_tensors_hooks(_same, _same):
                run(*inputs, **named)
        for mode in recording():
            if any(code == "data_dependent" for code, _ in mode.doubts.keys() - before):
                raise GraphBreak("a tensor's value decides what it calls")
        return run


def _same(tensor: Any) -> Any:
    return tensor


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


class _Called(Exception):
    """The module is called with these inputs."""

    def __init__(self, inputs: Any, named: Any):
        self.inputs, self.named = inputs, named


@contextlib.contextmanager
def _called_as(module: torch.nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """Let a call of the module be this one."""
    before = module._compiled_call_impl
    module._compiled_call_impl = call
    try:
        yield
    finally:
        module._compiled_call_impl = before


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
def _pooled(mode: Any, options: CompileOptions) -> Iterator[None]:
    """Take blocks from the pool of CUDA graphs, if the graphs are captured."""
    mode.recorder.pool = POOL if options.cuda_graphs else 0
    try:
        yield
    finally:
        mode.recorder.pool = 0


@contextlib.contextmanager
def _as_compiled() -> Iterator[None]:
    """Tell the program that it is being compiled, and let its own call for a graph break be one.

    Libraries skip checks of values then, which would break the graph.
    """

    def break_here(*_: Any, **__: Any) -> None:
        raise GraphBreak("the program asks for a graph break")

    import torch._dynamo

    replaced = Replaced()
    for owner in (torch._dynamo, torch._dynamo.decorators):
        replaced.change(owner, "graph_break", break_here)
    replaced.change(torch.compiler, "_is_compiling_flag", True)
    for name in ("is_compiling", "is_dynamo_compiling"):
        replaced.change(torch.compiler, name, lambda: True)
    try:
        yield
    finally:
        replaced.restore()


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
    from torch._inductor import config
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    mode = recording()[0]
    # whether operands of odd sizes are padded depends on a timing on the GPU
    with V.set_fake_mode(mode), config.patch(shape_padding=False):
        graph = joint_graph_passes(graph)
    if any("max_pool" in str(node.target) for node in graph.graph.nodes) and _another_torch():
        mode.doubt(POOLED)
    # the states of random numbers that recomputation needs are on the host
    was = partitioners.has_recomputable_rng_ops
    partitioners.has_recomputable_rng_ops = lambda _: False
    try:
        return partitioners.min_cut_rematerialization_partition(
            graph, inputs, compiler="inductor", **options
        )
    finally:
        partitioners.has_recomputable_rng_ops = was


def _another_torch() -> bool:
    """Whether this torch is another one than that with which trainings were measured."""
    return minor_version(str(torch.__version__)) != measured().torch


def _runner(
    options: CompileOptions,
    parameters: int,
    graph: fx.GraphModule,
    inputs: Any,
    backward: bool = False,
    inference: bool = False,
) -> Callable[[list[Any]], Any]:
    """Return what runs a graph. Its first inputs are the ``parameters``, except backwards."""
    mode, function = recording()[0], None
    if mode.architecture is not None:
        try:
            function = _written(graph, inputs, mode.architecture, backward, inference, options)
        except Exception as error:  # inductor's own parts change between versions of torch
            text = SIMPLIFIED.format(why=type(error).__name__)
            mode.doubt(Doubt("compiled", text, "inductor", PERCENT))
    if function is None:
        function = Nodes(graph).run

    static = parameters if not backward else _saved(graph)
    calls = itertools.count()

    def run(inputs: list[Any]) -> Any:
        values = list(inputs)
        inputs.clear()
        with _pooled(mode, options):
            if options.cuda_graphs and not mode.muted and next(calls) == CAPTURING:
                values[static:] = [_in_pool(mode, value) for value in values[static:]]
            return function(values)

    run._boxed_call = True  # type: ignore[attr-defined]  # the caller gives its inputs away
    return run


def _saved(graph: fx.GraphModule) -> int:
    """Return how many inputs of a backward graph its forward graph has saved."""
    return sum(
        node.op == "placeholder" and not str(node.target).startswith("tangents")
        for node in graph.graph.nodes
    )


def _in_pool(mode: Any, value: Any) -> Any:
    """Return a copy of a tensor in the pool of CUDA graphs, unless it is in the pool already."""
    if not isinstance(value, FakeTensor) or value.fake_device != DEVICE:
        return value
    if mode.recorder.trace.streams.get(mode.block(value)) == POOL:
        return value
    return _like(value)


def _written(
    graph: fx.GraphModule,
    inputs: Any,
    chip: tuple[int, int],
    backward: bool,
    inference: bool,
    options: CompileOptions,
) -> inductor.Run:
    """Return what inductor writes for the graph, and tell the backward graph its strides."""
    context = TracingContext.try_get()
    known = context.fw_metadata
    start = 0 if inference else known.num_mutated_inp_runtime_indices
    visible = () if backward else range(start, start + len(known.output_info))
    written = inductor.write(
        graph, inputs, chip, backward=backward, inference=inference, visible=visible,
        max_autotune=options.max_autotune,
    )  # fmt: skip
    with unrecorded(), torch.no_grad():  # so that what it cannot run shows here
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
