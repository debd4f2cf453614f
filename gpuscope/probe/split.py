"""What a step is made of: waiting for input, computing, the optimizer, the rest. Without touching the model.

Marks are set in the training thread where we stand anyway: begin and end of every batch a DataLoader gives, before and
after every optimizer step. A measured step is the span from the end of one step of the primary optimizer to the end of
the next. On a device's stream a mark says when the *device* came by: the gap around a batch is then the time for which
the device had nothing to do because of the loader, not the time the loader took.

Which gap is what: a batch being loaded is input, before to after an optimizer is optimizer, from the end of an
optimizer step to the next batch is other, everything else is compute. So a batch fetched ahead, in the middle of a
step, moves what the step did before into other, and without a loader other is part of compute.

Few steps are measured, picked by number and at random, so that no kind of step is preferred.
"""

from __future__ import annotations

import random
from collections import deque
from threading import get_ident
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from .marks import Clocks, Spoiled

WATCHED_SECONDS = 0.5
"""While somebody looks one step in so many seconds is measured, on average."""
UNWATCHED_SECONDS = 10.0
WINDOW = 32
"""Measured steps that the means are taken over."""
MAX_PENDING = 4
"""Measured steps whose device is still at work; with so many no other is begun."""
WARM_UP = 3
"""Steps of a fresh process that are not measured: they load kernels, compile and connect, each rank at its own time."""
SLOW_SECONDS = 1.0
"""Of steps that take longer the first alone is left out: who waits minutes for a step wants to see something."""
MAX_FAILURES = 3
_LOAD, _OPTIMIZER = 0, 1


class Parts(NamedTuple):
    """Seconds; ``input + compute + optimizer + other`` is ``total``."""

    input: float
    compute: float
    optimizer: float
    other: float
    total: float


class _Measured:
    __slots__ = ("begin", "begun", "clock", "count", "end", "spans", "thread")

    def __init__(self, clock: Any) -> None:
        self.thread = get_ident()
        self.clock = clock
        self.count = 0
        self.spans: List[Tuple[int, int, int, Any, Any]] = []  # number of begin and of end, kind, begin, end
        self.begun: Dict[int, Tuple[int, Any]] = {}  # optimizers that are stepping: id, mark before
        self.begin = clock.mark()
        self.end: Any = None

    def mark(self) -> Tuple[int, Any]:
        """(number in order, mark)"""
        self.count += 1
        return self.count, self.clock.mark()


class Split:
    """All methods but :meth:`means` are for the training thread, and raise nothing. ``open`` is the step being
    measured, None most of the time: callers look at it first, so that nothing else is paid for then."""

    def __init__(self) -> None:
        self.open: Optional[_Measured] = None
        self.recent: Deque[Parts] = deque(maxlen=WINDOW)
        self.ordinal: Optional[int] = None  # device of the last measured step, None: the CPU's own time
        self.problem = ""
        self._clocks = Clocks()
        self._pending: Deque[_Measured] = deque()
        self._next = 0  # number of the step after which the next measured one begins
        self._random = random.Random(0x6775)  # our own: the user's is not to be disturbed
        self._failures = 0

    def load_begins(self) -> Any:
        """What :meth:`load_ended` wants back; None where nothing is measured."""
        measured = self.open
        if measured is None or measured.thread != get_ident():
            return None
        try:
            return (measured, *measured.mark())
        except Exception as error:
            self._drop(error)
            return None

    def load_ended(self, begun: Any) -> None:
        measured: _Measured = begun[0]
        number, begin = begun[1:]
        if measured is not self.open:
            return
        try:
            last, end = measured.mark()
            measured.spans.append((number, last, _LOAD, begin, end))
        except Exception as error:
            self._drop(error)

    def optimizer_begins(self, optimizer: Any) -> None:
        measured = self.open
        if measured is None or measured.thread != get_ident() or id(optimizer) in measured.begun:
            return  # a step within its own step: that of a base class
        try:
            measured.begun[id(optimizer)] = measured.mark()
        except Exception as error:
            self._drop(error)

    def optimizer_ended(self, optimizer: Any, primary: bool, total: int, usual: float, wanted: bool) -> None:
        """``optimizer`` has stepped. ``primary``: that was the end of step number ``total``. ``usual`` seconds is what
        a step takes of late, ``wanted`` whether somebody looks."""
        measured = self.open
        try:
            if measured is not None:
                self._close(measured, optimizer, primary)
            if self._pending:
                self._harvest()
            if primary and self.open is None and not self.problem:
                self._begin(optimizer, total, usual, wanted)
        except Exception as error:
            self._drop(error)

    def means(self) -> Optional[Parts]:
        """Means over the recent measured steps; None before the first."""
        recent = list(self.recent)
        if not recent:
            return None
        return Parts(*(sum(values) / len(recent) for values in zip(*recent)))

    def _close(self, measured: _Measured, optimizer: Any, primary: bool) -> None:
        if measured.thread != get_ident():
            if primary:  # the training has moved to this thread
                self._drop(None)
            return
        number, end = measured.mark()
        begun = measured.begun.pop(id(optimizer), None)
        if begun is None:
            raise Spoiled
        measured.spans.append((begun[0], number, _OPTIMIZER, begun[1], end))
        if primary:
            measured.end = end
            self.open = None
            self._pending.append(measured)

    def _begin(self, optimizer: Any, total: int, usual: float, wanted: bool) -> None:
        if not wanted:
            gap = UNWATCHED_SECONDS
        else:
            gap = WATCHED_SECONDS
        every = max(1, min(int(gap / usual + 0.5), 1 << 20)) if usual > 0 else 1
        if total < (WARM_UP if usual < SLOW_SECONDS else 1):
            return
        if self._next > total + 2 * every:
            self._next = total  # it was chosen when nobody looked, or when steps were shorter
        if total < self._next or len(self._pending) >= MAX_PENDING:
            return
        self._next = total + self._random.randint(1, 2 * every - 1)
        self.open = _Measured(self._clocks.of(optimizer))

    def _harvest(self) -> None:
        while self._pending and self._pending[0].clock.passed(self._pending[0].end):
            measured = self._pending.popleft()
            self.recent.append(parts(measured.clock, measured.begin, measured.spans, measured.end))
            self.ordinal = measured.clock.ordinal
            measured.clock.release()
            self._failures = 0

    def _drop(self, error: Optional[BaseException]) -> None:
        """Measure something else. An error of the device comes back with every call: leave it alone then."""
        measured, self.open = self.open, None
        if measured is not None:
            measured.clock.release()
        if error is not None and not isinstance(error, Spoiled):
            self._pending.clear()
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self.problem = f"taking steps apart failed: {type(error).__name__}"


def parts(clock: Any, begin: Any, spans: List[Tuple[int, int, int, Any, Any]], end: Any) -> Parts:
    """What the step from ``begin`` to ``end`` is made of. ``spans`` are (number of begin, number of end, kind, begin,
    end); one inside another counts as the outer one."""
    seconds = [0.0, 0.0]
    other, kind_before, before, last = 0.0, _OPTIMIZER, begin, -1
    for first, number, kind, span_begin, span_end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if first < last:
            continue
        if kind_before == _OPTIMIZER and kind == _LOAD:
            other += max(0.0, clock.seconds(before, span_begin))
        seconds[kind] += max(0.0, clock.seconds(span_begin, span_end))
        kind_before, before, last = kind, span_end, number
    total = max(0.0, clock.seconds(begin, end))
    compute = max(0.0, total - sum(seconds) - other)
    return Parts(seconds[_LOAD], compute, seconds[_OPTIMIZER], other, total)
