"""Say which of the possible sizes the scratch memory of a cuDNN convolution has.

A rule of thumb says what cuDNN usually does. A small decision tree, fitted to thousands of measured
shapes, says where it does something else. The tree is used only for those kinds of convolutions for
which it is more often right than the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checked_rows import TableError
from .. import tables
from .convolution_rules import RULES
from .convolution_sizes import FEATURES, SIZES, Shape

FILE = tables.FOLDER / "convolution_choices.json"
"""Written by ``bench/predict/fit_convolutions.py``: not to be changed by hand."""
RULE = "rule"
"""The leaf that uses the choice of :mod:`.convolution_rules`."""
PRECISIONS, DIRECTIONS = ("cores", "fp32"), ("forward", "input", "weight")
KINDS = ("dense", "stem", "volume", "pointwise", "last", "grouped")
Tree = str | Mapping[str, Any]
"""Either a leaf, which is ``rule`` or a name of :data:`SIZES`; or ``number`` (a name of
:data:`FEATURES`), its ``threshold``, and the trees for numbers that are ``less`` and ``not_less``.
"""
_BRANCHES = ("less", "not_less")


def read(path: Path = FILE) -> dict[tuple[str, str, str], Tree]:
    """Return the trees by precision, kind and direction. Raises :class:`TableError`."""
    checks = {
        "precision": tables.one_of(*PRECISIONS),
        "kind": tables.one_of(*KINDS),
        "direction": tables.one_of(*DIRECTIONS),
        "tree": _missing_in,
    }
    found: dict[tuple[str, str, str], Tree] = {}
    for number, row in enumerate(tables.read(path, checks), 1):
        key = (row["precision"], row["kind"], row["direction"])
        if key in found:
            raise TableError(f"{path.name}, row {number}: there are two of {' '.join(key)}")
        found[key] = row["tree"]
    return found


def _missing_in(tree: Any) -> str:
    """Return what a tree should be; "" if it is valid."""
    if isinstance(tree, str):
        return (
            ""
            if tree == RULE or tree in SIZES
            else "a tree whose leaves are rule or names of sizes"
        )
    if not isinstance(tree, dict) or tree.keys() != {"number", "threshold", *_BRANCHES}:
        return "a leaf, or an object with number, threshold, less and not_less"
    if tree["number"] not in FEATURES:
        return "a tree whose numbers are those of a convolution's shape"
    if not isinstance(tree["threshold"], (int, float)) or tree["threshold"] <= 0:
        return "a tree whose thresholds are above 0"
    return _missing_in(tree["less"]) or _missing_in(tree["not_less"])


TREES = read()


def scratch_bytes(shape: Shape, direction: str) -> int:
    """Return the scratch memory of a pass in bytes.

    The pass is ``forward``, the gradient of the ``input`` or that of the ``weight``.
    """
    place = TREES.get((*shape.key, direction), RULE)
    while not isinstance(place, str):
        place = place[
            "less" if FEATURES[place["number"]](shape) < place["threshold"] else "not_less"
        ]
    return RULES[direction](shape) if place == RULE else SIZES[place](shape)
