"""Expect how long trials take, from those that have run, so that a search keeps to its budget.

A trial starts and ends, warms up, and then its steps are timed. Only the warm-up becomes longer
when something is compiled, and shorter again when the compiler's cache has it. Only the standard
library is needed.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from ...text.numbers import number
from ..config import LabConfig
from ..ledger import Entry

COMPILE_TRIALS, COMPILE_SECONDS, AUTOTUNE_TIMES = 3, 24.0, 8
"""How many times as long as a plain trial a first warm-up that compiles is expected to take, and
how many seconds at least, until one has been measured: on the servers where it was, convolutional
networks and transformers of a dozen layers took 14 to 25 s, and importing the compiler 4 s. Then,
how many times as long as that one that also autotunes.
"""
AGAIN_SHARE, ALIKE_SHARE = 0.25, 0.5
"""The share of a warm-up that compiles which the same configuration takes again, and another one
with the same graph, as the compiler keeps its results.
"""
UNSURE = 1.1
"""How many times as long as expected a first warm-up may take, before one in that mode has been
measured: that is near the longest that was. Where there is no time for that it is not begun: one
that is cut has told nothing.
"""
FIRST_START_SHARE = 0.5
"""The share of its start that the first trial is expected to take again: it has loaded the
libraries from the disk.
"""
GRAPH = ("amp", "tf32", "batch", "compile", "checkpoint", "channels_last", "cudnn_benchmark")
"""The switches on which depends what is compiled."""


@dataclass(frozen=True, slots=True)
class TrialParts:
    """The seconds of one trial: starting and ending, warming up, timed steps."""

    around: float
    warm_up: float
    timed: float

    @property
    def whole(self) -> float:
        return self.around + self.warm_up + self.timed


def parts_of(entry: Entry) -> TrialParts:
    """Split the seconds of a trial, without what preceded it."""
    spent = entry.environment
    whole = number(spent.get("trial_seconds")) or 0.0
    around = sum(number(spent.get(key)) or 0.0 for key in ("start_seconds", "end_seconds"))
    warm_up = number(entry.document.get("warmup_seconds")) or 0.0
    return TrialParts(around, warm_up, max(0.0, whole - around - warm_up))


class Costs:
    """The seconds of the trials of a search."""

    def __init__(self) -> None:
        self._newest: dict[LabConfig, TrialParts] = {}
        self._runs: dict[LabConfig, int] = {}
        self._timed: dict[LabConfig, float] = {}
        """For how many seconds the steps of its longest trial were timed."""
        self._around: list[float] = []
        self._plain: list[TrialParts] = []
        self._cold: dict[tuple[object, ...], float] = {}
        """The first warm-up of each graph that was compiled."""
        self._modes: dict[str, float] = {}
        """The longest of these in each mode."""
        self._again: list[float] = []
        """The share of it that the same configuration took again."""

    def note(self, config: LabConfig, entry: Entry) -> None:
        """Note how long a trial took."""
        parts = parts_of(entry)
        if not self._around:
            parts = replace(parts, around=FIRST_START_SHARE * parts.around)
        self._around.append(parts.around)
        if config.compile == "off":
            self._plain.append(parts)
        elif entry.failure:  # what it has compiled is unknown, and that it took so long is known
            self._modes[config.compile] = max(
                self._modes.get(config.compile, 0.0), parts.whole - self._typical()[0]
            )
            return
        elif graph(config) not in self._cold:
            self._cold[graph(config)] = parts.warm_up
            longest = self._modes.get(config.compile, 0.0)
            self._modes[config.compile] = max(longest, parts.warm_up)
        elif self._runs.get(config) == 1 and self._cold[graph(config)] > 0:
            self._again.append(min(1.0, parts.warm_up / self._cold[graph(config)]))
        self._newest[config] = parts
        self._timed[config] = max(self._timed.get(config, 0.0), parts.timed)
        self._runs[config] = self._runs.get(config, 0) + 1

    def next(self, config: LabConfig) -> float:
        """Return how many seconds the next trial of a configuration is expected to take."""
        newest = self._newest.get(config)
        if newest is None:
            around, plain = self._typical()
            return around + plain.timed + self._first_warm_up(config, plain)
        return self._start(newest) + newest.timed + self._next_warm_up(config, newest)

    def surely(self, config: LabConfig) -> float:
        """Return within how many seconds the next trial of a configuration ends almost surely."""
        expected = self.next(config)
        if config.compile == "off" or config.compile in self._modes or config in self._newest:
            return expected
        return expected + (UNSURE - 1) * self._first_warm_up(config, self._typical()[1])

    def longest(self, config: LabConfig) -> float:
        """Return how many seconds the next trial takes if no cache has what it compiles.

        That the compiler keeps its results is only expected until it has been seen.
        """
        newest = self._newest.get(config)
        if newest is None or self._again:
            return self.next(config)
        return max(self.next(config), newest.whole)

    def again(self, config: LabConfig) -> float:
        """Return how many seconds a trial is expected to take after the next one."""
        newest = self._newest.get(config)
        if newest is not None:
            return self.next(config)
        around, plain = self._typical()
        warm_up = self._first_warm_up(config, plain)
        return around + plain.timed + warm_up * self.again_share(config)

    def again_share(self, config: LabConfig) -> float:
        """Return the share of a first warm-up that a configuration takes again."""
        if config.compile == "off":
            return 1.0
        return max(self._again) if self._again else AGAIN_SHARE

    def saved_where_slow(self, config: LabConfig) -> float:
        """Return how many seconds the next trial takes less where half of its steps are enough.

        Nothing where that was so in the newest one already.
        """
        newest = self._newest.get(config)
        return max(0.0, newest.timed - self._timed[config] / 2) if newest is not None else 0.0

    def _typical(self) -> tuple[float, TrialParts]:
        """Return how long trials take to start and end, and the middle one of the plain ones."""
        middle = (len(self._plain) - 1) // 2
        ranked = sorted(self._plain, key=lambda parts: parts.whole)
        plain = ranked[middle] if ranked else TrialParts(0.0, 0.0, 0.0)
        return (statistics.median(self._around) if self._around else 0.0), plain

    def _start(self, newest: TrialParts) -> float:
        """Expect the usual time around a trial, where this one's was unusual: a busy machine."""
        return max(self._typical()[0], min(newest.around, 2 * self._typical()[0]))

    def _first_warm_up(self, config: LabConfig, plain: TrialParts) -> float:
        mode = config.compile
        if mode == "off":
            return plain.warm_up
        if graph(config) in self._cold:
            return ALIKE_SHARE * self._cold[graph(config)]
        if mode in self._modes:
            return self._modes[mode]
        prior = max(COMPILE_TRIALS * plain.whole, COMPILE_SECONDS)
        known = max(self._modes.values(), default=prior)
        return known * (AUTOTUNE_TIMES if mode == "max-autotune" else 1)

    def _next_warm_up(self, config: LabConfig, newest: TrialParts) -> float:
        once = config.compile != "off" and self._runs[config] == 1
        cold = once and newest.warm_up == self._cold.get(graph(config))
        return newest.warm_up * (self.again_share(config) if cold else 1.0)


def graph(config: LabConfig) -> tuple[object, ...]:
    """Return what decides whether two configurations compile the same graph."""
    return tuple(getattr(config, name) for name in GRAPH)
