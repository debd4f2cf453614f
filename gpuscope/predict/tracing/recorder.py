"""Record what is allocated and freed while a training is traced.

In the end it says whom each block belonged to.

A block's category is known only later: a tensor that was made in the forward pass is an activation
if the backward pass finds it alive, a parameter if the model turns out to hold it. So each block is
written down with what is known when it is made, and :meth:`Recorder.finish` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..trace import Mark, Owner, Trace

BUILD, FORWARD, BACKWARD, OPTIMIZER, END = "build", "forward", "backward", "optimizer", "end"


class _Made(NamedTuple):
    """What is known of a block when it is made."""

    phase: str
    module: str
    operation: str
    inside: bool
    """Whether the forward pass had reached the model: in the backward pass that is a checkpoint's
    recomputation.
    """
    category: str
    """Where it is certain from the start, else ""."""


class Recorder:
    """The record of one trace.

    ``module`` says which module runs at the moment; the phases follow each other as :meth:`mark`
    says.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self.phase = BUILD
        self.live_bytes = 0
        self.peak_bytes = 0
        """Bytes as requested, before any rounding."""
        self.most_bytes = 0
        """The peak if a kernel took as much scratch memory as it may at most."""
        self.module: Callable[[], tuple[str, bool]] = lambda: ("", False)
        self._made: dict[_Made, int] = {}
        self._decided: dict[int, tuple[str, str | None]] = {}
        self._once: set[str] = set()
        self._ends: list[int] = []
        """Of each forward pass (and of the build) the number of events at its end."""

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────

    def allocate(self, size: int, operation: str, category: str = "") -> int:
        """A new block of ``size`` bytes; returns its number."""
        module, inside = self.module()
        made = _Made(self.phase, module, operation, inside, category)
        place = self._made.setdefault(made, len(self._made))
        trace = self.trace
        block = len(trace.sizes)
        trace.sizes.append(size)
        trace.owners.append(place)
        trace.events.append(block)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return block

    def free(self, block: int) -> None:
        if self.phase == END:
            return  # what is thrown away afterwards is no part of the training
        self.trace.events.append(~block)
        self.live_bytes -= self.trace.sizes[block]

    def unmake(self, block: int) -> None:
        """Takes back the last allocation: it was none."""
        trace = self.trace
        assert trace.events[-1] == block == len(trace.sizes) - 1
        self.live_bytes -= trace.sizes.pop()
        trace.owners.pop()
        trace.events.pop()

    def passing(self, sizes: Iterable[int], operation: str, category: str = "temporary") -> None:
        """Blocks that a kernel takes together and gives back before it returns."""
        blocks = [self.allocate(size, operation, category) for size in sizes if size > 0]
        for block in reversed(blocks):
            self.free(block)

    def could_take(self, size: int) -> None:
        """A kernel that runs now may take ``size`` bytes of scratch memory besides what is live."""
        if size:
            self.most_bytes = max(self.most_bytes, self.live_bytes + size)

    def once(self, name: str) -> bool:
        """Whether it is asked for the first time: for what a library takes once in a process."""
        first = name not in self._once
        self._once.add(name)
        return first

    def mark(self, name: str) -> None:
        """Something begins: a step, a phase, the end."""
        self.mark_at(Mark(len(self.trace.events), name))

    def mark_at(self, mark: Mark) -> None:
        """The same, for events that were written down together."""
        if mark.name == BACKWARD or self.phase == BUILD:
            self._ends.append(mark.at)
        if mark.name in (FORWARD, BACKWARD, OPTIMIZER, END):
            self.phase = mark.name
        self.trace.marks.append(mark)

    def decide(self, block: int, category: str, module: str | None = None) -> None:
        """What a block has turned out to be; the last word counts."""
        self._decided[block] = (category, module)

    def same_as(self, block: int, other: int) -> None:
        """``block`` is to ``other`` what a later step's is to an earlier one's."""
        decided = self._decided.get(other)
        if decided is not None:
            self._decided[block] = decided

    # ── when it is over ───────────────────────────────────────────────────────────────────────────

    def finish(self) -> Trace:
        """The trace with every block's owner. The recorder cannot be used afterwards."""
        trace, made = self.trace, list(self._made)
        self._sort_frees()
        death = self._deaths()
        table: dict[Owner, int] = {}
        ends, place = self._ends, 0
        end = ends[0] if ends else 0
        born = 0
        for at, event in enumerate(trace.events):
            if event < 0:
                continue
            while at >= end and place < len(ends):
                place += 1
                end = ends[place] if place < len(ends) else len(trace.events)
            born = event
            first = made[trace.owners[born]]
            category, module = self._decided.get(born, ("", None))
            if not category:
                category = first.category or _category(
                    first, outlives=death.get(born, 1 << 62) >= end
                )
            owner = Owner(category, first.module if module is None else module, first.operation)
            trace.owners[born] = table.setdefault(owner, len(table))
        trace.owner_table = list(table)
        return trace

    def _sort_frees(self) -> None:
        """Blocks that are freed one right after the other, in the order in which they were made.

        For the allocator that is the same, but autocast throws its casts away in the order of their
        addresses: two traces of one training would differ by chance, and those of two batches would
        have no law.
        """
        events = self.trace.events
        marks = {mark.at for mark in self.trace.marks}
        begin = 0
        for at in range(len(events) + 1):
            if at in marks or at == len(events) or events[at] >= 0:
                if at - begin > 1:
                    events[begin:at] = sorted(events[begin:at], reverse=True)
                begin = at if at < len(events) and events[at] < 0 else at + 1

    def _deaths(self) -> dict[int, int]:
        return {~event: at for at, event in enumerate(self.trace.events) if event < 0}


def _category(made: _Made, outlives: bool) -> str:
    """Return the category of a block.

    ``outlives``: it is still there when the forward pass it was made in (or the build) is over.
    """
    if made.phase == BUILD:
        return "input" if outlives else "temporary"
    if made.phase == FORWARD:
        if not outlives:
            return "temporary"
        return "activation" if made.inside or made.operation not in _SOURCES else "input"
    if made.phase == BACKWARD:
        return "activation" if made.inside else "temporary"
    return "temporary"


_SOURCES = frozenset(
    (
        "rand",
        "randn",
        "randint",
        "empty",
        "zeros",
        "ones",
        "full",
        "arange",
        "_to_copy",
        "index",
        "index_select",
    )
)
"""Operators that make a micro-batch where no module is running."""
