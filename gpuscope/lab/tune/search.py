"""Search for the fastest configuration: a plan that asks for one run after the other.

The search is a generator. It yields a :class:`Trial`, is sent the ledger's entry of that run, and
returns what it found. It knows no clock, no process and no file: the same entries lead to the same
search. So a search that was killed continues where it was, by being sent what the ledger holds.

It climbs: each change of switches is tried on the best configuration so far, and kept if it is
certainly faster, learns as well and fits. What usually brings most for its time comes first. This
is repeated until a whole round has kept nothing. Then each switch that was changed is taken back
alone, and what brings nothing is dropped. At the end the winner and the baseline are run again, in
turns, in fresh processes: only these runs, which nobody has chosen by their result, say how much
faster it is. A budget has room for that too. Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeGuard

from ...errors import UserError
from ...text.numbers import number, whole
from ...text.units import bytes_text
from ..config import ConfigError, LabConfig
from ..ledger import Entry
from ..rules import refusal
from ..run_facts import RunFacts
from ..toggles import BY_NAME, Value
from . import judge
from .budget import Costs
from .findings import Found, Prediction, Row, Settings, Switch, Trial, one, words
from .judge import Decision, Speed
from .space import AXES, Axis, changes

STALE_TRIALS = 6
"""After this many trials of others the best configuration is run again, so that a machine that has
become slower does not make the candidates look worse."""
LEAST_PAIRS, FINAL_PAIRS, MOST_FINAL_PAIRS = 2, 3, 6
"""Interleaved pairs of the winner and the baseline at the end. There are more where the winner is
less than ``SURE`` times as fast, because a few pairs agree by chance more easily there. A budget
keeps time for the least.
"""
PROOF_WINDOWS = 2
"""The proof's runs are timed longer than trials: also their power is read."""
MARGIN = 1.1
"""How much longer the proof may take than expected."""
SURE = 1.1
FAR_SHARE = 0.5
"""What is bound to reserve less than this share of the allowed memory is run without a prediction,
which would take seconds.
"""
FIT_SHARE = 0.98
"""A run that reserved more than this share of the allowed memory does not fit safely."""


class CannotTune(UserError):
    """There is nothing to search, or nothing runs."""


Asking = Generator[Trial, Entry, Decision]
"""Asks for runs, and returns whether the candidate is faster."""


