"""What one operator of torch has to compute and to move, by formulas from the shapes of its call.

A multiplication and an addition are two FLOPs. Only products count: of matrices, convolutions,
attention, recurrent layers. Elementwise operators, norms and optimizers have bytes alone, as in
every convention for model FLOPs: on a GPU their arithmetic costs nothing compared with their
memory. An operator whose FLOPs are not known (a Fourier transform, a decomposition, a kernel of
another library) is named as unknown, and never counted as 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

Kind = Literal["products", "convolutions", "attention", "recurrent", "optimizer", "memory"]


class NoFormula(ValueError):
    """The call has FLOPs that its shapes do not tell."""


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of a call, by three ways to count.

    ``hardware`` is what its kernel computes, without looking at masks. ``model`` leaves out what is
    computed a second time to save memory: the backward pass of a fused attention computes the
    scores again. ``least`` is what cannot be avoided: a causal mask leaves half of the scores.
    """

    kind: Kind
    hardware: float
    model: float
    least: float


def _same(kind: Kind, flops: float) -> Flops:
    return Flops(kind, flops, flops, flops)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """The arguments of a call: tensors as ``{"t": shape, "d": type}``, lists, numbers, None."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Sequence[Any]

    def shape(self, at: int) -> list[int]:
        """Return the shape of a tensor among the arguments. Raises NoFormula."""
        return _shape(self.args[at] if at < len(self.args) else None)

    def result(self) -> list[int]:
        """Return the shape of the first tensor that the call gave. Raises NoFormula."""
        found = self.out[0] if self.out else None
        if isinstance(found, list):
            found = found[0] if found else None
        return _shape(found)

    def value(self, at: int, name: str, default: Any = None) -> Any:
        """Return an argument that is no tensor, by its place or by its name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)


def _shape(value: Any) -> list[int]:
    sizes = value.get("t") if isinstance(value, dict) else None
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise NoFormula
    return sizes


def _tensors(value: Any) -> list[list[int]]:
    if isinstance(value, dict) and "t" in value:
        return [_shape(value)]
    return [one for part in value for one in _tensors(part)] if isinstance(value, list) else []


