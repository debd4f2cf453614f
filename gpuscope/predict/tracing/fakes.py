"""Make tensors without data, and record the storages that they would need on the device.

There are two devices although no GPU is needed: ``cpu`` stands for the host and ``cpu:0`` for the
GPU. torch treats them as different devices (copies between them are real copies, and mixing them is
an error) but as CPU tensors in everything else, so that autograd needs no CUDA. Only storages on
``cpu:0`` are recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from ..request import Doubt
from . import known_values, value_statistics
from .recorder import BACKWARD, Recorder

DEVICE = torch.device("cpu", 0)
"""The device that takes the GPU's place."""
HOST = torch.device("cpu")
_META = torch.device("meta")
SPARSE_PERCENT, MOVED_PERCENT = 3.0, 15.0
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
    operator's own fake. ``guess(fakes, operator, args, kwargs)`` returns the result of an operator
    whose size depends on values, and ``sized_by_values`` holds the names of these operators.
    """

    def __init__(
        self,
        recorder: Recorder,
        around: dict[Any, Around],
        instead: dict[Any, Callable[..., Any]],
        guess: Callable[..., Any],
        sized_by_values: Collection[str],
    ):
        super().__init__(allow_non_fake_inputs=True)
        self.recorder = recorder
        self.around = around
        self.instead = instead
        self.guess = guess
        self.sized_by_values = sized_by_values
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
        self._of_guessed: dict[int, int] = {}
        self.known_numbers = KNOWN_NUMBERS
        self._nested = False
        self.muted = False
        """Whether nothing is recorded, as while a model is compiled or inside of a kernel."""
        self.architecture: tuple[int, int] | None = None
        """The compute capability of the GPU whose kernels are traced, if any."""
        self.sums_in_place = False
        """Whether sums of autograd are recorded as they happen without any mode that watches
        tensors.
        """
        self._sum: tuple[int, _DeviceStorage | None, Any] = _NO_SUM

    def __deepcopy__(self, memo: Any) -> Fakes:
        """Keep the same mode for a copied tensor, as of a layer that is cloned."""
        return self

    def doubt(self, doubt: Doubt) -> None:
        self.doubts.setdefault((doubt.code, doubt.operation), doubt)

    def block(self, tensor: torch.Tensor) -> int | None:
        """Return the block that holds ``tensor``; None on the host."""
        if tensor.layout is not torch.strided:
            return None
        held = self._live.get(tensor.untyped_storage()._cdata)
        return None if held is None else held.block

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
            self._write(args[0])
            if func is _ZERO:
                known_values.RULES[func](func, args, kwargs, args[0])
            return args[0]
        if func in _FILLS_MANY:
            counting = known_values.RULES.get(func)
            if counting is not None:
                counting(func, args, kwargs, None)
            for tensor in args[0]:
                self._write(tensor)
                if counting is None:
                    known_values.forget(tensor)
            return None
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
                        self._write(out)
        except DynamicOutputShapeException:
            out = self.guess(self, func, args, kwargs)
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
        out = super().dispatch(func, types, args, kwargs)
        strayed = [
            part
            for part in (out if isinstance(out, (tuple, list)) else (out,))
            if isinstance(part, FakeTensor) and part.fake_device == HOST
        ]
        named = (kwargs or {}).get("device")
        if (
            strayed
            and func not in _ON_HOST
            and (_on_device(args) if named is None else named == DEVICE)
        ):
            for part in strayed:
                part.fake_device = DEVICE
        return out

    def _backward(self) -> bool:
        """Whether autograd is running.

        In the backward pass, or in one inside of the forward pass.
        """
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
            text, moved = (
                "Sparse tensors are counted as the dense tensors they were made from.",
                func is _TO_COPY,
            )
            if moved:
                text = (
                    "A sparse tensor moved to the device is not counted: its number of elements "
                    "is unknown."
                )
            percent = MOVED_PERCENT if moved else SPARSE_PERCENT
            self.doubt(Doubt("sparse", text, func._schema.name[6:], percent, upward=moved))
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
        held.block = self.recorder.allocate(size, func._schema.name[6:])
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
        self._of_guessed.pop(held.block, None)
        self.recorder.free(held.block)

    def _write(self, tensor: Any) -> None:
        """Note a write into ``tensor`` whose values are not computed here."""
        if tensor.constant is not None:
            self.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
            tensor.constant = None

    def _compute_small_table(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute a small table for real.

        Its values decide how a model is built or what it masks.
        """
        out = self.dispatch(func, (), args, kwargs)
        if not isinstance(out, FakeTensor) or out.numel() > self.known_numbers:
            return out
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

    def follow(self, tensor: FakeTensor) -> None:
        """Note that the size of ``tensor`` depends on a guess."""
        held = (
            self._live.get(tensor.untyped_storage()._cdata)
            if tensor.layout is torch.strided
            else None
        )
        if held is not None:
            self._of_guessed[held.block] = self.recorder.trace.sizes[held.block]
            self.guessed_bytes = max(self.guessed_bytes, sum(self._of_guessed.values()))

    def _follow(self, func: Any, args: Any, out: Any) -> None:
        """Follow results of a tensor of a guessed size that have that size too.

        A tensor into which such a tensor is written is not followed.
        """
        parts = [
            part
            for part in (out if isinstance(out, (tuple, list)) else (out,))
            if isinstance(part, FakeTensor)
        ]
        found = [
            p for p in parts if any(side % guess == 0 for side in p.shape for guess in self.guessed)
        ]
        if not found or func in _SIZED_BY_WORDS:
            return
        sources = args[:1] if func in _INTO else args
        flat = (
            part
            for value in sources
            for part in (value if isinstance(value, (tuple, list)) else (value,))
        )
        guess = func._schema.name[6:] in self.sized_by_values
        if guess or any(
            isinstance(p, FakeTensor) and self.block(p) in self._of_guessed for p in flat
        ):
            for part in found:
                self.follow(part)


