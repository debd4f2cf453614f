"""Hold what a search has run, ask for runs, and say what the budget still has time for.

Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeGuard

from ...text.numbers import number, whole
from ...text.units import bytes_text
from ..config import ConfigError, LabConfig
from ..ledger import Entry
from ..run_facts import RunFacts
from ..toggles import Value
from . import judge
from .budget import Costs
from .findings import (
    CLEARLY_SLOWER,
    TOO_SHORT,
    CandidateRow,
    PredictedMemory,
    SearchSettings,
    Trial,
)
from .goal import COST_OF_SECOND
from .judge import Decision, Speed

LEAST_PAIRS = 2
"""The pairs of proof runs for which a budget keeps time back."""
PROOF_WINDOWS = 2
"""The proof's runs are timed longer than trials: also their power is read."""
MARGIN = 1.1
"""How much longer the proof may take than expected."""
MUCH = 1.5
"""Processes of one configuration do not differ by as much as this, also on a busy machine."""
REPEAT_SHARE = 0.1
"""A candidate that is unclear is measured again at once if that takes at most this share of the
time for trials. Otherwise it waits until nothing else is left to try.
"""
FAR_SHARE = 0.5
"""What is bound to reserve less than this share of the allowed memory is run without a prediction,
which would take seconds.
"""
FIT_SHARE = 0.98
"""A run that reserved more than this share of the allowed memory does not fit safely."""


