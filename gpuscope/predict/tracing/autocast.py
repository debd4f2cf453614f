"""Apply CUDA's autocast rules to tensors that torch regards as CPU tensors.

A program that asks for autocast on ``cuda`` gets the CPU's autocast, with CUDA's rules in place of
the CPU's. They are replaced where torch looks them up, above autograd. So casts are recorded, kept
for the backward pass, and repeated in the recomputation of a checkpoint exactly as on a GPU. If
both have the same rule, torch's own kernel stays, with its cache of weights.

The rules are read from the header that comes with torch; :data:`LISTS` are those of torch 2.11 for
where it is missing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .fakes import DEVICE
from .replaced import Replaced
from .same_types import AutocastRefused


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LISTS: dict[str, tuple[str, ...]] = {
    "LOWER_PRECISION_FP": _names(
        "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d "
        "conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul "
        "einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell "
        "rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention"
    ),
    "FP32": _names(
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
        "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
        "group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
        "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
        "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
        "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
        "dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d "
        "upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d "
        "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
        "upsample_bicubic2d _upsample_bicubic2d_aa"
    ),
    "FP32_SET_OPT_DTYPE": _names(
        "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
        "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
    ),
    "PROMOTE": _names(
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
    ),
}
_NORMS = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
_KEY = "AutocastCPU"
_library: Any = None


def lists(header: Path = _HEADER) -> dict[str, tuple[str, ...]]:
    """Return operators (with overload) by rule, from torch's header, else :data:`LISTS`."""
    try:
        text = header.read_text(errors="replace").replace("\\\n", " ")
    except OSError:
        return LISTS
    found = {}
    for rule, fallback in LISTS.items():
        definition = re.search(rf"#define AT_FORALL_{rule}\(_\)(.*)", text)
        names = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", definition[1]) if definition else []
        found[rule] = tuple(".".join(filter(None, name)) for name in names) or fallback
    return found


# ── the rules ─────────────────────────────────────────────────────────────────────────────────────


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device == DEVICE
    )


def _cast(value: Any, dtype: torch.dtype, cached: bool = False) -> Any:
    if _eligible(value):
        if value.dtype == dtype:
            return value
        return _weight(value, dtype) if cached else value.to(dtype)
    if isinstance(value, (list, tuple)):
        return type(value)([_cast(part, dtype, cached) for part in value])
    return value


_weights: dict[int, tuple[Any, Any]] = {}


def _weight(value: Any, dtype: torch.dtype) -> Any:
    """Return a cast that is kept until autocast ends, if it is the cast of a parameter."""
    if not (
        value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    ):
        return value.to(dtype)
    kept = _weights.get(id(value))
    if kept is None or kept[0] is not value:
        _weights[id(value)] = kept = (value, value.to(dtype))
    return kept[1]


def _tensors(args: Any) -> Iterator[Any]:
    for value in args:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


