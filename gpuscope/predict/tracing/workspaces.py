"""Trace the scratch memory of cuBLAS, which torch takes from its allocator and keeps.

Each thread that multiplies has a handle with a workspace of its own: the program's thread gets one
at its first matrix product, and the thread in which autograd runs the backward pass at its first
one. Sizes are those of torch's ``CUDABlas.cpp`` (``:4096:2:16:8``: two of 4096 and eight of 16 KiB;
32 MiB on compute capability 9.0).
"""

from __future__ import annotations

from typing import Any

import torch

from .fakes import Around
from .recorder import BACKWARD, Recorder

aten = torch.ops.aten
HOPPER_BYTES = 32 << 20
LIGHT_BYTES = 1 << 20
BEFORE_BYTES = (2 * 4096 + 8 * 16) << 10


def cublas_bytes(architecture: tuple[int, int]) -> int:
    """Return the bytes of one handle's workspace."""
    return HOPPER_BYTES if architecture[0] == 9 else BEFORE_BYTES


class Workspaces:
    """Adds each handle's workspace when it is first needed."""

    def __init__(self, architecture: tuple[int, int]):
        self._bytes = cublas_bytes(architecture)
        self._light: set[bool] = set()

    def around(self) -> dict[Any, Around]:
        products = ("mm", "bmm", "baddbmm", "addmv", "mv", "dot")
        found: dict[Any, Around] = {getattr(aten, name).default: self.product for name in products}
        found[aten.addmm.default] = self.biased
        if hasattr(aten, "_addmm_activation"):
            found[aten._addmm_activation.default] = self.biased
        return found

    def biased(self, recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Trace a product with a bias by cublasLt, which has a small workspace in addition."""
        if out.device.index is None:
            return
        self.product(recorder, func, args, kwargs, out)
        handle = recorder.phase == BACKWARD
        if args[0].dim() == 1 and handle not in self._light:
            self._light.add(handle)
            recorder.allocate(LIGHT_BYTES, "cublaslt", "workspace")

    def product(self, recorder: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Trace a product of tensors on the device.

        Models are also built, and normalised, on the host.
        """
        if out.device.index is None:
            return
        handle = recorder.phase == BACKWARD
        if handle not in recorder.workspaces:
            block = recorder.allocate(self._bytes, "cublas", "workspace")
            recorder.workspaces[handle] = block


def clear(recorder: Recorder) -> None:
    """Free each handle's workspace, as torch does before and after a CUDA graph is captured."""
    recorder.free_all(list(recorder.workspaces.values()))
    recorder.workspaces.clear()
