"""Run a graph with the code that inductor writes for it on a GPU, without its kernels.

Inductor needs no GPU and no Triton to lower a graph, to decide on layouts, to fuse and to order
kernels, and to write the Python function that calls them. That function allocates each buffer,
reuses and frees it. Here it runs with fake tensors: library kernels take what they take elsewhere,
and the kernels that inductor writes itself take nothing but what timing them takes
(:mod:`.kernel_timing`).
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _python_dispatch as torch_dispatch
from torch.utils._pytree import tree_map

from . import kernel_timing, multiprocessors
from .compiled_record import recording
from .fakes import DEVICE
from .replaced import Replaced

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
_META = torch.device("meta")
_DEVICE_OF = torch.ops.prim.device.default
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
Run = Callable[[list[Any]], Any]


class Written(NamedTuple):
    """The function that inductor writes for one graph."""

    run: Run
    strides: list[Any]
    """The strides of what it returns; None for those that are not known."""


def write(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    architecture: tuple[int, int],
    *,
    backward: bool = False,
    inference: bool = False,
    visible: Sequence[int] = (),
    max_autotune: bool = False,
) -> Written:
    """Compile the graph as inductor does. It raises whatever inductor raises.

    ``visible`` holds the places of the outputs that the program sees, whose strides are kept. With
    ``max_autotune``, what the search for the fastest kernels takes is recorded when the graph first
    runs.
    """
    from torch._inductor import config

    config.compile_threads = 1  # no worker processes: no kernel is compiled
    from torch._inductor import compile_fx, debug
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = _Lowered(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    context = TracingContext(mode)
    outer = TracingContext.try_get()
    # it says which saved tensors the backward graph may write into
    context.fw_metadata = None if outer is None else outer.fw_metadata
    with (
        torch_dispatch._disable_current_modes(),
        torch._C.DisableTorchFunction(),
        tracing(context),
        _as_if_cuda(architecture),
        torch.no_grad(),
    ):
        module = _copied(module, mode)
        output = next(iter(reversed(module.graph.nodes)))
        output.meta["user_visible_output_idxs"] = list(visible)
        view_to_reshape(module)
        compile_fx.fake_tensor_prop(module, [_like(value, mode) for value in inputs])
        compile_fx.record_original_output_strides(module)
        _move(module, mode)
        moved = [_like(value, mode, CUDA) for value in inputs]
        with V.set_fake_mode(mode):
            mode.hidden = True
            compile_fx._recursive_post_grad_passes(module, is_inference=inference)
            mode.hidden = False
            _move(module, mode)  # what the passes have made
            graph = GraphLowering(
                module,
                example_inputs=moved,
                shape_env=mode.shape_env,
                graph_id=0,
                is_inference=inference,
                is_backward=backward,
            )
            seeking: contextlib.AbstractContextManager[list[str]] = (
                kernel_timing.split_sizes_sought() if max_autotune else contextlib.nullcontext([])
            )
            with (
                V.set_graph_handler(graph),
                V.set_extern_kernel_nodes([]),
                V.set_debug_handler(debug.DebugContext()),
                seeking as split,
            ):
                graph.run(*moved)
                strides = [_strides(out) for out in graph.graph_outputs]
                source = graph.codegen()[0]
        text = source if isinstance(source, str) else source.value
    flushed_bytes = kernel_timing.flushed(architecture)
    run = _function(text, graph, flushed_bytes)
    if not max_autotune:
        return Written(run, strides)
    products = kernel_timing.products(module)

    def run_after_search(values: list[Any]) -> Any:
        kernel_timing.search(products, split, flushed_bytes)
        return run(values)

    return Written(run_after_search, strides)


def _strides(output: Any) -> Any:
    try:
        return tuple(int(step) for step in output.get_layout().stride)
    except (AttributeError, NotImplementedError, TypeError):
        return None


class _Lowered(FakeTensorMode):  # type: ignore[misc]  # torch is not type-checked
    """A mode of tensors on ``cuda:0``.

    While it is ``hidden``, torch's own code sees them on no device. A torch without CUDA refuses to
    copy a tensor of a GPU, even if it has no data.
    """

    hidden = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.hidden and func is _DEVICE_OF and isinstance(args[0], FakeTensor):
            return _META
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def _without_device(plain: Any) -> Any:
    """Return ``FakeTensor.__torch_dispatch__`` with the same answer, for where no mode runs."""

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF and getattr(args[0].fake_mode, "hidden", False):
            return _META
        return plain(func, types, args, kwargs or {})

    return classmethod(dispatch)


def _seeing_no_device(rule: Any) -> Any:
    """Return torch's rule for fake convolutions, which sees no device where it has one dimension.

    There it copies rows that do not lie together, which asks the device itself.
    """

    def convolution(mode: FakeTensorMode, func: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if not any(isinstance(one, FakeTensor) and one.dim() == 3 for one in given):
            return rule(mode, func, *args, **kwargs)
        hidden, mode.hidden = getattr(mode, "hidden", False), True
        try:
            return rule(mode, func, *args, **kwargs)
        finally:
            mode.hidden = hidden

    return convolution


def _like(value: Any, mode: FakeTensorMode, device: torch.device = DEVICE) -> Any:
    """Return a tensor of ``mode`` like this one.

    It is on ``device`` where the given one is on the traced device, or on none.
    """
    if not isinstance(value, torch.Tensor):
        return value
    shape = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    place = value.fake_device if isinstance(value, FakeTensor) else value.device
    return FakeTensor(mode, shape, device if place in (DEVICE, _META) else place)


def _copied(module: fx.GraphModule, mode: FakeTensorMode) -> fx.GraphModule:
    """Return a copy of the graph with constants of ``mode``."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    names = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    return fx.GraphModule({name: _like(getattr(module, name), mode) for name in names}, graph)