class Trials:
    """The runs of one search from ``baseline``, on a device of which ``facts`` are known."""

    def __init__(
        self, baseline: LabConfig, facts: Callable[[LabConfig], RunFacts], settings: SearchSettings
    ):
        self.baseline = baseline
        self._facts = facts
        self._settings = settings
        self._runs: dict[LabConfig, list[Entry]] = {}
        self._costs = Costs()
        self._rows: dict[LabConfig, CandidateRow] = {}
        self._trials_asked = 0
        self._last: dict[LabConfig, int] = {}
        self._stopped = ""
        self._out_of_memory = False

    @property
    def capacity(self) -> int | None:
        """The memory in bytes that a run may reserve on each device; None: whatever runs."""
        return self._settings.capacity

    @property
    def rows(self) -> list[CandidateRow]:
        """The candidates so far, in the order in which they were looked at."""
        return list(self._rows.values())

    def _ask(
        self,
        config: LabConfig,
        purpose: str,
        seconds: float | None = None,
        rival: float | None = None,
        windows: int = 1,
    ) -> Generator[Trial, Entry, Entry]:
        runs = self._runs.setdefault(config, [])
        if self._settings.goal.needs_power:  # what is slower may cost less
            rival = None
        entry = yield Trial(config, len(runs), purpose, seconds, rival, windows)
        entry = self._settings.goal.weighed(entry)
        runs.append(entry)
        self._costs.note(config, entry)
        self._trials_asked += 1
        self._last[config] = self._trials_asked
        return entry

    def _again(
        self, a: LabConfig, b: LabConfig
    ) -> Generator[Trial, Entry, tuple[Speed | None, Decision]]:
        """Run both once more, in the other order, and decide by both pairs."""
        purpose = "repeated, because it was not clear"
        left, right = self._runs[a][-1:], self._runs[b][-1:]
        right.append((yield from self._ask(b, purpose)))
        left.append((yield from self._ask(a, purpose)))
        if any(entry.failure for entry in (*left, *right)):
            return None, "alike"
        return judge.in_turns(left, right), judge.after_repeats(left, right)

    def _with(self, config: LabConfig, change: Mapping[str, Value]) -> LabConfig | str:
        """Return the configuration with a change, or why there is none."""
        try:
            return LabConfig.from_mapping({**config.to_mapping(), **change})
        except ConfigError as error:
            return str(error)

    def _batch(self, config: LabConfig) -> int:
        """Return the micro-batch; of a preset it is known once something has run."""
        if config.batch is not None:
            return config.batch
        for entry in self._runs.get(self.baseline, ()):
            found = entry.document.get("config")
            batch = whole(found.get("batch"), 1) if isinstance(found, dict) else None
            if batch:
                return batch
        return 1

    def _good(self, config: LabConfig) -> list[Entry] | None:
        """Return the runs of a configuration that tell how fast it is; None if there is none."""
        runs = [entry for entry in self._runs.get(config, ()) if not self._problem(entry)]
        return runs or None

    def _problem(self, entry: Entry) -> str:
        """Return why a run does not count, "" if it does. Notes whether memory was the reason."""
        self._out_of_memory = False
        if entry.failure:
            self._out_of_memory = "memory" in entry.failure.lower()
            return entry.failure
        reserved, capacity = (
            number(entry.document.get("peak_reserved_bytes")),
            self._settings.capacity,
        )
        if capacity is not None and reserved is not None and reserved > FIT_SHARE * capacity:
            self._out_of_memory = True
            return f"it reserved {bytes_text(reserved)} of {bytes_text(capacity)}"
        if judge.figure([entry], "samples_per_second") is None:
            return "it made no steady steps in its time"
        if self._settings.goal.needs_power and not judge.figure([entry], COST_OF_SECOND):
            return "the driver did not report its power, so its cost is unknown"
        return ""

    def _loss(self, config: LabConfig) -> judge.Loss | None:
        base = self._good(self.baseline)
        runs = self._good(config)
        if base is None or runs is None:
            return None
        return judge.loss(base[0], runs[0], by_step=self._settings.limits.free_batch)

    def _of_baseline(self, key: str) -> object:
        """Return what a run of the baseline says under a key; None where none does."""
        found = [entry.document.get(key) for entry in self._runs.get(self.baseline, ())]
        return next((value for value in found if value is not None), None)

    def _sees_other_samples(self, config: LabConfig) -> bool:
        """Say whether a configuration learns from other samples than the baseline.

        A factory may draw one micro-batch and use it in all steps: then another size of it brings
        other samples, and losses that cannot be compared.
        """
        other = self._batch(config) != self._batch(self.baseline)
        return other and self._of_baseline("same_batch") is True

    def _predicted(self, config: LabConfig, best: LabConfig) -> PredictedMemory | None:
        """Return what is predicted of a configuration's memory, where that could matter."""
        capacity = self._settings.capacity
        reserved = judge.figure(self._runs.get(best, ()), "peak_reserved_bytes")
        if capacity is not None and reserved is not None:
            larger = max(1.0, self._batch(config) / self._batch(best))
            if 2 * larger * reserved < FAR_SHARE * capacity:
                return None  # copies of the weights, or graphs, do not double what is there
        return self._settings.fits(config)

    # ── the budget ────────────────────────────────────────────────────────────────────────────────

    def _pace(self, config: LabConfig) -> float:
        """Return the speed of a configuration's newest run; 0 where there is none."""
        return judge.pace(self._runs.get(config, ())[-1:])

    def _baseline_again(self) -> float:
        """Return how many seconds a short run of the baseline is expected to take in the proof.

        Where it is clearly slower than the best it ends after half of its steps.
        """
        fastest = max(map(self._pace, self._runs), default=0.0)
        slow = self._pace(self.baseline) < CLEARLY_SLOWER * fastest
        slow = slow and not self._settings.goal.needs_power  # then all steps are made
        saved = self._costs.saved_where_slow(self.baseline) if slow else 0.0
        return self._costs.again(self.baseline) - saved

    def _pair(self, best: LabConfig) -> float:
        """Return how many seconds a short pair of the proof is expected to take."""
        return MARGIN * (self._baseline_again() + self._costs.again(best))

    def _left(self, best: LabConfig) -> float | None:
        """Return the seconds that are left for trials, without those for the proof of ``best``."""
        left = self._settings.time_left()
        return None if left is None else left - self._kept_back() * self._pair(best)

    def _kept_back(self) -> int:
        """Return for how many pairs of the proof time is kept back.

        While nothing could be proved yet, there is nothing to lose.
        """
        return LEAST_PAIRS if any(row.status == "kept" for row in self.rows) else 1

    def _limit(self, config: LabConfig, best: LabConfig) -> float | None:
        """Return the seconds that the next trial of a candidate may take at most.

        After it there is time to prove it, and also to prove ``best``. A first warm-up that takes
        longer than expected also takes longer in the proof. While nothing is kept there is nothing
        to prove yet, so what compiles nothing may take all the time that is left.
        """
        left = self._settings.time_left()
        if left is None:
            return None
        if config.compile == "off" and not any(row.status == "kept" for row in self.rows):
            return left
        pairs = self._pairs_after(config)
        left_by_best = left - pairs * self._pair(best)
        left -= pairs * self._pair(config)
        expected = self._costs.next(config)
        if config.compile != "off" and config not in self._runs and left > expected:
            share = self._costs.again_share(config)
            left = expected + (left - expected) / (1 + pairs * MARGIN * share)
        return min(left, left_by_best)

    def _pairs_after(self, config: LabConfig) -> int:
        """Return for how many pairs of the proof time is kept back after a trial of a candidate.

        One pair is enough for the first compilation of what is much faster than the baseline
        already: that brings more than a second pair does.
        """
        kept = [row.config for row in self.rows if row.status == "kept"]
        first = config.compile != "off" and all(one.compile == "off" for one in kept)
        much = max(map(self._pace, kept), default=0.0) >= MUCH * self._pace(self.baseline)
        return 1 if first and much else self._kept_back()

    def _over(self, best: LabConfig, *trials: LabConfig) -> bool:
        """Say whether the budget has no time for these trials and then the proof of ``best``.

        Notes that the search ends early.
        """
        if self._has_time(best, *trials):
            return False
        self._stopped = self._stopped or TOO_SHORT
        return True

    def _has_time(self, best: LabConfig, *trials: LabConfig) -> bool:
        left = self._left(best)
        return left is None or left > sum(map(self._costs.next, trials))

    def _cheap(self, best: LabConfig, *trials: LabConfig) -> bool:
        """Say whether these trials take little of the time that is left for trials."""
        left = self._left(best)
        return left is None or sum(map(self._costs.next, trials)) <= REPEAT_SHARE * left


def is_config(config: LabConfig | str) -> TypeGuard[LabConfig]:
    """Say whether there is such a configuration, not only a reason why there is none."""
    return isinstance(config, LabConfig)
