"""Answer operators that were seen before from memory.

A training calls the same few hundred again and again.

torch's own cache of fake results does the same, but spends most of a trace's time on its keys. Here
a key holds only what the result of a simple operator depends on: the operator, its tensors' sizes,
strides, types and devices, and its other arguments. The first time torch answers. What it made is
kept as a recipe (storages of its own, views, arguments that are returned) and followed whenever the
key comes again. Operators that are not simple go to torch each time, and so do those whose recipe
does not make exactly the same result.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from .fakes import Fakes

MOST_RECIPES = 100_000
"""This many recipes take some 60 MB; then the cache is cleared."""
_VALUES = frozenset(
    (
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)
"""Types of arguments that are part of a key unchanged."""
_aten = torch.ops.aten
_INDEX = _aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)
_SELECT = _aten.select.int
_ODD = ("resize", "set_", "lift", "as_strided")
"""Parts of names of operators that change a tensor's storage, make values, or use positions
relative to the beginning of a storage.
"""
_keys_of = torch._C._dispatch_keys
_subclass = torch.Tensor._make_subclass
_guard = getattr(torch._C, "_set_warn_deprecated_on_mutable_data_ptr", None)
"""torch's own marker of a fake tensor, which warns when its numbers are read."""
_one_at_a_time = threading.RLock()
_no_torch_function = torch._C.DisableTorchFunction
_plain_dispatch: Callable[..., Any] = inspect.unwrap(Fakes.__torch_dispatch__)
"""The dispatch without torch's guard against being compiled, because nothing is compiled here."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a result.

    ``of`` is the index of the operator's tensor that it is (``itself``) or whose storage it has;
    below 0 the storage is its own. ``offset`` is in elements, from the beginning of that tensor.
    """

    of: int
    itself: bool
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: Any = None
    device: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    """What torch stores about such a tensor, except its mode."""

    def make(self, mode: Quick, tensors: list[Any], ahead: int) -> Any:
        if self.itself:
            return tensors[self.of]
        empty = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if self.of >= 0:
            owner = tensors[self.of]
            storage, offset = owner.untyped_storage(), owner.storage_offset() + self.offset + ahead
            with in_kernel_invocation_manager(mode):
                empty.set_(storage, offset, self.shape, self.stride)
        one = _subclass(
            FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=self.device
        )
        if _guard is not None:
            _guard(one)
        vars(one).update(self.state, fake_mode=mode)
        return one


_Recipe = tuple[Any, tuple[_Part | None, ...]]
"""The container of the tensors (``tuple``, ``list``, None: a single tensor), and the tensors; None
if there is no recipe.
"""