def _on_device(args: Any) -> bool:
    return any(
        isinstance(part, FakeTensor) and part.fake_device == DEVICE
        for value in args
        for part in (value if isinstance(value, (tuple, list)) else (value,))
    )


_aten = torch.ops.aten
running_node = getattr(torch._C, "_current_autograd_node", lambda: None)
"""Returns autograd's node that runs; None: none runs, or this torch does not tell."""
_ADD = _aten.add.Tensor
_DROPOUT = _aten.native_dropout.default
_NO_SUM: tuple[int, _DeviceStorage | None, Any] = (-1, None, None)
_DEVICE_OF = torch.ops.prim.device.default
_RESIZE = _aten.resize_.default
_TO_COPY = _aten._to_copy.default
_ZERO = _aten.zero_.default


def _overloads(*names: str) -> frozenset[Any]:
    found: set[Any] = set()
    for name in names:
        packet = getattr(_aten, name, None)
        if packet is not None:
            found.update(
                getattr(packet, overload)
                for overload in packet.overloads()
                if "out" not in overload
            )
    return frozenset(found)


_INTO = _overloads(
    *(
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "index_add",
        "scatter_add",
        "masked_scatter",
        "index_copy",
    ),
)
"""Operators whose results have the size of the first argument."""
_SIZED_BY_WORDS = _overloads(
    "new_zeros", "new_empty", "new_full", "select_backward", "slice_backward"
)
"""Operators whose result size is an argument: in a backward pass, the size of the tensor that was
indexed.
"""
_ONES = _overloads("ones")
_SAME: dict[Any, int | None] = {
    **dict.fromkeys(_ONES | _overloads("ones_like"), 1),
    **dict.fromkeys(_overloads("zeros", "zeros_like"), 0),
    **dict.fromkeys(_overloads("full", "full_like"), None),
}
"""Operators that make tensors of one number, with the position of the number if it is an argument.
"""
_COUNTED = _overloads("linspace", "arange", "scalar_tensor", "randperm", "eye") | _SAME.keys()
_ON_HOST = _overloads("_pack_padded_sequence", "_pin_memory") | {torch.ops.prims.device_put.default}
"""Operators whose results are on the host although their tensors are on the device."""
_FILLS = _overloads(
    "uniform_", "normal_", "zero_", "random_", "bernoulli_", "exponential_", "trunc_normal_"
)
"""Operators that only change a tensor's values, so that there is nothing to do."""
_FILLS_MANY = _overloads(
    *(
        "_foreach_zero_",
        "_foreach_add_",
        "_foreach_mul_",
        "_foreach_div_",
        "_foreach_sub_",
        "_foreach_lerp_",
    ),
    *(
        "_foreach_addcmul_",
        "_foreach_addcdiv_",
        "_foreach_sqrt_",
        "_foreach_neg_",
        "_foreach_reciprocal_",
    ),
    *(
        "_foreach_copy_",
        "_foreach_maximum_",
        "_foreach_minimum_",
        "_foreach_clamp_max_",
        "_foreach_clamp_min_",
    ),
    *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    *("_amp_foreach_non_finite_check_and_unscale_",),
)
"""The same for lists: optimizers call them with hundreds of tensors."""
