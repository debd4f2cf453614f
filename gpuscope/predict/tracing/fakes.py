"""Make tensors without data, and record the storages that they would need on the device.

There are two devices although no GPU is needed: ``cpu`` stands for the host and ``cpu:0`` for the
GPU. torch treats them as different devices (copies between them are real copies, and mixing them is
an error) but as CPU tensors in everything else, so that autograd needs no CUDA. Only storages on
``cpu:0`` are recorded.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from ..request import Doubt
from . import data_dependent, known_values, same_types, value_statistics
from .recorder import BACKWARD, Recorder, operator_name
from .same_types import HALVES

DEVICE = torch.device("cpu", 0)
"""The device that takes the GPU's place."""
HOST = torch.device("cpu")
_META = torch.device("meta")
_NO_HALVES_ON_HOST = re.compile("not implemented for '(?:BFloat16|Half)'")
SPARSE = ("Sparse tensors are counted as the dense tensors they were made from.", 3.0)
SPARSE_MOVED = (
    "A sparse tensor moved to the device is not counted: its number of elements is unknown.",
    15.0,
)
KNOWN_NUMBERS = 1 << 14
"""Tables with up to this many elements have values: on the host all tables, on the device tables of
integers and masks.
"""
KNOWN_FRACTIONS = 1024
"""On the device, tables of other numbers have values up to this size, because nothing depends on
larger tables of angles and the like.
"""
CALCULATED_NUMBERS = 1 << 22
"""Results computed from such tables have values up to this size: masks for every pair of tokens."""
fake_tensor.CONSTANT_NUMEL_LIMIT = CALCULATED_NUMBERS

Around = Callable[[Recorder, Any, tuple[Any, ...], dict[str, Any], Any], None]
"""A function called after an operator: (recorder, operator, args, kwargs, result). It adds what the
CUDA kernel takes besides.
"""


class _DeviceStorage(weakref.ref):  # type: ignore[type-arg]
    """A storage on the device. It is freed together with this object."""

    __slots__ = ("block", "key")
    block: int
    key: int


