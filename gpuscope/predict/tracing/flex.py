"""Trace ``flex_attention`` as on CUDA.

When compiled it is one kernel, which keeps its output and a row of logarithms. When run eagerly,
each of its operations makes a whole matrix of scores in fp32. On the CPU, torch has no backward
pass for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..request import Doubt

WRAPPER = "_flex_attention_hop_wrapper"
"""The function that torch itself compiles inside ``flex_attention``."""
MODULE = "torch.nn.attention.flex_attention"
COMPILED_PERCENT, EAGER_PERCENT = 3.0, 15.0
COMPILED = (
    "The compiled kernel of flex_attention chooses its own scratch memory, which was not measured."
)
EAGER = (
    "flex_attention without compile creates whole score matrices; how many depends on score_mod."
)
FORWARD_SCORES, BACKWARD_SCORES = 4, 7
"""Matrices of scores that eager execution has at one time, besides a mask of booleans: the scores
before and after the program's own function, their softmax and its safe copy; in the backward pass
also the gradients of each.
"""


class Flex:
    """Traces the attention. :attr:`compiled`: the program compiles something, so this too."""

    def __init__(self, doubt: Callable[[Doubt], None]):
        self.compiled = False

        def tell(compiled: bool) -> bool:
            text, percent = (COMPILED, COMPILED_PERCENT) if compiled else (EAGER, EAGER_PERCENT)
            doubt(Doubt("unmeasured", text, "flex_attention", percent))
            return True

        tell._dynamo_marked_constant = True  # type: ignore[attr-defined]  # not to be traced
        self._tell = tell

    def replaced(self) -> Iterator[tuple[Any, str, Any]]:
        """Return (owner, name, value) of the replacements in torch's module.

        Nothing before torch 2.5.
        """
        try:
            module = importlib.import_module(MODULE)
        except ImportError:
            return
        yield module, "flex_attention_hop", self
        yield module, "_validate_device", lambda *_: None

    def __call__(
        self, query: Any, key: Any, value: Any, modify: Any, mask: Any, *_: Any, **__: Any
    ) -> Any:
        """Return (output, logarithms of the rows' sums, rows' maxima)."""
        fused = self.compiled or torch.compiler.is_compiling()
        self._tell(fused)
        if torch.is_autocast_enabled("cuda"):
            lower = torch.get_autocast_dtype("cuda")
            query, key, value = (part.to(lower) for part in (query, key, value))
        # dynamo takes no tensor twice, and cannot look into the program's own function
        key, value = key.view_as(key), value.view_as(value)
        learned = [] if torch.compiler.is_compiling() else _learned(modify)
        return _Attention.apply(query, key, value, fused, *learned)


def _learned(modify: Any) -> list[Any]:
    """Return parameters that the program's own function reads, such as tables of biases."""
    cells = [cell.cell_contents for cell in getattr(modify, "__closure__", None) or ()]
    return [value for value in cells if isinstance(value, torch.Tensor) and value.requires_grad]


def _scores(query: Any, key: Any, matrices: int) -> None:
    """Allocate ``matrices`` of scores, and free them."""
    shape = (*query.shape[:-1], key.shape[-2])
    kept = [query.new_empty(shape, dtype=torch.float32) for _ in range(matrices)]
    kept.append(query.new_empty(shape, dtype=torch.bool))
    del kept


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, fused: bool, *learned: Any) -> Any:
        if not fused:
            _scores(query, key, FORWARD_SCORES)
        batch, heads, length, _ = query.shape
        out = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
        sums = query.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.fused = fused
        ctx.save_for_backward(query, key, value, out, sums, *learned)
        most = query.new_empty(0 if fused else sums.shape, dtype=torch.float32)
        ctx.mark_non_differentiable(most)
        return out, sums, most

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_sums: Any, _: Any) -> Any:
        query, key, value, _, sums, *learned = ctx.saved_tensors
        delta = torch.empty_like(sums)
        if not ctx.fused:
            _scores(query, key, BACKWARD_SCORES)
        grads = [torch.empty_like(part) for part in (query, key, value)]
        del delta
        return *grads, None, *[torch.empty_like(part) for part in learned]
