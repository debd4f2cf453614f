"""Determine which module is running, in the forward and the backward pass, by its qualified name.

In the forward pass global hooks report it. In the backward pass it follows from autograd's nodes:
each has a sequence number from its creation, and the numbers between a module's begin and its end
belong to that module.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module as hooks

from .fakes import running_node

_number = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)


class Modules:
    """Knows which module of ``root`` is running.

    The names are known after :meth:`name` was called; :meth:`current` returns the one that is
    running.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._places: list[str] = []
        self.first_input = ""
        """The shape and type of the first tensor that a module was called with."""

    def name(self, root: torch.nn.Module) -> None:
        self._names = {id(module): name for name, module in root.named_modules()}

    def forget(self) -> None:
        """Forget the running modules, before a new forward pass."""
        self._stack.clear()
        self._numbers.clear()
        self._places.clear()

    def current(self) -> tuple[str, bool]:
        """Return the innermost running module, and whether its forward pass is running.

        A node of the backward pass belongs to a module, but is not inside the forward pass.
        """
        if self._stack:
            return self._stack[-1], True
        node = running_node()
        if node is None or not self._numbers:
            return "", bool(self._numbers)
        number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        place = bisect_right(self._numbers, number) - 1
        return (self._places[place] if place >= 0 else ""), False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        handles = [hooks.register_module_forward_pre_hook(self._begin)]
        try:
            handles.append(hooks.register_module_forward_hook(self._end, always_call=True))
        except TypeError:  # torch before 2.2
            handles.append(hooks.register_module_forward_hook(self._end))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, module: Any, inputs: Any) -> None:
        self._stack.append(self._names.get(id(module), self._stack[-1] if self._stack else ""))
        if not self.first_input:
            tensor = next((one for one in inputs if isinstance(one, torch.Tensor)), None)
            if tensor is not None:
                kind = str(tensor.dtype).removeprefix("torch.")
                self.first_input = f"{'×'.join(str(int(size)) for size in tensor.shape)} {kind}"
        self._note()

    def _end(self, module: Any, inputs: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._note()

    def _note(self) -> None:
        if _number is not None:
            self._numbers.append(_number())
            self._places.append(self._stack[-1] if self._stack else "")