class Fakes(FakeTensorMode):  # type: ignore[misc]  # torch is not type-checked
    """A mode in which all tensors are fake, and storages on :data:`DEVICE` are recorded.

    ``around`` holds the kernels that take more than their results; ``instead`` replaces an
    operator's own fake.
    """

    def __init__(
        self,
        recorder: Recorder,
        around: dict[Any, Around],
        instead: dict[Any, Callable[..., Any]],
        **options: Any,
    ):
        super().__init__(**{**options, "allow_non_fake_inputs": True})
        self.recorder = recorder
        self.around = around
        self.instead = instead
        self.doubts: dict[tuple[str, str], Doubt] = {}
        self.seen: dict[Any, int] = {}
        """How often each operator was called."""
        self._live: dict[int, _DeviceStorage] = {}
        self.guessed: set[int] = set()
        """The sizes that were guessed."""
        self.guessed_bytes = 0
        """The most bytes at one time in tensors with a side that is a guessed size, or a multiple
        of one.
        """
        self._of_guessed: dict[int, tuple[int, int]] = {}
        """For each such tensor's block its bytes, and these again if its size is at most so."""
        self.at_most: set[int] = set()
        """Those of them of which only the largest possible one is known."""
        self.at_most_bytes = 0
        """The most bytes at one time in tensors of such a size."""
        self._at_most_now = 0
        self._guessed_now = 0
        """The bytes in :attr:`_of_guessed`, kept because there may be many thousand tensors."""
        self.known_numbers = KNOWN_NUMBERS
        self.guesses = True
        """Whether a shape that depends on values is guessed. torch refuses it otherwise."""
        self._nested = False
        self.muted = False
        """Whether nothing is recorded, as while a model is compiled or inside of a kernel."""
        self.architecture: tuple[int, int] | None = None
        """The compute capability of the GPU whose kernels are traced, if any."""
        self.sums_in_place = False
        """Whether autograd's sums of gradients are recorded as additions in place, which is what
        happens on a real GPU.
        """
        self._sum: tuple[int, _DeviceStorage | None, Any] = _NO_SUM

    def __deepcopy__(self, memo: Any) -> Fakes:
        """Keep the same mode for a copied tensor, as of a layer that is cloned."""
        return self

    def doubt(self, doubt: Doubt) -> None:
        self.doubts.setdefault((doubt.code, doubt.operation), doubt)

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Run what is no part of the training: nothing that it allocates is recorded."""
        kept = self.recorder, self.muted
        self.recorder, self.muted = Recorder(), True
        try:
            yield
        finally:
            self.recorder, self.muted = kept

    def block(self, tensor: torch.Tensor) -> int | None:
        """Return the block that holds ``tensor``; None on the host."""
        if tensor.layout is not torch.strided:
            return None
        held = self._live.get(tensor.untyped_storage()._cdata)
        return None if held is None else held.block

    def decide(self, tensor: torch.Tensor, category: str, module: str | None = None) -> None:
        """Record what ``tensor`` has turned out to be; nothing happens on the host."""
        block = self.block(tensor)
        if block is not None:
            self.recorder.decide(block, category, module)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF:
            tensor = args[0]
            if isinstance(tensor, FakeTensor):
                return _META if self.in_kernel_invocation else tensor.fake_device
        if kwargs is None:
            kwargs = {}
        if self._nested:
            return self.dispatch(func, types, args, kwargs)
        if func in _FILLS:
            self.forget_values(args[0])
            if func is _ZERO:
                known_values.RULES[func](func, args, kwargs, args[0])
            value_statistics.filled(self.recorder, func, args, kwargs, args[0])
            return args[0]
        if func in _FILLS_MANY:
            counting = known_values.RULES.get(func)
            if counting is not None:
                counting(func, args, kwargs, None)
            for tensor in args[0]:
                self.forget_values(tensor)
                if counting is None:
                    known_values.forget(tensor)
            return None
        same_types.check(func, args, compiled=self.muted)
        self._nested = True
        try:
            own = self.instead.get(func)
            if func in _COUNTED:
                out = self._compute_small_table(func, args, kwargs)
            elif own is not None:
                out = own(self, func, args, kwargs)
            else:
                out = self.dispatch(func, types, args, kwargs)
                if kwargs and kwargs.get("device") == DEVICE and isinstance(out, FakeTensor):
                    # Values that torch knows are computed on the host, wherever they were
                    # requested.
                    out.fake_device = DEVICE
                    if (
                        out.dtype.is_floating_point
                        and out.numel() > KNOWN_FRACTIONS
                        and not _on_device(args)
                    ):
                        self.forget_values(out)
        except DynamicOutputShapeException:
            if not self.guesses:
                raise
            out = data_dependent.guess(self, func, args, kwargs)
        finally:
            self._nested = False
        if isinstance(out, FakeTensor):
            if out.fake_device.index == 0:
                self.hold(out, func)
        elif isinstance(out, (tuple, list)):
            for part in reversed(out) if func is _DROPOUT else out:  # its mask comes first
                if isinstance(part, FakeTensor) and part.fake_device.index == 0:
                    self.hold(part, func)
        if self.guessed:
            self._follow(func, args, out)
        value = known_values.RULES.get(func)
        if value is not None:
            value(func, args, kwargs, out)
        fact = value_statistics.RULES.get(func)
        if fact is not None:
            fact(self.recorder, func, args, kwargs, out)
        around = self.around.get(func)
        if around is not None and not self.muted:
            around(self.recorder, func, args, kwargs, out)
        if func is _ADD and self.sums_in_place and not torch.is_grad_enabled() and self._backward():
            self._added(args, out)
        return out

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator as torch does, with its result on the device of its tensors.

        Operators for which torch has no fake, and those on known values, are computed on the host.
        """
        try:
            out = super().dispatch(func, types, args, kwargs)
        except NotImplementedError as error:
            halves = [part.dtype for part in _fakes_in(args) if part.dtype in HALVES]
            if not halves or not _NO_HALVES_ON_HOST.search(str(error)):
                raise
            out = self._by_float32(func, types, args, kwargs, halves[0])
        strayed = [part for part in _fakes_in((out,)) if part.fake_device == HOST]
        named = (kwargs or {}).get("device")
        if (
            strayed
            and func not in _ON_HOST
            and (_on_device(args) if named is None else named == DEVICE)
        ):
            for part in strayed:
                part.fake_device = DEVICE
        return out

    def _by_float32(self, func: Any, types: Any, args: Any, kwargs: Any, kind: Any) -> Any:
        """Run an operator in float32 that the host computes, but not in half precision (``kind``).

        Where a GPU has no such kernel either, ``same_types`` has said so.
        """

        def cast(value: Any, source: torch.dtype, to: torch.dtype) -> Any:
            if not isinstance(value, FakeTensor) or value.dtype != source:
                return value
            return super(Fakes, self).dispatch(_TO_COPY, types, (value,), {"dtype": to})

        wide = tree_map(lambda one: cast(one, kind, torch.float32), (args, kwargs or {}))
        out = super().dispatch(func, types, *wide)
        return tree_map(lambda one: cast(one, torch.float32, kind), out)

    def _backward(self) -> bool:
        """Whether autograd is running: in the backward pass, or in one inside the forward pass."""
        return self.recorder.phase == BACKWARD or running_node() is not None

    def _added(self, args: Any, out: Any) -> None:
        """Simulate that autograd adds gradients in place if nothing else refers to the first one.

        It never does so with fake tensors. The sum takes the first one's block if that is freed
        right after.
        """
        first = args[0]
        if (
            first.shape != out.shape
            or first.dtype != out.dtype
            or 0 in first.stride()
            or first._is_view()
        ):
            return
        old, new = (self._live.get(tensor.untyped_storage()._cdata) for tensor in (first, out))
        if old is not None and new is not None and old is not new:
            self._sum = (len(self.recorder.trace.events), old, new)

    def hold(self, tensor: FakeTensor, func: Any) -> None:
        """Record the storage of ``tensor``, a result of ``func``, unless it is known."""
        if self.muted:
            return
        if tensor.layout is not torch.strided:
            moved = func is _TO_COPY
            text, percent = SPARSE_MOVED if moved else SPARSE
            self.doubt(Doubt("sparse", text, "_to_copy" if moved else "", percent, upward=moved))
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self._live.get(key)
        if held is not None:
            if func is _RESIZE and self.recorder.trace.sizes[held.block] < storage.nbytes():
                grown = self.recorder.allocate(storage.nbytes(), "resize_")
                self.recorder.free(held.block)
                held.block = grown
            return
        size = storage.nbytes()
        if not size:
            return
        held = _DeviceStorage(storage, self._release)
        held.key = key
        held.block = self.recorder.allocate(size, operator_name(func))
        self._live[key] = held

    def _release(self, held: _DeviceStorage) -> None:
        if self._live.pop(held.key, None) is None:
            return
        at, old, new = self._sum
        if old is held and at == len(self.recorder.trace.events):
            self.recorder.unmake(new.block)
            new.block = held.block
            self._sum = _NO_SUM
            return
        self._forget_guess(held.block)
        self.recorder.free(held.block)

    def forget_values(self, tensor: Any) -> None:
        """Note a write into ``tensor`` whose values are not computed here."""
        if tensor.constant is not None:
            self.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
            tensor.constant = None

    def _compute_small_table(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute a small table for real, as its values decide how a model is built and masks."""
        out = self.dispatch(func, (), args, kwargs)
        if not isinstance(out, FakeTensor) or out.numel() > self.known_numbers:
            return out
        if any(True for _ in _fakes_in(args[1:] if func in _SAME else args)):
            return out  # a bound or the number itself is in a tensor
        place = out.fake_device
        # such tables are a mask
        fractions = out.dtype.is_floating_point and not (func in _ONES and out.dim() == 2)
        if fractions and (func in _SAME or (place == DEVICE and out.numel() > KNOWN_FRACTIONS)):
            return out
        if place == DEVICE and torch.Tag.nondeterministic_seeded in func.tags:
            return out
        with no_dispatch():
            if func in _SAME:
                number = _SAME[func] if _SAME[func] is not None else args[1]
                real = torch.full(out.shape, number, dtype=out.dtype)
            else:
                real = func(*args, **{**kwargs, "device": None})
        out = self.fake_tensor_converter.from_real_tensor(self, real, make_constant=True)
        out.fake_device = place
        return out

    def _follow_block(self, tensor: FakeTensor) -> None:
        """Note that the size of ``tensor`` depends on a guess."""
        block = self.block(tensor)
        if block is not None:
            self._forget_guess(block)
            size = self.recorder.trace.sizes[block]
            at_most = size if _is_multiple(tensor, self.at_most) else 0
            self._of_guessed[block] = size, at_most
            self._guessed_now += size
            self._at_most_now += at_most
            self.guessed_bytes = max(self.guessed_bytes, self._guessed_now)
            self.at_most_bytes = max(self.at_most_bytes, self._at_most_now)

    def _forget_guess(self, block: int) -> None:
        size, at_most = self._of_guessed.pop(block, (0, 0))
        self._guessed_now -= size
        self._at_most_now -= at_most

    def _follow(self, func: Any, args: Any, out: Any) -> None:
        """Follow results of a tensor of a guessed size that have that size too.

        A tensor into which such a tensor is written is not followed.
        """
        found = [part for part in _fakes_in((out,)) if _is_multiple(part, self.guessed)]
        if not found or func in _SIZED_BY_ARGUMENT:
            return
        sources = args[:1] if func in _INTO else args
        guess = operator_name(func) in data_dependent.SIZED_BY_VALUES
        if guess or any(self.block(part) in self._of_guessed for part in _fakes_in(sources)):
            for part in found:
                self._follow_block(part)


def _is_multiple(tensor: FakeTensor, sizes: set[int]) -> bool:
    return any(side % size == 0 for side in tensor.shape for size in sizes)


def _fakes_in(values: Any) -> Iterator[FakeTensor]:
    """Return the fake tensors among an operator's arguments or results, also those in lists."""
    for value in values:
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, FakeTensor):
                yield part


