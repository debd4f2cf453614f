"""Find out whether a factory's ``forward()`` gives its model the same batch each time.

Many factories draw one batch and use it in all steps. With a smaller micro-batch such a training
sees fewer different samples, which it soon knows by heart, so its loss says nothing about a larger
one. The first tensors that any module gets are added up in the first two passes: equal sums mean
equal batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


class SameBatch:
    """The look at the first two passes.

    ``answer`` is None before, and where no module got a tensor.
    """

    def __init__(self) -> None:
        self.answer: bool | None = None
        self._passes = 0
        self._first: list[float] = []

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at what the first module gets within this block, if it is one of the first two."""
        if self._passes >= 2:
            yield
            return
        sums: list[float] = []

        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if not sums:
                sums.extend(_sum(value) for value in inputs if isinstance(value, Tensor))

        handle = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            handle.remove()
        self._passes += 1
        if self._passes == 1:
            self._first = sums
        elif sums and self._first:
            self.answer = sums == self._first


def _sum(value: Tensor) -> float:
    with torch.no_grad():
        return float(value.sum(dtype=torch.float64)) if not value.is_complex() else float("nan")
