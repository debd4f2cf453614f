"""Run a graph node by node, with buffers where inductor's main rules would have them.

- Results of library kernels (matrix products, convolutions, attention) and of reductions are
  buffers.
- A pointwise result is one if a library kernel reads it, if it leaves the graph, or if it reads
  more buffers than inductor lets a kernel compute again. Otherwise it is computed in the kernels
  that read it, and what it is computed from lives that much longer.
- A pointwise kernel may write into an operand that nobody reads later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import fx

from .compiled_record import unrecorded

READS = 8
"""How many buffers a pointwise kernel reads at most, where torch leaves it to its own choice."""
_LIBRARY = (
    "mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "convolution", "convolution_backward",
    "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_", "cudnn_",
    "embedding_dense_backward", "index_put", "scatter", "index_add", "sort", "topk", "cumsum",
    "cumprod", "_foreach", "max_pool", "avg_pool", "adaptive", "upsample", "grid_sampler", "_fft",
    "_thnn", "lstm", "gru", "rnn", "linalg", "_trilinear", "_cdist", "bincount", "unique",
    "nonzero", "masked_select", "rand", "bernoulli",
)  # fmt: skip
"""Beginnings of names of operators that inductor does not fuse with what reads their results."""
_REDUCTIONS = frozenset((
    "sum", "mean", "var", "var_mean", "std", "amax", "amin", "max", "min", "prod", "any", "all",
    "argmax", "argmin", "logsumexp", "linalg_vector_norm",
))  # fmt: skip


class Nodes:
    """The nodes of a graph, which of them make buffers, and until when each value is read."""

    def __init__(self, module: fx.GraphModule):
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._place = {node: number for number, node in enumerate(self._nodes)}
        self._makes: dict[fx.Node, bool] = {}
        reads: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in self._nodes:
            found = frozenset[fx.Node]().union(*(reads[part] for part in node.all_input_nodes))
            self._makes[node] = _is_kernel(node) or (
                self._is_read_whole(node) or (not _is_view(node) and _reads_much(node, found))
            )
            kept = node.op != "call_function" or (self._makes[node] and not _is_view(node))
            reads[node] = frozenset((node,)) if kept else found
        self._ends: dict[fx.Node, int] = {}
        for node in reversed(self._nodes):
            self._ends[node] = max(
                [self._place[node], *(self._read_until(user) for user in node.users)]
            )

    def _is_read_whole(self, node: fx.Node) -> bool:
        """Whether a library kernel reads this result, or a later graph does."""
        return any(
            user.op == "output"
            or _is_library(user)
            or (_is_view(user) and self._is_read_whole(user))
            for user in node.users
        )

    def _read_until(self, user: fx.Node) -> int:
        """Return the place of the kernel in which ``user`` is computed, or read as a view."""
        if user.op == "output" or (self._makes[user] and not _is_view(user)):
            return self._place[user]
        return self._ends[user]

    def run(self, inputs: list[Any]) -> Any:
        values: dict[fx.Node, Any] = {}
        inputs.reverse()
        dying: dict[int, list[fx.Node]] = {}
        for node, end in self._ends.items():
            dying.setdefault(end, []).append(node)
        for number, node in enumerate(self._nodes):
            if node.op == "placeholder":
                values[node] = inputs.pop()
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            elif node.op == "get_attr":
                values[node] = getattr(self._module, str(node.target))
            else:
                args, kwargs = (
                    fx.node.map_arg(part, values.__getitem__) for part in (node.args, node.kwargs)
                )
                if not _is_library(node):
                    self._drop(values, dying.pop(number, ()), node)
                with contextlib.nullcontext() if self._makes[node] else unrecorded():
                    values[node] = node.target(*args, **kwargs)
                del args, kwargs
            self._drop(values, dying.pop(number, ()), None)
        raise AssertionError("a graph ends with its outputs")

    def _drop(self, values: dict[fx.Node, Any], nodes: Sequence[fx.Node], but: Any) -> None:
        for node in nodes:
            if node is not but:
                values.pop(node, None)


def _name(node: fx.Node) -> str:
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.rpartition("::")[2]


def _is_view(node: fx.Node) -> bool:
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        return True
    return bool(getattr(node.target, "is_view", False))


def _is_library(node: fx.Node) -> bool:
    return node.op == "call_function" and _name(node).startswith(_LIBRARY)


def _reads_much(node: fx.Node, buffers: frozenset[fx.Node]) -> bool:
    """Whether inductor computes a pointwise result once, because it reads that many buffers."""
    from torch._inductor import config

    once = config.realize_acc_reads_threshold or READS
    most = config.realize_reads_threshold if len(node.users) > 1 else once
    return node.op == "call_function" and len(buffers) > most


def _is_kernel(node: fx.Node) -> bool:
    """Whether the node makes a buffer whoever reads it."""
    return _is_library(node) or _name(node) in _REDUCTIONS
