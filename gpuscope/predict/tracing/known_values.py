"""Keep values that are certain although tensors have no data.

All elements of these tensors are the same number, because they were made so (a mask of ones, a step
counter) or because they are so in any working training (nothing is NaN). The number is kept with
its tensor and with the version of the storage for which it holds, so any write to the storage, also
through a view, makes it unknown. If a program reads a value that is not kept here, the answer is a
guess. Integers and conditions then count as doubts at once. Floating-point numbers
(:class:`Unsure`) count only when a decision depends on them, not when they are printed or summed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from . import branches

aten = torch.ops.aten
NAME = "known_value"
Number = bool | int | float


def of(tensor: Any) -> Number | None:
    """Return the number that every element of ``tensor`` is; None: not known, or they differ.

    If torch itself still knows the number (it computes with a small table as long as it can), that
    counts, because our note may be from before a write.
    """
    table = getattr(tensor, "constant", None)
    if table is not None and table.numel() == 1:
        with no_dispatch():
            found: Number = table.item()
            return found
    noted = getattr(tensor, NAME, None)
    if noted is None:
        return None
    number, version = noted
    return number if _version(tensor) == version else None


def note(tensor: Any, number: Number, written: int = 0) -> None:
    """Note the number that all elements of a tensor have.

    ``written`` is 1 if the running operator writes into ``tensor``: torch counts that write when
    the operator has ended.
    """
    version = _version(tensor)
    if version is not None:
        kind = (
            float if tensor.dtype.is_floating_point else bool if tensor.dtype == torch.bool else int
        )
        number = kind(number)
        setattr(tensor, NAME, (number, version + written))


def forget(tensor: Any) -> None:
    """Note a write into ``tensor`` that torch may not count."""
    tensor.__dict__.pop(NAME, None)


def _version(tensor: Any) -> int | None:
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode, in which nothing counts its changes
        return None


class Unsure(float):
    """A guessed floating point number that a program read.

    ``doubt`` is called when a decision depends on it.
    """

    doubt: Callable[[], None]

    @classmethod
    def make(cls, number: float, doubt: Callable[[], None]) -> Unsure:
        one = cls(number)
        one.doubt = doubt
        return one

    def __bool__(self) -> bool:
        self.doubt()
        return float(self) != 0.0

    def __int__(self) -> int:
        self.doubt()
        return int(float(self))

    __trunc__ = __int__

    def __floor__(self) -> int:
        self.doubt()
        return math.floor(float(self))

    def __ceil__(self) -> int:
        self.doubt()
        return math.ceil(float(self))

    def __round__(self, digits: Any = None) -> Any:
        if digits is not None:
            return Unsure.make(round(float(self), digits), self.doubt)
        self.doubt()
        return round(float(self))

    __hash__ = float.__hash__


def _calculating(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def calculate(self: Unsure, *others: Any) -> Any:
        out = plain(self, *others)
        return Unsure.make(out, self.doubt) if isinstance(out, float) else out

    return calculate


def _comparing(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def compare(self: Unsure, other: Any) -> Any:
        out = plain(self, other)
        if out is NotImplemented:
            return out
        way = branches.must_be()
        if way is None or not way.checked:
            self.doubt()
        return out if way is None else way.holds

    return compare


_ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow mod rmod floordiv rfloordiv neg pos abs"
)
for _name in _ARITHMETIC.split():
    setattr(Unsure, f"__{_name}__", _calculating(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Unsure, f"__{_name}__", _comparing(f"__{_name}__"))


# ── what operators do with known numbers ──────────────────────────────────────────────────────────

Rule = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
"""A function called after an operator: (operator, arguments, keyword arguments, result)."""


def _note_constant(number: float) -> Rule:
    return lambda func, args, kwargs, out: note(out, number)


def _full(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    number = args[2] if func is aten.new_full.default else args[1]
    if isinstance(number, (bool, int, float)):
        note(out, number)


def _filled(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    number = args[1] if len(args) > 1 else 0
    number = of(number) if isinstance(number, torch.Tensor) else number
    if isinstance(number, (bool, int, float)) and not args[0]._is_view():
        note(args[0], number, 1)


def _pass_on(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    number = of(args[0])
    if number is not None:
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, torch.Tensor):
                note(part, number)


def _of_two(how: Callable[[Any, Any], Any], in_place: bool = False) -> Rule:
    """Apply an operator of two tensors, or of one and a number."""

    def rule(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if kwargs or len(args) != 2:
            return  # scaled, or rounded
        if in_place and (args[0]._is_view() or getattr(args[0], "constant", None) is not None):
            return  # torch has already computed it
        one, other = (of(part) if isinstance(part, torch.Tensor) else part for part in args)
        if one is None or other is None:
            return
        try:
            note(out, how(one, other), int(in_place))
        except (ArithmeticError, TypeError, ValueError):
            pass  # 1 / 0: the tensor does not hold such a number

    return rule


def _of_one(how: Callable[[Any], Any]) -> Rule:
    def rule(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        number = of(args[0])
        if number is not None:
            note(out, how(number))

    return rule


def _summed(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    number = of(args[0])
    if number is not None and out.numel():
        note(out, number * (args[0].numel() // out.numel()))


def _extreme(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Apply an operator that returns the largest or least element, with or without its position."""
    number = of(args[0])
    if number is not None and args[0].numel():
        note(out[0] if isinstance(out, (tuple, list)) else out, number)


