"""Choose the CUDA kernel for an operator, if it differs from the CPU's.

The choices come from the modules that each know one kind of kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from . import (
    attention,
    convolution,
    data_dependent,
    indexing,
    multiprocessors,
    normalization,
    recurrent,
    reductions,
    workspaces,
)
from .fakes import DEVICE, Around

aten = torch.ops.aten
_library: Any = None
_flatten: Any = None
"""torch's own ``RNNBase.flatten_parameters`` while the library is installed."""
_composites: dict[str, Any] = {}
"""The kernels of the present training, by operator. A process traces several trainings, for GPUs of
several architectures.
"""


def around(architecture: tuple[int, int]) -> dict[Any, Around]:
    """Return what kernels take besides their results, by operator."""
    return {
        **attention.AROUND,
        **indexing.AROUND,
        **normalization.AROUND,
        **workspaces.Workspaces(architecture).around(),
        **reductions.Reductions(architecture).around(),
    }


def instead(architecture: tuple[int, int]) -> dict[Any, Any]:
    """Return fakes that replace torch's own, by operator."""
    processors = multiprocessors.of_gpu(architecture)
    return {
        **data_dependent.INSTEAD,
        **_OWN,
        **convolution.Convolutions(architecture).instead(),
        **recurrent.INSTEAD,
        **recurrent.Cells(processors).instead(),
        **indexing.INSTEAD,
        **normalization.INSTEAD,
        **normalization.Rows(processors).instead(),
        **attention.INSTEAD,
        **attention.Backward(architecture, processors).instead(),
    }


def _dropout(x: Any, p: float, train: bool) -> Any:
    """Trace dropout, which on CUDA is one kernel that keeps a mask of booleans."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype, device=x.device)
    return aten.native_dropout(x, p, train)[0]


def _native_dropout(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x = args[0]
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _native_dropout_backward(fakes: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return torch.empty_like(args[0])


_OWN = {
    aten.native_dropout.default: _native_dropout,
    aten.native_dropout_backward.default: _native_dropout_backward,
}


def _softmax(plain: Any) -> Any:
    """Trace a softmax from fp16 to fp32, which on CUDA is one kernel without a copy in between."""

    def kernel(x: Any, dim: int, dtype: Any = None) -> Any:
        if x.dtype == torch.float16 and dtype == torch.float32 and x.device == DEVICE:
            return plain(x, dim, True)
        return plain(x if dtype is None else x.to(dtype), dim, False)

    return kernel


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Add a bias in place if the matrix product cannot do it.

    torch does not do this for fake tensors.
    """
    if bias is None or x.dim() < 3 or x.is_contiguous():
        return aten.linear.default.decompose(x, weight, bias)
    return aten.matmul(x, weight.t()).add_(bias)


def install(architecture: tuple[int, int]) -> None:
    """Replace composite operators by CUDA's choice of kernels.

    This lasts until :func:`uninstall`; ``architecture`` is that of the next training.
    """
    global _library, _flatten
    rows = normalization.Rows(multiprocessors.of_gpu(architecture))
    _composites.update(
        {
            "scaled_dot_product_attention": attention.Attention(architecture),
            "dropout": _dropout,
            "linear": _linear,
            "ctc_loss.Tensor": data_dependent.ctc_loss,
            "softmax.int": _softmax(aten._softmax),
            "log_softmax.int": _softmax(aten._log_softmax),
            **recurrent.composites(),
            **({"rms_norm": rows.rms_norm} if hasattr(aten, "rms_norm") else {}),
        }
    )
    if _library is not None:
        return
    _library = library = torch.library.Library("aten", "IMPL")
    _flatten = torch.nn.RNNBase.flatten_parameters
    torch.nn.RNNBase.flatten_parameters = recurrent.flattening(_flatten)
    for name in _composites:
        library.impl(name, _present(name), "AutogradCPU")


def uninstall() -> None:
    """Give torch its own composite operators back."""
    global _library
    if _library is not None:
        _library._destroy()
        _library, torch.nn.RNNBase.flatten_parameters = None, _flatten


def _present(name: str) -> Any:
    """Return a kernel that calls the present training's: torch keeps the first one it gets."""
    return lambda *args, **kwargs: _composites[name](*args, **kwargs)
