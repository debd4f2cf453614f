"""Measure for which matrix products inductor pads operands of odd sizes, on this GPU.

``python -m bench.predict.measure_padding OUT.jsonl`` asks torch's own function, which times each
product as it is and padded, for the three products of a linear layer whose outputs are words: its
outputs, and the gradients of its inputs and of its weights. What a graph computes itself counts as
padded beforehand, as torch assumes. A line holds rows × inner × columns, the type, both times in
ms, and the decision.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._inductor.fx_passes import pad_mm

TOKENS, WIDTHS = (768, 2048, 6144, 16384), (256, 768, 1024)
WORDS = (10003, 30522, 32001, 32100, 50257, 50265, 51865)
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def products() -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield the name of a product, and its rows, inner size and columns."""
    for tokens, width, words in itertools.product(TOKENS, WIDTHS, WORDS):
        yield "outputs", (tokens, width, words)
        yield "of inputs", (tokens, words, width)
        yield "of weights", (words, tokens, width)


def measured(name: str, sizes: tuple[int, int, int], kind: torch.dtype) -> dict[str, Any]:
    """Return what torch decides for a product, and the times that it has found."""
    rows, inner, columns = sizes
    left = torch.empty(rows, inner, dtype=kind, device="cuda")
    if name == "of weights":
        left = torch.empty(inner, rows, dtype=kind, device="cuda").T
    right = torch.empty(inner, columns, dtype=kind, device="cuda")
    if name == "outputs":
        right = torch.empty(columns, inner, dtype=kind, device="cuda").T
    times: list[float] = []

    def compared(_: Any, plain: float, padded: float) -> bool:
        times.extend((plain, padded))
        return bool(faster(None, plain, padded))

    # what another kernel of the graph computes, and lies as the product reads it
    before: tuple[str, ...] = {"outputs": ("mat1",), "of weights": ("mat2",)}.get(
        name, ("mat1", "mat2")
    )
    if kind is torch.float32:  # the weights themselves, without autocast's copy
        before = tuple(one for one in before if (name, one) != ("of inputs", "mat2"))
    pad_mm.should_exclude_padding_time = lambda _, which: which in before
    faster = pad_mm.is_padded_faster
    pad_mm.is_padded_faster = compared
    try:
        decided = _decide(None, left, right, torch.ops.aten.mm)
    finally:
        pad_mm.is_padded_faster = faster
    return {
        "product": name, "sizes": sizes, "type": str(kind).removeprefix("torch."),
        "tf32": torch.backends.cuda.matmul.allow_tf32, "ms": [round(one, 4) for one in times],
        "pads": decided,
    }  # fmt: skip


def _forget_times() -> None:
    """Let each product be timed, whatever was timed before."""
    for name in ("get_cached_should_pad", "get_cached_base_mm_benchmark_time"):
        setattr(pad_mm, name, lambda *_: None)
    for name in ("set_cached_should_pad", "set_cached_base_mm_benchmark_time"):
        setattr(pad_mm, name, lambda *_: None)
    pad_mm.should_pad_bench_key = lambda *_, **__: ""


_decide: Any = inspect.unwrap(pad_mm._should_pad)


def main(out: Path) -> None:
    _forget_times()
    with out.open("a") as file:
        for kind, tf32 in (
            (TYPES[0], False),
            (TYPES[2], False),
            (TYPES[2], True),
            (TYPES[1], False),
        ):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            for name, sizes in products():
                try:
                    row = measured(name, sizes, kind)
                except Exception as error:
                    row = {
                        "product": name,
                        "sizes": sizes,
                        "error": f"{type(error).__name__}: {error}",
                    }
                file.write(json.dumps(row) + "\n")
                file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
