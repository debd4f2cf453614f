"""The median step of each minute, for a little over an hour: what a step took an hour ago."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, Optional, Tuple, Union

from ..wire.frames import NOT_INITIALISED, Unknown

MINUTES = 64
KEPT = 512
"""Limit of the steps of one minute from which its median is taken. If there are more, every second,
then every fourth … is kept.
"""
HOUR = 60


class Minutes:
    """Times are ``time.perf_counter()`` seconds.

    :meth:`add` costs a comparison and an append, once a minute a sort of at most :data:`KEPT`
    numbers.
    """

    def __init__(self) -> None:
        # (minute, median seconds), complete minutes
        self.medians: Deque[Tuple[int, float]] = deque(maxlen=MINUTES)
        self._minute: Optional[int] = None
        self._first: Optional[int] = None
        self._kept: List[float] = []
        self._stride = 1
        self._skipped = 0

    def add(self, now: float, seconds: float) -> None:
        minute = int(now // 60.0)
        if minute != self._minute:
            self._close(minute)
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self._kept.append(seconds)
        if len(self._kept) >= KEPT:
            self._kept = self._kept[1::2]
            self._stride *= 2

    def hour_ago(self, now: float) -> Union[float, Unknown]:
        """Return the median step, in seconds, of the minute that was one hour before ``now``."""
        if self._first is None:
            return Unknown(NOT_INITIALISED, "needs two optimizer steps")
        wanted = int(now // 60.0) - HOUR
        for minute, median in list(self.medians):
            if minute == wanted:
                return median
        watched = int(now // 60.0) - self._first
        if watched < HOUR:
            return Unknown(
                NOT_INITIALISED, f"known after an hour of steps, these are {watched} min"
            )
        return Unknown(NOT_INITIALISED, "no step ended in that minute")

    def _close(self, minute: int) -> None:
        if self._minute is None:
            self._first = minute
        elif self._kept:
            ordered = sorted(self._kept)
            self.medians.append(
                (self._minute, (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)
            )
        self._minute, self._kept, self._stride, self._skipped = minute, [], 1, 0