class Search:
    """One search from ``baseline``, on a device of which ``facts`` are known."""

    def __init__(
        self, baseline: LabConfig, facts: Callable[[LabConfig], RunFacts], settings: Settings
    ):
        self.baseline = baseline
        self._facts = facts
        self._settings = settings
        self._runs: dict[LabConfig, list[Entry]] = {}
        self._costs = Costs()
        self._rows: dict[LabConfig, Row] = {}
        self._later: list[dict[str, Value]] = []
        self._slower: set[frozenset[tuple[str, Value]]] = set()
        self._trials_asked = 0
        self._last: dict[LabConfig, int] = {}
        self._stopped = ""
        self._out_of_memory = False
        self._unproved = ""

    @property
    def rows(self) -> list[Row]:
        """The candidates so far, in the order in which they were looked at."""
        return list(self._rows.values())

    def run(self) -> Generator[Trial, Entry, Found]:
        """Ask for runs until the fastest configuration is known."""
        best = yield from self._begin()
        best = yield from self._climb(best)
        best, switches = yield from self._take_back(best)
        if best == self.baseline:
            return self._found(best, None, [])
        if self._good(self.baseline) is None:
            return self._found(best, None, switches)
        speed = yield from self._prove(best)
        if speed is None or not speed.certain or speed.ratio < 1 + judge.WORTH:
            row = self._rows[best]
            row.status = "no_difference"
            row.reason = (
                self._unproved or "run again beside the baseline, it was not certainly faster"
            )
            return self._found(self.baseline, None, [])
        return self._found(best, speed, switches)

    def _found(self, best: LabConfig, speed: Speed | None, switches: list[Switch]) -> Found:
        ran = self._good(self.baseline)
        row = self._rows.get(best)
        return Found(
            self.baseline,
            best,
            speed,
            self.rows,
            switches,
            self._stopped,
            row.loss if row and best != self.baseline else None,
            "" if ran else self._rows[self.baseline].reason,
        )

    # ── the baseline ──────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> Generator[Trial, Entry, LabConfig]:
        """Run the baseline, or find a first configuration that runs."""
        self._rows[self.baseline] = Row(self.baseline, {}, "baseline")
        refused = refusal(self.baseline, self._facts(self.baseline))
        if refused is not None:
            raise CannotTune(
                refused.what, refused.why, refused.nearest.command() if refused.nearest else ""
            )
        entry = yield from self._ask(self.baseline, "the baseline")
        problem = self._problem(entry)
        if not problem:
            return self.baseline
        self._rows[self.baseline].reason = problem
        if not self._out_of_memory:
            raise CannotTune(
                "The training does not run.",
                problem,
                self.baseline.command() + " --headless    shows the whole error",
            )
        for change in self._smaller():
            config = self._with(self.baseline, change)
            if isinstance(config, str) or self._over(config, config):
                continue
            row = self._rows[config] = Row(config, dict(change), "failed")
            entry = yield from self._ask(config, "less memory, as the baseline does not run")
            row.reason = self._problem(entry)
            if not row.reason:
                row.status = "kept"
                return config
        raise CannotTune(
            "The training does not run, and neither does it with less memory.",
            problem,
            self.baseline.command() + " --headless    shows the whole error",
        )

    def _smaller(self) -> list[dict[str, Value]]:
        """Return changes that need less memory, the mildest first."""
        batch, parts = self._batch(self.baseline), self.baseline.accumulate
        found: list[dict[str, Value]] = [{"amp": "bf16"}, {"checkpoint": True}]
        found.append({"amp": "bf16", "checkpoint": True})
        while batch > 1 and batch % 2 == 0:
            batch, parts = batch // 2, parts * 2
            found.append({"batch": batch, "accumulate": parts})
            found.append({"amp": "bf16", "checkpoint": True, "batch": batch, "accumulate": parts})
        return found

    # ── the climb ─────────────────────────────────────────────────────────────────────────────────

    def _climb(self, best: LabConfig) -> Generator[Trial, Entry, LabConfig]:
        """Try every change on the best so far, until a whole round has kept nothing."""
        improved = True
        while improved:
            before = best
            for axis in AXES:
                best = yield from self._climb_along(axis, best)
            improved = best != before
            if not improved:
                best, improved = yield from self._try_close_ones(best)
        for change in self._later:
            self._leave_out(best, change)
        return best

    def _climb_along(self, axis: Axis, best: LabConfig) -> Generator[Trial, Entry, LabConfig]:
        """Try the changes of one kind; those on a new best begin again at the first."""
        kept = True
        while kept:
            kept = False
            for change in self._changes(axis, best):
                if frozenset(change.items()) in self._slower:
                    continue
                config = self._with(best, change)
                if config in self._rows:
                    continue
                if self._over(config, config):
                    self._leave_out(best, change)
                elif (yield from self._try(best, change, postpone=True)):
                    best, kept = self._with(best, change), True  # type: ignore[assignment]  # it ran
                    break
        return best

    def _try_close_ones(self, best: LabConfig) -> Generator[Trial, Entry, tuple[LabConfig, bool]]:
        """Try what is predicted to fit narrowly, after all that surely fits."""
        improved = False
        waiting, self._later = self._later, []
        for changed in waiting:
            again = self._with(best, changed)
            if isinstance(again, str) or again in self._runs:
                continue
            if self._over(again, again):
                self._leave_out(best, changed)
                continue
            if (yield from self._try(best, changed, postpone=False)):
                best, improved = self._with(best, changed), True  # type: ignore[assignment]
        return best, improved

    def _changes(self, axis: Axis, config: LabConfig) -> list[Mapping[str, Value]]:
        return list(
            changes(
                axis,
                config,
                self._batch(config),
                self._facts(config),
                self._settings.limits,
                any(row.status == "does_not_fit" for row in self._rows.values()),
            )
        )

    def _try(
        self, best: LabConfig, change: Mapping[str, Value], postpone: bool
    ) -> Generator[Trial, Entry, bool]:
        """Run one candidate and the best so far in turns, and say whether it replaces it."""
        config = self._with(best, change)
        if isinstance(config, str) or config in self._rows or config == best:
            return False
        if not self._settings.limits.allows(self.baseline, config):
            return False
        row = Row(config, dict(change), "refused", against=best)
        refused = refusal(config, self._facts(config))
        if refused is not None:
            row.reason = f"{refused.what} {refused.why}"
            self._rows[config] = row
            return False
        row.predicted = self._predicted(config, best)
        if row.predicted is not None and row.predicted.outcome == "does_not_fit":
            row.status, row.reason = "does_not_fit", row.predicted.text
            self._rows[config] = row
            return False
        if postpone and row.predicted is not None and row.predicted.outcome == "too_close":
            self._later.append(dict(change))
            return False
        self._rows[config] = row
        if self._trials_asked - self._last[best] >= STALE_TRIALS and not self._over(
            config, config, best
        ):
            yield from self._ask(best, "the best so far, again")
        pace = judge.figure(self._runs[best][-1:], "samples_per_second")
        left = self._left(config)
        entry = yield from self._ask(config, words(change), left, pace)
        problem = self._problem(entry)
        if problem:
            row.status = "does_not_fit" if self._out_of_memory else "failed"
            row.reason = problem
            return False
        row.loss = self._loss(config)
        if row.loss is not None and not row.loss.within(self._settings.keep_loss):
            row.status = "loss"
            row.reason = row.loss.text
            return False
        row.speed = judge.speed(self._runs[best][-1:], self._runs[config][-1:])
        decision = judge.first_look(row.speed)
        if row.speed and row.speed.high is not None and row.speed.high < 1 - judge.CLEAR:
            self._slower.add(frozenset(change.items()))
        if decision == "unclear" and self._over(config, best, config):
            row.reason = "not repeated: the budget was used up"
            decision = "alike"
        if decision == "unclear":
            row.speed, decision = yield from self._again(best, config)
        row.status = {"faster": "kept", "slower": "slower"}.get(decision, "no_difference")  # type: ignore[assignment]
        return decision == "faster"

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

    # ── taking switches back, and the proof ───────────────────────────────────────────────────────

    def _take_back(
        self, best: LabConfig
    ) -> Generator[Trial, Entry, tuple[LabConfig, list[Switch]]]:
        """Take each changed switch back alone: what it brings, and whether it is needed at all."""
        switches: list[Switch] = []
        for names in self._changed(best):
            before = {name: getattr(self.baseline, name) for name in names}
            after = {name: getattr(best, name) for name in names}
            without = self._with(best, before)
            name = "+".join(names)
            row = Switch(name, one(before), one(after), None)
            if isinstance(without, str):
                row.reason = without
            elif refused := refusal(without, self._facts(without)):
                row.reason = f"{refused.what} {refused.why}"
            elif without == self.baseline and self._good(without) is None:
                row.reason = "without it the training does not run"
            else:
                if without not in self._runs and not self._over(best, without):
                    tried = self._rows.setdefault(
                        without, Row(without, before, "slower", against=best)
                    )
                    entry = yield from self._ask(without, f"without {name}")
                    tried.reason = self._problem(entry)
                    if tried.reason:
                        tried.status = "does_not_fit" if self._out_of_memory else "failed"
                runs = self._good(without)
                if runs is None:
                    ran = without in self._runs
                    row.reason = (
                        "without it the training does not run" if ran else "no time was left"
                    )
                else:
                    row.brings = judge.speed(runs[-1:], self._runs[best][-1:])
                    self._rows[without].speed = judge.speed(self._runs[best][-1:], runs[-1:])
            decision = judge.first_look(row.brings) if row.brings else "faster"
            if decision == "unclear" and self._over(best, without, best):
                decision = "faster"  # it was when it was kept
            if decision == "unclear":
                row.brings, decision = yield from self._again(without, best)  # type: ignore[arg-type]
            if row.brings and decision != "faster":
                best = without  # type: ignore[assignment]  # it has run
                self._rows[best].status = "kept"
                self._rows[best].loss = self._loss(best)
                continue
            switches.append(row)
        return best, switches

    def _changed(self, best: LabConfig) -> list[tuple[str, ...]]:
        """Return the switches in which the best differs; those that only make sense together."""
        names = [
            name
            for name in BY_NAME
            if getattr(best, name) != getattr(self.baseline, name) and name not in ("steps", "seed")
        ]
        groups = (("batch", "accumulate"), ("pin_memory", "non_blocking"), ("fused", "foreach"))
        together = [tuple(name for name in group if name in names) for group in groups]
        alone = [(name,) for name in names if not any(name in group for group in together)]
        return [*alone, *(group for group in together if group)]

    def _prove(self, best: LabConfig) -> Generator[Trial, Entry, Speed | None]:
        """Run the winner and the baseline again, in turns."""
        left: list[Entry] = []
        right: list[Entry] = []
        found: Speed | None = None
        for pair in range(MOST_FINAL_PAIRS):
            if pair >= FINAL_PAIRS and _decided(found):
                break
            time_left = self._settings.time_left()
            needed = sum(self._costs.next(side) for side in (self.baseline, best))
            if time_left is not None and time_left < needed:
                self._stopped = self._stopped or "the budget was used up"
                if pair < LEAST_PAIRS:
                    more = LEAST_PAIRS * needed - time_left - pair * needed
                    self._unproved = (
                        f"no time was left to prove it in {LEAST_PAIRS} pairs of runs: give the "
                        f"search {more:,.0f} s more"
                    )
                    return None
                break
            sides = [(self.baseline, left), (best, right)]
            for config, side in reversed(sides) if pair % 2 else sides:
                entry = yield from self._ask(
                    config, "the proof, in fresh processes", windows=PROOF_WINDOWS
                )
                if entry.failure:
                    self._stopped = self._stopped or f"the proof failed: {entry.failure}"
                    return None
                side.append(entry)
            found = judge.in_turns(left, right)
        return found

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        config: LabConfig,
        purpose: str,
        seconds: float | None = None,
        rival: float | None = None,
        windows: int = 1,
    ) -> Generator[Trial, Entry, Entry]:
        runs = self._runs.setdefault(config, [])
        entry = yield Trial(config, len(runs), purpose, seconds, rival, windows)
        runs.append(entry)
        self._costs.note(config, entry)
        self._trials_asked += 1
        self._last[config] = self._trials_asked
        return entry

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
        return ""

    def _loss(self, config: LabConfig) -> judge.Loss | None:
        base = self._good(self.baseline)
        runs = self._good(config)
        if base is None or runs is None:
            return None
        return judge.loss(base[0], runs[0], by_step=self._settings.limits.free_batch)

    def _leave_out(self, best: LabConfig, change: Mapping[str, Value]) -> None:
        config = self._with(best, change)
        if isinstance(config, str) or config in self._rows:
            return
        if self._settings.limits.allows(self.baseline, config):
            self._rows[config] = Row(
                config, dict(change), "not_tried", against=best, reason="the budget was used up"
            )

    def _predicted(self, config: LabConfig, best: LabConfig) -> Prediction | None:
        """Return what is predicted of a configuration's memory, where that could matter."""
        capacity = self._settings.capacity
        reserved = judge.figure(self._runs.get(best, ()), "peak_reserved_bytes")
        if capacity is not None and reserved is not None:
            larger = max(1.0, self._batch(config) / self._batch(best))
            if 2 * larger * reserved < FAR_SHARE * capacity:
                return None  # copies of the weights, or graphs, do not double what is there
        return self._settings.fits(config)

    # ── the budget ────────────────────────────────────────────────────────────────────────────────

    def _pair(self, best: LabConfig | str) -> float:
        """Return how many seconds a pair of the proof is expected to take."""
        sides = [side for side in (self.baseline, best) if _is(side)]
        longer = (PROOF_WINDOWS - 1) * self._settings.window_seconds
        return sum(MARGIN * self._costs.again(side) + longer for side in sides)

    def _left(self, best: LabConfig | str) -> float | None:
        """Return the seconds that are left for trials, without those for the proof of ``best``."""
        left = self._settings.time_left()
        return None if left is None else left - LEAST_PAIRS * self._pair(best)

    def _over(self, best: LabConfig | str, *trials: LabConfig | str) -> bool:
        """Say whether the budget has no time for these trials and then the proof of ``best``."""
        left = self._left(best)
        if left is None or left > sum(self._costs.next(trial) for trial in trials if _is(trial)):
            return False
        self._stopped = self._stopped or "the budget was used up"
        return True


def _is(config: LabConfig | str) -> TypeGuard[LabConfig]:
    """Say whether there is such a configuration, not only a reason why there is none."""
    return isinstance(config, LabConfig)


def _decided(found: Speed | None) -> bool:
    """Say whether more pairs would not change what the pairs so far have shown."""
    if found is None or found.low is None:
        return False
    return found.low >= SURE or found.ratio < 1
