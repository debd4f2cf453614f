"""Let dynamo read a compiled program, with fake tensors for a GPU that is not there.

Dynamo decides where graphs break, what runs between them, what is checkpointed and which inputs are
static. It sees the program as on a GPU:

- It makes the tensors that it traces with in a mode of its own (:class:`_Captured`), which chooses
  the kernels of the GPU, but knows no values: a graph breaks wherever a value is read.
- A tensor on the traced device is on ``cuda:0`` for the program.
- The redirection of ``cuda`` (:mod:`.redirect`) and the hooks that name modules
  (:mod:`.modules`) are no part of the program.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # before its functions are replaced
from torch._dynamo import config, convert_frame, symbolic_convert, utils
from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy
from torch._dynamo.variables import builder
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks
from torch.utils import _python_dispatch as torch_dispatch

from . import data_dependent
from .compiled_record import recording
from .fakes import DEVICE
from .op_cache import Quick
from .replaced import Replaced

TorchInGraphFunctionVariable._get_handlers()  # they are kept, and must be those of torch itself
CUDA = torch.device("cuda", 0)
_HERE = os.path.dirname(__file__) + os.sep
_HOOKS = (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called",
)  # fmt: skip
_KERNELS = (
    ("op_cache.py", "__torch_dispatch__"), ("redirect.py", "__torch_function__"),
    ("redirect.py", "_seen_device"), ("kernels.py", "<lambda>"), ("autocast.py", "__call__"),
    ("ddp.py", ""),
)  # fmt: skip
"""The functions through which torch reaches the tracing: nothing below them is the program's."""
_WRAPPERS = (("distributed.py", "_forward"),)
"""Functions that are no part of the program, but call it."""
_LEFT_ALONE = ConvertFrameReturn(
    frame_exec_strategy=FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
)
_SKIPPED = ConvertFrameReturn()
_NONE: dict[int, Any] = {}
Backend = Callable[[Any, Any, Any], Callable[..., Any]]
"""Takes the mode in which the program runs, a graph of dynamo's, and its inputs."""
Failed = Callable[[Any, str], None]
"""Is told the mode, and why a part of the program runs as it is written."""


class _Captured(Quick):
    """The mode in which a graph is traced. Nothing is recorded, and no value is known."""

    def __init__(self, outer: Any, **options: Any):
        super().__init__(
            outer.recorder,
            outer.around,
            {
                func: own
                for func, own in outer.instead.items()
                if func not in data_dependent.READ_VALUES
            },
            **options,
        )
        self.muted = True
        self.guesses = False
        self.known_numbers = 0
        self.architecture, self.doubts = outer.architecture, outer.doubts


@dataclass(frozen=True)
class _Backend:
    """Compiles dynamo's graphs.

    Calls whose backends are equal share their graphs, as layers do that are compiled one by one.
    """

    key: Any
    backend: Backend = field(compare=False)

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        context = TracingContext.get()
        with torch_dispatch._disable_current_modes():
            inside = [
                context.fake_mode.from_tensor(one) if isinstance(one, torch.Tensor) else one
                for one in inputs
            ]
        mode, redirect = _outer[-1]
        with redirect:
            return self.backend(mode, graph, inside)


def compiled(
    call: Callable[..., Any], key: Any, backend: Backend, failed: Failed
) -> Callable[..., Any]:
    """Return ``call`` as ``torch.compile`` does, with its graphs compiled by ``backend``.

    Backends with the same key do the same.
    """
    optimized: Any = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal optimized
        mode = next(iter(recording()), None)
        if mode is None:  # a function that outlives its training
            return call(*args, **kwargs)
        if optimized is None:
            try:
                optimized = torch._dynamo.optimize(_Backend(key, backend))(call)
            except Exception as error:  # as where Python is newer than this torch
                failed(mode, type(error).__name__)
                optimized = call
        with _front_end(mode, failed):
            return optimized(*args, **kwargs)

    run._torchdynamo_inline = call  # type: ignore[attr-defined]  # what another graph traces
    return run


_outer: list[tuple[Any, Any]] = []
"""The modes in which compiled programs run, and their redirections, the innermost last."""


def running() -> bool:
    """Whether a compiled program is running."""
    return bool(_outer)


