"""Where a program asks for values that no fake tensor has: plausible answers, each of them a doubt that is reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..request import CannotPredict, Doubt
from .recorder import OPTIMIZER

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
_OWN = (os.path.join("torch", "nn", "init.py"), os.path.join("torch", "utils", "data", ""))
SCALAR_PERCENT = 2.0
SHAPE_PERCENT = 5.0
"""What a guessed value and a guessed shape add to the error bar."""


def scalar(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``.item()``, ``bool(tensor)``: False, 1 or 1.0, and the value itself where torch knows it."""
    tensor = args[0]
    known = getattr(tensor, "constant", None)
    if known is not None:
        return known.item()
    if fakes.recorder.phase != OPTIMIZER and not _drawing():  # an optimizer's count of steps decides nothing
        fakes.doubt(
            Doubt(
                "data_dependent",
                "The program reads a tensor's value, which decides what it does next; a plain value was taken.",
                "item",
                SCALAR_PERCENT,
            )
        )
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


def _drawing() -> bool:
    """Whether torch asks while it draws a layer's first weights or the order of samples."""
    frame = sys._getframe(3)
    for _ in range(4):
        if any(place in frame.f_code.co_filename for place in _OWN):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def equal(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> bool:
    """``torch.equal``: whether it could be."""
    fakes.doubt(Doubt("data_dependent", "The program compares tensors' values.", "equal", SCALAR_PERCENT))
    return bool(args[0].shape == args[1].shape)


def guess(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator whose shape depends on values: the largest it can be."""
    name = func._schema.name[6:]
    made = _LARGEST.get(name)
    if made is None:
        raise CannotPredict(
            f"The shape of what {name} returns depends on values, which a prediction does not have.",
            f"{func} has no bound that is known here.",
            "calibrate on a running trainer instead: gpuscope predict PID",
            "data_dependent",
        )
    text = f"The size of what {name} returns depends on values; the largest possible one was taken."
    fakes.doubt(Doubt("data_dependent", text, name, SHAPE_PERCENT))
    return made(*args, **kwargs)


def _nonzero(tensor: Any) -> Any:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: Any, mask: Any) -> Any:
    return tensor.new_empty(torch.broadcast_shapes(tensor.shape, mask.shape)).flatten()


def _index(tensor: Any, indices: Any) -> Any:
    """Masks become indices of all their elements."""
    whole: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            whole += [index.new_empty((index.numel(),), dtype=torch.int64) for _ in range(index.dim())]
        else:
            whole.append(index)
    return aten.index.Tensor(tensor, whole)


def _unique(tensor: Any, *options: Any, **named: Any) -> Any:
    places = tensor.new_empty(tensor.shape, dtype=torch.int64)
    flat = tensor.flatten().clone()
    return flat, places, tensor.new_empty((tensor.numel(),), dtype=torch.int64)


def _packed(data: Any, lengths: Any, first: bool) -> Any:
    """Sequences that all have the full length."""
    batch, steps = (data.shape[0], data.shape[1]) if first else (data.shape[1], data.shape[0])
    return data.new_empty((batch * steps, *data.shape[2:])), lengths.new_full((steps,), batch)


def ctc(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``_ctc_loss``: a negative logarithm for each sample, and a table over time and labels. The lengths of the targets
    may be values: each is taken to be the longest that there is room for."""
    scores, targets, lengths = args[0], args[1], args[3]
    batch = scores.shape[1] if scores.dim() == 3 else 1
    if isinstance(lengths, torch.Tensor):
        known = _known_numbers(lengths)
        if known is None:
            text = "The lengths of targets decide about a table's size; the largest were taken that there is room for."
            fakes.doubt(Doubt("data_dependent", text, "_ctc_loss", SCALAR_PERCENT))
        lengths = known or [_longest(targets, batch)]
    loss = scores.new_empty((batch,) if scores.dim() == 3 else ())
    return loss, scores.new_empty((batch, scores.shape[0], 2 * max(lengths, default=0) + 1))


def _known_numbers(tensor: Any) -> list[int] | None:
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
    """``aten::ctc_loss`` with its lengths in tensors: torch reads them out, which it does not do with fakes."""
    batch = scores.shape[1] if scores.dim() == 3 else 1
    times = _known_numbers(lengths) or [scores.shape[0]] * batch
    labels = _known_numbers(target_lengths) or [_longest(targets, batch)] * batch
    loss = aten._ctc_loss(scores, targets, times, labels, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), torch.zeros_like(loss), loss)
    if reduction == 1:
        return (loss / torch.ones_like(loss)).mean()
    return loss.sum() if reduction == 2 else loss


def ctc_backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``_ctc_loss_backward``: beside the gradient another table like the forward pass's."""
    scores, table = args[1], args[6]
    out = torch.empty_like(scores)
    if scores.device.index is not None:
        fakes.hold(out, func)
        fakes.recorder.passing([table.numel() * table.element_size()], "_ctc_loss_backward")
    return out


def _repeats(tensor: Any, *options: Any, **named: Any) -> Any:
    return tensor.new_empty((tensor.numel(),))


_LARGEST: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "_unique2": _unique,
    "repeat_interleave": _repeats,
    "_pack_padded_sequence": _packed,
}
INSTEAD = {
    aten._local_scalar_dense.default: scalar,
    aten.equal.default: equal,
    aten._ctc_loss.default: ctc,
    aten._ctc_loss.Tensor: ctc,
    aten._ctc_loss_backward.default: ctc_backward,
    aten._ctc_loss_backward.Tensor: ctc_backward,
}