def _on_device(args: Any) -> bool:
    return any(part.fake_device == DEVICE for part in _fakes_in(args))


_aten = torch.ops.aten
running_node = getattr(torch._C, "_current_autograd_node", lambda: None)
"""Returns the autograd node that is running; None if none is, or if this torch cannot say."""
_ADD = _aten.add.Tensor
_DROPOUT = _aten.native_dropout.default
_NO_SUM: tuple[int, _DeviceStorage | None, Any] = (-1, None, None)
_DEVICE_OF = torch.ops.prim.device.default
_RESIZE = _aten.resize_.default
_TO_COPY = _aten._to_copy.default
_ZERO = _aten.zero_.default


def _overloads(names: str) -> frozenset[Any]:
    """Return all overloads of the operators with these names that this torch has."""
    packets = [getattr(_aten, name) for name in names.split() if hasattr(_aten, name)]
    return frozenset(
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if "out" not in overload
    )


_INTO = _overloads(
    "index_put index_put_ _index_put_impl_ index_add scatter_add masked_scatter index_copy"
)
"""Operators whose results have the size of the first argument."""
_SIZED_BY_ARGUMENT = _overloads("new_zeros new_empty new_full select_backward slice_backward")
"""Operators whose result size is an argument: in a backward pass, the size of the tensor that was
indexed.
"""
_ONES = _overloads("ones")
_SAME: dict[Any, int | None] = {
    **dict.fromkeys(_ONES | _overloads("ones_like"), 1),
    **dict.fromkeys(_overloads("zeros zeros_like"), 0),
    **dict.fromkeys(_overloads("full full_like"), None),
}
"""Operators that make tensors of one number, with the position of the number if it is an argument.
"""
_COUNTED = _overloads("linspace arange scalar_tensor randperm eye") | _SAME.keys()
_ON_HOST = _overloads("_pack_padded_sequence _pin_memory") | {torch.ops.prims.device_put.default}
"""Operators whose results are on the host although their tensors are on the device."""
_FILLS = _overloads("uniform_ normal_ zero_ random_ bernoulli_ exponential_ trunc_normal_")
"""Operators that only change a tensor's values, so that there is nothing to do."""
_FILLS_MANY = _overloads(
    "_foreach_zero_ _foreach_add_ _foreach_mul_ _foreach_div_ _foreach_sub_ _foreach_lerp_ "
    "_foreach_addcmul_ _foreach_addcdiv_ _foreach_sqrt_ _foreach_neg_ _foreach_reciprocal_ "
    "_foreach_copy_ _foreach_maximum_ _foreach_minimum_ _foreach_clamp_max_ _foreach_clamp_min_ "
    "_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_ "
    "_amp_foreach_non_finite_check_and_unscale_"
)
"""The same for lists: optimizers call them with hundreds of tensors."""
