"""Continue a generation after the tokens that were traced, by how they differ.

Each token asks for the same blocks as the one before, and those that hold one number for each token
so far are larger by the same amount. A window of attention ends this growth. The allocator finds no
room for a cache in the block that it has just outgrown, so all tokens are replayed: what is
reserved depends on each of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from .request import Doubt
from .trace import Growth, PhaseMark, Trace

SMALL_BYTES = 1 << 20
"""Blocks up to this size have segments of their own. Those of one token that the same token frees
change nothing for the others, and are left out but for the last token's.
"""
MOST_EVENTS = 300_000
"""If all tokens would need more events, only one token in two, three… is replayed."""
IRREGULAR = Doubt(
    "estimated",
    "The first tokens differ in more than sizes, so what later ones need was not derived.",
    percent=15.0,
    upward=True,
)
_LAYER = re.compile(r"\.(\d+)(?:\.|$)")

Step = list[tuple[int, int]]
"""The events of a step: (0, n) makes its n-th block; (k, n) frees the n-th block of the step k - 1
steps before."""


def grown(trace: Trace) -> Trace:
    """Return the trace with all tokens; the same one if it does not grow."""
    growth = trace.growth
    if growth is None or growth.steps < 1:
        return trace
    steps = _steps(trace)
    found = [_shape(trace, steps, number) for number in (len(steps) - 2, len(steps) - 1)]
    if found[0] is None or found[0] != found[1]:
        return replace(trace, growth=replace(growth, regular=False))
    old, last = (_made(trace, *steps[number]) for number in (-2, -1))
    more = [trace.sizes[new] - trace.sizes[one] for one, new in zip(old, last, strict=True)]
    if not any(more):
        return trace
    return _Grower(trace, growth, found[0], [old, last], more).all()


def _steps(trace: Trace) -> list[tuple[int, int]]:
    """Return where each step begins and ends."""
    begins = [mark.at for mark in trace.marks if mark.name.startswith("step ")]
    return list(zip(begins, [*begins[1:], len(trace.events)], strict=True))


def _made(trace: Trace, begin: int, end: int) -> list[int]:
    return [event for event in trace.events[begin:end] if event >= 0]


def _shape(trace: Trace, steps: Sequence[tuple[int, int]], number: int) -> Step | None:
    """Return the events of a step by the steps of their blocks; None if one is too old for that."""
    place = {
        block: (ago, at)
        for ago in range(3)
        if number >= ago
        for at, block in enumerate(_made(trace, *steps[number - ago]))
    }
    shape: Step = []
    for event in trace.events[slice(*steps[number])]:
        if event >= 0:
            shape.append((0, place[event][1]))
        elif ~event in place:
            ago, at = place[~event]
            shape.append((1 + ago, at))
        else:
            return None
    return shape


class _Grower:
    def __init__(
        self, trace: Trace, growth: Growth, shape: Step, recent: list[list[int]], more: list[int]
    ):
        self._growth, self._shape, self._more = growth, shape, more
        self._recent = recent
        """The blocks of the last steps, the newest last."""
        self._first = [trace.sizes[block] for block in recent[-1]]
        self._owners = [trace.owners[block] for block in recent[-1]]
        self._left = [self._grows_for(trace, block) for block in recent[-1]]
        self.trace = replace(
            trace, sizes=[*trace.sizes], owners=[*trace.owners], events=[*trace.events],
            marks=[mark for mark in trace.marks if mark.at < len(trace.events)], growth=None,
        )  # fmt: skip

    def _grows_for(self, trace: Trace, block: int) -> int:
        """Return for how many more tokens a block of this layer grows."""
        layer = _LAYER.search(trace.owner(block).module)
        if layer is None:
            return self._growth.steps
        return max(0, self._growth.windows.get(layer[1], self._growth.steps))

    def all(self) -> Trace:
        steps = self._growth.steps
        kept = self._without_small()
        stride = max(1, -(-len(kept) * steps // MOST_EVENTS))
        for step in range(stride, steps, stride):
            self._append(kept, step)
        trace = self.trace
        begin = len(trace.events)
        trace.marks.append(PhaseMark(begin, f"step {self._growth.traced + steps}"))
        trace.marks.append(PhaseMark(begin, "forward"))
        self._append(self._shape, steps)
        trace.marks.append(PhaseMark(len(trace.events), "end"))
        return trace

    def _without_small(self) -> Step:
        passing = {at for ago, at in self._shape if ago == 1}
        last = [self._size(at, self._growth.steps) for at in range(len(self._first))]
        small = {at for at in passing if max(last[at], self._first[at]) <= SMALL_BYTES}
        return [(ago, at) for ago, at in self._shape if ago > 1 or at not in small]

    def _size(self, at: int, step: int) -> int:
        return self._first[at] + self._more[at] * min(step, self._left[at])

    def _append(self, shape: Step, step: int) -> None:
        trace = self.trace
        blocks = [-1] * len(self._first)
        self._recent = [*self._recent[-2:], blocks]
        for ago, at in shape:
            if ago == 0:
                blocks[at] = len(trace.sizes)
                trace.events.append(blocks[at])
                trace.sizes.append(self._size(at, step))
                trace.owners.append(self._owners[at])
            else:
                trace.events.append(~self._recent[-ago][at])
