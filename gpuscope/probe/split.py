"""Split the time of a training step into input, compute, optimizer and other.

The model itself is not touched. The training thread sets marks at places where it calls our code
anyway: at the begin and the end of each batch that a DataLoader yields, and before and after each
optimizer step. A measured step lasts from the end of one step of the primary optimizer to the end
of the next. A mark on a device's stream tells when the *device* reached it. So the time between the
marks around a batch is the time for which the loader left the device idle, not the time that the
loader took.

The time is attributed as follows. While a batch is loaded, it is input. Between the marks around an
optimizer step it is optimizer. From the end of an optimizer step to the next batch it is other. The
rest is compute. Two things follow. If a batch is fetched ahead in the middle of a step, what the
step did before that counts as other. Without a loader, other is part of compute.

``optimizer.step(closure)`` runs forward and backward inside the optimizer's step. The time in the
closure is compute. A step that contains an evaluation is not used, if the model's phase shows it.

Few steps are measured. Their numbers are picked at random, so that no kind of step is preferred.
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
"""Average seconds between measured steps while somebody watches."""
UNWATCHED_SECONDS = 10.0
WINDOW = 32
"""How many measured steps the means are taken over."""
MAX_PENDING = 4
"""Measured steps that the device has not finished yet. With this many, no further one is begun."""
WARM_UP = 3
"""First steps of a process that are not measured.

They load kernels, compile and connect, and each rank does so at a different time.
"""
SLOW_SECONDS = 1.0
"""If steps take longer than this, only the first is left out.

A user who waits minutes for a step wants to see something.
"""
MAX_FAILURES = 3
_LOAD, _OPTIMIZER, _CLOSURE = 0, 1, 2
EVALUATES = "the steps that were measured had an evaluation in them"
Span = Tuple[int, int, int, Any, Any]
"""Number of the first and of the last mark within the step, kind, first mark, last mark."""


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
        """End the step at ``end``, and with it each part that still runs."""
        self.end = end
        for number, begin in self.begun.values():
            self.count += 1
            self.spans.append((number, self.count, _OPTIMIZER, begin, end))
        for number, begin in self.calls.items():
            self.count += 1
            self.spans.append((number, self.count, _CLOSURE, begin, end))


class Split:
    """Measures some steps. Only the training thread may call its methods, except :meth:`means`.

    The methods raise nothing. ``open`` is the step that is being measured, and None most of the
    time. Callers check it first, so that other steps cost nothing more.
    """

    def __init__(self, phase: Callable[[], str] = lambda: "") -> None:
        """Start with no step measured.

        ``phase()`` returns whether the model trains or evaluates, or "" if that is not known.
        """
        self.open: Optional[_Measured] = None
        self.recent: Deque[Parts] = deque(maxlen=WINDOW)
        # device of the last measured step; None if it was measured with the CPU's clock
        self.ordinal: Optional[int] = None
        self.problem = ""
        self.spoiled = ""  # why a step could not be measured, for the last such step
        self._phase = phase
        self._clocks = Clocks()
        self._pending: Deque[_Measured] = deque()
        self._next = 0  # number of the step after which the next measured one begins
        self._random = random.Random(0x6775)  # our own, so that the user's is not disturbed
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
        """Mark the begin of a batch, and return what :meth:`load_ended` needs, if measuring."""
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
        """Mark that ``optimizer`` is about to step with these arguments, itself the first.

        If they contain a closure, returns other arguments, which the optimizer must be given
        instead.
        """
        measured = self.open
        if measured is None or measured.thread != get_ident() or id(optimizer) in measured.begun:
            return None  # a step inside its own step: a base class's method was called
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
        """Mark that ``optimizer`` has stepped.

        ``primary`` says whether this was the end of step number ``total``. ``usual`` is the recent
        step time in seconds, and ``wanted`` says whether somebody watches.
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
        """Return the means over the recent measured steps, None before the first."""
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
        """Give up the step being measured.

        After several errors in a row nothing is measured any more, because an error of the device
        is returned by every later call too.
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
                self.problem = f"measuring the step breakdown failed: {type(error).__name__}"


def parts(clock: Any, begin: Any, spans: List[Span], end: Any) -> Parts:
    """Return the parts of the step from ``begin`` to ``end``.

    If one span lies inside another, the time belongs to the inner one. So the time of a closure is
    not the optimizer's, and a batch that is loaded inside it is input.
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
