"""Trace recurrent networks as cuDNN runs them.

All layers and time steps are one kernel, which keeps a reserve of its own for the backward pass.
torch calls it for every LSTM, GRU and RNN on a GPU, and autocast casts its tensors to fp16.
:mod:`.recurrent_sizes` says how much it keeps and takes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from . import autocast, data_dependent
from .fakes import DEVICE
from .recurrent_sizes import GRU, LSTM, RELU, TANH, reserve_bytes, workspace_bytes
from .reductions import buffer_bytes

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
DROPOUT_STATE_BYTES = 6488064
_GRU_CELL_KEEPS = 5
"""The numbers that the kernel of a GRU's cell keeps for each number of its state."""
_ACCEPTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _lstm(x: Any, hx: Any, *rest: Any) -> Any:
    return _run(LSTM, x, hx[0], hx[1], *rest)[:3]


def _one_hidden(mode: int) -> Any:
    return lambda x, hx, *rest: _run(mode, x, hx, None, *rest)[:2]


def _packed(run: Any) -> Any:
    """Run a network over packed sequences.

    If their lengths are not known, all are assumed to be equally long.
    """
    return lambda x, sizes, hx, *rest: run(x, hx, *rest, False, sizes)


def _on_device(run: Any, op: Any) -> Any:
    """Call ``run`` for tensors that cuDNN accepts, and torch's own function for the rest."""

    def kernel(x: Any, *rest: Any) -> Any:
        if x.device != DEVICE or x.dtype not in _ACCEPTED:
            return op.decompose(x, *rest)
        return run(x, *rest)

    return kernel


def flattening(plain: Any) -> Any:
    """Return ``RNNBase.flatten_parameters`` for the traced device.

    It moves all weights into one block when they come to the device; ``plain`` is torch's own
    function, for weights that are elsewhere.
    """

    def flatten_parameters(module: Any) -> None:
        weights = module._flat_weights
        known = len(weights) == len(module._flat_weights_names) and all(
            isinstance(w, torch.Tensor) for w in weights
        )
        kinds = {(weight.device, weight.dtype) for weight in weights} if known else set()
        places = (
            {(weight.untyped_storage()._cdata, weight.storage_offset()) for weight in weights}
            if known
            else set()
        )
        if kinds not in [{(DEVICE, dtype)} for dtype in _ACCEPTED] or len(places) != len(weights):
            plain(module)
            return
        with torch.no_grad():
            flat = weights[0].new_empty(sum(weight.numel() for weight in weights))
            for weight, view in zip(weights, _views(flat, weights), strict=True):
                weight.data = view

    return flatten_parameters


def _lstm_cell(x: Any, hx: Any, *weights: Any) -> Any:
    """Trace ``aten::lstm_cell``: one kernel after the matrix products."""
    if x.device != DEVICE or x.dtype not in _ACCEPTED:
        return aten.lstm_cell.default.decompose(x, hx, *weights)
    w_ih, w_hh, *biases = weights
    return aten._thnn_fused_lstm_cell(
        torch.matmul(x, w_ih.t()), torch.matmul(hx[0], w_hh.t()), hx[1], *biases
    )[:2]


def _gru_cell(x: Any, hx: Any, *weights: Any) -> Any:
    if x.device != DEVICE or x.dtype not in _ACCEPTED:
        return aten.gru_cell.default.decompose(x, hx, *weights)
    w_ih, w_hh, *biases = weights
    return aten._thnn_fused_gru_cell(
        torch.matmul(x, w_ih.t()), torch.matmul(hx, w_hh.t()), hx, *biases
    )[0]


def _unpacked(data: Any, sizes: Any, first: bool, padding: Any, length: int) -> Any:
    """Compute ``aten::_pad_packed_sequence``.

    If the lengths are not known, all sequences are as long as there are steps.
    """
    rows = _rows_of(data, sizes)
    steps, batch = max(length, len(rows)), rows[0]
    padded = _unpack(data, (steps, batch, *data.shape[1:]))
    lengths = torch.full((batch,), steps, dtype=torch.int64)
    return (padded.transpose(0, 1) if first else padded), lengths


