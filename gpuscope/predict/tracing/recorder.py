"""Record what is allocated and freed while a training is traced, and what each block is for.

A block's category is known only later. A tensor that was made in the forward pass is an activation
if the backward pass finds it alive, and a parameter if the model turns out to hold it. So each
block is recorded with what is known when it is made, and :meth:`Recorder.finish` decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..trace import Owner, PhaseMark, Trace

BUILD, FORWARD, BACKWARD, OPTIMIZER, END = "build", "forward", "backward", "optimizer", "end"


def operator_name(func: Any) -> str:
    """Return the name of an operator; those of other libraries keep the library's name."""
    name: str = func._schema.name
    return name.removeprefix("aten::")


class _Made(NamedTuple):
    """What is known about a block when it is made."""

    phase: str
    module: str
    operation: str
    inside: bool
    """Whether execution was inside the model's forward pass; in the backward pass, whether it was
    in a checkpoint's recomputation.
    """
    category: str
    """The category if it is certain from the start, else ""."""
    stack: tuple[str, ...]
    """The lines of the user's project that were running, as ``file:line``."""


class Recorder:
    """The record of one trace.

    ``module`` returns the module that is running now; :meth:`mark` begins the next phase.
    """

    def __init__(self) -> None:
        self.trace = Trace()
        self.phase = BUILD
        self.live_bytes = 0
        self.peak_bytes = 0
        """Bytes as requested, before any rounding."""
        self.pool = 0
        """The pool from which blocks come, other than 0 while a CUDA graph is captured or work is
        given to another stream.
        """
        self.next_differs = False
        """Whether the next step is known to allocate something that this one did not."""
        self.most_bytes = 0
        """The peak if a kernel took the most scratch memory that it may take."""
        self.module: Callable[[], tuple[str, bool]] = lambda: ("", False)
        self.stack: Callable[[], tuple[str, ...]] = tuple
        self._made: dict[_Made, int] = {}
        self._decided: dict[int, tuple[str, str | None]] = {}
        self._once: set[str] = set()
        self.workspaces: dict[bool, int] = {}
        """The block of cuBLAS's workspace for each thread: False is the program's own."""
        self._forgotten: set[int] = set()
        self._ends: list[int] = []
        """For the build and each forward pass, the number of events at its end."""

    # ── while it runs ─────────────────────────────────────────────────────────────────────────────

    def allocate(self, size: int, operation: str, category: str = "") -> int:
        """Record a new block of ``size`` bytes; returns its number."""
        module, inside = self.module()
        made = _Made(self.phase, module, operation, inside, category, self.stack())
        place = self._made.setdefault(made, len(self._made))
        trace = self.trace
        block = len(trace.sizes)
        trace.sizes.append(size)
        trace.owners.append(place)
        trace.events.append(block)
        if self.pool:
            trace.streams[block] = self.pool
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return block

    def free(self, block: int) -> None:
        if self.phase == END:
            return  # what is discarded later is not part of the training
        self.trace.events.append(~block)
        self.live_bytes -= self.trace.sizes[block]

    def free_all(self, blocks: Sequence[int]) -> None:
        """Free blocks in the reverse of their order, as the scope of a C++ function does."""
        for block in reversed(blocks):
            self.free(block)

    def live(self) -> set[int]:
        """Return the blocks that are not freed."""
        return set(self.trace.live(len(self.trace.events)))

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Take blocks from the pool of another stream."""
        kept, self.pool = self.pool, stream
        try:
            yield
        finally:
            self.pool = kept

    def forget(self, blocks: set[int]) -> None:
        """Remove those of ``blocks`` that are freed by now, as if they had been on the host."""
        trace = self.trace
        gone = blocks - self.live()
        trace.marks = [
            PhaseMark(mark.at - sum(_of(one) in gone for one in trace.events[: mark.at]), mark.name)
            for mark in trace.marks
        ]
        trace.events = [event for event in trace.events if _of(event) not in gone]
        for block in gone:
            trace.sizes[block] = 0
        self._forgotten |= gone

    def unmake(self, block: int) -> None:
        """Remove the last allocation from the record."""
        trace = self.trace
        assert trace.events[-1] == block == len(trace.sizes) - 1
        self.live_bytes -= trace.sizes.pop()
        trace.owners.pop()
        trace.events.pop()
        trace.streams.pop(block, None)

    def passing(self, sizes: Iterable[int], operation: str, category: str = "temporary") -> None:
        """Record blocks that a kernel allocates together and frees before it returns."""
        self.free_all([self.allocate(size, operation, category) for size in sizes if size > 0])

    def could_take(self, size: int) -> None:
        """Note that the running kernel may take ``size`` bytes of scratch memory in addition."""
        if size:
            self.most_bytes = max(self.most_bytes, self.live_bytes + size)

    def once(self, name: str) -> bool:
        """Whether this is the first call with this key, for what a process takes only once."""
        first = name not in self._once
        self._once.add(name)
        return first

    def mark(self, name: str) -> None:
        """Note that something begins: a step, a phase, the end."""
        self.mark_at(PhaseMark(len(self.trace.events), name))

    def mark_at(self, mark: PhaseMark) -> None:
        """Note the same for events that were recorded together."""
        if mark.name == BACKWARD or self.phase == BUILD:
            self._ends.append(mark.at)
        if mark.name in (FORWARD, BACKWARD, OPTIMIZER, END):
            self.phase = mark.name
        self.trace.marks.append(mark)

    def decide(self, block: int, category: str, module: str | None = None) -> None:
        """Set what a block has turned out to be; the last call counts."""
        self._decided[block] = (category, module)

    def same_as(self, block: int, other: int) -> None:
        """Note that ``block`` is in a later step what ``other`` was in an earlier one."""
        decided = self._decided.get(other)
        if decided is not None:
            self._decided[block] = decided

    # ── when it is over ───────────────────────────────────────────────────────────────────────────

    def finish(self) -> Trace:
        """Return the trace with every block's owner. The recorder cannot be used afterwards."""
        trace, made = self.trace, list(self._made)
        self._sort_frees()
        death = {~event: at for at, event in enumerate(trace.events) if event < 0}
        table: dict[Owner, int] = {}
        ends, place = self._ends, 0
        end = ends[0] if ends else 0
        for at, block in enumerate(trace.events):
            if block < 0:
                continue
            while at >= end and place < len(ends):
                place += 1
                end = ends[place] if place < len(ends) else len(trace.events)
            first = made[trace.owners[block]]
            category, module = self._decided.get(block, ("", None))
            if not category:
                outlives = block not in death or death[block] >= end
                category = first.category or _category(first, outlives)
            named = first.module if module is None else module
            owner = Owner(category, named, first.operation, first.stack)
            trace.owners[block] = table.setdefault(owner, len(table))
        for block in self._forgotten:
            trace.owners[block] = 0
        trace.owner_table = list(table)
        return trace

    def _sort_frees(self) -> None:
        """Sort blocks that are freed one right after the other by when they were made.

        This makes no difference to the allocator. But autocast frees its casts in the order of
        their addresses, so two traces of one training would differ by chance, and two batch sizes
        would give no law.
        """
        events = self.trace.events
        marks = {mark.at for mark in self.trace.marks}
        begin = 0
        for at in range(len(events) + 1):
            if at in marks or at == len(events) or events[at] >= 0:
                if at - begin > 1:
                    events[begin:at] = sorted(events[begin:at], reverse=True)
                begin = at if at < len(events) and events[at] < 0 else at + 1


def _category(made: _Made, outlives: bool) -> str:
    """Return the category of a block.

    ``outlives`` says that it still exists when the forward pass (or the build) in which it was made
    is over.
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


_SOURCES = frozenset((
    "rand", "randn", "randint", "empty", "zeros", "ones", "full", "arange", "_to_copy", "index",
    "index_select",
))  # fmt: skip
"""Operators that make a micro-batch when no module is running."""


def _of(event: int) -> int:
    """Return the block that an event allocates or frees."""
    return event if event >= 0 else ~event
