"""This module orders many hosts, the worst first, so that no line jumps while it is read.

A host that gets worse rises at once; one that gets better sinks only after it has been better
for a while. Columns of figures are sorted anew only every few seconds: a percent more or less
moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from .summary import Grade, HostSummary

SORTS = {
    "worst": "worst first",
    "name": "by name",
    "free": "most free GPUs first",
    "load": "busiest first",
    "memory": "fullest first",
    "pace": "slowest step first",
}
"""The ways to sort hosts, in words."""
AGES = (2, 5, 10, 30, 60)
"""The seconds that are named as the age of readings, so that the words seldom change."""
BETTER_SECONDS = 10.0
"""How long a host keeps its place after it got better: readings near a threshold flicker."""
ANEW_SECONDS = 5.0
"""How many seconds pass before rows that are sorted by a changing figure are sorted again."""
_DIGITS = re.compile(r"(\d+)")
MAX_DIGITS = 18


class Order:
    """The order that was shown last.

    Times are seconds of the viewer's monotonic clock.
    """

    def __init__(self) -> None:
        self._grades: dict[str, Grade] = {}
        self._other_since: dict[str, float] = {}
        self._sort = ""
        self._sorted_at = 0.0
        self._places: dict[str, int] = {}

    def grade(self, key: str) -> Grade | None:
        """Return the grade by which a host was last sorted, None before the first sort."""
        return self._grades.get(key)

    def arrange(self, summaries: Sequence[HostSummary], sort: str, now: float) -> list[HostSummary]:
        for one in summaries:
            self._follow(one, now)
        if sort == "worst":
            self._sort = sort
            return sorted(
                summaries, key=lambda one: (self._grades[one.key], natural(one.name), one.key)
            )
        sort_again = sort != self._sort or now - self._sorted_at >= ANEW_SECONDS
        if sort_again or any(one.key not in self._places for one in summaries):
            value = _VALUES[sort]
            inorder = sorted(summaries, key=lambda one: (value(one), natural(one.name), one.key))
            self._sort, self._sorted_at = sort, now
            self._places = {one.key: place for place, one in enumerate(inorder)}
        return sorted(summaries, key=lambda one: self._places[one.key])

    def _follow(self, one: HostSummary, now: float) -> None:
        before = self._grades.get(one.key)
        if before is None or before == one.grade:
            at_once = True
        elif one.grade < before:
            # between two steps a card stands idle for a moment
            at_once = one.grade is not Grade.IDLE
        else:
            at_once = before in (Grade.CONNECTING, Grade.IDLE)
        if at_once or self._has_held(one.key, now):
            self._grades[one.key] = one.grade
            self._other_since.pop(one.key, None)

    def _has_held(self, key: str, now: float) -> bool:
        return now - self._other_since.setdefault(key, now) >= BETTER_SECONDS


@lru_cache(maxsize=1024)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts ``node-2`` before ``node-10``."""
    parts = _DIGITS.split(name.casefold())
    return tuple(
        (0, int(part[:MAX_DIGITS]), part) if part.isdecimal() else (1, 0, part)
        for part in parts
        if part
    )


def _unknown_last(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _of_memory(one: HostSummary) -> tuple[bool, float]:
    share = (
        one.used_bytes / one.total_bytes if one.used_bytes is not None and one.total_bytes else None
    )
    return _unknown_last(None if share is None else round(share, 2))


def _of_load(one: HostSummary) -> tuple[bool, float]:
    return _unknown_last(
        None if one.utilization_percent is None else round(one.utilization_percent / 5)
    )


def title_of(shown: int, count: int, passed: str, sort: str, age: float | None) -> str:
    """Return the title of a list of hosts: how many are shown, how sorted, and how old at most.

    ``passed`` says which are shown, and ``age`` is the age of the oldest reading, None if unknown.
    """
    of = f"{shown} of {count}" if shown != count else f"{count}"
    bound = next((most for most in AGES if age is not None and age <= most), None)
    old = f" · last reading of each within {bound} s" if bound else ""
    return f"Hosts ({of}{passed}), {SORTS[sort]}{old}"


def sorts_of(summaries: Sequence[HostSummary]) -> list[str]:
    """Return the ways to sort these hosts: those by figures that any of them has."""
    devices = any(one.devices for one in summaries)
    paced = any(one.pace_seconds is not None for one in summaries)
    has = {"free": devices, "load": devices, "memory": devices, "pace": paced}
    return [sort for sort in SORTS if has.get(sort, True)]


_VALUES: dict[str, Callable[[HostSummary], tuple[bool, float]]] = {
    "name": lambda one: (False, 0.0),
    "free": lambda one: (not one.current, -float(one.free)),
    "load": _of_load,
    "memory": _of_memory,
    "pace": lambda one: _unknown_last(one.pace_seconds),
}
"""For each column, the key to sort by: the largest first, unknown values last."""
