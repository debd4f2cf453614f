"""Keep what is likely about values, because fake tensors have none.

Examples are which share of a mask is set, how many different values an index may have, and how far
a counter counts. A router picks k of e experts, a mask of ``rand() < 0.15`` is set in 15 %, nothing
is NaN. Each such fact is kept with its tensor (:class:`Fact`) and passed on by the operators that
preserve it. So shapes and branches that depend on values come out as for evenly spread values. If
nothing is known there is no fact, and the largest possible value is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._mode_utils import no_dispatch

from . import known_values as certain
from .recorder import Recorder

aten = torch.ops.aten
NAME = "likely_fact"


class Fact(NamedTuple):
    """What is likely about a tensor's values; None means unknown."""

    share: float | None = None
    """The share of the elements that are True, or 1 if all are 0 or 1."""
    below: int | None = None
    """The values are whole numbers from 0 up to, but not including, this one."""
    mean: float | None = None
    """The mean of counted numbers."""
    uniform: bool = False
    """Whether they are drawn evenly between 0 and 1."""


_NOTHING = Fact()


def of(tensor: Any) -> Fact:
    """Return what is known about ``tensor``."""
    return getattr(tensor, NAME, _NOTHING)


def share(tensor: Any) -> float | None:
    """Return the share of a mask's elements that are True; None: not known."""
    return of(tensor).share


def count(mask: Any) -> int:
    """Return how many elements of ``mask`` are True.

    All if it is not known, and at least one if there may be any.
    """
    table = getattr(mask, "constant", None)
    if table is not None:
        with no_dispatch():
            return int(table.count_nonzero())
    value = certain.of(mask)
    if value is not None:
        return int(mask.numel()) if value else 0
    known = share(mask)
    return int(mask.numel()) if known is None else math.ceil(known * mask.numel() - 1e-6)


def sure(mask: Any) -> bool:
    """Whether :func:`count` is certain."""
    return getattr(mask, "constant", None) is not None or certain.of(mask) is not None


