"""Recurrent networks as cuDNN runs them: all layers and time steps in one kernel, which keeps a reserve of its own for
the backward pass. Torch calls it for every LSTM, GRU and RNN on a GPU; autocast casts to fp16 on the way.

cuDNN does not publish the sizes of its reserve and workspace; :func:`reserve_bytes` and :func:`workspace_bytes` are
what was measured on an H200."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import autocast
from .fakes import DEVICE

if TYPE_CHECKING:
    from .fakes import Fakes

aten = torch.ops.aten
RELU, TANH, LSTM, GRU = 0, 1, 2, 3
"""cuDNN's numbers."""
_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
_KEPT = {RELU: 2, TANH: 2, LSTM: 5, GRU: 6}
_EXTRA = {RELU: 10, TANH: 10, LSTM: 20, GRU: 10}
"""Measured of LSTM and GRU with two layers; of the plain ones guessed."""
DROPOUT_STATE_BYTES = 6488064
_ACCEPTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def reserve_bytes(mode: int, numbers: int, layers: int, dropout: float, size: int) -> int:
    """Kept from the forward to the backward pass. ``numbers``: samples × steps × width × directions. ``size``: bytes of
    a number."""
    kept = _KEPT[mode] * layers + layers - 1
    masks = -(-numbers * (layers - 1) // 256) * 32 if dropout else 0
    return size * numbers * kept + masks + 256


def workspace_bytes(mode: int, x: Any, params: Any, width: int, samples: int, ways: int) -> int:
    """Taken for one pass."""
    size: int = x.element_size()
    steps: int = x.numel() // max(1, x.shape[-1] * samples)
    matrices: int = sum(parameter.numel() for parameter in params if parameter.dim() > 1)
    each = size * width * ways * (steps * (_GATES[mode] + 3) + _EXTRA[mode]) + 8
    return (16 << 20) + 256 + size * matrices + samples * each


def _lstm(x: Any, hx: Any, *rest: Any) -> Any:
    return _run(LSTM, x, hx[0], hx[1], *rest)[:3]


def _one_hidden(mode: int) -> Any:
    return lambda x, hx, *rest: _run(mode, x, hx, None, *rest)[:2]


def _packed(run: Any) -> Any:
    """Of packed sequences, whose lengths are not known: each is taken to be as long as the others."""
    return lambda x, sizes, hx, *rest: run(x, hx, *rest, False, sizes)


def _on_device(run: Any, op: Any) -> Any:
    """``run`` for what cuDNN takes, torch's own way for the rest."""

    def kernel(x: Any, *rest: Any) -> Any:
        if x.device != DEVICE or x.dtype not in _ACCEPTED:
            return op.decompose(x, *rest)
        return run(x, *rest)

    return kernel


def _unpacked(data: Any, sizes: Any, first: bool, padding: Any, length: int) -> Any:
    """``aten::_pad_packed_sequence``, all sequences as long as there are steps."""
    steps = sizes.shape[0]
    batch = data.shape[0] // max(1, steps)
    padded = data.reshape(steps, batch, *data.shape[1:]).clone()
    lengths = torch.full((batch,), steps, dtype=torch.int64)
    return (padded.transpose(0, 1) if first else padded), lengths


def _packed_backward(grad: Any, size: Any, sizes: Any, first: bool) -> Any:
    return grad.new_zeros(size)


def composites() -> dict[str, Any]:
    """Kernels for torch's composite operators, by name."""
    runs = {
        "lstm": _lstm,
        "gru": _one_hidden(GRU),
        "rnn_tanh": _one_hidden(TANH),
        "rnn_relu": _one_hidden(RELU),
    }
    found: dict[str, Any] = {
        "_pad_packed_sequence": _unpacked,
        "_pack_padded_sequence_backward": _packed_backward,
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
        dtype = torch.float16  # whatever autocast casts to elsewhere
        params = _Flat.apply(dtype, *params)
        hx = hx.to(dtype)
        cx = None if cx is None else cx.to(dtype)
        x = x.to(dtype)
    packed = [] if sizes is None else [x.shape[0] // max(1, sizes.shape[0])] * sizes.shape[0]
    stride = (4 if biases else 2) + (1 if projected else 0)
    flat = x.new_empty(0)
    return aten._cudnn_rnn(
        *(x, list(params), stride, flat, hx, cx, mode, width, projected, layers, first),
        *(dropout, train, both, packed, None),
    )


# ── the fakes ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Flat(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    """Autocast's copy of all weights, in one block."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *params: Any) -> Any:
        ctx.types = [parameter.dtype for parameter in params]
        return tuple(_views(params[0].new_zeros(sum(part.numel() for part in params), dtype=dtype), params))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *[grad if grad is None else grad.to(dtype) for grad, dtype in zip(grads, ctx.types, strict=True)]


def _views(flat: Any, params: Any) -> list[Any]:
    """``flat`` cut into pieces with the shapes of ``params``."""
    found, at = [], 0
    for parameter in params:
        found.append(flat.narrow(0, at, parameter.numel()).view(parameter.shape))
        at += parameter.numel()
    return found


def forward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``aten::_cudnn_rnn``."""
    x, params, _, flat, hx, cx, mode, width, projected, layers, first, dropout, train, both, packed, _ = args
    recorder, ways = fakes.recorder, 2 if both else 1
    out = (projected or width) * ways
    samples = hx.shape[1]
    if dropout and train and recorder.once("cudnn_dropout"):
        recorder.allocate(DROPOUT_STATE_BYTES, "cudnn_dropout", "workspace")
        recorder.allocate(8, "cudnn_dropout", "workspace")
    copied = []
    if first and not packed:
        copied.append(recorder.allocate(x.numel() * x.element_size(), "cudnn_rnn", "temporary"))
        y = x.new_empty((x.shape[1], x.shape[0], out)).transpose(0, 1)
    else:
        y = x.new_empty((*x.shape[:-1], out))
    hy = hx.new_empty(hx.shape)
    cy = hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)
    for made in (y, hy, cy):
        fakes.hold(made, func)
    work = workspace_bytes(mode, x, params, width, samples, ways)
    copied.append(recorder.allocate(work, "cudnn_rnn", "workspace"))
    numbers = x.numel() // x.shape[-1] * width * ways
    kept = reserve_bytes(mode, numbers, layers, dropout, x.element_size()) if train else 0
    reserve = x.new_empty((kept,), dtype=torch.uint8)
    fakes.hold(reserve, func)
    for block in reversed(copied):
        recorder.free(block)
    return y, hy, cy, reserve, flat.new_empty(0)


def backward(fakes: Fakes, func: Any, args: Any, kwargs: Any) -> Any:
    """``aten::_cudnn_rnn_backward``: the gradients of all weights lie in one block."""
    x, params, hx, cx, out, mask = args[0], args[1], args[4], args[5], args[6], args[-1]
    mode, width, first, both, packed = (args[at] for at in (10, 11, 14, 17, 18))
    recorder, ways = fakes.recorder, 2 if both else 1
    moved = first and not packed
    passing = []
    if moved:
        passing.append(out.numel() * out.element_size())
    passing += [hidden.numel() * hidden.element_size() for hidden in (hx, cx) if hidden is not None]
    blocks = [recorder.allocate(size, "cudnn_rnn", "temporary") for size in passing]
    dx = x.new_empty(x.shape)
    dhx = hx.new_empty(hx.shape)
    dcx = None if cx is None else cx.new_empty(cx.shape)
    for made in (dx, dhx, dcx):
        if made is not None:
            fakes.hold(made, func)
    work = workspace_bytes(mode, x, params, width, hx.shape[1], ways)
    recorder.passing([work], "cudnn_rnn", "workspace")
    for block in reversed(blocks):
        recorder.free(block)
    grads: list[Any] = []
    if mask[3]:
        copied = [recorder.allocate(x.numel() * x.element_size(), "cudnn_rnn", "temporary")] if moved else []
        flat = x.new_empty(sum(part.numel() for part in params), dtype=params[0].dtype)
        fakes.hold(flat, func)
        grads = _views(flat, params)
        recorder.passing([work], "cudnn_rnn", "workspace")
        for block in copied:
            recorder.free(block)
    return dx, dhx, dcx, grads


INSTEAD = {aten._cudnn_rnn.default: forward, aten._cudnn_rnn_backward.default: backward}