def _move(module: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Move the graph, whose shapes are known by now, to ``cuda:0``.

    Shapes are found before, because torch asks the device itself where a tensor is indexed.
    """
    for node in module.graph.nodes:
        node.args, node.kwargs = (
            fx.node.map_aggregate(part, lambda one: CUDA if one == DEVICE else one)
            for part in (node.args, node.kwargs)
        )
        if node.op == "get_attr":
            name = str(node.target)
            setattr(module, name, _like(getattr(module, name), mode, CUDA))
        node.meta["val"] = tree_map(lambda one: _like(one, mode, CUDA), node.meta.get("val"))


@contextlib.contextmanager
def _as_if_cuda(architecture: tuple[int, int]) -> Iterator[None]:
    """Let inductor believe that there is a GPU of ``architecture``, and Triton."""
    from torch._inductor import codecache, scheduler
    from torch._inductor.codegen.common import init_backend_registration
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._subclasses import fake_impls, fake_tensor

    processors, threads = multiprocessors.of_gpu(architecture)
    properties = DeviceProperties(
        type="cuda",
        index=0,
        multi_processor_count=processors,
        cc=10 * architecture[0] + architecture[1],
        major=architecture[0],
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=threads,
        warp_size=32,
    )
    replaced = Replaced()
    replaced.change(DeviceProperties, "create", staticmethod(lambda device: properties))
    replaced.change(scheduler, "has_triton", lambda *_: True)
    replaced.change(codecache.CacheBase, "get_system", staticmethod(lambda: {"hash": ""}))
    replaced.change(torch.utils._triton, "triton_hash_with_backend", lambda *_: "")
    replaced.change(fake_tensor, "init_gpu_context", lambda *_: None)
    plain = FakeTensor.__torch_dispatch__
    replaced.change(FakeTensor, "__torch_dispatch__", _without_device(plain))
    rules = fake_impls.op_implementations_dict
    before = {name: rules[name] for name in _CONVOLUTIONS if name in rules}
    rules.update({name: _seeing_no_device(rule) for name, rule in before.items()})
    init_backend_registration()
    try:
        yield
    finally:
        rules.update(before)
        replaced.restore()


# ── the function it writes ────────────────────────────────────────────────────────────────────────


def _function(source: str, graph: Any, flushed_bytes: int) -> Run:
    """Return the function ``call(args)`` of the code that inductor has written."""
    tree = ast.parse(source)
    made = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call"
    )
    made.args.args = made.args.args[-1:]  # it may be a method
    names = _Names(flushed_bytes, kernel_timing.sources(tree))
    names.update(graph.constants)
    code = compile(ast.Module([made], []), "<inductor>", "exec")
    exec(code, names)
    return names["call"]  # type: ignore[no-any-return]


class _Names(dict[str, Any]):
    """The names that the code uses; any other name is a kernel that inductor has written."""

    def __init__(self, flushed_bytes: int, sources: dict[str, str]):
        self._flushed_bytes, self._sources = flushed_bytes, sources
        super().__init__(
            torch=_Torch(),
            aten=aten,
            device=_device,
            empty_strided=torch.empty_strided,
            math=math,
            inf=math.inf,
            nan=math.nan,
            extern_kernels=_Library(),
            assert_size_stride=_nothing,
            assert_alignment=_nothing,
            get_raw_stream=_nothing,
            run_intermediate_hooks=_nothing,
            empty_strided_cuda=functools.partial(_empty, DEVICE),
            empty_strided_cpu=functools.partial(_empty, torch.device("cpu")),
            empty_strided_cpu_pinned=functools.partial(_empty, torch.device("cpu")),
            reinterpret_tensor=_reinterpreted,
        )

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        source = self._sources.get(name, "")
        kernel = self[name] = kernel_timing.Kernel(source, self._flushed_bytes)
        return kernel


class _Torch:
    """Stands for ``torch`` in the code, without choosing a device."""

    class cuda:  # as torch names it
        _DeviceGuard = staticmethod(lambda _: contextlib.nullcontext())
        set_device = staticmethod(lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _device(**named: Any) -> torch.device:
    return DEVICE if named["type"] == "cuda" else torch.device(**named)


def _empty(device: torch.device, size: Any, stride: Any, dtype: torch.dtype) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _reinterpreted(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


class _Library:
    """The library kernels that the code calls by name: ``out`` is where they write."""

    def __getattr__(self, name: str) -> Any:
        operator = getattr(aten, name.removeprefix("bias_"))
        overload = getattr(operator, "default", operator)

        def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            if out is None:
                return operator(*args, **kwargs)
            for mode in recording():
                around = mode.around.get(overload)
                if around is not None and not mode.muted:
                    around(mode.recorder, overload, args, kwargs, out)
            return out

        return call
