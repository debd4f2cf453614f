"""Give plausible answers where a program asks for values that no fake tensor has.

Each such answer is reported as a doubt.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from ..request import CannotPredict, Doubt
from . import branches, known_values, value_statistics
from .recorder import OPTIMIZER, operator_name

aten = torch.ops.aten
_OWN = (os.path.join("torch", "nn", "init.py"), os.path.join("torch", "utils", "data", ""))
SCALAR_PERCENT = 2.0
SHAPE_PERCENT = 5.0
"""What a guessed value and a guessed shape add to the error bar, in percent."""
LARGEST_PERCENT, LEAST_PERCENT = 15.0, 0.5
"""The same if only the largest size of a shape is known, and if hardly any bytes have such a shape.
"""
LARGEST_SHARE = 95.0
"""What a peak may at most lack, in percent, because sizes were assumed to be the largest."""


def scalar(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Answer ``.item()`` and ``bool(tensor)``.

    The answer is the value itself if it is known. Otherwise it is a likely value, and a doubt
    unless the program only checks it.
    """
    tensor = args[0]
    found = known_values.of(tensor)
    if found is not None:
        return found
    way = branches.must_be() if tensor.dtype == torch.bool else None
    value = plain_value(tensor) if way is None else way.holds
    # An optimizer's step count decides nothing.
    if fakes.recorder.phase != OPTIMIZER and not _drawing() and (way is None or not way.checked):
        fakes.doubt(READ)
    return value


def read(tensor: Any) -> Any:
    """Answer ``.item()`` of a floating point number that the program itself reads.

    It becomes a doubt when a decision depends on it, not when it is printed or summed.
    """
    value = known_values.of(tensor)
    if value is None:
        value = plain_value(tensor)
        if tensor.fake_mode.recorder.phase != OPTIMIZER and not _drawing():
            return known_values.Unsure.make(value, lambda: tensor.fake_mode.doubt(READ))
    return value


READ = Doubt(
    "data_dependent",
    "The program's next step depends on a tensor's value; a typical value was assumed.",
    "item",
    SCALAR_PERCENT,
)


def plain_value(tensor: Any) -> Any:
    """Return a known or likely value of a tensor of one number, else False, 1 or 1.0."""
    found = known_values.of(tensor)
    if found is not None:
        return found
    fact = value_statistics.of(tensor)
    if tensor.dtype == torch.bool:
        return fact.share is not None and fact.share > 0.5
    if fact.mean is not None:
        return fact.mean if tensor.dtype.is_floating_point else round(fact.mean)
    return 1.0 if tensor.dtype.is_floating_point else 1