def read_call(text: str) -> OperatorCall:
    """Return the call that a probe has written down. Raises NoFormula if it is not a call."""
    try:
        found = json.loads(text)
        args, kwargs, out = found["args"], found["kwargs"], found["out"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise NoFormula from None
    if not (isinstance(args, list) and isinstance(kwargs, dict) and isinstance(out, list)):
        raise NoFormula
    return OperatorCall(args, kwargs, out)


# ── products ──


def _matmul(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the FLOPs of ``a @ b`` as numpy defines it, any number of dimensions."""
    if not a or not b:
        raise NoFormula
    columns = b[-1] if len(b) > 1 else 1
    inner = b[-2] if len(b) > 1 else b[-1]
    rows = a[-2] if len(a) > 1 else 1
    if a[-1] != inner:
        raise NoFormula
    batch = prod(_broadcast(a[:-2], b[:-2]))
    return 2.0 * batch * rows * inner * columns


def _broadcast(a: Sequence[int], b: Sequence[int]) -> list[int]:
    longest = max(len(a), len(b))
    one, other = [1] * (longest - len(a)) + list(a), [1] * (longest - len(b)) + list(b)
    if any(x != y and 1 not in (x, y) for x, y in zip(one, other, strict=True)):
        raise NoFormula
    return [y if x == 1 else x for x, y in zip(one, other, strict=True)]


def _product_at(first: int) -> Callable[[OperatorCall], Flops]:
    """Return the formula of a product of two arguments that stand next to each other."""

    def formula(call: OperatorCall) -> Flops:
        return _same("products", _matmul(call.shape(first), call.shape(first + 1)))

    return formula


def _linear(call: OperatorCall) -> Flops:
    """``linear(x, weight)``: every row of x with every row of weight."""
    x, weight = call.shape(0), call.shape(1)
    if not x or x[-1] != weight[-1]:
        raise NoFormula
    return _same("products", 2.0 * prod(x) * prod(weight[:-1]))


def _outer(call: OperatorCall) -> Flops:
    """``addr(self, a, b)``: each element is one product."""
    return _same("products", 2.0 * prod(call.shape(1)) * prod(call.shape(2)))


def _grouped(call: OperatorCall) -> Flops:
    """``_grouped_mm(a, b, offs)``: groups of rows, of columns or of the inner dimension.

    All groups together have each row, column or inner element once.
    """
    a, b = call.shape(0), call.shape(1)
    if len(a) == 3 and len(b) == 3:
        return _same("products", _matmul(a, b))
    if len(a) == 2:  # rows in groups with a matrix each, or the inner dimension in groups
        return _same("products", 2.0 * a[0] * a[1] * b[-1])
    return _same("products", 2.0 * a[1] * a[2] * b[-1])


# ── convolutions ──


def _convolved(x: Sequence[int], weight: Sequence[int], out: Sequence[int], swap: bool) -> float:
    """Return the FLOPs of a convolution: each weight of a channel at each place of the kernel.

    ``weight`` is (out, in / groups, *kernel), transposed (in, out / groups, *kernel): there each
    place of the input is spread, here each place of the output is gathered.
    """
    if not weight or not weight[0] or len(x) != len(weight):
        raise NoFormula
    return 2.0 * prod(x if swap else out) * prod(weight[1:])


def _convolution(call: OperatorCall) -> Flops:
    transposed = bool(call.value(6, "transposed", False))
    return _same(
        "convolutions",
        _convolved(call.shape(0), call.shape(1), call.result(), transposed),
    )


def _backend_convolution(call: OperatorCall) -> Flops:
    """A convolution of one backend, which is never transposed."""
    return _same("convolutions", _convolved(call.shape(0), call.shape(1), call.result(), False))


def _backend_transposed(call: OperatorCall) -> Flops:
    return _same("convolutions", _convolved(call.shape(0), call.shape(1), call.result(), True))


def _convolution_backward(call: OperatorCall) -> Flops:
    """Gradients of the input and of the weight cost as much as the forward pass, each."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    wanted = call.value(10, "output_mask")
    if not isinstance(wanted, list) or len(wanted) != 3:
        raise NoFormula
    each = _convolved(x, weight, grad, bool(call.value(7, "transposed", False)))
    return _same("convolutions", each * (bool(wanted[0]) + bool(wanted[1])))


# ── attention ──


def _attended(q: list[int], k: list[int], v: list[int]) -> tuple[float, float]:
    """Return the FLOPs of ``q @ k`` and of ``scores @ v``; shapes are (batch, heads, length, dim).

    Fewer heads of k and v are shared by those of q.
    """
    scores = q[0] * q[1] * q[2] * k[2]
    return 2.0 * scores * q[3], 2.0 * scores * v[3]


def _causal_share(call: OperatorCall, at: int, q: int, k: int) -> float:
    """Return the share of the scores of q rows and k columns that a causal mask leaves.

    A row sees the columns up to its own. ``at`` is the place of ``is_causal``, or of a number that
    is 1 or 2 for such a mask.
    """
    if call.value(at, "is_causal") not in (True, 2) or not q or not k:
        return 1.0
    square = min(q, k)
    return (square * (square + 1) / 2 + (q - square) * k) / (q * k)


def _attention(
    causal_at: int, heads_first: bool = True, sequences_at: tuple[int, ...] = ()
) -> Callable[[OperatorCall], Flops]:
    """Return the formula of a forward pass; sequences of many lengths in one row have none."""

    def formula(call: OperatorCall) -> Flops:
        q, k, v = _heads(call, 0, heads_first, sequences_at)
        flops = sum(_attended(q, k, v))
        return Flops("attention", flops, flops, flops * _causal_share(call, causal_at, q[2], k[2]))

    return formula


def _attention_backward(
    causal_at: int, heads_first: bool = True, sequences_at: tuple[int, ...] = ()
) -> Callable[[OperatorCall], Flops]:
    """Return the formula of a backward pass.

    Gradients of the scores and of the values, of q and of k are a product each; the scores are
    computed once more, because the forward pass keeps none.
    """

    def formula(call: OperatorCall) -> Flops:
        q, k, v = _heads(call, 1, heads_first, sequences_at)
        scores, values = _attended(q, k, v)
        model, hardware = 2 * (scores + values), 3 * scores + 2 * values
        least = hardware * _causal_share(call, causal_at, q[2], k[2])
        return Flops("attention", hardware, model, least)

    return formula


def _heads(
    call: OperatorCall, first: int, heads_first: bool, sequences_at: tuple[int, ...]
) -> tuple[list[int], list[int], list[int]]:
    """Return the shapes of q, k and v as (batch, heads, length, dim)."""
    if any(_is_given(call, at) for at in sequences_at):
        raise NoFormula
    shapes = [call.shape(first + at) for at in range(3)]
    if any(len(shape) != 4 for shape in shapes):
        raise NoFormula
    if not heads_first:
        shapes = [[one[0], one[2], one[1], one[3]] for one in shapes]
    return shapes[0], shapes[1], shapes[2]


def _of_package(
    formula: Callable[[OperatorCall], Flops], window_at: int
) -> Callable[[OperatorCall], Flops]:
    """Return the formula of a call of the package flash-attn.

    A sliding window of ``window_at`` (-1 for none) leaves less than can be told here.
    """

    def windowed(call: OperatorCall) -> Flops:
        found = formula(call)
        left = call.value(window_at, "window_size_left", -1)
        return found if left == -1 else replace(found, least=0.0)

    return windowed


def _is_given(call: OperatorCall, at: int) -> bool:
    return at < len(call.args) and isinstance(call.args[at], dict)


# ── recurrent layers ──


def _recurrent(call: OperatorCall, weights_at: int, passes: float) -> Flops:
    """Every weight matrix is multiplied once at each place of the sequence."""
    x, weights = call.shape(0), call.args[weights_at] if weights_at < len(call.args) else None
    matrices = [shape for shape in _tensors(weights) if len(shape) == 2]
    if len(x) != 3 or not matrices:
        raise NoFormula
    each = 2.0 * x[0] * x[1] * sum(prod(shape) for shape in matrices)
    return _same("recurrent", passes * each)


def _layer(call: OperatorCall) -> Flops:
    """``mkldnn_rnn_layer(input, weight, weight, bias, bias, …)``: one layer in one direction."""
    x = call.shape(0)
    if len(x) != 3:
        raise NoFormula
    each = sum(prod(call.shape(at)) for at in (1, 2))
    return _same("recurrent", 2.0 * x[0] * x[1] * each)


def _layer_backward(call: OperatorCall) -> Flops:
    each = _layer(call).hardware
    return _same("recurrent", 2 * each)


OF_PACKAGES: Mapping[str, Callable[[OperatorCall], Flops]] = {
    "flash_attn::_flash_attn_forward": _of_package(_attention(5, False), 6),
    "flash_attn::_flash_attn_backward": _of_package(_attention_backward(11, False), 12),
}
"""Operators of other libraries, by their full names (flash-attn 2.7)."""
FORMULAS: Mapping[str, Callable[[OperatorCall], Flops]] = {
    "mm": _product_at(0),
    "bmm": _product_at(0),
    "matmul": _product_at(0),
    "mv": _product_at(0),
    "dot": _product_at(0),
    "vdot": _product_at(0),
    "addmm": _product_at(1),
    "_addmm_activation": _product_at(1),
    "baddbmm": _product_at(1),
    "addbmm": _product_at(1),
    "addmv": _product_at(1),
    "addmm_": _product_at(1),
    "baddbmm_": _product_at(1),
    "addbmm_": _product_at(1),
    "addmv_": _product_at(1),
    "addr": _outer,
    "addr_": _outer,
    "_scaled_mm": _product_at(0),
    "_int_mm": _product_at(0),
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_mkl_linear": _linear,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "cudnn_convolution": _backend_convolution,
    "cudnn_convolution_transpose": _backend_transposed,
    "mkldnn_convolution": _backend_convolution,
    "_slow_conv2d_forward": _backend_convolution,
    "conv1d": _backend_convolution,
    "conv2d": _backend_convolution,
    "conv3d": _backend_convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(4),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_fused_attention_overrideable": _attention(5),
    "scaled_dot_product_attention": _attention(5),
    "_scaled_dot_product_flash_attention_backward": _attention_backward(11),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward(7),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward(13),
    "_flash_attention_forward": _attention(8, False, (3, 4)),
    "_flash_attention_backward": _attention_backward(11, False, (6, 7)),
    "_efficient_attention_forward": _attention(9, False, (4, 5)),
    "_efficient_attention_backward": _attention_backward(14, False, (6, 7)),
    "_cudnn_rnn": lambda call: _recurrent(call, 1, 1.0),
    "_cudnn_rnn_backward": lambda call: _recurrent(call, 1, 2.0),
    "mkldnn_rnn_layer": _layer,
    "mkldnn_rnn_layer_backward": _layer_backward,
}  # fmt: skip
"""By the name of the operator without its namespace. The places of arguments are those of torch's
own schema (``native_functions.yaml``, torch 2.11 and 2.13).
"""
UNKNOWN = re.compile(
    r"fft|linalg|cholesky|svd|cdist|einsum|trilinear|bilinear|lu_solve|lu_unpack|lu_with|geqrf"
    r"|ormqr|orgqr|householder|matrix_exp|logdet|triangular_solve|sparse|_nested|attention|rnn"
    r"|lstm|gru|conv|matmul|multi_head|linear_backward|mixed_dtypes_linear|(^|[_a-z])mm(_|$)"
)
"""Operators of torch with such a name have FLOPs beyond the elements that they touch."""
HAS_NONE = re.compile(
    r"convert|sparse_(softmax|mask|coo)|to_sparse|upsample|_thnn_fused|flatten_weight|reorder|comm"
    r"|vector_norm|check_errors"
)
"""Of those: these have none after all."""
OWN = frozenset(("aten", "prim", "prims", "profiler", "fsdp"))
"""Namespaces of torch itself."""
COMMUNICATES = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "symm_mem"))
WRITES_ONLY = frozenset((
    "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
    "_foreach_copy_", "_foreach_zero_", "_local_scalar_dense",
))  # fmt: skip
"""What they write is among what they are given: those bytes move once."""
MOVES_NOTHING = frozenset((
    "_unsafe_view", "_reshape_alias", "set_", "resize_", "lift_fresh", "_fused_sdp_choice",
))  # fmt: skip
NEW = re.compile(r"_like$|^new_|^(zeros|ones|full|rand|randn|arange|scalar_tensor)$")
"""They read nothing: a tensor among their arguments is only the pattern."""
GATHERS = frozenset(("embedding", "index", "gather", "index_select", "_unsafe_index", "take"))
"""They read no more than they give, however large the table is."""
SCATTERS = frozenset((
    "index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_", "index_copy_",
    "_unsafe_index_put_",
))  # fmt: skip
"""They change no more of the table than they are given."""
OPTIMIZERS = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")


