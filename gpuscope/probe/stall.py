"""Notices that steps have stopped, and what the thread that made them executes.

It runs in the probe's thread.

A step is overdue if its age exceeds a limit that is computed from the usual time of a step. A stall
is an overdue step whose thread makes no progress: it stays at the same line, no batch arrives, and
neither the framework nor a progress bar counts on. So an evaluation or a checkpoint is no stall.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Union

from ..wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Unknown
from . import code_place
from .steps import Steps, quantile
from .thread_frames import current_frames

STILL_SECONDS = 3.0
"""A thread waits if it stays at the same line for this long, with nothing counted in between."""
FEW_STEPS, FEW_LIMIT_SECONDS = 3, 300.0
"""Before this many steps there is no usual time (compilation, first collectives), so a step is
overdue only after this limit.
"""
AGAIN = 2.0
"""If a pause at a line once ended by itself, a later pause there must take this many times as long
to count as a stall.
"""
MAX_PAUSES = 64
_NO_STEP = Unknown(NOT_INITIALISED, "no optimizer step seen yet")
_ON_TIME = Unknown(NOT_INITIALISED, "the next step is not overdue")
_BUSY = Unknown(
    NOT_INITIALISED,
    "the next step is overdue, but the training thread is doing something else",
)
_LEFT = Unknown(NOT_INITIALISED, "the code that trained is no longer running")
_HIDDEN = Unknown(NOT_SUPPORTED, "this Python does not show its threads' stacks")
Announce = Callable[..., None]


def limit_seconds(p95: Optional[float]) -> float:
    """Return after how many seconds a step is overdue.

    The limit comes from the 95th percentile of the recent steps: ten times that, or 5 s and three
    times that, whichever is longer. For steps over 15 s it is two minutes and two times that,
    because ten times would be too long to wait.
    """
    if p95 is None:
        return FEW_LIMIT_SECONDS
    return max(5.0 + 3.0 * p95, min(10.0 * p95, 120.0 + 2.0 * p95))


class StallWatch:
    """Notices that steps no longer end.

    ``announce(kind, text, data)`` is called for ``stall``, once, and for ``resumed``.
    ``collectives()`` returns the number of collectives launched so far, or an :class:`Unknown`. The
    result of ``counts()`` changes when the training counts anything.
    """

    def __init__(
        self,
        steps: Steps,
        announce: Announce,
        collectives: Callable[[], Union[int, Unknown]],
        counts: Callable[[], Any] = tuple,
    ) -> None:
        self._steps = steps
        self._announce = announce
        self._collectives = collectives
        self._counts = counts
        self._last: Optional[float] = None  # the step that everything below refers to
        self._place: Optional[code_place.CodePlace] = None
        self._mark: Any = None
        self._since = 0.0  # when the thread was first seen at its present place
        self._announced: Optional[float] = None  # end of the step after which a stall was announced
        self._had_own = False  # whether the user's own code was on the stack while it trained
        self._pauses: Dict[str, float] = {}
        self._candidate = False

    def tick(self) -> Union[str, Unknown]:
        """Return the present reading of ``stall_at``, and announce what has changed."""
        steps, now = self._steps, time.perf_counter()
        last = steps.last
        if last is None:
            return _NO_STEP
        if last != self._last:
            self._stepped(last)
        durations = sorted(steps.durations)
        p95 = quantile(durations, 0.95) if len(durations) >= FEW_STEPS else None
        limit = limit_seconds(p95)
        age = now - last
        if age < limit / 2:
            self._look_at_training()
            return _ON_TIME
        found = self._look(now)
        if isinstance(found, Unknown):
            return found
        self._candidate = True
        limit = max(limit, AGAIN * self._pauses.get(found.at, 0.0))
        if age < limit:
            return _ON_TIME
        if now - self._since < STILL_SECONDS:
            return _BUSY
        if self._announced != last:
            self._announced = last
            self._tell(age, quantile(durations, 0.5) if p95 is not None else None, found)
        return found.words

    def _stepped(self, last: float) -> None:
        before, self._last = self._last, last
        place, self._place, self._mark = self._place, None, None
        if before is None or place is None or not self._candidate:
            return
        self._candidate = False
        seconds = last - before
        if len(self._pauses) >= MAX_PAUSES and place.at not in self._pauses:
            self._pauses.clear()
        self._pauses[place.at] = max(seconds, self._pauses.get(place.at, 0.0))
        if self._announced == before:
            self._announce(
                "resumed", f"Steps continue after {seconds:.0f} s.", {"seconds": seconds}
            )

    def _look_at_training(self) -> None:
        frame = _frame_of(self._steps.thread)
        found = code_place.place(frame) if frame is not None else None
        if found is not None and found.own:
            self._had_own = True

    def _look(self, now: float) -> Union[code_place.CodePlace, Unknown]:
        """Find what the thread that trained executes, and since when."""
        if not hasattr(sys, "_current_frames"):
            return _HIDDEN
        frame = _frame_of(self._steps.thread)
        if frame is None:
            return _LEFT
        found = code_place.place(frame)
        if found is None or (self._had_own and not found.own):
            return _LEFT  # back in the main loop of a notebook or a server
        batches = list(self._steps.loads)[-1:]
        # The stack alone is not enough: a rollout spends nearly all its time at one line of its
        # environment's step.
        mark = (code_place.signature(frame), batches, self._counts())
        if mark != self._mark:
            self._mark, self._since, self._place = mark, now, found
        return self._place or found

    def _tell(self, age: float, usual: Optional[float], found: code_place.CodePlace) -> None:
        thread = _name_of(self._steps.thread)
        count = self._collectives()
        data = {
            "seconds": age,
            "usual_seconds": usual,
            "at": found.at,
            "inner": found.inner or found.at,
            "thread": thread,
            "collective": None if isinstance(count, Unknown) else count,
        }
        often = f", usually one every {_short(usual)}" if usual is not None else ""
        self._announce(
            "stall", f"Last step {age:.0f} s ago{often}; {thread} is at {found.words}", data
        )


def _short(seconds: float) -> str:
    """Write a step's duration as the screens do: ``"22.8 ms"``, ``"1.84 s"``."""
    value, unit = (seconds, "s") if seconds >= 0.9995 else (1e3 * seconds, "ms")
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def _frame_of(ident: Optional[int]) -> Any:
    return current_frames().get(ident) if ident is not None else None


def _name_of(ident: Optional[int]) -> str:
    if ident == threading.main_thread().ident:
        return "the main thread"
    found = getattr(threading, "_active", {}).get(ident)
    return f"thread {str(getattr(found, 'name', ident))[:64]}"
