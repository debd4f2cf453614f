"""Records what the training thread does with the wall clock, minute by minute, without a profiler.

A few times a second, at random moments, the probe's own thread looks at the stack of the training
thread, and adds the time since the last look to the row that :mod:`.time_rows` names. So the rows
of a period always add up to its wall clock. How precise a row's share is follows from the number of
looks. Garbage collections are timed instead, because no other thread runs during one and no look
could see it.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import deque
from threading import get_ident
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ..wire.frames import Scalar
from .code_place import place
from .long_steps import Apart, LongSteps
from .steps import Steps
from .thread_frames import current_frames
from .time_rows import RowPlace, row_of

USUAL_SECONDS = 0.2
"""Average seconds between two looks, whether or not somebody watches."""
CLOSE_SECONDS = 0.02
"""The same for some seconds after a client has asked for it."""
MAX_CLOSE = 10.0
UNTRAINED_SECONDS = 1.0
"""Seconds between two checks whether a process has begun to train."""
COST_SHARE = 0.002
"""The largest share of one core that looks may take; an expensive look delays the next one."""
MINUTES = 15
MAX_PLACES = 48
"""Limit of the lines of code that are kept by name in one minute; the others are added up."""
MINUTE = 60.0
SENT_EARLY = (10.0, 20.0, 40.0)
"""The first minute is already reported at these ages (seconds), because many trainings fail early.
"""
EVENT_PLACES = 6
EVENT_PLACE_CHARS = 160
FULL = 2
"""The generation of a collection of all objects, which ``gc.collect()`` makes."""
NO_STEP = "no optimizer step was seen yet"
_REST = "elsewhere"


class Minute:
    """The record of one minute; ``began`` and ``until`` are ``perf_counter()`` seconds.

    ``m`` is its start on the clock of samples, which identifies it in events and answers.
    """

    def __init__(self, began: float, steps: int) -> None:
        self.m = int(began * 1e9)  # Linux has one clock for both
        self.began = self.until = began
        self.steps_before = self.steps = steps
        self.looks = 0
        self.seconds = self.squares = 0.0
        """The seconds that looks have booked, and the sum of their squares."""
        self.rows: Dict[str, List[float]] = {}  # seconds, looks
        self.places: Dict[Tuple[str, str], float] = {}
        self.collection_seconds = 0.0
        self.collections = 0
        self.apart = Apart()

    def book(self, row: str, place: str, seconds: float) -> Tuple[str, str]:
        """Book a look, and return the row and the line that it was booked under."""
        self.looks += 1
        self.seconds += seconds
        self.squares += seconds * seconds
        kept = self.rows.setdefault(row, [0.0, 0])
        kept[0] += seconds
        kept[1] += 1
        return self.place(row, place, seconds)

    def place(self, row: str, place: str, seconds: float) -> Tuple[str, str]:
        """Add seconds to a line of code, and return the row and the line that has got them."""
        key = (row, place)
        if key not in self.places and len(self.places) >= MAX_PLACES:
            key = (row, _REST)
        self.places[key] = self.places.get(key, 0.0) + seconds
        return key


class TimeLedger:
    """The time ledger of a training.

    All methods but :meth:`remember_path` are for the probe's thread.

    ``phase()`` says what the model does, ``train`` or ``eval``; "" if that is not known.
    """

    def __init__(self, steps: Steps, phase: Callable[[], str] = lambda: "") -> None:
        self.due = 0.0
        """``time.monotonic()`` seconds of the next look."""
        self.wants_path = False
        """Whether the next step shall report the functions that it is called from."""
        self._steps = steps
        self._long = LongSteps(steps)
        self._phase = phase
        self._minutes: Deque[Minute] = deque(maxlen=MINUTES)
        self._path: Dict[int, Any] = {}
        self._path_until = 0.0
        self._last: Optional[float] = None
        """When the last look came, and how many steps there were then."""
        self._steps_at_last = 0
        self._close_until = 0.0
        self._random = random.Random(0x7469)  # our own, so that the user's is not disturbed
        self._collecting = 0.0
        """``perf_counter()`` at which the training thread began to collect garbage, 0 if it does
        not."""
        self._collected: Deque[Tuple[float, float]] = deque(maxlen=4096)
        """When collections began and ended that the looks so far have not booked to their ends."""
        self._called_at = ""
        self._called: Dict[str, float] = {}
        """The lines that called ``gc.collect()``, and for how long, since the last look."""
        self._listens = False
        self._early = list(SENT_EARLY)
        self.facts: Callable[[], Dict[str, Scalar]] = dict
        """Tells what else is known of the last minute: see :mod:`.time_causes`."""
        self.look: Optional[Dict[str, Any]] = None
        """What the last look at the device has found, for who asks later."""
        self.looked_at = 0
        """How many steps there were when the last look had been read."""
        self.announce: Callable[..., None] = lambda e, text="", data=None: None
        """Called with each minute as an event ``time``, for the black box and for viewers."""

    # ── looks ──

    def tick(self) -> None:
        """Look at the stack, if it is time."""
        moment = time.monotonic()
        if moment < self.due:
            return
        if self._steps.thread is None:
            self.due = moment + UNTRAINED_SECONDS
            return
        begin = time.thread_time()
        try:
            self._look()
        finally:
            usual = CLOSE_SECONDS if moment < self._close_until else USUAL_SECONDS
            share = 10 * COST_SHARE if moment < self._close_until else COST_SHARE
            pause = max(usual, (time.thread_time() - begin) / share)
            self.due = time.monotonic() + pause * self._random.uniform(0.5, 1.5)

    def _look(self) -> None:
        self._listen()
        now = time.perf_counter()
        last, self._last = self._last, now
        before, self._steps_at_last = self._steps_at_last, self._steps.total
        if last is None:
            return
        if now > self._path_until:
            self._path_until, self.wants_path = now + MINUTE, True
        row, place = self.stand() or ("unattributed", "")
        minute = self._minute(last, before)
        minute.until, minute.steps = now, self._steps_at_last
        collected, ended = self._collected_between(last, now)
        minute.collections += ended
        minute.collection_seconds += collected
        called, self._called = self._called, {}
        for line, seconds in called.items():
            minute.place("collection", line, seconds)
        key = minute.book(row, place, now - last - collected)
        new = self._steps_at_last - before
        if self._long.look(self._minutes, key, now - last - collected, now, new):
            self._tell()
        if self._early and now - minute.began >= self._early[0]:
            self._early.pop(0)
            self._tell()

    def stand(self) -> Optional[RowPlace]:
        """Return what the training thread does now; None if there is no such thread."""
        frames = current_frames()
        try:
            frame = frames.get(self._steps.thread or 0)
            return None if frame is None else row_of(frame, self._path, self._phase())
        finally:
            frame = None
            frames.clear()  # a frame that is held keeps its variables alive, tensors too

    def _minute(self, now: float, steps: int) -> Minute:
        if not self._minutes or now - self._minutes[-1].began >= MINUTE:
            self._tell()
            if self._minutes:
                self._early = []
            self._minutes.append(Minute(now, steps))
        return self._minutes[-1]

    def _tell(self) -> None:
        """Report the last minute as far as it is known by now."""
        for data in self.told()[-1:]:
            self.announce("time", "", data)

    def told(self) -> List[Dict[str, Scalar]]:
        """Return the data of the events ``time`` of all minutes, the last one with its facts."""
        found = [event_data(minute) for minute in self._minutes if minute.looks]
        if found:
            found[-1].update(self.facts())
        return found

    def remember_path(self, frame: Any) -> None:
        """Remember, in the training thread during a step, which functions are the training loop."""
        self.wants_path = False
        path: Dict[int, Any] = {}
        while frame is not None and len(path) < 256:
            path[id(frame.f_code)] = frame.f_code
            frame = frame.f_back
        self._path = path

    # ── collections of garbage ──

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: Any) -> None:
        if get_ident() != self._steps.thread:
            return
        if phase == "start":
            full = info.get("generation") == FULL
            self._called_at = _caller(sys._getframe(1)) if full else ""
            self._collecting = time.perf_counter()
        elif self._collecting:
            began, now, line = self._collecting, time.perf_counter(), self._called_at
            self._collected.append((began, now))
            self._collecting = 0.0
            if line:
                self._called[line] = self._called.get(line, 0.0) + now - began

    def _collected_between(self, last: float, now: float) -> Tuple[float, int]:
        """Return for how long garbage was collected from ``last`` to ``now``, how many ended.

        A collection lets go of the interpreter when it calls us at its end. So a look comes just
        then, and the collection's end is noted after it: what is in progress counts until ``now``,
        and the rest of it from there.
        """
        begun = self._collecting
        seconds, ended = 0.0, 0
        for start, end in list(self._collected):
            begun = 0.0 if start == begun else begun
            seconds += max(0.0, min(end, now) - max(start, last))
            if end > now:
                break
            self._collected.popleft()
            ended += 1
        if begun:
            seconds += max(0.0, now - max(begun, last))
        return min(seconds, now - last), ended

    def end(self) -> None:
        """Report the minute in which the training ended, and leave nothing behind."""
        self._tell()
        self.close()

    def close(self) -> None:
        """Remove the callback for garbage collections."""
        self.announce = lambda e, text="", data=None: None
        if self._listens:
            self._listens = False
            try:
                gc.callbacks.remove(self._on_collection)
            except ValueError:
                pass

    # ── answers ──

    def answer(self, args: Dict[str, Any]) -> Dict[str, Any]:
        """Return the answer to the request ``time``.

        Arg ``close_seconds``: for so long, 10 s at most, look fifty times a second from now on.
        The value has ``minutes``, the oldest first: ``m`` and ``age_seconds`` of its beginning,
        ``seconds`` and ``steps`` in it, ``looks``, ``even_looks``, ``rows`` ``[row, seconds,
        looks]`` that add up to ``seconds``, ``places`` ``[row, place, seconds]``, and
        ``collections``; the last one has :attr:`facts` too. ``problem`` says why there is none.
        ``look`` is the value of the last request ``look``, where there was one.
        """
        close = args.get("close_seconds")
        if isinstance(close, (int, float)) and not isinstance(close, bool) and close > 0:
            self._close_until = time.monotonic() + min(float(close), MAX_CLOSE)
            self.due = 0.0
        now = time.perf_counter()
        problem = "" if self._steps.thread is not None else NO_STEP
        minutes = [_minute_answer(minute, now) for minute in self._minutes]
        if minutes:
            minutes[-1].update(self.facts())
        answer: Dict[str, Any] = {"minutes": minutes, "problem": problem}
        if self.look is not None:
            answer["look"] = self.look
        return answer


def even_looks(minute: Minute) -> float:
    """Return how many looks at even distances are as sure as those of a minute.

    A look that was long in coming books much time by a single reading. So the shares are less sure
    than as many looks at even distances would make them (Kish's effective sample size).
    """
    return round(minute.seconds**2 / minute.squares, 1) if minute.squares else 0.0


def event_data(minute: Minute) -> Dict[str, Scalar]:
    """Return the data of an event ``time``: numbers, and two texts with ``|`` between their items.

    ``rows`` has ``row seconds looks``, and ``places`` the longest as ``row seconds place``.
    """
    rows = _rows(minute)
    places = sorted(minute.places.items(), key=lambda item: -item[1])[:EVENT_PLACES]
    return {
        "m": minute.m,
        "seconds": _round(minute.until - minute.began),
        "steps": minute.steps - minute.steps_before,
        "looks": minute.looks,
        "even_looks": even_looks(minute),
        "rows": "|".join(f"{row} {seconds:.3f} {looks}" for row, seconds, looks in rows),
        "places": "|".join(
            f"{row} {seconds:.2f} {place[-EVENT_PLACE_CHARS:].replace('|', '/')}"
            for (row, place), seconds in places
            if place
        ),
        **{
            name: _text(value) if isinstance(value, list) else value
            for name, value in minute.apart.data().items()
        },
    }


def _caller(frame: Any) -> str:
    """Return the user's line that calls ``gc.collect()``, "" if Python collects by itself.

    That is at any line that makes an object; only a function that calls has the name in its code.
    """
    if "collect" not in frame.f_code.co_names:
        return ""
    found = place(frame)
    return "" if found is None else found.at


def _text(lines: List[List[Any]]) -> str:
    return "|".join(
        f"{row} {seconds:.3f} {looks} {place[-EVENT_PLACE_CHARS:].replace('|', '/')}"
        for row, seconds, looks, place in lines
    )


def _rows(minute: Minute) -> List[List[Any]]:
    rows = [[row, _round(seconds), int(looks)] for row, (seconds, looks) in minute.rows.items()]
    if minute.collection_seconds > 0:
        rows.append(["collection", _round(minute.collection_seconds), minute.collections])
    return sorted(rows, key=lambda row: -float(row[1]))


def _minute_answer(minute: Minute, now: float) -> Dict[str, Any]:
    places = sorted(minute.places.items(), key=lambda item: -item[1])
    return {
        "m": minute.m,
        "age_seconds": _round(now - minute.began),
        "seconds": _round(minute.until - minute.began),
        "steps": minute.steps - minute.steps_before,
        "looks": minute.looks,
        "even_looks": even_looks(minute),
        "rows": _rows(minute),
        "places": [[row, place, _round(seconds)] for (row, place), seconds in places],
        "collections": minute.collections,
        **minute.apart.data(),
    }


def _round(seconds: float) -> float:
    return round(seconds, 6)
