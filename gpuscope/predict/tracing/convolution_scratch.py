"""Which of its sizes the scratch memory of a cuDNN convolution has.

A rule of thumb says what cuDNN mostly does, and a small decision tree, fitted to thousands of measured shapes, where it
does something else: for those kinds of convolutions of which it is right more often than the rule."""

from __future__ import annotations

from functools import cache
from typing import Any

from .convolution_choices import TREES
from .convolution_rules import RULES
from .convolution_sizes import FEATURES, SIZES, Shape

Tree = str | tuple[str, float, Any, Any]
"""``rule`` or a name of :data:`SIZES`; or a name of :data:`FEATURES`, a threshold, the tree where it is less, and the
one where it is not."""


@cache
def tree(mode: str, kind: str, direction: str) -> Tree:
    """The tree that :data:`TREES` holds as a text."""
    text = TREES.get((mode, kind, direction), "rule")

    def read(at: int) -> tuple[Tree, int]:
        end = at
        while end < len(text) and text[end] not in "(|)":
            end += 1
        if end == len(text) or text[end] != "(":
            return text[at:end], end
        name, threshold = text[at:end].split("<")
        less, end = read(end + 1)
        more, end = read(end + 1)
        return (name, float(threshold), less, more), end + 1

    return read(0)[0]


def scratch_bytes(shape: Shape, direction: str) -> int:
    """What ``forward``, the gradient of the ``input`` or that of the ``weight`` takes beside its operands."""
    place = tree(*shape.key, direction)
    while not isinstance(place, str):
        name, threshold, less, more = place
        place = less if FEATURES[name](shape) < threshold else more
    return RULES[direction](shape) if place == "rule" else SIZES[place](shape)
