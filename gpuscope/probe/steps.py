"""Counts steps and times them, from what the hooks report.

It is cheap enough to run whether or not somebody watches.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from .step_minutes import Minutes

WINDOW = 64
"""Steps that medians and means look back on."""
TAKEOVER = 16
"""If another optimizer steps this often after the primary's last step, it becomes the primary,
because a new phase began.
"""
MAX_LOADS = 1024
"""Limit of the batches of one step whose loading times are kept."""
MAX_OPTIMIZERS = 4096
CONFIDENCE = 0.95
"""How surely an interval holds what it is told of, in what the probe and the Lab measure."""


class _Seen:
    __slots__ = ("count", "ref", "run", "run_total")

    def __init__(self, ref: weakref.ref[Any]) -> None:
        self.ref = ref
        self.count = 0
        self.run = 0  # its steps since the total stopped at run_total
        self.run_total = -1


class Steps:
    """Count and time the steps of the training.

    ``total`` counts the steps of the primary optimizer: the one that steps most often; of equals,
    the first one seen. So an iteration with several optimizers (a GAN, one optimizer per parameter)
    is one step. If the primary is replaced, or stops while another continues, the other becomes the
    primary. Times are ``time.perf_counter()`` seconds.
    """

    def __init__(self, goes_on: bool = False) -> None:
        """Start counting. ``goes_on`` says that this process has trained before.

        Then the count continues from the optimizer's own, if it keeps one, so that ranks which are
        attached to at different moments have the same number for the same step.
        """
        self.goes_on = goes_on
        self.total = 0
        self.last: Optional[float] = None  # end of the last step of any optimizer
        self.thread: Optional[int] = None  # the optimizer that made it
        # durations of steps, from the end of one to the end of the next
        self.durations: Deque[float] = deque(maxlen=WINDOW)
        self.minutes = Minutes()
        # waits for the input pipeline, in the same steps
        self.waits: Deque[float] = deque(maxlen=WINDOW)
        # time spent by the probe, per call of its step hook
        self.costs: Deque[float] = deque(maxlen=WINDOW)
        # (thread, begin, end) for each batch
        self.loads: Deque[Tuple[int, float, float]] = deque(maxlen=MAX_LOADS)
        self.loader_seen = False
        self.scaler_seen = False
        self.scaled_on_device = False
        self.skipped = 0
        self.on_step: Optional[Callable[[Steps], None]] = None
        """Called in the training thread at the end of each step that is counted."""
        self.on_backward: Optional[Callable[[Steps], None]] = None
        """Called in the training thread before its next backward pass, where somebody wants it."""
        self.counted: Optional[Tuple[int, float]] = None
        """``total`` and the end of that step, together."""
        self.inputs: Optional[List[Tuple[float, float]]] = None
        """If somebody wants it: begin and end of each wait for a batch."""
        self.importer: Optional[int] = None
        """The thread that imported torch, if that was seen."""
        self.counted_by = ""  # if steps are not an optimizer's: what is counted, and why
        self._seen: Dict[int, _Seen] = {}
        self._primary: Optional[_Seen] = None
        self._primary_last: Optional[float] = None
        # the optimizer that a scaler is about to step, and its steps before
        self._trial: Optional[Tuple[weakref.ref[Any], int]] = None

    def stepped(self, optimizer: Any, now: float) -> None:
        seen = self._seen.get(id(optimizer))
        if seen is None or seen.ref() is not optimizer:
            seen = self._add(optimizer)
            if seen is None:
                return
        seen.count += 1
        if self.counted_by:  # an optimizer of torch steps after all
            self.counted_by, self.total, self._primary_last = "", 0, None
            self.durations.clear()
            self.waits.clear()
        self.last = now
        self.thread = threading.get_ident()
        primary = self._primary
        if seen is primary:
            advance = 1
        else:
            if seen.run_total != self.total:
                seen.run_total, seen.run = self.total, 0
            seen.run += 1
            if primary is None or seen.count > primary.count:
                advance = own_count(optimizer) if primary is None and self.goes_on else 1
            elif seen.run >= TAKEOVER or primary.ref() is None:
                advance = seen.run
            else:
                return
            self._primary = seen
        self._advance(advance, now)

    def passed(self, now: float, counted_by: str, before: int = 0) -> None:
        """Count a step that begins in a training in which no optimizer of torch steps.

        ``counted_by`` says in words what is counted. ``before`` such steps were seen before it was
        known that they are steps; the first call counts them too.
        """
        if not self.counted_by:
            self._waited()  # for what came before the first counted step
            self.total += before
        self.counted_by = counted_by
        self.last = now
        self.thread = threading.get_ident()
        self._advance(1, now)

    def last_load(self) -> Optional[float]:
        """Return when this thread got its last batch since the last step; None if it got none."""
        thread = threading.get_ident()
        return next(
            (end for loader, _, end in reversed(list(self.loads)) if loader == thread), None
        )

    def _advance(self, count: int, now: float) -> None:
        self.total += count
        waited = self._waited()
        if self._primary_last is not None:
            seconds = (now - self._primary_last) / count
            self.durations.append(seconds)
            self.waits.append(waited / count)
            self.minutes.add(now, seconds)
        self._primary_last = now
        self.counted = self.total, now
        on_step = self.on_step  # another thread may take it away
        if on_step is not None:
            on_step(self)

    def usual_seconds(self) -> float:
        """Return how long a step takes at present, 0 if that is not known.

        It is the shorter of the last two, because one may contain a pause.
        """
        recent = list(self.durations)[-2:]
        return min(recent) if recent else 0.0

    def count_of(self, optimizer: Any) -> int:
        """Return how many steps of this optimizer were seen."""
        seen = self._seen.get(id(optimizer))
        return seen.count if seen is not None and seen.ref() is optimizer else 0

    def _waited(self) -> float:
        """Return how long this thread waited in loaders since the last step.

        A loader that runs inside another is counted once.
        """
        thread, total, until = threading.get_ident(), 0.0, 0.0
        spans = []
        while self.loads:
            loader, begin, end = self.loads.popleft()
            if loader == thread:
                spans.append((begin, end))
        for begin, end in sorted(spans):
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        if self.inputs is not None:
            self.inputs.extend(spans)
        self.loader_seen = self.loader_seen or bool(spans)
        return total

    def scaled(self, optimizer: Any = None) -> None:
        """Note that a grad scaler is about to step ``optimizer``, or to skip its step.

        None: the scaler is done with the last one.
        """
        trial, self._trial = self._trial, None
        if trial is not None:
            last = trial[0]()
            if last is not None and self.count_of(last) == trial[1]:
                self.skipped += 1
        if optimizer is not None:
            self.scaler_seen = True
            self._trial = weakref.ref(optimizer), self.count_of(optimizer)

    def _add(self, optimizer: Any) -> Optional[_Seen]:
        if len(self._seen) >= MAX_OPTIMIZERS:
            self._seen = {key: seen for key, seen in self._seen.items() if seen.ref() is not None}
            if len(self._seen) >= MAX_OPTIMIZERS:
                return None
        try:
            seen = _Seen(weakref.ref(optimizer))
        except TypeError:
            # a class without weak references; a reference to it would keep its tensors alive
            return None
        self._seen[id(optimizer)] = seen
        return seen


def own_count(optimizer: Any) -> int:
    """Return the steps that an optimizer has counted itself, as Adam does for each parameter.

    1 if it keeps no count, or if reading it would wait for a device.
    """
    try:
        for group in optimizer.param_groups[:1]:
            for parameter in group["params"][:8]:
                count = (
                    optimizer.state[parameter].get("step") if parameter in optimizer.state else None
                )
                if (
                    count is not None
                    and getattr(getattr(count, "device", None), "type", "cpu") == "cpu"
                ):
                    return max(1, int(count))
    except Exception:
        pass  # a state of another kind
    return 1


def quantile(ordered: List[float], share: float) -> float:
    """Return the nearest rank of a sorted list.

    For a median with an even count, the mean of the two in the middle.
    """
    if share == 0.5 and len(ordered) % 2 == 0:
        return (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_interval(
    values: Sequence[float], confidence: float = CONFIDENCE
) -> Optional[Tuple[float, float]]:
    """Return an interval that holds the median with at least ``confidence``.

    None for too few values: it takes 6 for 95 %. Between the r-th smallest and the r-th largest
    value lies the median of any continuous distribution with probability 1 − 2·P(Binomial(n, ½) <
    r). Values are assumed to be independent of each other.
    """
    ordered, n = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < n // 2:
        # by logarithms, because of many values the power is larger than any float
        tail += math.exp(
            math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1) - n * math.log(2)
        )
        if 1 - 2 * tail < confidence:
            break
        rank += 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None
