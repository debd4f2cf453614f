"""Follow a trace over time: its timeline, what was live at an entry, what a range left allocated.

Torch's trace records requested bytes. Allocated falls when a free is requested, active when it is
completed; between the two the block waits for another stream. The last entry and the segments
describe the same moment, so a curve's absolute level is that of the segments minus all changes in
the trace. What is left at the first entry was allocated before it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from .blocks import BlockTable
from .columns import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Columns,
)
from .model import MAX_BUCKETS, MOMENTS, At, Between, Buckets, Course, Series
from .stacks import NO_STACK, StackTable

_UP, _DOWN = (SEGMENT_ALLOC, SEGMENT_MAP), (SEGMENT_FREE, SEGMENT_UNMAP)
LEVEL_LIMIT = 1 << 62


class NoSuchMoment(Exception):
    pass


@dataclass
class _State:
    """What is live after entry ``index``, and the changes since the start.

    Live allocations are stored by address: the entry that allocated each, or ~number of a block
    that existed before the trace.
    """

    index: int = -1
    live: dict[int, int] = field(default_factory=dict)
    active: int = 0
    reserved: int = 0

    def copy(self) -> _State:
        return _State(self.index, dict(self.live), self.active, self.reserved)


class Moments:
    """Answer questions about one device's trace.

    ``final`` and ``reserved`` are the sums of its segments at the end, None where the trace does
    not reach the end or there are no segments.
    """

    def __init__(
        self,
        device: int,
        columns: Columns,
        stacks: StackTable,
        final: BlockTable | None,
        reserved: int | None,
    ) -> None:
        self.device, self.columns, self.stacks, self.final = device, columns, stacks, final
        self._reserved_end = reserved
        # A trace may have been recorded without the requests (skip_actions); then only completions
        # are known.
        self._freeing = FREE_REQUESTED if FREE_REQUESTED in columns.code else FREE_COMPLETED
        self.timeline = Buckets()
        self.peak_index = -1
        self.before_bytes: int | None = None
        self._active_before: int | None = None
        self._reserved_before: int | None = None
        self.complaints: list[str] = []
        # sizes, stacks, and address → ~number
        self._before: tuple[list[int], list[int], dict[int, int]] | None = None
        self._cached: _State | None = None
        self._draw()

    # ── the timeline ──────────────────────────────────────────────────────────────────────────────

    def _draw(self) -> None:
        columns = self.columns
        total = len(columns)
        line, freeing = self.timeline, self._freeing
        allocated = active = reserved = 0
        highest, peak = -LEVEL_LIMIT, (0, 0)
        step = max(1, -(-total // MAX_BUCKETS))
        for begin in range(0, total, step):
            level = a_low = a_high = allocated
            c_low = c_high = active
            r_low = r_high = reserved
            for code, size in zip(
                columns.code[begin : begin + step], columns.size[begin : begin + step], strict=True
            ):
                if code == ALLOC:
                    allocated += size
                    active += size
                    if allocated > a_high:
                        a_high = allocated
                    if active > c_high:
                        c_high = active
                    continue
                if code == freeing:
                    allocated -= size
                    if allocated < a_low:
                        a_low = allocated
                if code == FREE_COMPLETED:
                    active -= size
                    if active < c_low:
                        c_low = active
                elif code in _UP:
                    reserved += size
                    r_high = max(r_high, reserved)
                elif code in _DOWN:
                    reserved -= size
                    r_low = min(r_low, reserved)
            if a_high > highest:
                highest, peak = a_high, (begin, level)
            last = min(begin + step, total) - 1
            line.index.append(last)
            if columns.time:
                line.time_us.append(columns.time[last])
            for series, low, high in (
                (line.allocated, a_low, a_high),
                (line.active, c_low, c_high),
                (line.reserved, r_low, r_high),
            ):
                series.low.append(low)
                series.high.append(high)
        if total:
            self._find_peak(*peak, highest)
        self._set_levels(allocated, active, reserved)

    def _find_peak(self, begin: int, level: int, highest: int) -> None:
        """Return the entry after which allocated was highest.

        It is in the bucket at ``begin``, whose initial level is ``level``.
        """
        self.peak_index = begin - 1
        columns, freeing = self.columns, self._freeing
        for index in range(begin, len(columns)):
            if level == highest:
                return
            code = columns.code[index]
            level += (
                columns.size[index]
                if code == ALLOC
                else -columns.size[index]
                if code == freeing
                else 0
            )
            self.peak_index = index

    def _set_levels(self, allocated: int, active: int, reserved: int) -> None:
        """Add the bytes at the start to lines that count changes since the start."""
        line = self.timeline
        if (
            max(map(abs, (*line.allocated.high, *line.active.high, *line.reserved.high, 0)))
            >= LEVEL_LIMIT
        ):
            raise ValueError("invalid levels")
        lowest, lowest_active = min(line.allocated.low, default=0), min(line.active.low, default=0)
        final = self.final
        if final is not None:
            requested = sum(final.requested)
            self.before_bytes = requested - allocated
            self._active_before = requested + final.pending_requested - active
            if self.before_bytes + lowest < 0 or self._active_before + lowest_active < 0:
                self.complaints.append(
                    "the trace frees more than its segments can explain: the lines' level is a "
                    "guess, their shape is exact"
                )
                self.before_bytes = self._active_before = None
        _lift(
            line.allocated.low,
            line.allocated.high,
            -lowest if self.before_bytes is None else self.before_bytes,
        )
        _lift(
            line.active.low,
            line.active.high,
            -lowest_active if self._active_before is None else self._active_before,
        )
        if (
            self._reserved_end is not None
            and self._reserved_end - reserved + min(line.reserved.low, default=0) >= 0
        ):
            self._reserved_before = self._reserved_end - reserved
            _lift(line.reserved.low, line.reserved.high, self._reserved_before)
        else:
            line.reserved.low, line.reserved.high = [], []

    # ── moments ───────────────────────────────────────────────────────────────────────────────────

    def resolve(self, moment: int | str) -> int:
        """Return the entry of a moment (``model.MOMENTS``). Raises :class:`NoSuchMoment`."""
        total = len(self.columns)
        word = str(moment).strip().lower().removeprefix("#")
        if word in ("start", "end", "peak"):
            return {"start": -1, "end": total - 1, "peak": self.peak_index}[word]
        if word == "oom":
            marks = [mark.index for mark in self.columns.marks if mark.action == "oom"]
            if not marks:
                raise NoSuchMoment("this trace has no out-of-memory entry")
            return marks[-1]
        if re.fullmatch(r"-?\d{1,12}", word):
            index = int(word)
            if not -1 <= index < total:
                raise NoSuchMoment(f"the trace has the entries 0 to {total - 1:,}")
            return index
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(%|s)", word)
        if found is None:
            raise NoSuchMoment(f"no such moment: {word[:40]!r}. There are: {MOMENTS}")
        value = float(found[1])
        if found[2] == "%":
            return min(total - 1, int(total * min(value, 100.0) / 100.0) - 1)
        if not self.columns.time:
            raise NoSuchMoment("this trace has no times: give a share, such as 50%")
        return bisect_right(self.columns.time, self.columns.time[0] + int(value * 1e6)) - 1

    def at(self, index: int, top: int) -> At:
        state = self._replay(index)
        sums: dict[int, list[int]] = {}
        sizes, before_stacks, _ = self._earlier()
        columns = self.columns
        total = 0
        for number in state.live.values():
            size, stack = (
                (columns.size[number], columns.stack[number])
                if number >= 0
                else (sizes[~number], before_stacks[~number])
            )
            row = sums.setdefault(stack, [0, 0])
            row[0] += size
            row[1] += 1
            total += size
        return At(
            device=self.device,
            index=index,
            time_us=self.columns.time_at(index),
            allocated_bytes=None if self.before_bytes is None else total,
            active_bytes=None
            if self._active_before is None
            else self._active_before + state.active,
            reserved_bytes=None
            if self._reserved_before is None
            else self._reserved_before + state.reserved,
            count=len(state.live),
            stacks=self.stacks.top(sums, top),
        )

    def between(self, first: int, last: int, top: int) -> Between:
        """Raises :class:`NoSuchMoment` where ``last`` comes before ``first``."""
        if last < first:
            raise NoSuchMoment("the second moment comes before the first")
        then = self._replay(first).copy()
        now = self._replay(last)
        columns = self.columns
        sums: dict[int, list[int]] = {}
        for number in now.live.values():
            if number > first:
                row = sums.setdefault(columns.stack[number], [0, 0])
                row[0] += columns.size[number]
                row[1] += 1
        still = set(now.live.values())
        sizes = self._earlier()[0]
        freed = [
            columns.size[number] if number >= 0 else sizes[~number]
            for number in then.live.values()
            if number not in still
        ]
        started, ended = columns.time_at(max(first, 0)), columns.time_at(last)
        return Between(
            device=self.device,
            first=first,
            last=last,
            seconds=None if started is None or ended is None else (ended - started) / 1e6,
            bytes=sum(row[0] for row in sums.values()),
            count=sum(row[1] for row in sums.values()),
            freed_bytes=sum(freed),
            freed_count=len(freed),
            stacks=self.stacks.top(sums, top),
        )

    def course(self, stack: int) -> Course:
        """Return how many bytes of one stack were live over the trace."""
        columns, freeing = self.columns, self._freeing
        sizes, stacks, numbers = self._earlier()
        live = {addr: sizes[~one] for addr, one in numbers.items() if stacks[~one] == stack}
        now, allocated, freed = sum(live.values()), 0, 0
        out, begin = Series(), 0
        for last in self.timeline.index:
            low = high = now
            for at in range(begin, last + 1):
                code, addr = columns.code[at], columns.addr[at]
                if code == ALLOC and columns.stack[at] == stack:
                    # an address that is allocated again without being freed counts once
                    now += columns.size[at] - live.pop(addr, 0)
                    live[addr] = columns.size[at]
                    allocated += 1
                elif code in (freeing, ALLOC) and addr in live:
                    now -= live.pop(addr)
                    freed += code == freeing
                low, high = min(low, now), max(high, now)
            out.low.append(low)
            out.high.append(high)
            begin = last + 1
        return Course(self.device, out, allocated, freed)

    def _replay(self, index: int) -> _State:
        """Return the state after ``index``; it goes on from the last question where it can."""
        state = self._cached
        if state is None or state.index > index:
            state = _State(live=dict(self._earlier()[2]))
        live, freeing = state.live, self._freeing
        active, reserved = state.active, state.reserved
        begin, end = state.index + 1, index + 1
        columns = self.columns
        parts = (columns.code[begin:end], columns.addr[begin:end], columns.size[begin:end])
        for number, code, addr, size in zip(range(begin, end), *parts, strict=True):
            if code == ALLOC:
                live[addr] = number
                active += size
                continue
            if code == freeing:
                live.pop(addr, None)
            if code == FREE_COMPLETED:
                active -= size
            elif code in _UP:
                reserved += size
            elif code in _DOWN:
                reserved -= size
        state.index, state.active, state.reserved = index, active, reserved
        self._cached = state
        return state

    def _earlier(self) -> tuple[list[int], list[int], dict[int, int]]:
        """Return what was live before the first entry: sizes, stacks and the number by address.

        These are blocks that the trace frees without having allocated them (their stack is
        unknown), and live blocks that it never mentions.
        """
        if self._before is not None:
            return self._before
        sizes: list[int] = []
        stacks: list[int] = []
        numbers: dict[int, int] = {}
        named: set[int] = set()
        freeing, columns = self._freeing, self.columns
        if self.before_bytes == 0 and self._active_before == 0:
            self._before = (sizes, stacks, numbers)
            return self._before
        for code, addr, size in zip(columns.code, columns.addr, columns.size, strict=True):
            if addr not in named and code in (ALLOC, freeing):
                named.add(addr)
                if code != ALLOC:
                    numbers[addr] = ~len(sizes)
                    sizes.append(size)
                    stacks.append(NO_STACK)
        final = self.final
        if final is not None:
            for addr, size, stack in zip(final.address, final.requested, final.stack, strict=True):
                if addr not in named and addr not in numbers:
                    numbers[addr] = ~len(sizes)
                    sizes.append(size)
                    stacks.append(stack)
        self._before = (sizes, stacks, numbers)
        return self._before


def _lift(low: list[int], high: list[int], base: int) -> None:
    low[:] = [value + base for value in low]
    high[:] = [value + base for value in high]
