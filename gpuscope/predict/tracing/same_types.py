"""Refuse operators whose tensors have types or indices that fail in every step on a GPU.

Some take tensors of one type only, and some none in half precision. torch's fakes follow the shapes
of these operators and not their types. Where autocast applies it
has cast their tensors before. What it leaves alone, and what a model in half precision gets in
another type, is an error in the first step, however much memory there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from . import known_values

aten = torch.ops.aten
_POSITIONS: dict[tuple[int, ...], str] = {
    (0, 1): "mm mv convolution grid_sampler_2d grid_sampler_3d binary_cross_entropy _cdist_forward",
    (1, 2): "addmm addmv",
    (0, 3): "index_add index_add_ index_copy index_copy_ index_reduce index_reduce_",
    (0, 2): "index_put index_put_ _index_put_impl_ nll_loss_forward nll_loss2d_forward",
    (0, 6): "_embedding_bag _embedding_bag_forward_only",
}
"""The positions of the arguments that have to be of one type, and the operators."""
TOGETHER: dict[Any, tuple[int, ...]] = {
    getattr(aten, name).default: positions
    for positions, names in _POSITIONS.items()
    for name in names.split()
}


CAST = frozenset(
    func
    for func in TOGETHER
    if func.overloadpacket.__name__.lstrip("_").startswith(
        ("index_copy", "index_put", "mv", "addmv", "nll_loss")
    )
)
"""Those of them that inductor compiles into code of its own, which casts."""


_OF_LABELS = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_LABELS = (torch.int64, torch.uint8)
"""The types of labels that the loss of classes takes, which is what cross-entropy ends in."""


_TABLES = (aten.embedding.default,)
_LOOKS_UP = frozenset((*_TABLES, *_OF_LABELS))

HALVES = (torch.float16, torch.bfloat16)
"""The types of half precision."""
_WIDE = frozenset(
    getattr(getattr(aten, name), overload)
    for overload, names in {
        "default": "_cdist_forward _pdist_forward _linalg_det _linalg_eigh _linalg_slogdet "
        "_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve geqrf "
        "linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex "
        "linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex "
        "linalg_lu_solve linalg_qr linalg_solve_triangular lu_unpack ormqr polar triangular_solve",
        "Tensor": "_ctc_loss",
    }.items()
    for name in names.split()
) | {aten._ctc_loss.default}
"""Operators that have no kernel in half precision on a GPU, by torch's own list of what its tests
expect (``torch.testing._internal.common_methods_invocations``).
"""


_FOURIER = (aten._fft_r2c.default, aten._fft_c2r.default, aten._fft_c2c.default)
_OF_HALF_COMPLEX = frozenset(
    getattr(aten, name).default
    for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot")
)
"""Products, for which a GPU has no kernel of complex numbers in half precision."""


class AutocastRefused(RuntimeError):
    """A GPU's autocast always refuses an operator; ``args`` is its name."""


class FourierRefused(RuntimeError):
    """cuFFT got half precision and a size that it does not take; ``args`` is the size."""


class HalvesRefused(RuntimeError):
    """An operator got a tensor in half precision and takes none; ``args`` are its name and type."""


class LabelsRefused(RuntimeError):
    """The loss of classes got labels of another type; ``args`` is the type."""


class OutOfRange(RuntimeError):
    """An operator got an index that its table lacks; ``args`` are its name, index and rows."""


class TypesDiffer(RuntimeError):
    """An operator got tensors of several types; ``args`` are its name and the types."""


def check(func: Any, args: tuple[Any, ...], compiled: bool = False) -> None:
    """Raise :class:`TypesDiffer` where an operator gets several types and takes one.

    Where it gets half precision and takes none it raises :class:`HalvesRefused`, where cuFFT takes
    only some sizes of it :class:`FourierRefused`, and of labels :class:`LabelsRefused`. A single
    number without a dimension is left alone, because torch may fill with it. ``compiled`` says that
    the operator is about to be compiled.
    """
    if func in _OF_LABELS and not compiled and args[1].dtype not in _LABELS:
        raise LabelsRefused(str(args[1].dtype).removeprefix("torch."))
    if func in _LOOKS_UP:
        _look_up(func, args)
    if func in _FOURIER:
        _look_at_sizes(func, args)
    if func in _WIDE or func in _OF_HALF_COMPLEX:
        refused = HALVES if func in _WIDE else (torch.complex32,)
        for one in args:
            if isinstance(one, torch.Tensor) and one.dtype in refused:
                name = func.overloadpacket.__name__.strip("_")
                raise HalvesRefused(name, str(one.dtype).removeprefix("torch."))
    positions = TOGETHER.get(func)
    if positions is None or len(args) <= positions[-1] or (compiled and func in CAST):
        return
    tensors = [args[at] for at in positions]
    if all(isinstance(one, torch.Tensor) for one in tensors) and tensors[1].dim():
        check_tensors(func.overloadpacket.__name__.lstrip("_"), tensors)


def _look_at_sizes(func: Any, args: tuple[Any, ...]) -> None:
    """Raise :class:`FourierRefused` where cuFFT transforms half precision in powers of two only."""
    x, dims = args[0], args[1]
    if x.dtype not in (torch.float16, torch.complex32):
        return
    sizes = [int(x.shape[dim]) for dim in dims]
    if func is aten._fft_c2r.default:
        sizes[-1] = int(args[3])
    for size in sizes:
        if size & (size - 1):
            raise FourierRefused(size)


def _look_up(func: Any, args: tuple[Any, ...]) -> None:
    """Raise :class:`OutOfRange` where an index is known to be in no row."""
    table, index = args[0], args[1]
    found = getattr(index, "constant", None)
    same = known_values.of(index) if found is None else None
    if found is None and same is None:
        return
    rows = int(table.shape[0 if func in _TABLES or table.dim() < 2 else 1])
    with no_dispatch():
        values = torch.tensor([same]) if found is None else found.reshape(-1)
        if func in _OF_LABELS:
            values = values[values != args[4]]
        wrong = values[(values < 0) | (values >= rows)]
        if wrong.numel():
            raise OutOfRange(func.overloadpacket.__name__, int(wrong[-1]), rows)


def check_tensors(name: str, tensors: Iterable[Any]) -> None:
    """Raise :class:`TypesDiffer` if these tensors of one operator are of several types."""
    types = {str(one.dtype).removeprefix("torch."): one.dtype for one in tensors}
    if len(types) > 1:
        raise TypesDiffer(name, *types)