def _note(tensor: Any, **facts: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        setattr(tensor, NAME, Fact(**facts))


def _result(at: int | None, dim_at: int, default: int = -1) -> Callable[..., None]:
    """Note positions along a dimension (topk, sort, argmax): whole numbers below its length."""

    def rule(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        x = args[0]
        dim = args[dim_at] if len(args) > dim_at else kwargs.get("dim", default)
        length = x.numel() if dim is None or x.dim() == 0 else x.shape[dim]
        _note(out if at is None else out[at], below=length)

    return rule


def _note_randint(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    numbers = [value for value in args[:2] if isinstance(value, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else (numbers or (0, 0))
    if low == 0 < high:
        _note(out, below=high)


def _uniform(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    _note(out, uniform=True, mean=0.5)


def _uniform_between(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note the range of ``uniform_``: a program may draw a place in a list by it."""
    low, high = _bounds(args, kwargs, ("from", "to"), (0.0, 1.0))
    _note(out, uniform=(low, high) == (0, 1), mean=(low + high) / 2)


def _random_between(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    low, high = _bounds(args, kwargs, ("from", "to"), (0, None))
    if high is None and kwargs.get("from") is None and len(args) == 2:
        low, high = 0, low  # a single number is the end
    if low == 0 and high:
        _note(out, below=high)


def _bounds(args: Any, kwargs: Any, names: tuple[str, str], defaults: Any) -> Any:
    given = [*args[1:3], *(kwargs[name] for name in names[len(args) - 1 :] if name in kwargs)]
    return (*given, *defaults[len(given) :])


def _heads(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note the share that ``bernoulli`` sets, if it is a number."""
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    if isinstance(chance, (int, float)):
        _note(out, share=float(chance), mean=float(chance))


def filled(recorder: Recorder, func: Any, args: Any, kwargs: Any, tensor: Any) -> None:
    """Note what an operator that only fills ``tensor`` makes likely; what was likely is gone."""
    vars(tensor).pop(NAME, None)
    rule = RULES.get(func)
    if rule is not None:
        rule(recorder, func, args, kwargs, tensor)


def _counting(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note that ``arange`` and ``randperm`` contain each number once."""
    _note(out, below=out.numel())


def _equal(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    x, other = args[0], args[1]
    if x is other:
        _note(out, share=1.0)  # no number is NaN
        return
    if isinstance(other, float) and math.isinf(other):
        _note(out, share=0.0)
        return
    known = [part.below for part in (of(x), of(other)) if part.below]
    if known:
        _note(out, share=1 / max(known))


def _different(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    _equal(recorder, func, args, kwargs, out)
    known = share(out)
    if known is not None:
        _note(out, share=1 - known)


def _compared(more: bool) -> Callable[..., None]:
    """Note the share for ``<``, ``<=`` (``more`` false), ``>``, ``>=`` with a number."""

    def rule(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        limit, known = args[1], of(args[0])
        if isinstance(limit, bool) or not isinstance(limit, (int, float)):
            return
        if known.share is not None and 0 <= limit < 1 and func in (aten.gt.Scalar, aten.le.Scalar):
            less = 1 - known.share
        elif known.uniform:
            less = min(1.0, max(0.0, float(limit)))
            if limit <= 0 or limit > 1:
                certain.note(out, less != float(more))
        elif known.below:
            if limit <= 0 and func in (aten.ge.Scalar, aten.lt.Scalar):
                certain.note(out, more)
            inclusive = func in (aten.le.Scalar, aten.gt.Scalar)
            less = min(1.0, max(0.0, (limit + inclusive) / known.below))
        elif limit <= 0 and (known.mean or (known.mean is not None and not more)):
            less = 0.0
        else:
            return
        _note(out, share=1 - less if more else less)

    return rule


def _constant(value: float) -> Callable[..., None]:
    return lambda recorder, func, args, kwargs, out: _note(out, share=value)


def _pass_on(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Pass the fact on to the same elements in other positions, or to some of them."""
    fact = getattr(args[0], NAME, None) or _counted(args[0])
    if fact is not None:
        for part in out if isinstance(out, (tuple, list)) else (out,):
            setattr(part, NAME, fact)


def _counted(mask: Any) -> Fact | None:
    """Return the share of a mask whose values are known, before it becomes too large for them."""
    if mask.dtype != torch.bool or getattr(mask, "constant", None) is None or not mask.numel():
        return None
    return Fact(share=count(mask) / mask.numel())


def _converted(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    fact = getattr(args[0], NAME, None)
    if fact is not None and not fact.uniform:
        setattr(out, NAME, fact)


def _opposite(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    known = share(args[0])
    if known is not None and out.dtype == torch.bool:
        _note(out, share=1 - known)


def _both(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Combine facts for ``&``, and for the product of masks."""
    if out.dtype != torch.bool:
        return
    known = [share(part) for part in args[:2]]
    if 0.0 in known:
        _note(out, share=0.0)
    elif None not in known:
        _note(out, share=math.prod(part for part in known if part is not None))


def _either(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    known = [share(part) for part in args[:2]]
    if out.dtype == torch.bool and None not in known:
        _note(out, share=1 - math.prod(1 - part for part in known if part is not None))


def _any(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Assume that at least one element of an unknown mask is set."""
    known = share(args[0])
    if known is not None and out.numel():
        _note(out, share=1 - (1 - known) ** (args[0].numel() / out.numel()))
    elif out.numel() == 1:
        _note(out, share=1.0)


def _all(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Assume that a condition which is checked for every element holds, if nothing is known.

    Distributions check their arguments in this way.
    """
    known = share(args[0])
    if known is not None and out.numel():
        _note(out, share=known ** (args[0].numel() / out.numel()))
    elif out.numel() == 1:
        _note(out, share=1.0)


def _sum(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    known = share(args[0])
    if known is not None and out.numel():
        _note(out, mean=known * args[0].numel() / out.numel())


def _note_scatter_of_ones(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note how much is set by ``scatter_`` of ones, in each row at other positions.

    ``one_hot`` makes its table in this way, and routers theirs.
    """
    into, dim, index, value = args[:4]
    if value == 1 and index.dim():
        _note(out, share=min(1.0, index.shape[dim] / max(1, into.shape[dim])))


def _note_counts(recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note for ``bincount`` and ``histc`` that every number is counted once."""
    if out.numel():
        _note(out, mean=args[0].numel() / out.numel())


_RULES: dict[Callable[..., None], str] = {
    _result(1, 1): "sort max.dim min.dim median.dim mode",
    _result(1, 2): "topk kthvalue sort.stable",
    _result(None, 1): "argsort",
    _result(None, 1, None): "argmax argmin",  # type: ignore[arg-type]
    _note_randint: "randint randint.low randint_like randint_like.low_dtype",
    _uniform: "rand rand_like",
    _uniform_between: "uniform_",
    _random_between: "random_ random_.to random_.from",
    _heads: "bernoulli.p bernoulli_.float",
    _counting: "arange arange.start arange.start_step randperm",
    _equal: "eq.Scalar eq.Tensor",
    _different: "ne.Scalar ne.Tensor",
    _compared(False): "lt.Scalar le.Scalar",
    _compared(True): "gt.Scalar ge.Scalar",
    _constant(0.0): "isnan isinf",
    _constant(1.0): "isfinite",
    _pass_on: "view _unsafe_view reshape permute transpose.int t select.int slice.Tensor unsqueeze "
    "squeeze squeeze.dim squeeze.dims expand alias detach clone index.Tensor gather "
    "index_select flip repeat unbind.int split.Tensor chunk roll unfold as_strided diagonal",
    _converted: "_to_copy",
    _opposite: "logical_not bitwise_not",
    _both: "bitwise_and.Tensor logical_and mul.Tensor",
    _either: "bitwise_or.Tensor logical_or",
    _any: "any any.dim any.dims _is_any_true",
    _all: "all all.dim all.dims _is_all_true",
    _sum: "sum sum.dim_IntList",
    _note_scatter_of_ones: "scatter.value scatter_.value",
    _note_counts: "bincount histc",
}

RULES = dict(certain.by_operator(_RULES.items()))
"""Functions by operator, called after it as (recorder, operator, args, kwargs, result)."""
