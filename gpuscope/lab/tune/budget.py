"""Expect how long trials take, from those that have run, so that a search keeps to its budget.

Only the standard library is needed.
"""

from __future__ import annotations

from collections import Counter

from ...text.numbers import number
from ..config import LabConfig
from ..ledger import Entry

COMPILE_TRIALS, AUTOTUNE_TRIALS = 3, 4
"""How many times as long as the longest plain trial one that compiles is expected to take, until
one has run; and how many times as long as that one that also autotunes.
"""
COMPILED_SHARE = 0.5
"""The share of that time that it is expected to take again, as the compiler keeps its results."""


GRAPH = ("amp", "tf32", "batch", "compile", "checkpoint", "channels_last")
"""The switches on which depends what is compiled."""


class Costs:
    """The seconds of the trials of a search."""

    def __init__(self) -> None:
        self._first: dict[LabConfig, float] = {}
        self._newest: dict[LabConfig, float] = {}
        self._compiled: Counter[tuple[object, ...]] = Counter()

    def note(self, config: LabConfig, entry: Entry) -> None:
        """Note how long a trial took, without what preceded it."""
        spent = entry.environment
        seconds = number(spent.get("trial_seconds")) or number(spent.get("tune_seconds")) or 0.0
        self._newest[config] = seconds
        self._first.setdefault(config, seconds)
        self._compiled[_graph(config)] += 1

    def next(self, config: LabConfig) -> float:
        """Return how many seconds the next trial of a configuration is expected to take."""
        mode, runs = config.compile, self._compiled[_graph(config)]
        share = COMPILED_SHARE if mode != "off" and runs else 1.0
        if config in self._newest:
            return self._newest[config] * (share if runs == 1 else 1.0)
        alike = [seconds for other, seconds in self._first.items() if other.compile == mode]
        if alike:
            return max(alike) * share
        plain = [seconds for other, seconds in self._first.items() if other.compile == "off"]
        compiled = [seconds for other, seconds in self._first.items() if other.compile != "off"]
        longest = max(compiled) if compiled else COMPILE_TRIALS * max(plain, default=0.0)
        return longest * (AUTOTUNE_TRIALS if mode == "max-autotune" else 1)

    def again(self, config: LabConfig) -> float:
        """Return how many seconds a trial is expected to take after the next one."""
        new = config.compile != "off" and not self._compiled[_graph(config)]
        return self.next(config) * (COMPILED_SHARE if new else 1.0)


def _graph(config: LabConfig) -> tuple[object, ...]:
    return tuple(getattr(config, name) for name in GRAPH)
