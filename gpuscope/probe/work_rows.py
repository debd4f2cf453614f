"""Read what is kept of each operator of a counted step, and add equal ones up to rows."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Tuple

Noted = Tuple[Any, bool, Any, int, int, Any]
"""An operator, whether it is a recomputation, its shapes, bytes read, bytes written, its type."""
MAX_ROWS = 4000
"""Rows of the answer; operators beyond them are counted in ``left_out``."""
SLICE = 2000
MAX_TEXT = 4000
FLOPS_IN = (
    "mm", "mv", "dot", "matmul", "conv", "attention", "linear", "rnn", "lstm", "gru", "einsum",
    "addr", "ger",
)  # fmt: skip
"""Operators with one of these in their name are reported with all shapes, the others by bytes."""


def plan_of(func: Any) -> Tuple[bool, bool, Tuple[int, ...]]:
    """Return whether an operator moves nothing, may have FLOPs, and what it writes.

    What it writes are positions of arguments; they matter for an operator that returns nothing.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False, True, ()
    name = schema.name.rpartition("::")[2]
    written = tuple(
        at
        for at, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    nothing = bool(getattr(func, "is_view", False)) or "empty" in name
    own = not schema.name.startswith("aten::")
    in_full = own or any(part in name for part in FLOPS_IN)
    return nothing, in_full, () if schema.returns else written


def add_tensors(values: Any, kind: Any, found: List[Any]) -> None:
    for value in values:
        if isinstance(value, kind):
            if not any(value is one for one in found[-4:]):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            add_tensors(value, kind, found)


def bytes_of(tensors: List[Any]) -> int:
    """Return the bytes of these tensors in memory: a dimension that is expanded counts once."""
    total = 0
    for one in tensors:
        if one.layout.__repr__() != "torch.strided":
            total += one._nnz() * one.element_size() if one.is_sparse else 0
            continue
        count = 1
        for size, stride in zip(one.shape, one.stride()):
            if stride or not size:
                count *= size
        total += count * one.element_size()
    return total


def shapes_of(value: Any, kind: Any) -> Any:
    """Return the arguments as what can be written as JSON, tensors as ``{"t": shape, "d": type}``.

    As tuples, which can be compared; :func:`added_up` writes them.
    """
    if isinstance(value, kind):
        return ("t", tuple(value.shape), value.dtype)
    if isinstance(value, (list, tuple)):
        return ("l", tuple(shapes_of(one, kind) for one in value))
    if isinstance(value, dict):
        return ("k", tuple((name, shapes_of(one, kind)) for name, one in value.items()))
    return value if isinstance(value, (bool, int, float)) else None


def _plain(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    kind, rest = value[0], value[1]
    if kind == "t":
        return {"t": list(rest), "d": _type(value[2])}
    if kind == "l":
        return [_plain(one) for one in rest]
    return {name: _plain(one) for name, one in rest}


def _type(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def added_up(noted: List[Noted], breathe: Callable[[], None]) -> Dict[str, Any]:
    """Return ``operators`` and ``left_out`` of :func:`.work.serve`; equal calls are one row."""
    rows: Dict[Any, List[int]] = {}
    for number, (func, again, shapes, read, written, dtype) in enumerate(noted):
        row = rows.setdefault((func, again, shapes, dtype), [0, 0, 0])
        row[0] += 1
        row[1] += read
        row[2] += written
        if number % SLICE == SLICE - 1:
            breathe()
    operators: List[List[Any]] = []
    left_out = 0
    for number, ((func, again, shapes, dtype), (count, read, written)) in enumerate(rows.items()):
        text = ""
        if shapes is not None:
            args, kwargs, out = (_plain(part) for part in shapes)
            text = json.dumps({"args": args, "kwargs": kwargs, "out": out}, separators=(",", ":"))
        if len(text) > MAX_TEXT or len(operators) >= MAX_ROWS:
            left_out += count
            continue
        name = getattr(getattr(func, "_schema", None), "name", None) or f"higher_order::{func}"
        operators.append([name[:200], int(again), count, read, written, _type(dtype), text])
        if number % SLICE == SLICE - 1:
            breathe()
    return {"operators": operators, "left_out": left_out}
