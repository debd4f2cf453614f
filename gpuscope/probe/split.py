"""What a step is made of: waiting for input, computing, the optimizer, the rest.

Without touching the model.

Marks are set in the training thread where we stand anyway: begin and end of every batch a
DataLoader gives, before and after every optimizer step. A measured step is the span from the end of
one step of the primary optimizer to the end of the next. On a device's stream a mark says when the
*device* came by: the gap around a batch is then the time for which the device had nothing to do
because of the loader, not the time the loader took.

Which gap is what: a batch being loaded is input, before to after an optimizer is optimizer, from
the end of an optimizer step to the next batch is other, everything else is compute. So a batch
fetched ahead, in the middle of a step, moves what the step did before into other, and without a
loader other is part of compute.

The closure of ``optimizer.step(closure)`` runs forward and backward inside the optimizer's step: it
is compute. A step with an evaluation in it is left out, where the model's phase shows that it has
one.

Few steps are measured, picked by number and at random, so that no kind of step is preferred.
"""

from __future__ import annotations

import random
from collections import deque
from threading import get_ident
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from .closures import Arguments, with_timed_closure
from .marks import Clocks, Spoiled
from .step_frames import still_stepping

WATCHED_SECONDS = 0.5
"""While somebody looks one step in so many seconds is measured, on average."""
UNWATCHED_SECONDS = 10.0
WINDOW = 32
"""Measured steps that the means are taken over."""
MAX_PENDING = 4
"""Measured steps whose device is still at work; with so many no other is begun."""
WARM_UP = 3
"""Steps of a fresh process that are not measured: they load kernels, compile and connect, each rank
at its own time.
"""
SLOW_SECONDS = 1.0
"""Of steps that take longer the first alone is left out: who waits minutes for a step wants to see
something.
"""
MAX_FAILURES = 3
_LOAD, _OPTIMIZER, _CLOSURE = 0, 1, 2
EVALUATES = "the steps that were measured had an evaluation in them"
Span = Tuple[int, int, int, Any, Any]
"""Number of the begin and of the end among the step's marks, kind, begin, end."""


class Parts(NamedTuple):
    """Seconds; ``input + compute + optimizer + other`` is ``total``."""

    input: float
    compute: float
    optimizer: float
    other: float
    total: float


class _Measured:
    __slots__ = (
        "begin",
        "begun",
        "calls",
        "clock",
        "count",
        "end",
        "phase",
        "spans",
        "spoiled",
        "thread",
    )

    def __init__(self, clock: Any, phase: str) -> None:
        self.thread = get_ident()
        self.clock = clock
        self.phase = phase
        self.spoiled = False
        self.count = 0
        self.spans: List[Span] = []
        self.begun: Dict[int, Tuple[int, Any]] = {}  # optimizers that are stepping: id, mark before
        self.calls: Dict[int, Any] = {}  # closures that are running: mark before, by its number
        self.begin = clock.mark()
        self.end: Any = None

    def mark(self) -> Tuple[int, Any]:
        """(number in order, mark)"""
        self.count += 1
        return self.count, self.clock.mark()

    def close(self, end: Any) -> None:
        """The step ends at ``end``. What is still running then goes on in the next one."""
        self.end = end
        for number, begin in self.begun.values():
            self.count += 1
            self.spans.append((number, self.count, _OPTIMIZER, begin, end))
        for number, begin in self.calls.items():
            self.count += 1
            self.spans.append((number, self.count, _CLOSURE, begin, end))