def _rows_of(data: Any, sizes: Any) -> list[int]:
    """Return for each step the number of samples that are at least that long."""
    known = data_dependent.numbers(sizes)
    return (
        known if known is not None else [data.shape[0] // max(1, sizes.shape[0])] * sizes.shape[0]
    )


def _unpack(data: Any, shape: tuple[int, ...]) -> Any:
    """Return ``data`` with padding, in ``shape``."""
    missing = math.prod(shape[:2]) - data.shape[0]
    whole = (
        torch.constant_pad_nd(data, [0, 0] * (data.dim() - 1) + [0, missing])
        if missing
        else data.clone()
    )
    return whole.reshape(shape)


def _packed_backward(grad: Any, size: Any, sizes: Any, first: bool) -> Any:
    return grad.new_zeros(size)


def composites() -> dict[str, Any]:
    """Return kernels for torch's composite operators, by name."""
    runs = {
        "lstm": _lstm,
        "gru": _one_hidden(GRU),
        "rnn_tanh": _one_hidden(TANH),
        "rnn_relu": _one_hidden(RELU),
    }
    found: dict[str, Any] = {
        "_pad_packed_sequence": _unpacked,
        "_pack_padded_sequence_backward": _packed_backward,
        "lstm_cell": _lstm_cell,
        "gru_cell": _gru_cell,
    }
    for name, run in runs.items():
        packet = getattr(aten, name)
        found[f"{name}.input"] = _on_device(run, packet.input)
        found[f"{name}.data"] = _on_device(_packed(run), packet.data)
    return found


def _run(
    mode: int,
    x: Any,
    hx: Any,
    cx: Any,
    params: Any,
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    first: bool,
    sizes: Any = None,
) -> Any:
    width = params[1].shape[1]
    projected = hx.shape[2] if hx.shape[2] != width else 0
    if autocast.enabled():
        dtype = torch.float16  # the type to which autocast casts elsewhere
        params = _Flat.apply(dtype, *params)
        hx = hx.to(dtype)
        cx = None if cx is None else cx.to(dtype)
        x = x.to(dtype)
    packed = [] if sizes is None else _rows_of(x, sizes)
    stride = (4 if biases else 2) + (1 if projected else 0)
    flat = x.new_empty(0)
    return aten._cudnn_rnn(
        *(x, list(params), stride, flat, hx, cx, mode, width, projected, layers, first),
        *(dropout, train, both, packed, None),
    )


# ── the fakes ─────────────────────────────────────────────────────────────────────────────────────


class _Flat(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """Autocast's copy of all weights, in one block."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *params: Any) -> Any:
        ctx.types = [parameter.dtype for parameter in params]
        return tuple(
            _views(params[0].new_zeros(sum(part.numel() for part in params), dtype=dtype), params)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the weights' gradients, the last first, as autograd does for successive casts."""
        cast = zip(reversed(grads), reversed(ctx.types), strict=True)
        whole = [None if grad is None else grad.to(kind) for grad, kind in cast]
        return None, *whole[::-1]


def _views(flat: Any, params: Any) -> list[Any]:
    found, at = [], 0
    for parameter in params:
        found.append(flat.narrow(0, at, parameter.numel()).view(parameter.shape))
        at += parameter.numel()
    return found


def forward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``aten::_cudnn_rnn``."""
    (
        x,
        params,
        _,
        _,
        hx,
        cx,
        mode,
        width,
        projected,
        layers,
        first,
        dropout,
        train,
        both,
        packed,
        _,
    ) = args
    recorder, ways = fakes.recorder, 2 if both else 1
    out = (projected or width) * ways
    samples = hx.shape[1]
    if dropout and train and recorder.once("cudnn_dropout"):
        recorder.allocate(DROPOUT_STATE_BYTES, "cudnn_dropout", "workspace")
        recorder.allocate(8, "cudnn_dropout", "workspace")
    moved = first and not packed
    x_bytes = _copied_bytes(x, moved)
    copied = [recorder.allocate(x_bytes, "cudnn_rnn", "temporary")] if x_bytes else []
    if moved:
        y = x.new_empty((x.shape[1], x.shape[0], out)).transpose(0, 1)
    else:
        y = x.new_empty((*x.shape[:-1], out))
    hy = hx.new_empty(hx.shape)
    cy = hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    for made in (y, hy, cy):
        fakes.hold(made, func)
    work = workspace_bytes(mode, x, params, width, samples, layers, ways, dropout if train else 0.0)
    copied.append(recorder.allocate(work, "cudnn_rnn", "workspace"))
    numbers = x.numel() // x.shape[-1] * width * ways
    kept = reserve_bytes(mode, numbers, layers, dropout, x.element_size(), ways) if train else 0
    reserve = x.new_empty((kept,), dtype=torch.uint8)
    fakes.hold(reserve, func)
    recorder.free_all(copied)
    # inside the block of all of them, which the backward pass keeps to its end
    weights = params[0].detach()
    return y, hy, cy, reserve, weights


def backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``aten::_cudnn_rnn_backward``: the gradients of all weights are in one block."""
    x, params, hx, cx, grad, mask = args[0], args[1], args[4], args[5], args[7], args[-1]
    mode, width, layers, first, dropout, both, packed = (
        args[at] for at in (10, 11, 13, 14, 15, 17, 18)
    )
    recorder, ways = fakes.recorder, 2 if both else 1
    moved = first and not packed
    x_bytes = _copied_bytes(x, moved)
    passing = [hidden.nbytes for hidden in (hx, cx) if hidden is not None]
    passing += [x_bytes, 0 if grad is None else _copied_bytes(grad, moved)]
    blocks = [recorder.allocate(size, "cudnn_rnn", "temporary") for size in passing if size]
    dx = (
        x.new_empty((x.shape[1], x.shape[0], x.shape[2])).transpose(0, 1)
        if moved
        else x.new_empty(x.shape)
    )
    dhx = hx.new_empty(hx.shape)
    dcx = None if cx is None else cx.new_empty(cx.shape)
    for made in (dx, dhx, dcx):
        if made is not None:
            fakes.hold(made, func)
    work = workspace_bytes(mode, x, params, width, hx.shape[1], layers, ways, dropout)
    recorder.passing([work], "cudnn_rnn", "workspace")
    hidden = len(blocks) - bool(x_bytes) - bool(passing[-1])
    recorder.free_all(blocks[hidden:])
    grads: list[Any] = []
    if mask[3]:
        copied = [recorder.allocate(x_bytes, "cudnn_rnn", "temporary")] if x_bytes else []
        flat = x.new_empty(sum(part.numel() for part in params), dtype=params[0].dtype)
        fakes.hold(flat, func)
        grads = _views(flat, params)
        recorder.passing([work], "cudnn_rnn", "workspace")
        recorder.free_all(copied)
    recorder.free_all(blocks[:hidden])
    return dx, dhx, dcx, grads


def _copied_bytes(tensor: Any, moved: bool) -> int:
    """Return the bytes of the copy that cuDNN needs if samples are not contiguous.

    It reads all samples of a step one after the other, without gaps.
    """
    ordered = tensor.transpose(0, 1) if moved else tensor
    return 0 if ordered.is_contiguous() else tensor.nbytes


def gru_cell(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``aten::_thnn_fused_gru_cell``: gates and candidates are kept in one block."""
    hx = args[2]
    kept = hx.new_empty((hx.shape[0], hx.shape[1] * _GRU_CELL_KEEPS))
    fakes.hold(kept, func)
    return torch.empty_like(hx, memory_format=torch.contiguous_format), kept


def lstm_cell(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """Trace ``aten::_thnn_fused_lstm_cell``."""
    gates, cx = args[0], args[2]
    kept = torch.empty_like(gates, memory_format=torch.contiguous_format)
    fakes.hold(kept, func)
    hy, cy = (torch.empty_like(cx, memory_format=torch.contiguous_format) for _ in range(2))
    return hy, cy, kept


class Cells:
    """Traces the backward passes of cells, which sum their gates' gradients for the biases."""

    def __init__(self, processors: tuple[int, int]):
        self._processors = processors

    def instead(self) -> dict[Any, Any]:
        found = {aten._thnn_fused_gru_cell_backward.default: self.gru_backward}
        if hasattr(aten, "_thnn_fused_lstm_cell_backward_impl"):
            found[aten._thnn_fused_lstm_cell_backward_impl.default] = self.lstm_backward
        return found

    def gru_backward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        grad, kept, biased = args[:3]
        width = kept.shape[1] // _GRU_CELL_KEEPS
        gates = [kept.new_empty((kept.shape[0], 3 * width)) for _ in range(2)]
        grad_hx = torch.empty_like(grad, memory_format=torch.contiguous_format)
        for made in (*gates, grad_hx):
            fakes.hold(made, func)
        return (
            *gates,
            grad_hx,
            *[self._sum(fakes, func, part) if biased else None for part in gates],
        )

    def lstm_backward(self, fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
        cx, kept, biased = args[2], args[4], args[5]
        gates = torch.empty_like(kept, memory_format=torch.contiguous_format)
        grad_cx = torch.empty_like(cx, memory_format=torch.contiguous_format)
        for made in (gates, grad_cx):
            fakes.hold(made, func)
        return gates, grad_cx, self._sum(fakes, func, gates) if biased else None

    def _sum(self, fakes: Fakes, func: Any, gates: Any) -> Any:
        """Allocate a sum over all samples."""
        out = gates.new_empty(gates.shape[1:])
        fakes.hold(out, func)
        samples, width = gates.shape
        fakes.recorder.passing(buffer_bytes(samples, width, False, False, self._processors), "sum")
        return out


INSTEAD = {
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._cudnn_rnn.default: forward,
    aten._cudnn_rnn_backward.default: backward,
}