class _Rule:
    """A rule's kernel for one operator.

    ``dtype_at`` is the position of the result's type among its arguments.
    """

    def __init__(self, rule: str, op: Any):
        self.rule, self.op = rule, op
        names = [argument.name for argument in op._schema.arguments]
        kwonly = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
        self.dtype_at = names.index("dtype") if "dtype" in names and "dtype" not in kwonly else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return getattr(self, self.rule)(args, kwargs)

    def LOWER_PRECISION_FP(self, args: Any, kwargs: Any) -> Any:
        dtype = lower_dtype()
        kwargs = {name: _cast(value, dtype, True) for name, value in kwargs.items()}
        return self.op(*[_cast(value, dtype, True) for value in args], **kwargs)

    def FP32(self, args: Any, kwargs: Any) -> Any:
        kwargs = {name: _cast(value, torch.float32) for name, value in kwargs.items()}
        return self.op(*[_cast(value, torch.float32) for value in args], **kwargs)

    def FP32_SET_OPT_DTYPE(self, args: Any, kwargs: Any) -> Any:
        if _eligible(args[0]):
            at = self.dtype_at
            if at is None:
                if kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float32
            elif len(args) <= at:
                defaults = [argument.default_value for argument in self.op._schema.arguments]
                args = (*args, *defaults[len(args) : at], torch.float32)
            elif args[at] is None:
                args = (*args[:at], torch.float32, *args[at + 1 :])
        return self.op(*args, **kwargs)

    def PROMOTE(self, args: Any, kwargs: Any) -> Any:
        types = [tensor.dtype for tensor in _tensors(args) if _eligible(tensor)]
        widest = torch.float32 if torch.float32 in types else lower_dtype()
        return self.op(*[_cast(value, widest) for value in args], **kwargs)

    def norm(self, args: Any, kwargs: Any) -> Any:
        if _eligible(args[0]):
            other = getattr(torch.ops.aten.norm, _NORMS[f"norm.{self.op._overloadname}"])
            given = list(args)
            if self.op._overloadname == "Scalar" and len(given) < 2:
                given.append(2)
            if self.op._overloadname == "ScalarOpt_dim" and len(given) < 4:
                given.append(False)
            return other(*given, dtype=torch.float32)
        return self.op(*args, **kwargs)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    """Raise where a GPU's autocast does; that of a CPU casts to float32 instead."""
    raise AutocastRefused("binary_cross_entropy")


def lower_dtype() -> torch.dtype:
    """Return the type that autocast casts to now."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu")
    return torch.get_autocast_cpu_dtype()


def enabled() -> bool:
    try:
        return bool(torch._C.is_autocast_enabled("cpu"))
    except TypeError:  # torch before 2.4
        return bool(torch.is_autocast_cpu_enabled())


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def install() -> None:
    """Replace the CPU's rules by CUDA's, until :func:`uninstall`."""
    global _library
    if _library is not None:
        return
    _library = library = torch.library.Library("aten", "IMPL")
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    here = {name.removeprefix("aten::") for name in registered(_KEY) if name.startswith("aten::")}
    ruled = lists()
    kernels: dict[str, Callable[..., Any]] = {}
    for rule, names in ruled.items():
        for name in names:
            if rule == "LOWER_PRECISION_FP" and name in here:
                continue  # the CPU's own does the same, and keeps the weights
            op = _operator(name)
            if op is not None:
                kernels[name] = _Rule(rule, op)
    for name in _NORMS:
        op = _operator(name)
        if op is not None:
            kernels[name] = _Rule("norm", op)
    kernels["binary_cross_entropy"] = _refuse
    theirs = {name for names in ruled.values() for name in names}
    for name in here - theirs - set(kernels):
        if _operator(name) is not None:
            library.impl(name, torch.library.fallthrough_kernel, _KEY)
    for name, kernel in kernels.items():
        library.impl(name, kernel, _KEY)


def uninstall() -> None:
    """Give the CPU its own rules back."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


# ── what the program asks for ─────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def redirected() -> Iterator[None]:
    """Make requests and queries for autocast on ``cuda`` use the CPU's autocast."""
    autocast = torch.amp.autocast_mode.autocast
    begin = autocast.__init__
    replaced = Replaced()
    change = replaced.change

    def init(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: Any = None,
    ) -> None:
        if device_type == "cuda":
            device_type = "cpu"
            dtype = torch.float16 if dtype is None else dtype
        begin(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def answering(function: Any, plain: Any) -> Any:
        def answer(device_type: Any = None) -> Any:
            return (
                plain()
                if device_type is None
                else function("cpu" if device_type == "cuda" else device_type)
            )

        return answer

    def clear() -> None:
        _weights.clear()
        cleared()

    cleared = torch.clear_autocast_cache
    change(autocast, "__init__", init)
    change(torch, "clear_autocast_cache", clear)
    change(torch, "is_autocast_enabled", answering(torch.is_autocast_enabled, enabled))
    if hasattr(torch, "get_autocast_dtype"):
        change(torch, "get_autocast_dtype", answering(torch.get_autocast_dtype, lower_dtype))
    change(torch, "get_autocast_gpu_dtype", lower_dtype)
    try:
        yield
    finally:
        replaced.restore()