def _drawing() -> bool:
    """Whether torch asks while it draws a layer's initial weights or the order of samples."""
    frame = sys._getframe(2)
    for _ in range(6):
        if any(place in frame.f_code.co_filename for place in _OWN):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def equal(fakes: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Answer ``torch.equal``: whether the tensors could be equal."""
    fakes.doubt(_compared("equal"))
    return bool(args[0].shape == args[1].shape)


def close(fakes: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Answer ``torch.allclose``: what lets the program continue, else True."""
    way = branches.must_be()
    if way is None or not way.checked:
        fakes.doubt(_compared("allclose"))
    return True if way is None else way.holds


def _compared(operation: str) -> Doubt:
    text = "The program compares tensors' values."
    return Doubt("data_dependent", text, operation, SCALAR_PERCENT)


def passes(fakes: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Whether a decomposition only checks what it read: another value would raise an exception."""


def guess(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Guess the result of an operator whose shape depends on values.

    The result is that for evenly spread values, if they are known to be so, else the largest
    possible one.
    """
    name = operator_name(func)
    made = SIZED_BY_VALUES.get(name)
    if made is None:
        raise CannotPredict(
            f"The shape of {name}'s result depends on values, which a prediction does not have.",
            f"{func} has no known bound.",
            "calibrate on a running trainer instead: gpuscope predict PID",
            "data_dependent",
        )
    mask = _mask(args)
    sure = (
        value_statistics.sure(mask)
        if name in _OF_MASKS
        else name == _PACKED and numbers(args[1]) is not None
    )
    out = made(*args, **kwargs)
    if not sure:
        doubt = _shape_doubt(name, mask)
        fakes.doubt(doubt)
        parts = out if isinstance(out, tuple) else (out,)
        sizes = (
            {max(1, value_statistics.count(mask))}
            if name in _OF_MASKS
            else {max((1, *parts[0].shape))}
        )
        fakes.guessed |= sizes
        if doubt.text.endswith(_LARGEST):
            fakes.at_most |= sizes
    return out


def bounded(fakes: Any) -> None:
    """Limit how much a guessed size can matter.

    It cannot matter more than all tensors of that size hold at the moment when they hold most. But
    where the largest possible size was assumed, all of that may be missing in the training.
    """
    peak = max(1, fakes.recorder.peak_bytes)
    share = max(LEAST_PERCENT, 100 * fakes.guessed_bytes / peak)
    missing = min(LARGEST_SHARE, round(100 * fakes.at_most_bytes / peak, 2))
    for key, doubt in fakes.doubts.items():
        if doubt.code == "data_dependent" and doubt.operation in SIZED_BY_VALUES:
            percent = min(doubt.percent, round(share, 2))
            less = missing if doubt.text.endswith(_LARGEST) and missing > percent else None
            fakes.doubts[key] = replace(doubt, percent=percent, less_percent=less)
            if less is not None:
                missing = 0.0  # the same bytes are not doubted twice


def _mask(args: Any) -> Any:
    """Return the first mask among an operator's tensors."""
    flat = [
        part for value in args for part in (value if isinstance(value, (list, tuple)) else (value,))
    ]
    return next(
        (part for part in flat if isinstance(part, torch.Tensor) and part.dtype in _MASKS), args[0]
    )


def _shape_doubt(name: str, mask: Any) -> Doubt:
    text = f"The size of {name}'s result depends on values; "
    if value_statistics.share(mask) is not None or (
        name == "bincount" and value_statistics.of(mask).below
    ):
        return Doubt(
            "data_dependent", text + "evenly spread values were assumed.", name, SHAPE_PERCENT
        )
    return Doubt("data_dependent", text + _LARGEST, name, LARGEST_PERCENT)


_LARGEST = "the largest possible size was assumed."
_MASKS = (torch.bool, torch.uint8)


def _nonzero(tensor: Any) -> Any:
    return tensor.new_empty((value_statistics.count(tensor), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: Any, mask: Any) -> Any:
    numbers = math.prod(torch.broadcast_shapes(tensor.shape, mask.shape))
    return tensor.new_empty((value_statistics.count(mask) * numbers // max(1, mask.numel()),))


def _index(tensor: Any, indices: Any) -> Any:
    """Replace masks by indices, as many as elements that are likely to be set."""
    whole: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            whole += [
                index.new_empty((value_statistics.count(index),), dtype=torch.int64)
                for _ in range(index.dim())
            ]
        else:
            whole.append(index)
    return aten.index.Tensor(tensor, whole)


def _unique(tensor: Any, *options: Any, **named: Any) -> Any:
    places = tensor.new_empty(tensor.shape, dtype=torch.int64)
    flat = tensor.flatten().clone()
    return flat, places, tensor.new_empty((tensor.numel(),), dtype=torch.int64)


def _unique_dim(tensor: Any, dim: int, *options: Any, **named: Any) -> Any:
    counts = [tensor.new_empty((tensor.shape[dim],), dtype=torch.int64) for _ in range(2)]
    return (tensor.clone(), *counts)


def _unique_consecutive(
    tensor: Any, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        return _unique_dim(tensor, dim)
    flat = tensor.flatten().clone()
    return flat, *(
        tensor.new_empty(flat.shape if wanted else (0,), dtype=torch.int64)
        for wanted in (inverse, counts)
    )


def _bincount(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Return as many bins as there may be different numbers."""
    bins = max(minlength, value_statistics.of(tensor).below or (0 if minlength else tensor.numel()))
    dtype = (
        torch.int64
        if weights is None
        else torch.float32
        if weights.dtype == torch.float32
        else torch.float64
    )
    return tensor.new_empty((bins,), dtype=dtype)


def _lstsq(a: Any, b: Any, rcond: Any = None, *, driver: Any = None) -> Any:
    """Compute with CUDA's only driver, which assumes that every matrix has full rank."""
    rows, columns = a.shape[-2:]
    solution = b.new_empty((*b.shape[:-2], columns, b.shape[-1]))
    left = b.new_empty((*b.shape[:-2], b.shape[-1]) if rows > columns else (0,))
    return solution, left, a.new_empty((0,), dtype=torch.int64), a.new_empty((0,))


def _packed(data: Any, lengths: Any, first: bool) -> Any:
    """Pack sequences by their lengths if these are known, else with the full length for each."""
    batch, steps = (data.shape[0], data.shape[1]) if first else (data.shape[1], data.shape[0])
    known_lengths = numbers(lengths)
    if known_lengths is None:
        return data.new_empty((batch * steps, *data.shape[2:])), lengths.new_full((steps,), batch)
    rows = [sum(length > step for length in known_lengths) for step in range(max(known_lengths))]
    with no_dispatch():
        real = torch.tensor(rows)
    sizes = data.fake_mode.fake_tensor_converter.from_real_tensor(
        data.fake_mode, real, make_constant=True
    )
    return data.new_empty((sum(rows), *data.shape[2:])), sizes


def split(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Split a tensor of a guessed size (``split_with_sizes``).

    Such a tensor may be larger than the sum of the parts that the program has counted.
    """
    tensor, sizes = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    spare = tensor.shape[dim] - sum(sizes)
    if spare <= 0 or not any(doubt.code == "data_dependent" for doubt in fakes.doubts.values()):
        return fakes.dispatch(func, (), args, kwargs)
    return fakes.dispatch(func, (), (tensor, [*sizes, spare], dim), {})[:-1]


def histogram(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``histc``, also for integers, which the CPU's kernel does not support."""
    bins = args[1] if len(args) > 1 else kwargs.get("bins", 100)
    return args[0].new_empty((bins,))


_ALIGNED_BYTES = 16


def grouped(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_grouped_mm``.

    A matrix product for each group of rows; the bounds of groups are values.

    torch's own fake supports only bf16. On CUDA other types are multiplied group by group, into the
    same result.
    """
    a, b = args[:2]
    bounds = args[2] if len(args) > 2 else kwargs.get("offs")
    dtype = (args[4] if len(args) > 4 else kwargs.get("out_dtype")) or a.dtype
    if a.dim() == 2 and b.dim() == 2:
        shape: tuple[int, ...] = (bounds.shape[0], a.shape[0], b.shape[1])
    else:
        shape = (*a.shape[:-1], b.shape[-1])
        if a.dim() == 3 and b.dim() == 2:
            shape = (a.shape[1], b.shape[1])
    step = max(1, _ALIGNED_BYTES // dtype.itemsize)
    row = -(-shape[-1] // step) * step  # each row begins at a multiple of 16 bytes
    stride = (shape[-2] * row, row, 1)[-len(shape) :]
    return a.new_empty_strided(shape, stride, dtype=dtype)


def ctc(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_ctc_loss``: a negative logarithm for each sample, and a table over time and labels.

    The lengths of the targets may be values; each is assumed to be the longest possible one.
    """
    scores, targets, lengths = args[0], args[1], args[3]
    batch = scores.shape[1] if scores.dim() == 3 else 1
    if isinstance(lengths, torch.Tensor):
        known = numbers(lengths)
        if known is None:
            text = "The targets' lengths decide a table's size; the largest that fit were assumed."
            fakes.doubt(Doubt("data_dependent", text, "_ctc_loss", SCALAR_PERCENT))
        lengths = known or [_longest(targets, batch)]
    loss = scores.new_empty((batch,) if scores.dim() == 3 else ())
    return loss, scores.new_empty((batch, scores.shape[0], 2 * max(lengths, default=0) + 1))


def numbers(tensor: Any) -> list[int] | None:
    """Return the whole numbers in a tensor that the program made from a list; None: not known."""
    known = getattr(tensor, "constant", None)
    return None if known is None else [int(number) for number in known.flatten()]


def _longest(targets: Any, batch: int) -> int:
    return int(targets.shape[-1] if targets.dim() > 1 else -(-targets.shape[0] // max(1, batch)))


def ctc_loss(
    scores: Any,
    targets: Any,
    lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:
    """Compute ``aten::ctc_loss`` with its lengths in tensors.

    torch reads these lengths, which is not possible with fake tensors.
    """
    batch = scores.shape[1] if scores.dim() == 3 else 1
    times = numbers(lengths) or [scores.shape[0]] * batch
    labels = numbers(target_lengths) or [_longest(targets, batch)] * batch
    loss = aten._ctc_loss(scores, targets, times, labels, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), torch.zeros_like(loss), loss)
    if reduction == 1:
        return (loss / torch.ones_like(loss)).mean()
    return loss.sum() if reduction == 2 else loss


def ctc_backward(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``_ctc_loss_backward``: a second table like the forward pass's besides the gradient."""
    scores, table = args[1], args[6]
    out = torch.empty_like(scores)
    if scores.device.index is not None:
        fakes.hold(out, func)
        fakes.recorder.passing([table.nbytes], "_ctc_loss_backward")
    return out


def _kept_boxes(boxes: Any, *options: Any, **named: Any) -> Any:
    """Return the indices of boxes that the suppression of overlapping ones keeps: at most all.

    On a GPU it takes the boxes in the order of their scores, and a bit for each pair of them.
    """
    count = boxes.shape[0]
    fakes = boxes.fake_mode
    if fakes.architecture is not None and boxes.device.index is not None:
        pairs = 8 * count * -(-count // _PAIRS_A_WORD)
        fakes.recorder.passing([12 * count, boxes.nbytes, pairs], "torchvision::nms")
    return boxes.new_empty((count,), dtype=torch.int64)


_PAIRS_A_WORD = 64


def _repeats(tensor: Any, *options: Any, **named: Any) -> Any:
    return tensor.new_empty((tensor.numel(),))


_PACKED = "_pack_padded_sequence"
_OF_MASKS = ("nonzero", "masked_select", "index")
SIZED_BY_VALUES: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "_unique2": _unique,
    "unique_dim": _unique_dim,
    "unique_consecutive": _unique_consecutive,
    "bincount": _bincount,
    "linalg_lstsq": _lstsq,
    "repeat_interleave": _repeats,
    "_pack_padded_sequence": _packed,
    "torchvision::nms": _kept_boxes,
}
READ_VALUES = {
    aten._local_scalar_dense.default: scalar,
    aten.equal.default: equal,
    aten.allclose.default: close,
}
"""What returns a number or a decision to the program."""
INSTEAD = {
    **READ_VALUES,
    **(
        {aten._linalg_check_errors.default: passes} if hasattr(aten, "_linalg_check_errors") else {}
    ),
    aten.histc.default: histogram,
    aten.split_with_sizes.default: split,
    **({aten._grouped_mm.default: grouped} if hasattr(aten, "_grouped_mm") else {}),
    aten._ctc_loss.default: ctc,
    aten._ctc_loss.Tensor: ctc,
    aten._ctc_loss_backward.default: ctc_backward,
    aten._ctc_loss_backward.Tensor: ctc_backward,
}
