"""This module puts the layers of a stack over time into the columns of a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .bins import Bins, first_at, hold_seconds
from .cell_fit import Stack


@dataclass(frozen=True, slots=True)
class Layer:
    """One area of the stack, of which the bottom one comes first.

    ``values`` are bytes, one per moment of the chart; None where unknown. A layer with the
    token ``free`` is left blank; one that was never known is left out.
    """

    token: str
    label: str
    values: Sequence[float | None]


def stack_columns(
    layers: Sequence[Layer],
    seconds: Sequence[float],
    window_seconds: float,
    now: float | None,
    count: int,
) -> list[Stack | None]:
    """Return ``count`` columns over the window.

    Of several samples in one column the one with the largest sum stands, so that no peak is
    lost; a column between two samples repeats the older one; it is None where a layer was
    unknown, and once the samples have stopped.
    """
    known = [layer for layer in layers if any(value is not None for value in layer.values)]
    if not known or not seconds:
        return [None] * count
    now = seconds[-1] if now is None else now
    bins = Bins.ending(now, window_seconds, count)
    hold = max(hold_seconds(seconds), bins.width * 2)
    columns: list[Stack | None] = [None] * count
    sums = [-1.0] * count
    before: tuple[float, Stack | None] | None = None
    at = -1
    for i in range(max(first_at(seconds, bins.start) - 1, 0), len(seconds)):
        moment = seconds[i]
        stack = _stack_at(known, i)
        place = bins.index(moment)
        if before is not None and moment - before[0] <= hold:
            for empty in range(max(at + 1, 0), min(place, count)):
                columns[empty] = before[1]
        if 0 <= place < count and stack is not None:
            size = sum(amount for amount, _ in stack)
            if size > sums[place]:
                columns[place], sums[place] = stack, size
        before, at = (moment, stack), place
    # a column wider than the time between samples is no reason to go on after the last one
    if before is not None and now - before[0] <= hold_seconds(seconds):
        for empty in range(max(at + 1, 0), count):
            columns[empty] = before[1]
    return columns


def _stack_at(layers: Sequence[Layer], i: int) -> Stack | None:
    stack = []
    for layer in layers:
        value = layer.values[i] if i < len(layer.values) else None
        if value is None or not math.isfinite(value):
            return None
        stack.append((max(float(value), 0.0), layer.token))
    return tuple(stack)


def thinner_than(least: float, stacks: Sequence[Stack]) -> set[str]:
    """Return the tokens of what is nowhere as large as ``least``."""
    most = [(max(part[0] for part in layer), layer[0][1]) for layer in zip(*stacks, strict=True)]
    return {token for size, token in most if size < least}
