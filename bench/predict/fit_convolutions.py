"""Fit decision trees for the scratch memory of convolutions to measurements.

``python3 -m bench.predict.fit_convolutions tests/data/convolutions-h200.jsonl.gz`` reads the lines
of ``truth_kernels.py``. It fits a tree for each precision, direction and kind on one half of the
shapes, and prints for which share of the other half it is right. If that is more than for the
rules, it fits all shapes and, with ``--write``, writes the tree into
``gpuscope/predict/data/convolution_choices.json``.

A tree splits on one number of the shape at a time (:data:`FEATURES`) so that few formulas
(:data:`SIZES`) explain the rows of each side. A split is kept if it is worth more than
:data:`LEAF_PRICE` rows.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuscope.predict import tables
from gpuscope.predict.tracing.convolution_rules import OF_MODELS, RULES
from gpuscope.predict.tracing.convolution_scratch import DIRECTIONS, FILE, KINDS, PRECISIONS, RULE
from gpuscope.predict.tracing.convolution_sizes import FEATURES, SIZES, Shape

MIB = 1 << 20
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ABOUT = (
    "The size of a convolution's scratch memory where the rules are wrong. Written by "
    "python -m bench.predict.fit_convolutions from measurements on an H200."
)
FEWEST = 5
"""The least number of rows in a leaf."""
DEPTH = 14
KEYS = [(mode, kind) for mode in PRECISIONS for kind in KINDS]
LEAF_PRICE = 5.0
PURITY = 0.7
"""The weight in the score of a split of having one formula on each side, in addition to the
remaining errors.
"""
WITHOUT = {("cores", "dense", "weight"), ("cores", "volume", "weight")}
"""Kinds that use only the rules. A tree is right more often for them, but is off by a MiB where it
is wrong, and in whole trainings each such block needed a segment of its own.
"""
WORTH = 0.02
"""A tree is used only if it is right for this additional share of the common shapes that it was not
fitted to.
"""
NAMES = [RULE, *SIZES]
COPIES = {"rule", "none", "x", "y", "x y", "x w", "y w", "x y w", "raw", "spectra", "tiles"}
WEIGHTS = {"rule", "none", "x y", "x y w", "raw", "spectra of weight", "winograd"}
TRANSFORMS = {"spectra", "spectra of weight", "tiles", "winograd"}
GROUPED = {"rule", "none", "x y w", "grouped"}
"""The formulas that are tried for forward passes and input gradients, for weight gradients
(including partial gradients), and for grouped convolutions.
"""
NUMBERS = list(FEATURES)
Tree = Any
"""Either a formula's index, or (feature, threshold, tree for smaller values, tree for others,
formula of all rows).
"""


def shape_of(row: dict[str, Any]) -> Shape:
    """Return the shape with the wide side first, as in the tracing child."""
    torch.backends.cudnn.allow_tf32 = row["mode"] != "fp32"
    dims, kernel, stride, groups = row["dims"], row["kernel"], row["stride"], row["groups"]
    padding = kernel // 2 if kernel % 2 and not row["transposed"] else 0
    out = (row["side"] + 2 * padding - kernel) // stride + 1
    parts = (row["filters"], row["channels"] // groups)
    if row["transposed"]:
        out, parts = (
            (row["side"] - 1) * stride + kernel,
            (row["channels"], row["filters"] // groups),
        )
    dtype = TYPES.get(row["mode"], torch.float32)
    with torch.device("meta"):
        x = torch.empty(row["batch"], row["channels"], *[row["side"]] * dims, dtype=dtype)
        weight = torch.empty(*parts, *[kernel] * dims, dtype=dtype)
        y = torch.empty(row["batch"], row["filters"], *[out] * dims, dtype=dtype)
    if row["last"]:
        x, weight, y = (part.to(memory_format=torch.channels_last) for part in (x, weight, y))
    wide, narrow = (y, x) if row["transposed"] else (x, y)
    return Shape.of(wide, weight, narrow, [stride] * dims, groups)


def measured(row: dict[str, Any]) -> dict[str, int]:
    """Return the bytes by direction.

    A transposed convolution counts as the one whose gradient it is.
    """
    forward, back = ("input", "forward") if row["transposed"] else ("forward", "input")
    return {"forward": row[forward], "input": row[back], "weight": row["weight"]}


def text_of(path: Path) -> str:
    """Return the file's text, decompressed if necessary."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def near(predicted: int, real: int) -> bool:
    return abs(-(-predicted // 512) * 512 - real) <= max(MIB, 0.03 * max(predicted, real))


@dataclass
class Rows:
    """The rows of one tree. ``features``.

    Rows × numbers; ``costs`` and ``right``: rows × formulas.
    """

    features: torch.Tensor
    costs: torch.Tensor
    right: torch.Tensor
    held: torch.Tensor
    usual: torch.Tensor
    """Whether models commonly have such channels, kernels and filters."""

    def labels(self) -> torch.Tensor:
        """Choose one formula for each row.

        Of those that are right for it, it is the one that is right for most others; −1: none is.
        """
        found = torch.full((len(self.costs),), -1)
        while True:
            counts = (self.right & (found < 0)[:, None]).sum(0)
            best = int(counts.argmax())
            if not counts[best]:
                return found
            found[self.right[:, best] & (found < 0)] = best


def is_usual(shape: Shape) -> bool:
    inputs = shape.each in (1, 3) or shape.channels % 16 == 0
    return inputs and shape.filters % 16 == 0 and shape.kernel in (1, 2, 3, 4, 5, 7)


def formulas(mode: str, kind: str, direction: str) -> list[bool]:
    """Return which of :data:`NAMES` may be chosen."""
    if kind == "grouped":
        return [name in GROUPED for name in NAMES]
    without = TRANSFORMS if mode != "fp32" else set()
    if direction == "weight":
        return [name in WEIGHTS - without or name.startswith("x y w +") for name in NAMES]
    return [name in COPIES - without for name in NAMES]


def known() -> list[Shape]:
    """List convolutions of models that the rules were made for.

    They include those with which whole trainings were predicted: the rules are right, though the
    bytes of each are not among the rows.
    """
    found = []
    with torch.device("meta"):
        torch.backends.cudnn.allow_tf32 = False
        for batch, channels, filters, side in OF_MODELS:
            x, y = (torch.empty(batch, number, side, side) for number in (channels, filters))
            found.append(Shape.of(x, torch.empty(filters, channels, 3, 3), y, [1, 1], 1))
        torch.backends.cudnn.allow_tf32 = True
        for batch, dtype in ((4, torch.float16), (12, torch.bfloat16), (12, torch.float32)):
            x, y = (torch.empty(batch, number, 64, 64, 64, dtype=dtype) for number in (16, 1))
            found += 3 * [Shape.of(x, torch.empty(1, 16, 1, 1, 1, dtype=dtype), y, [1, 1, 1], 1)]
    return found


def rows_of(
    found: list[tuple[dict[str, Any] | None, Shape]], mode: str, kind: str, direction: str
) -> Rows:
    costs, right, usual, held = [], [], [], []
    may = formulas(mode, kind, direction)
    for row, shape in found:
        if row is None:
            usual.append(False)
            held.append(False)
            right.append([name == "rule" for name in NAMES])
            costs.append([2.0 * (name != "rule") for name in NAMES])
            continue
        real = measured(row)[direction]
        sizes = [RULES[direction](shape), *(size(shape) for size in SIZES.values())]
        usual.append(is_usual(shape))
        right.append(
            [allowed and near(size, real) for size, allowed in zip(sizes, may, strict=True)]
        )
        worth = 2 if usual[-1] else 1
        off = [0.4 + 0.6 * min(1, abs(size - real) / max(real, 8 * MIB)) for size in sizes]
        costs.append(
            [
                worth * (0 if good else much if allowed else 3)
                for much, good, allowed in zip(off, right[-1], may, strict=True)
            ]
        )
        held.append(bool(hashlib.sha256(repr(shape).encode()).digest()[0] & 1))
    numbers = [[float(feature(shape)) for feature in FEATURES.values()] for _, shape in found]
    tensor = torch.tensor
    return Rows(
        tensor(numbers, dtype=torch.float64),
        tensor(costs),
        tensor(right),
        tensor(held),
        tensor(usual),
    )


def between(low: float, high: float) -> float:
    """Return a short number that is above ``low`` and at most ``high``."""
    for digits in range(1, 12):
        unit = 10.0 ** (math.floor(math.log10(high)) - digits + 1)
        number = math.ceil((low + (high - low) / 2) / unit) * unit
        if low < number <= high:
            return float(f"{number:.{digits}g}")
    return high


def grow(rows: Rows, labels: torch.Tensor, which: torch.Tensor, depth: int) -> Tree:
    total = rows.costs[which].sum(0)
    leaf, count = int(total.argmin()), len(which)
    if not depth or count < 2 * FEWEST or not float(total[leaf]):
        return leaf
    shares = torch.nn.functional.one_hot(labels[which] + 1, len(NAMES) + 1).double()
    costs = rows.costs[which].double()
    before = torch.arange(1, count).double()
    after = count - before
    best: tuple[float, int, float] | None = None
    for feature in range(len(NUMBERS)):
        numbers, order = rows.features[which, feature].sort(stable=True)
        allowed = (numbers[1:] != numbers[:-1]) & (before >= FEWEST) & (after >= FEWEST)
        if not allowed.any():
            continue
        summed, counted = costs[order].cumsum(0), shares[order].cumsum(0)
        errors = summed[:-1].min(1).values + (summed[-1] - summed[:-1]).min(1).values
        mixed = (
            before
            - (counted[:-1] ** 2).sum(1) / before
            + after
            - ((counted[-1] - counted[:-1]) ** 2).sum(1) / after
        )
        score = (errors + PURITY * mixed).masked_fill(~allowed, math.inf)
        at = int(score.argmin())
        if best is None or float(score[at]) < best[0] - 1e-9:
            best = float(score[at]), feature, between(float(numbers[at]), float(numbers[at + 1]))
    mixed_here = count - float((shares.sum(0) ** 2).sum()) / count
    if best is None or best[0] > float(total[leaf]) + PURITY * mixed_here - 0.5:
        return leaf
    less = rows.features[which, best[1]] < best[2]
    left, right = (grow(rows, labels, which[side], depth - 1) for side in (less, ~less))
    return best[1], best[2], left, right, leaf


def pruned(tree: Tree, rows: Rows, which: torch.Tensor) -> tuple[Tree, float]:
    """Return the tree without splits that are not worth their price, and the cost of the rest."""
    if isinstance(tree, int):
        return tree, float(rows.costs[which, tree].sum()) + LEAF_PRICE
    less = rows.features[which, tree[0]] < tree[1]
    left, first = pruned(tree[2], rows, which[less])
    right, second = pruned(tree[3], rows, which[~less])
    whole = float(rows.costs[which, tree[4]].sum()) + LEAF_PRICE
    if whole <= first + second or left == right:
        return tree[4], whole
    return (tree[0], tree[1], left, right, tree[4]), first + second


def fitted(rows: Rows, which: torch.Tensor) -> Tree:
    return pruned(grow(rows, rows.labels(), which, DEPTH), rows, which)[0]


def chosen(tree: Tree, numbers: torch.Tensor) -> int:
    while not isinstance(tree, int):
        tree = tree[2] if numbers[tree[0]] < tree[1] else tree[3]
    return tree


def named(tree: Tree) -> Any:
    """Return the tree in the form of the table."""
    if isinstance(tree, int):
        return NAMES[tree]
    threshold = float(f"{tree[1]:.12g}")
    return {
        "number": NUMBERS[tree[0]],
        "threshold": threshold,
        "less": named(tree[2]),
        "not_less": named(tree[3]),
    }


def leaves(tree: Tree) -> int:
    return 1 if isinstance(tree, int) else leaves(tree[2]) + leaves(tree[3])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.predict.fit_convolutions", description=__doc__
    )
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for path in arguments.rows for line in text_of(path).splitlines()]
    table: list[tuple[dict[str, Any] | None, Shape]] = [
        (row, shape_of(row)) for row in lines if "error" not in row
    ]
    trees = []
    table += [(None, shape) for shape in known()]
    for mode, kind in KEYS:
        found = [(row, shape) for row, shape in table if shape.key == (mode, kind)]
        for direction in DIRECTIONS:
            rows = rows_of(found, mode, kind, direction)
            tree = fitted(rows, (~rows.held).nonzero()[:, 0])
            picked = torch.tensor([chosen(tree, numbers) for numbers in rows.features])
            good = rows.right[torch.arange(len(picked)), picked]
            judged = rows.held & rows.usual
            better = good[judged].double().mean() - rows.right[judged, 0].double().mean() >= WORTH
            whole = fitted(rows, torch.arange(len(found))) if better else NAMES.index(RULE)
            if named(whole) != RULE and (mode, kind, direction) not in WITHOUT:
                trees.append(
                    {"precision": mode, "kind": kind, "direction": direction, "tree": named(whole)}
                )
            print(f"{mode} {kind:9} {direction:7} {leaves(whole):3} leaves", end="")
            for part in sorted({shape.mode for _, shape in found}):
                these = rows.held & torch.tensor([shape.mode == part for _, shape in found])
                usual = these & rows.usual
                print(
                    f"; {part} held out {int(these.sum()):4}: {good[these].double().mean():.1%} "
                    f"right, of usual ones {good[usual].double().mean():.1%}, by the rules "
                    f"{rows.right[usual, 0].double().mean():.1%}",
                    end="",
                )
            print(flush=True)
    if arguments.write:
        tables.write(FILE, ABOUT, trees)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