@contextlib.contextmanager
def _front_end(mode: Any, failed: Failed) -> Iterator[None]:
    """Let dynamo compile what is called, and see the program as on a GPU while it does."""
    stack = torch.overrides._get_current_function_mode_stack()
    found = (one for one in stack if hasattr(one, "of_tracing"))
    redirect = next(found, contextlib.nullcontext())
    compile_frame, called = convert_frame._compile, convert_frame.CatchErrorsWrapper.__call__

    def compile_as_on_gpu(*args: Any, **named: Any) -> Any:
        with _as_on_gpu(mode, redirect):
            return compile_frame(*args, **named)

    def call(self: Any, frame: Any, *args: Any, **named: Any) -> Any:
        code = frame.f_code
        if _is_in(code, _KERNELS):
            return _LEFT_ALONE
        return _SKIPPED if _is_in(code, _WRAPPERS) else called(self, frame, *args, **named)

    replaced = Replaced()
    replaced.change(convert_frame, "_compile", compile_as_on_gpu)
    replaced.change(convert_frame.CatchErrorsWrapper, "__call__", call)
    for name in _HOOKS:
        replaced.change(hooks, name, _NONE)
    quiet = _Failures(functools.partial(failed, mode))
    convert_frame.log.addFilter(quiet)
    _outer.append((mode, redirect))
    try:
        # each shape is compiled by itself: the graph that torch makes for all sizes, when it meets
        # a second one, takes the same for each size
        with config.patch(
            suppress_errors=True, automatic_dynamic_shapes=False, assume_static_by_default=True
        ):
            yield
    finally:
        _outer.pop()
        convert_frame.log.removeFilter(quiet)
        replaced.restore()


@contextlib.contextmanager
def _as_on_gpu(mode: Any, redirect: Any) -> Iterator[None]:
    """Trace the program with fake tensors that are on a GPU."""
    plain_modes, run_node = symbolic_convert.SymbolicTorchFunctionState, utils.run_node
    streams = getattr(symbolic_convert, "SymbolicStreamState", None)
    specialized, dimensions = TensorVariable.specialize, builder._automatic_dynamic

    def captured(**options: Any) -> Any:
        return _Captured(mode, **options)

    def modes(stack: Any, **options: Any) -> Any:
        return plain_modes([one for one in stack if one is not redirect], **options)

    def run_redirected(*args: Any, **named: Any) -> Any:
        with redirect:
            return run_node(*args, **named)

    def no_streams() -> Any:
        answered = Replaced()
        answered.change(torch.accelerator, "is_available", lambda: False)
        try:
            return streams()  # type: ignore[misc]
        finally:
            answered.restore()

    def fixed(
        tensor: Any, tx: Any, source: Any, static_shapes: bool, *args: Any, **named: Any
    ) -> Any:
        return dimensions(tensor, tx, source, True, *args, **named)

    def specialize(value: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = specialized(value)
        return {**found, "device": CUDA if found["device"] == DEVICE else found["device"]}

    replaced = Replaced()
    replaced.change(torch._subclasses, "FakeTensorMode", captured)
    replaced.change(torch._subclasses, "FakeTensor", FakeTensor)
    replaced.change(symbolic_convert, "SymbolicTorchFunctionState", modes)
    replaced.change(symbolic_convert, "SymbolicStreamState", no_streams)
    replaced.change(utils, "run_node", run_redirected)
    replaced.change(builder, "_automatic_dynamic", fixed)
    replaced.change(TensorVariable, "specialize", staticmethod(specialize))
    for name in ("set_autocast_enabled", "set_autocast_dtype"):
        replaced.change(torch, name, _on_cpu(getattr(torch, name)))
    # what torch says of the compilation is for one on a GPU
    shown = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(shown)
        replaced.restore()


def _on_cpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that changes autocast of ``cuda``, for which that of the CPU stands."""

    def change(device: Any, *args: Any) -> Any:
        return plain("cpu" if device == "cuda" else device, *args)

    return change


def _is_in(code: Any, functions: Sequence[tuple[str, str]]) -> bool:
    """Whether the code is that of a function, or of any in a file."""
    name: str = code.co_filename
    file, own = name[len(_HERE) :], name.startswith(_HERE)
    return own and ((file, code.co_name) in functions or (file, "") in functions)


class _Failures(logging.Filter):
    """Tells what dynamo fails at instead of logging it."""

    def __init__(self, failed: Callable[[str], None]):
        super().__init__()
        self._failed = failed

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.WARNING and error is not None:
            self._failed(type(getattr(error, "inner_exception", error)).__name__)
        return False


@contextlib.contextmanager
def forgotten_after() -> Iterator[None]:
    """Forget afterwards what was compiled inside."""
    try:
        yield
    finally:
        torch._dynamo.reset()
