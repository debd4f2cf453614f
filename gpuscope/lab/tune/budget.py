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


class Costs:
    """The seconds of trials. The first trial also starts a process for all, which is left out."""

    def __init__(self) -> None:
        self._first: dict[LabConfig, float] = {}
        self._newest: dict[LabConfig, float] = {}
        self._runs: Counter[LabConfig] = Counter()
        self._start: float | None = None

    def note(self, config: LabConfig, entry: Entry) -> None:
        """Note how long a trial took: until it had started, and from then on."""
        spent = entry.environment
        total = number(spent.get("trial_seconds")) or number(spent.get("tune_seconds")) or 0.0
        start = number(spent.get("start_seconds")) or 0.0
        self._start = start if self._start is None else min(self._start, start)
        self._newest[config] = total - start
        self._first.setdefault(config, total - start)
        self._runs[config] += 1

    def next(self, config: LabConfig) -> float:
        """Return how many seconds the next trial of a configuration is expected to take."""
        start, mode = self._start or 0.0, config.compile
        if config in self._newest:
            share = COMPILED_SHARE if mode != "off" and self._runs[config] == 1 else 1.0
            return start + self._newest[config] * share
        alike = [rest for other, rest in self._first.items() if other.compile == mode]
        if alike:
            return start + max(alike)
        plain = [rest for other, rest in self._first.items() if other.compile == "off"]
        compiled = [rest for other, rest in self._first.items() if other.compile != "off"]
        longest = max(compiled) if compiled else COMPILE_TRIALS * max(plain, default=0.0)
        return start + longest * (AUTOTUNE_TRIALS if mode == "max-autotune" else 1)

    def again(self, config: LabConfig) -> float:
        """Return how many seconds a trial is expected to take after the next one."""
        share = COMPILED_SHARE if config.compile != "off" and config not in self._newest else 1.0
        return self.next(config) * share
