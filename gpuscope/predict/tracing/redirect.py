"""Redirect a program that uses ``cuda`` to the traced device, and answer its queries to CUDA."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as torch_dispatch

from ..request import FIRST_DEVICE, Doubt
from . import (
    bitsandbytes_layers,
    compiling,
    data_dependent,
    data_parallel,
    distributed,
    files,
    flex,
    half_fourier,
    interface,
)
from .cuda_answers import accelerator, answers, none
from .ddp import KeptTensors
from .fakes import DEVICE
from .known_values import Unsure
from .known_values import of as known_value
from .replaced import Replaced

CUDA = torch.device("cuda")
"""The device on which a factory is asked to build."""


def stand_in(device: Any) -> Any:
    """Return :data:`DEVICE` for anything that names a GPU; everything else unchanged."""
    if isinstance(device, torch.device):
        return DEVICE if device.type == "cuda" else device
    if isinstance(device, str):
        return DEVICE if device.startswith("cuda") else device
    if isinstance(device, int) and not isinstance(device, bool):
        return DEVICE
    return device


_IGNORED = ("generator", "pin_memory")


class Redirect(TorchFunctionMode):  # type: ignore[misc]  # torch is not type-checked
    """A mode in which no call of torch's Python interface uses a real GPU."""

    of_tracing = True
    """It is no part of the program, for what compiles that."""

    def __init__(self, doubt: Callable[[Doubt], None]):
        super().__init__()
        self.doubt = doubt

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            device = kwargs.get("device")
            if device is not None or "generator" in kwargs or "pin_memory" in kwargs:
                kwargs = {name: value for name, value in kwargs.items() if name not in _IGNORED}
                if device is not None:
                    kwargs["device"] = stand_in(device)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


def _to(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) > 1 and isinstance(args[1], (str, torch.device, int)):
        args = (args[0], stand_in(args[1]), *args[2:])
    return func(*args, **kwargs)


def _cuda(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].to(DEVICE)


def _seen_device(tensor: Any) -> torch.device:
    """Return ``FakeTensor.device``.

    The program gets a GPU as the answer; torch and our own code get the device in its place.
    """
    if tensor.fake_mode.in_kernel_invocation:
        return _META
    device = tensor.fake_device
    if device == DEVICE:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        if not asking.startswith(_INSIDE):
            return FIRST
    return device


