"""Run a program as ``torch.compile`` would: in graphs, with fused kernels between them.

Dynamo itself reads the program and cuts it into graphs (:mod:`.dynamo`). Inductor's front end
passes them through its own passes and AOTAutograd, and splits them by its own partitioner. So where
graphs break, and what is kept for the backward pass, is torch's own choice. The graphs then run as
the code that inductor writes for them (:mod:`.inductor`), with fake tensors.

Where a version of torch differs so much that this fails, and where a CPU's own kernels are traced,
the graphs are run node by node (:mod:`.simplified_fusion`). Where dynamo itself fails, the program
runs as it is written.

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
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _python_dispatch as torch_dispatch

from ..measured_kernels import measured, minor_version
from ..request import CUDA_GRAPHS, SEARCHING, Doubt
from . import inductor, padding, workspaces
from .compiled_record import recording, unrecorded
from .fakes import DEVICE
from .replaced import Replaced
from .simplified_fusion import Nodes

try:
    from . import dynamo
except (ImportError, AttributeError):  # the dynamo of this torch has other parts
    dynamo = None  # type: ignore[assignment]

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
BROKEN = "A part of the compiled model could not be traced ({why}): it was traced in eager mode."
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


def install(module: torch.nn.Module, options: CompileOptions = PLAIN) -> None:
    """Compile ``module`` in place, as ``module.compile()`` does."""
    module._compiled_call_impl = compiled(module._call_impl, options)


def compiled(call: Callable[..., Any], options: CompileOptions = PLAIN) -> Callable[..., Any]:
    """Return a compiled ``call``, as ``torch.compile`` does."""

    def backend(mode: Any, graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return _compiled_graph(mode, options, graph, inputs)

    def eager(*args: Any, **kwargs: Any) -> Any:
        for mode in recording():
            _break(mode, "no dynamo")
        return call(*args, **kwargs)

    return eager if dynamo is None else dynamo.compiled(call, options, backend, _break)


def _break(mode: Any, why: str) -> None:
    mode.doubt(Doubt("compiled", BROKEN.format(why=why), "graph break", BROKEN_PERCENT))


def running() -> bool:
    return dynamo is not None and dynamo.running()


def forgotten_after() -> contextlib.AbstractContextManager[None]:
    """Forget afterwards what was compiled inside."""
    return contextlib.nullcontext() if dynamo is None else dynamo.forgotten_after()


def _compiled_graph(
    mode: Any, options: CompileOptions, graph: fx.GraphModule, inputs: Any
) -> Callable[..., Any]:
    """Return what runs one graph of dynamo's in ``mode``, as inductor's front end makes it."""
    import torch._functorch.config as cached
    from torch._functorch import partitioners
    from torch._inductor.compile_fx import compile_fx

    mode.doubt(Doubt("compiled", TRACED, "torch.compile", LOWERED_PERCENT))
    if options.cuda_graphs:
        mode.doubt(CAPTURED)
    if options.max_autotune:
        mode.doubt(SEARCHED)
    replaced = Replaced()
    # the states of random numbers that recomputation needs are on the host
    replaced.change(partitioners, "has_recomputable_rng_ops", lambda _: False)
    try:
        with padding.decided(mode), cached.patch(enable_autograd_cache=False):
            made: Callable[..., Any] = compile_fx(
                graph, inputs, inner_compile=functools.partial(_runner, mode, options)
            )
            return made
    finally:
        replaced.restore()


@contextlib.contextmanager
def _pooled(mode: Any, options: CompileOptions) -> Iterator[None]:
    """Take blocks from the pool of CUDA graphs, if the graphs are captured."""
    if not options.cuda_graphs:
        yield
        return
    workspaces.clear(mode.recorder)
    mode.recorder.pool = POOL
    try:
        yield
    finally:
        workspaces.clear(mode.recorder)
        mode.recorder.pool = 0


def _another_torch() -> bool:
    """Whether this torch is another one than that with which trainings were measured."""
    return minor_version(str(torch.__version__)) != measured().torch


def _runner(
    mode: Any,
    options: CompileOptions,
    graph: fx.GraphModule,
    inputs: Any,
    *,
    static_input_idxs: Sequence[int] = (),
    is_backward: bool = False,
    is_inference: bool = False,
    **_: Any,
) -> Callable[[list[Any]], Any]:
    """Return what runs a graph that inductor is given."""
    if any("max_pool" in str(node.target) for node in graph.graph.nodes) and _another_torch():
        mode.doubt(POOLED)
    function = None
    if mode.architecture is not None:
        try:
            function = _written(mode, graph, inputs, is_backward, is_inference, options)
        except Exception as error:  # inductor's own parts change between versions of torch
            text = SIMPLIFIED.format(why=type(error).__name__)
            mode.doubt(Doubt("compiled", text, "inductor", PERCENT))
    if function is None:
        function = Nodes(graph).run

    static, calls = frozenset(static_input_idxs), itertools.count()

    def run(inputs: list[Any]) -> Any:
        values = list(inputs)
        inputs.clear()
        with _pooled(mode, options):
            if options.cuda_graphs and not mode.muted and next(calls) == CAPTURING:
                for at, value in enumerate(values):
                    if at not in static:
                        values[at] = _in_pool(mode, value)
            return function(values)

    run._boxed_call = True  # type: ignore[attr-defined]  # the caller gives its inputs away
    return run


def _in_pool(mode: Any, value: Any) -> Any:
    """Return a copy of a tensor in the pool of CUDA graphs, unless it is in the pool already."""
    if not isinstance(value, FakeTensor) or value.fake_device != DEVICE:
        return value
    if mode.recorder.trace.streams.get(mode.block(value)) == POOL:
        return value
    return _like(value)


def _written(
    mode: Any,
    graph: fx.GraphModule,
    inputs: Any,
    backward: bool,
    inference: bool,
    options: CompileOptions,
) -> inductor.Run:
    """Return what inductor writes for the graph, and report the strides of a forward graph."""
    output = next(iter(reversed(graph.graph.nodes)))
    written = inductor.write(
        graph, inputs, mode.architecture, backward=backward, inference=inference,
        visible=output.meta.get("user_visible_output_idxs", ()), max_autotune=options.max_autotune,
    )  # fmt: skip
    with torch_dispatch._disable_current_modes(), mode, unrecorded(), torch.no_grad():
        written.run([_like(value) for value in inputs])  # so that what it cannot run shows here
    context = TracingContext.try_get()
    if not backward and context.output_strides is not None:
        context.output_strides.extend(written.strides)
    return written.run


def _like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.fake_device
    )