def flops_of(name: str, text: str) -> Flops | None:
    """Return the FLOPs of a call of an operator (``aten::mm``), None where it has only bytes.

    ``text`` is what the probe wrote down of its arguments. Raises NoFormula if its FLOPs are not
    known.
    """
    space, _, own = name.rpartition("::")
    formula = FORMULAS.get(own) if space == "aten" else OF_PACKAGES.get(name)
    if formula is not None:
        try:
            return formula(read_call(text))
        except (TypeError, AttributeError, IndexError, KeyError):
            raise NoFormula from None
    if space in COMMUNICATES:
        return None
    if space not in OWN:
        raise NoFormula
    if space == "aten" and UNKNOWN.search(own) and not HAS_NONE.search(own):
        raise NoFormula
    return None


def bytes_of(name: str, read: float, written: float) -> float:
    """Return the bytes that calls of an operator move at least, of what they were given and gave.

    As if nothing of it were in a cache: each input is read once, each result is written once.
    """
    space, _, own = name.rpartition("::")
    if own in MOVES_NOTHING or space in COMMUNICATES:
        return 0.0
    if own in WRITES_ONLY:
        return read
    if NEW.search(own):
        return written
    if own in GATHERS:
        return min(2 * written, read + written)
    if own in SCATTERS:
        return 2 * max(read - written, 0.0)
    return read + written


def kind_of(name: str) -> Kind:
    """Return the class of an operator that has only bytes."""
    own = name.rpartition("::")[2]
    return "optimizer" if own.startswith(OPTIMIZERS) else "memory"