def _each(how: Callable[[Any, Any], Any]) -> Rule:
    """Apply an operator on lists: an optimizer's counters, each of which is one number.

    torch does not count these writes.
    """

    def rule(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        others = args[1] if isinstance(args[1], (list, tuple)) else [args[1]] * len(args[0])
        for tensor, other in zip(args[0], others, strict=False):
            number = of(tensor)
            if number is None:
                continue
            forget(tensor)
            more = of(other) if isinstance(other, torch.Tensor) else other
            if len(args) == 2 and not kwargs and more is not None and not tensor.dim():
                note(tensor, how(number, more))

    return rule


_RULES: list[tuple[Rule, str]] = [
    (_note_constant(1), "ones ones_like new_ones"),
    (_note_constant(0), "zeros zeros_like new_zeros"),
    (_note_constant(0), "isnan isinf"),  # of a training that works
    (_note_constant(1), "isfinite"),
    (_full, "full full_like new_full"),
    (_filled, "fill_.Scalar fill_.Tensor zero_"),
    (
        _pass_on,
        "view _unsafe_view reshape permute transpose.int t select.int slice.Tensor unsqueeze "
        "squeeze squeeze.dim squeeze.dims expand alias detach clone gather index_select flip "
        "repeat unbind.int split.Tensor split_with_sizes chunk roll unfold as_strided diagonal "
        "_to_copy mean mean.dim",
    ),
    (_of_two(operator.eq), "eq.Scalar eq.Tensor"),
    (_of_two(operator.ne), "ne.Scalar ne.Tensor"),
    (_of_two(operator.lt), "lt.Scalar lt.Tensor"),
    (_of_two(operator.le), "le.Scalar le.Tensor"),
    (_of_two(operator.gt), "gt.Scalar gt.Tensor"),
    (_of_two(operator.ge), "ge.Scalar ge.Tensor"),
    (_of_two(operator.add), "add.Scalar add.Tensor"),
    (_of_two(operator.sub), "sub.Scalar sub.Tensor"),
    (_of_two(lambda one, other: other - one), "rsub.Scalar rsub.Tensor"),
    (_of_two(operator.mul), "mul.Scalar mul.Tensor"),
    (_of_two(operator.truediv), "div.Scalar div.Tensor"),
    (_of_two(operator.add, True), "add_.Scalar add_.Tensor"),
    (_of_two(operator.mul, True), "mul_.Scalar mul_.Tensor"),
    (_of_two(operator.truediv, True), "div_.Scalar div_.Tensor"),
    (_of_two(lambda one, other: bool(one) and bool(other)), "logical_and"),
    (_of_two(lambda one, other: bool(one) or bool(other)), "logical_or"),
    (_of_two(operator.and_), "bitwise_and.Tensor bitwise_and.Scalar"),
    (_of_two(operator.or_), "bitwise_or.Tensor bitwise_or.Scalar"),
    (_of_one(operator.not_), "logical_not"),
    (_of_one(lambda number: not number if isinstance(number, bool) else ~number), "bitwise_not"),
    (_of_one(operator.neg), "neg"),
    (_of_one(abs), "abs"),
    (_of_one(bool), "any any.dim any.dims all all.dim all.dims _is_any_true _is_all_true"),
    (_summed, "sum sum.dim_IntList"),
    (_extreme, "max min max.dim min.dim amax amin"),
    (_each(operator.add), "_foreach_add_.Scalar _foreach_add_.ScalarList _foreach_add_.List"),
    (_each(operator.mul), "_foreach_mul_.Scalar _foreach_mul_.ScalarList _foreach_mul_.List"),
]


def by_operator(
    table: Iterable[tuple[Callable[..., None], str]],
) -> Iterator[tuple[Any, Callable[..., None]]]:
    """Yield (operator, rule) for each name in ``table`` that this torch has.

    The table maps rules to names of operators.
    """
    for rule, names in table:
        for name in names.split():
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet, None), overload or "default", None)
            if op is not None:
                yield op, rule


RULES = dict(by_operator(_RULES))
"""The rules by operator."""