class Split:
    """All methods but :meth:`means` are for the training thread, and raise nothing.

    ``open`` is the step being measured, None most of the time: callers look at it first, so that
    nothing else is paid for then.
    """

    def __init__(self, phase: Callable[[], str] = lambda: "") -> None:
        """Start with no step measured.

        ``phase()`` says what the model does, training or evaluation; "" where that is not known.
        """
        self.open: Optional[_Measured] = None
        self.recent: Deque[Parts] = deque(maxlen=WINDOW)
        # device of the last measured step, None: the CPU's own time
        self.ordinal: Optional[int] = None
        self.problem = ""
        self.spoiled = ""  # why the last step that could not be measured could not
        self._phase = phase
        self._clocks = Clocks()
        self._pending: Deque[_Measured] = deque()
        self._next = 0  # number of the step after which the next measured one begins
        self._random = random.Random(0x6775)  # our own: the user's is not to be disturbed
        self._failures = 0

    def look_at_phase(self) -> None:
        """Notice that the step being measured has an evaluation in it. From any thread."""
        measured = self.open
        if measured is None:
            return
        now = self._phase()
        measured.phase = measured.phase or now
        if now and now != measured.phase:
            measured.spoiled = True

    def load_begins(self) -> Any:
        """What :meth:`load_ended` wants back; None where nothing is measured."""
        measured = self.open
        if measured is None or measured.thread != get_ident():
            return None
        try:
            self.look_at_phase()
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

    def optimizer_begins(
        self, optimizer: Any, args: Any = (), kwargs: Any = None
    ) -> Optional[Arguments]:
        """``optimizer`` is about to step with these arguments, itself the first.

        Other arguments where it has a closure: then it is to step with those.
        """
        measured = self.open
        if measured is None or measured.thread != get_ident() or id(optimizer) in measured.begun:
            return None  # a step within its own step: that of a base class
        try:
            self.look_at_phase()
            measured.begun[id(optimizer)] = measured.mark()
            return with_timed_closure(args, kwargs or {}, self._closure_begins, self._closure_ended)
        except Exception as error:
            self._drop(error)
            return None

    def _closure_begins(self) -> Any:
        measured = self.open
        if measured is None or measured.thread != get_ident():
            return None
        try:
            number, begin = measured.mark()
            measured.calls[number] = begin
            return measured, number
        except Exception as error:
            self._drop(error)
            return None

    def _closure_ended(self, begun: Any) -> None:
        if begun is None:
            return
        measured: _Measured = begun[0]
        if measured is not self.open:
            return
        try:
            last, end = measured.mark()
            measured.spans.append((begun[1], last, _CLOSURE, measured.calls.pop(begun[1]), end))
        except Exception as error:
            self._drop(error)

    def optimizer_ended(
        self, optimizer: Any, primary: bool, total: int, usual: float, wanted: bool
    ) -> None:
        """``optimizer`` has stepped.

        ``primary``: that was the end of step number ``total``. ``usual`` seconds is what a step
        takes of late, ``wanted`` whether somebody looks.
        """
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
        self.look_at_phase()
        number, end = measured.mark()
        begun = measured.begun.pop(id(optimizer), None)
        if begun is not None:
            measured.spans.append((begun[0], number, _OPTIMIZER, begun[1], end))
        if primary:
            if measured.spoiled:
                raise Spoiled(EVALUATES)
            if begun is None:
                raise Spoiled("the start of an optimizer step was not seen")
            measured.close(end)
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
        measured = _Measured(self._clocks.of(optimizer), self._phase())
        for outer in still_stepping(optimizer):
            measured.begun[id(outer)] = (0, measured.begin)
        self.open = measured

    def _harvest(self) -> None:
        while self._pending and self._pending[0].clock.passed(self._pending[0].end):
            measured = self._pending.popleft()
            self.recent.append(parts(measured.clock, measured.begin, measured.spans, measured.end))
            self.ordinal = measured.clock.ordinal
            measured.clock.release()
            self._failures = 0

    def _drop(self, error: Optional[BaseException]) -> None:
        """Measure something else.

        An error of the device comes back with every call: leave it alone then.
        """
        measured, self.open = self.open, None
        if measured is not None:
            measured.clock.release()
        if isinstance(error, Spoiled):
            self.spoiled = str(error)
        elif error is not None:
            self._pending.clear()
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self.problem = f"measuring the step split failed: {type(error).__name__}"


def parts(clock: Any, begin: Any, spans: List[Span], end: Any) -> Parts:
    """What the step from ``begin`` to ``end`` is made of.

    Where one span lies inside another the inner one counts: so a closure is no part of its
    optimizer's time, and a batch that it loads is input.
    """
    marks = [
        (first, 0, span_begin, number) for number, (first, _, _, span_begin, _) in enumerate(spans)
    ]
    marks += [(last, 1, span_end, number) for number, (_, last, _, _, span_end) in enumerate(spans)]
    seconds = {_LOAD: 0.0, _OPTIMIZER: 0.0, _CLOSURE: 0.0}
    other, before, kind_before = 0.0, begin, _OPTIMIZER
    open_spans: List[int] = []
    for _, ends, mark, number in sorted(marks):
        kind = spans[number][2]
        if open_spans:
            seconds[spans[open_spans[-1]][2]] += max(0.0, clock.seconds(before, mark))
        elif kind_before == _OPTIMIZER and kind == _LOAD:
            other += max(0.0, clock.seconds(before, mark))
        before = mark
        if ends:
            open_spans.remove(number)
            kind_before = kind
        else:
            open_spans.append(number)
    total = max(0.0, clock.seconds(begin, end))
    compute = max(0.0, total - seconds[_LOAD] - seconds[_OPTIMIZER] - other)
    return Parts(seconds[_LOAD], compute, seconds[_OPTIMIZER], other, total)
