"""Keep what was booked during a step that takes very long apart from what usual steps do."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from .steps import Steps, quantile

LONG_SECONDS, LONG_STEPS = 5.0, 20.0
"""A step is long from so many seconds and so many median steps on."""
TOLD_SECONDS = 10.0
"""While a step is long, what is known of it is told again so often."""
FEW_STEPS = 3
"""Before so many steps there is no usual time."""
MAX_SENT = 8
"""Lines of code of a long step that are sent by name; the others only by their row."""
Key = Tuple[str, str]
Booked = Dict[Key, List[float]]
"""Seconds and looks by row and line of code."""


class Apart:
    """Of one minute: what belongs to the step in progress, and what to long steps.

    ``hang`` is of a long step that was in progress when the minute ended or was last told of,
    ``ended`` of those that ended in it. All of it is in the rows of the minute too.
    """

    def __init__(self) -> None:
        self.since: Booked = {}
        self.hang: Booked = {}
        self.ended: Booked = {}
        self.steps = 0
        """How many long steps ended in this minute."""
        self.m, self.seconds = 0, 0.0
        """When the longest of them began, on the clock of samples in ns, and how long it took."""

    def data(self) -> Dict[str, Any]:
        """Return what a minute has to tell of them, nothing where no step was long."""
        found: Dict[str, Any] = {}
        for name, booked in (("hang", self.hang), ("long", self.ended)):
            if booked:
                found[name] = _lines(booked)
        if self.steps:
            found["long_steps"] = self.steps
            found["long_m"], found["long_seconds"] = self.m, round(self.seconds, 3)
        return found


class LongSteps:
    """Follows the step in progress. All methods are for the probe's thread."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._began: Optional[float] = None
        self._long = False
        self._told = 0.0

    def look(self, minutes: Sequence[Any], key: Key, seconds: float, now: float, new: int) -> bool:
        """Take a look in that was booked in the last of ``minutes``.

        ``new`` steps have ended since the look before. Return whether to tell of it now: a step has
        turned out to be long, lasts, or has ended.
        """
        if new or self._began is None:
            before = self._long
            self._ended(minutes, now, new)
            return before
        last: Apart = minutes[-1].apart
        _add(last.hang if self._long else last.since, key, seconds, 1)
        if not self._long and now - self._began > self._limit():
            self._long = True
            for minute in minutes:
                _move(minute.apart.since, minute.apart.hang)
        if not self._long or now - self._told < TOLD_SECONDS:
            return False
        self._told = now
        return True

    def _limit(self) -> float:
        durations = sorted(self._steps.durations)
        if len(durations) < FEW_STEPS:
            return float("inf")
        return max(LONG_SECONDS, LONG_STEPS * quantile(durations, 0.5))

    def _ended(self, minutes: Sequence[Any], now: float, new: int) -> None:
        began, self._began = self._began, self._steps.last
        for minute in minutes:
            minute.apart.since.clear()
            _move(minute.apart.hang, minute.apart.ended)
        if self._long and began is not None:
            self._long = False
            last: Apart = minutes[-1].apart
            took = max(list(self._steps.durations)[-new:], default=now - began)
            last.steps += 1
            if took > last.seconds:
                last.m, last.seconds = int(began * 1e9), took


def _add(booked: Booked, key: Key, seconds: float, looks: float) -> None:
    kept = booked.setdefault(key, [0.0, 0])
    kept[0] += seconds
    kept[1] += looks


def _move(source: Booked, target: Booked) -> None:
    for key, (seconds, looks) in source.items():
        _add(target, key, seconds, looks)
    source.clear()


def _lines(booked: Booked) -> List[List[Any]]:
    """Return ``[row, seconds, looks, line]``, the longest first, of which only some have a line."""
    ordered = sorted(booked.items(), key=lambda item: -item[1][0])
    kept: Booked = {}
    for at, ((row, place), (seconds, looks)) in enumerate(ordered):
        _add(kept, (row, place if at < MAX_SENT else ""), seconds, looks)
    return [[r, round(s, 3), int(n), place] for (r, place), (s, n) in kept.items()]