class Quick(Fakes):
    """:class:`Fakes` with a cache that all trainings of a process share."""

    recipes: dict[Any, _Recipe | None] = {}  # noqa: RUF012  # shared on purpose
    """None marks an operator that torch must answer each time."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In a backward pass, every access to a shape would go through the redirection; and a
        # program may have threads.
        with _one_at_a_time, _no_torch_function():
            return _plain_dispatch(self, func, types, args, kwargs)

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors: list[Any] = []
        plain, ahead = args, 0
        if func is _SELECT and (step := _step(args)) is not None:
            # rows differ only by where they begin
            plain, ahead = args[:2], args[2] * step
        key = self._key(func, plain, kwargs, tensors) if _suits(func) else None
        if key is None:
            return super().dispatch(func, types, args, kwargs or {})
        recipes = Quick.recipes
        known = recipes.get(key, _UNKNOWN)
        if known is _UNKNOWN or known is None:
            out = super().dispatch(func, types, args, kwargs or {})
            if known is _UNKNOWN:
                unchanged = self._key(func, plain, kwargs, []) == key
                if len(recipes) >= MOST_RECIPES:
                    recipes.clear()
                recipes[key] = self._recipe(out, tensors, ahead) if unchanged else None
            return out
        kind, parts = known
        made = [None if part is None else part.make(self, tensors, ahead) for part in parts]
        return made[0] if kind is None else kind(made)

    def _key(self, func: Any, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """Return the key; None if something is not simple.

        The tensors are appended to ``tensors``, in their order.
        """
        key: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if not self._describe(args, key, tensors):
            return None
        if kwargs:
            key += kwargs
            if not self._describe(kwargs.values(), key, tensors):
                return None
        if not tensors and (not kwargs or kwargs.get("device") is None):
            return None  # made on the default device
        constants = sum(tensor.constant is not None for tensor in tensors)
        if constants and (constants == len(tensors) or tensors[0].constant is not None):
            return None  # computed with its values, or written into a table with values
        if func is _INDEX and any(tensor.dtype in _MASKS for tensor in tensors):
            return None  # as many as elements that are set
        return tuple(key)

    def _describe(self, values: Iterable[Any], key: list[Any], tensors: list[Any]) -> bool:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self or value.layout is not torch.strided:
                    return False
                tensors.append(value)
                key += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.fake_device,
                    value.requires_grad,
                    _keys_of(value).raw_repr(),
                )
            elif kind in _VALUES:
                key += (kind, value)  # 1, 1.0 and True are equal, but make different types
            elif kind is list or kind is tuple:
                key += (kind, len(value))
                if not self._describe(value, key, tensors):
                    return False
            else:
                return False
        return True

    def _recipe(self, out: Any, tensors: list[Any], ahead: int) -> _Recipe | None:
        """Return how ``out`` can be made from tensors like these; None if that is not certain."""
        kind = type(out)
        many = kind is tuple or kind is list
        owners = {tensor.untyped_storage()._cdata: place for place, tensor in enumerate(tensors)}
        known = set(owners)
        parts: list[_Part | None] = []
        for one in out if many else (out,):
            place = next((place for place, tensor in enumerate(tensors) if tensor is one), None)
            if one is None or place is not None:
                parts.append(None if place is None else _Part(place, True))
                continue
            if type(one) is not FakeTensor or one.layout is not torch.strided or one.requires_grad:
                return None
            storage = one.untyped_storage()
            of = owners.get(storage._cdata, -1)
            if of < 0 and storage._cdata in known:
                return None  # two results in one new storage
            known.add(storage._cdata)
            state = {name: value for name, value in vars(one).items() if name != "fake_mode"}
            if any(
                value is not None and not isinstance(value, torch.device)
                for value in state.values()
            ):
                return None
            offset = one.storage_offset() - tensors[of].storage_offset() - ahead if of >= 0 else 0
            part = _Part(
                of,
                False,
                tuple(one.shape),
                tuple(one.stride()),
                offset,
                one.dtype,
                one.fake_device,
                state,
            )
            if not _alike(part.make(self, tensors, ahead), one):
                return None
            parts.append(part)
        return (kind if many else None), tuple(parts)


def _step(args: Any) -> int | None:
    """Return the number of elements between two rows along the dimension that is selected from.

    None if that is not simple.
    """
    if (
        len(args) != 3
        or type(args[0]) is not FakeTensor
        or type(args[1]) is not int
        or type(args[2]) is not int
    ):
        return None
    tensor, dim, index = args
    if (
        tensor.layout is not torch.strided
        or not 0 <= dim < tensor.dim()
        or not 0 <= index < tensor.shape[dim]
    ):
        return None
    return int(tensor.stride(dim))


_UNKNOWN: Any = object()
_suited: dict[Any, bool] = {}


def _suits(func: Any) -> bool:
    """Tell whether an operator's result depends only on sizes and simple arguments.

    It must change nothing except the values of its first argument.
    """
    known = _suited.get(func)
    if known is None:
        known = _suited[func] = _is_suited(func)
    return known


def _is_suited(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    tags, schema = func.tags, func._schema
    if torch.Tag.data_dependent_output in tags or torch.Tag.inplace_view in tags:
        return False
    if torch.Tag.dynamic_output_shape in tags and func is not _INDEX:
        return False
    if any(word in schema.name for word in _ODD):
        return False
    written = [
        place
        for place, one in enumerate(schema.arguments)
        if one.alias_info and one.alias_info.is_write
    ]
    return not written or (written == [0] and len(schema.returns) == 1)


def _alike(made: Any, real: Any) -> bool:
    """Whether a tensor made by a recipe equals the one that torch made."""
    alike: bool = (
        made.shape == real.shape
        and made.stride() == real.stride()
        and made.storage_offset() == real.storage_offset()
        and made.dtype == real.dtype
        and made.untyped_storage().nbytes() == real.untyped_storage().nbytes()
        and _keys_of(made).raw_repr() == _keys_of(real).raw_repr()
        and vars(made) == vars(real)
    )
    return alike