def _get_device(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    return 0 if args[0].device == DEVICE else -1


def _type(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    """Replace ``Tensor.type``, because names of types may contain a GPU."""
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        name = func(args[0])
        return name.replace("torch.", "torch.cuda.", 1) if args[0].device == DEVICE else name
    name = f"{wanted.__module__}.{wanted.__name__}" if isinstance(wanted, type) else str(wanted)
    if not name.startswith("torch.cuda."):
        return func(*args, **kwargs)
    return args[0].to(device=DEVICE, dtype=interface.TYPES[name.rpartition(".")[2]])


def _numpy(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not isinstance(tensor, FakeTensor):
        return func(*args, **kwargs)
    if kwargs.get("force"):
        tensor = tensor.detach().cpu()
    return interface.into_numpy(tensor, mode.doubt)


def _array(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    """Replace ``Tensor.__array__``, which numpy calls for a tensor."""
    made = _numpy(mode, torch.Tensor.numpy, args[:1], {})
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    return made if wanted is None else made.astype(wanted, copy=False)


def _formatted(mode: Redirect, func: Any, args: Any, kwargs: Any) -> str:
    """Format a value, as in ``f"{loss:.4f}"``; what is printed decides nothing."""
    tensor, how = args
    if not isinstance(tensor, FakeTensor) or tensor.dim():
        return str(func(*args, **kwargs))
    return format(data_dependent.plain_value(tensor), how)


def _item(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    fraction = isinstance(tensor, FakeTensor) and tensor.dtype.is_floating_point
    if fraction and tensor.numel() == 1 and not compiling.running():  # it takes plain numbers only
        return data_dependent.read(tensor)
    return func(*args, **kwargs)


def _istft(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    given = {"x" if name == "input" else name: value for name, value in kwargs.items()}
    with mode:
        return interface.istft(*args, **given)


def _indexed(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    """Index a tensor, also by lists of tensors of one number, whose memory torch would read.

    Only how many there are decides a shape, so each of them is as good as zero.
    """
    index = args[1]
    if isinstance(index, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in index):
        args = (args[0], type(index)(map(_plain_places, index)), *args[2:])
    elif isinstance(index, list):
        args = (args[0], _plain_places(index), *args[2:])
    return func(*args, **kwargs)


def _plain_places(places: Any) -> Any:
    if not isinstance(places, (list, tuple)):
        return places
    if any(isinstance(one, (list, tuple)) for one in places):
        return [_plain_places(one) for one in places]
    if not places or not all(_is_place(one) for one in places):
        return places
    return [0 if isinstance(one, FakeTensor) else one for one in places]


def _is_place(value: Any) -> bool:
    """Whether a value is a whole number, plain or in a tensor."""
    if isinstance(value, FakeTensor):
        return value.numel() == 1 and value.dtype in _WHOLE
    return isinstance(value, int) and not isinstance(value, bool)


_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


def _same(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _from_data(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    kwargs = dict(kwargs)
    device = kwargs.pop("device", None)
    for number in args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]:
        if isinstance(number, Unsure):
            number.doubt()  # as a value of a tensor it would count as certain
    inside: list[FakeTensor] = []
    if args and isinstance(args[0], (list, tuple)):
        args = (_numbers_in(args[0], inside), *args[1:])
        if inside and kwargs.get("dtype") is None:
            kwargs["dtype"] = functools.reduce(torch.promote_types, (one.dtype for one in inside))
    made = func(*args, **kwargs)
    if any(known_value(one) is None for one in inside):
        made.fake_mode.forget_values(made)
    return made if device is None or made.device == device else made.to(device)


def _numbers_in(values: Any, inside: list[FakeTensor]) -> Any:
    """Return lists of numbers in place of ``values``, whose tensors are added to ``inside``."""
    if isinstance(values, FakeTensor):
        inside.append(values)
        number = data_dependent.plain_value(values)
        for side in reversed(values.shape):
            number = [number] * side
        return number
    if isinstance(values, (list, tuple)):
        return [_numbers_in(one, inside) for one in values]
    return values


def _new_tensor(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    options = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
    return _from_data(mode, torch.tensor, args[1:], options)


def _new(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    """Replace ``Tensor.new`` of older programs: a tensor of the first one's type and device."""
    like, given = args[0], args[1:]
    device = stand_in(kwargs.get("device") or like.device)
    if len(given) == 1 and isinstance(given[0], torch.Tensor):
        return given[0].to(device=device, dtype=like.dtype)
    with mode:
        return interface.from_shape_or_numbers(given, like.dtype, device)


def _deepcopy(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    """Copy a tensor whose values are known: torch cannot copy these together with it."""
    tensor, memo = args
    if getattr(tensor, "constant", None) is None or tensor.requires_grad or id(tensor) in memo:
        return func(*args, **kwargs)
    memo[id(tensor)] = made = tensor.clone()
    return made


def _is_cuda(mode: Redirect, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].device == DEVICE


FIRST = torch.device("cuda", 0)
_META = torch.device("meta")
_INSIDE = ("torch.", "torchao.", "bitsandbytes._ops", "gpuscope.predict.")
"""Modules that get the device in the GPU's place."""


_SPECIAL = {
    torch.Tensor.get_device: _get_device,
    torch.Tensor.type: _type,
    torch.Tensor.item: _item,
    torch.Tensor.__getitem__: _indexed,
    torch.Tensor.__setitem__: _indexed,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.__format__: _formatted,
    torch.istft: _istft,
    torch.Tensor.istft: _istft,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.Tensor.pin_memory: _same,
    torch.Tensor.record_stream: _same,
    torch.Tensor.is_cuda.__get__: _is_cuda,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.asarray: _from_data,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.new: _new,
    **half_fourier.INSTEAD,
}


class _NeverInstance(type(FakeTensor)):  # type: ignore[misc]
    """Answers a program that a tensor is not a fake one.

    Otherwise transformers would make masks that it does not make in a real training.
    """

    def __instancecheck__(cls, value: Any) -> bool:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return asking.startswith(_INSIDE) and isinstance(value, FakeTensor)


class _Unseen(FakeTensor, metaclass=_NeverInstance):  # type: ignore[misc]
    pass


@contextlib.contextmanager
def redirected(doubt: Callable[[Doubt], None]) -> Iterator[None]:
    """Redirect as :class:`Redirect` does, also inside a backward pass.

    Recomputation and the user's own Functions run there. torch disables a mode while it handles a
    call, and the whole backward pass is one call.
    """
    mode, owner = Redirect(doubt), torch.autograd
    plain = getattr(owner, "_engine_run_backward", None)
    fakes, run_thread = torch_dispatch._get_current_dispatch_mode(), threading.Thread.run

    def in_thread(thread: threading.Thread) -> None:
        """Enter the modes in another thread: a loader's own threads make fakes, too."""
        with contextlib.ExitStack() as stack:
            if fakes is not None:
                torch_dispatch._push_mode(fakes)
                stack.callback(torch_dispatch._pop_mode)
            stack.enter_context(mode)
            run_thread(thread)

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return plain(*args, **kwargs)  # type: ignore[misc]

    if plain is not None:
        owner._engine_run_backward = run
    threading.Thread.run = in_thread  # type: ignore[method-assign, assignment]
    torch._subclasses.FakeTensor = _Unseen
    try:
        with mode:
            yield
    finally:
        torch._subclasses.FakeTensor = FakeTensor
        threading.Thread.run = run_thread  # type: ignore[method-assign]
        if plain is not None:
            owner._engine_run_backward = plain


def _move(module: torch.nn.Module, move: Any, recurse: bool = True) -> torch.nn.Module:
    """Move a module as ``Module._apply`` does.

    torch's own function cannot move a fake parameter to another device and keep its identity.
    """
    if recurse:
        for child in module.children():
            child._apply(move)
    for name, parameter in list(module._parameters.items()):
        if parameter is None:
            continue
        for tensor in (parameter, parameter.grad):
            if tensor is None:
                continue
            with torch.no_grad():
                moved = move(tensor)
            if moved is tensor:
                continue
            if tensor is parameter and (tensor.is_meta or moved.is_meta):
                module._parameters[name] = torch.nn.Parameter(
                    moved.detach(), parameter.requires_grad
                )
                # without memory there is no gradient, and it becomes another parameter, as with
                # torch's own function
                break
            tensor.data = moved.detach()
            tensor.fake_device, tensor.constant = moved.fake_device, None
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = move(buffer)
    return module


@contextlib.contextmanager
def pretended(
    architecture: tuple[int, int],
    live_bytes: Callable[[], int],
    doubt: Callable[[Doubt], None],
    shelf: KeptTensors,
) -> Iterator[None]:
    """Show the program a CUDA with one device of ``architecture``, whose functions have no effect.

    Loaders load in this process, and functions that would be compiled run as they are written.
    """
    cuda, module = torch.cuda, torch.nn.Module
    replaced = Replaced()
    change = replaced.change

    for name, answer in answers(architecture, live_bytes, doubt).items():
        change(cuda, name, answer)
    for name, answer in accelerator(live_bytes).items():
        change(getattr(torch, "accelerator", None), name, answer)  # since torch 2.6
    files.install()
    stored = files.Files()
    change(torch, "load", stored.load)
    change(torch, "save", stored.save)
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        change(cuda.nvtx, name, none)
    for name, dtype in interface.TYPES.items():
        change(cuda, name, interface.legacy(name, dtype))
    make = torch.Tensor._make_subclass
    change(
        torch.Tensor,
        "_make_subclass",
        staticmethod(bitsandbytes_layers.subclass_maker(make, doubt, _SPECIAL.update)),
    )
    # bitsandbytes asks for it when it is imported, and a torch without CUDA does not have it
    replaced.add(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
    change(torch.Tensor, "record_stream", none)  # the stream of an event that has none
    change(FakeTensor, "device", property(_seen_device))
    change(module, "_apply", _move)
    change(module, "cuda", lambda self, device=None: self._apply(lambda tensor: tensor.to(DEVICE)))
    to = module.to

    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (stand_in(args[0]), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = stand_in(kwargs["device"])
        return to(self, *args, **kwargs)

    change(module, "to", module_to)

    def passed_on(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not data_parallel.divides(self.module):
            doubt(FIRST_DEVICE)
        return self.module(*args, **kwargs)

    change(torch.nn.DataParallel, "forward", passed_on)  # as it does with one device
    change(torch, "Generator", _Generator)
    change(torch, "set_default_device", lambda device: _default_device(stand_in(device)))
    loader = torch.utils.data.DataLoader
    change(loader, "__init__", _in_this_process(loader.__init__))

    def compiled(model: Any = None, *_: Any, **named: Any) -> Any:
        if getattr(model, "__name__", "") == flex.WRAPPER:
            return model
        kernels.compiled = True
        if model is None:
            return lambda function: compiled(function, **named)
        if getattr(model, "__module__", "") == flex.MODULE:
            return model  # it is traced as it runs when compiled
        options = compiling.CompileOptions.of(named.get("mode"))
        if isinstance(model, torch.nn.Module):
            compiling.install(model, options)
            return model
        return compiling.compiled(model, options)

    kernels = flex.Flex(doubt)
    for owner, name, value in (*kernels.replaced(), *distributed.Group(doubt, shelf).replaced()):
        change(owner, name, value)
    change(torch, "compile", compiled)
    change(module, "compile", lambda self, *_, **named: compiled(self, **named) and None)
    try:
        yield
    finally:
        _default_device(None)
        replaced.restore()


_default_device = torch.set_default_device


_OF_WORKERS = (
    "pin_memory", "persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context",
)  # fmt: skip


def _in_this_process(plain: Any) -> Any:
    """Return ``DataLoader.__init__`` for a loader that has no worker processes."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in _OF_WORKERS:
            kwargs.pop(name, None)
        if "num_workers" in kwargs:
            kwargs["num_workers"] = 0
        plain(self, *args, **kwargs)

    return init


_RealGenerator = torch.Generator


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RealGenerator)


class _Generator(metaclass=_AnyGenerator):
    """Replaces ``torch.Generator`` for every device by the host's; nothing draws from it."""

    def __new__(cls, device: Any = None) -> Any:
        return _RealGenerator()
