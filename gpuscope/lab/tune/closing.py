"""End a search: prove the winner beside the baseline, and say what each of its switches brings.

Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Generator

from ...text.units import age_text
from ..config import LabConfig
from ..ledger import Entry
from ..rules import refusal
from ..toggles import BY_NAME
from . import judge
from .findings import NO_FIT, NO_RUN, TOO_SHORT, CandidateRow, Switch, Trial, one
from .judge import Speed
from .trials import LEAST_PAIRS, MARGIN, MUCH, PROOF_WINDOWS, Trials

FINAL_PAIRS, MOST_FINAL_PAIRS = 3, 6
"""Interleaved pairs of the winner and the baseline at the end. There are more where the winner is
less than ``SURE`` times as fast, because a few pairs agree by chance more easily there, and fewer
where the budget has no time for them.
"""
SURE = 1.1
NARROW, WIDE_PAIRS = 1.1, 5
"""Where the interval's upper end is more than ``NARROW`` times its lower one there are more pairs
too, up to ``WIDE_PAIRS``: the speed of such trainings changes from one process to the next.
"""


class Closing(Trials):
    """What follows the search for the best configuration."""

    _unproved = ""

    # ── the gain of each switch ───────────────────────────────────────────────────────────────────

    def _take_back(
        self, best: LabConfig
    ) -> Generator[Trial, Entry, tuple[LabConfig, list[Switch]]]:
        """Take each changed switch back alone: what it brings, and whether it is needed at all.

        Only time that neither the search nor the proof needs is used for that.
        """
        switches: list[Switch] = []
        for names in self._changed(best):
            before = {name: getattr(self.baseline, name) for name in names}
            after = {name: getattr(best, name) for name in names}
            without = self._with(best, before)
            row = Switch("+".join(names), one(before), one(after), None)
            switches.append(row)
            if isinstance(without, str):
                row.reason = without
            elif refused := refusal(without, self._facts(without)):
                row.reason = f"{refused.what} {refused.why}"
            elif without == self.baseline and self._good(without) is None:
                row.reason = self._not_without(without)
            elif (yield from self._needless(row, best, without, names)):
                taken = self._rows[best]
                taken.status, taken.reason = "no_difference", f"as good without {row.name}"
                best = without
                if best != self.baseline:
                    self._rows[best].status = "kept"
                    self._rows[best].loss = self._loss(best)
                switches.pop()
        return best, switches

    def _not_without(self, without: LabConfig) -> str:
        """Say how a run without a switch ended that the training needs."""
        row = self._rows.get(without)
        # a search goes on after its baseline failed only where memory was the reason
        too_large = row is not None and row.status in ("does_not_fit", "baseline")
        return NO_FIT if too_large else NO_RUN

    def _needless(
        self, switch: Switch, best: LabConfig, without: LabConfig, names: tuple[str, ...]
    ) -> Generator[Trial, Entry, bool]:
        """Measure what one switch brings, and say whether the best is as fast without it."""
        if without not in self._runs and self._has_to_spare(best, without):
            change = {name: getattr(without, name) for name in names}
            row = self._rows.setdefault(
                without, CandidateRow(without, change, "slower", against=best)
            )
            pace, limit = self._pace(best), self._left(best)
            entry = yield from self._ask(without, f"without {switch.name}", limit, pace)
            row.reason = self._problem(entry)
            if row.reason:
                row.status = "does_not_fit" if self._out_of_memory else "failed"
            else:
                row.speed = judge.speed(self._runs[best][-1:], [entry])
        if without not in self._runs:
            switch.reason = self._when_it_was_added(best, names)
            return False
        runs = self._good(without)
        if runs is None:
            switch.reason = self._not_without(without)
            return False
        switch.brings = judge.speed(runs[-1:], self._runs[best][-1:])
        decision = judge.first_look(switch.brings)
        if decision == "unclear":
            if not self._has_to_spare(best, without, best):
                return False  # it was faster when it was kept
            switch.brings, decision = yield from self._again(without, best)
        return switch.brings is not None and decision != "faster"

    def _has_to_spare(self, best: LabConfig, *trials: LabConfig) -> bool:
        """Say whether there is time for these trials and then for a whole proof at its longest."""
        left = self._settings.time_left()
        pair = self._pair(best) + MARGIN * (self._costs.longest(best) - self._costs.next(best))
        return left is None or left > FINAL_PAIRS * pair + sum(map(self._costs.next, trials))

    def _when_it_was_added(self, best: LabConfig, names: tuple[str, ...]) -> str:
        """Return what is known of a switch that there was no time to take back."""
        for row in reversed(self.rows):
            added = {name: value for name, value in row.changed.items() if name in names}
            same = all(getattr(best, name) == value for name, value in added.items())
            if row.status != "kept" or not added or not same or row.speed is None:
                continue
            others = [name for name in row.changed if name not in names and row.changed[name]]
            beside = f" with {', '.join(others)}" if others else ""
            return f"no time was left; {row.speed.text} when it was added{beside}"
        return "no time was left"

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

    # ── the proof ─────────────────────────────────────────────────────────────────────────────────

    def _provable(self, best: LabConfig) -> LabConfig:
        """Return the fastest configuration that the budget has time to prove."""
        if self._can_prove(best) or best == self.baseline:
            return best
        kept = [row.config for row in self.rows if row.status == "kept" and row.config != best]
        can = [config for config in kept if self._good(config) and self._can_prove(config)]
        chosen = max(can, key=self._pace, default=best)
        if chosen != best:
            self._rows[best].status = "not_proved"
            self._rows[best].reason = f"no time was left to prove it: {self._needs(best, 0)}"
            self._stopped = self._stopped or TOO_SHORT
        return chosen

    def _can_prove(self, config: LabConfig) -> bool:
        left = self._settings.time_left()
        much = self._pace(config) >= MUCH * self._pace(self.baseline)
        return left is None or left >= (1 if much else LEAST_PAIRS) * self._pair(config)

    def _prove(self, best: LabConfig) -> Generator[Trial, Entry, Speed | None]:
        """Run the winner and the baseline again, in turns."""
        left: list[Entry] = []
        right: list[Entry] = []
        found: Speed | None = None
        longer = 2 * (PROOF_WINDOWS - 1) * self._settings.window_seconds
        time_left = self._settings.time_left()
        saved = self._costs.next(self.baseline) - self._baseline_again()
        whole = self._pair(best) + saved + longer
        short = time_left is not None and time_left < FINAL_PAIRS * whole
        for pair in range(MOST_FINAL_PAIRS):
            if pair >= FINAL_PAIRS and _decided(found, pair):
                break
            time_left = self._settings.time_left()
            needed = self._pair(best) + (0.0 if short else saved)
            if time_left is not None and time_left < needed:
                self._stopped = self._stopped or TOO_SHORT
                if pair >= LEAST_PAIRS:
                    break
                if pair and judge.each_pair(left, right, MUCH):
                    break
                self._unproved = f"no time was left to prove it: {self._needs(best, pair)}"
                return None
            sides = [(self.baseline, left), (best, right)]
            for config, side in reversed(sides) if pair % 2 else sides:
                rival = self._pace(best) if short and config == self.baseline else None
                entry = yield from self._ask(
                    config,
                    "the proof, in fresh processes",
                    rival=rival,
                    windows=1 if short else PROOF_WINDOWS,
                )
                if entry.failure:
                    self._stopped = self._stopped or f"the proof failed: {entry.failure}"
                    return None
                side.append(entry)
            known = self._good(self.baseline) or (), self._good(best) or ()
            found = judge.in_turns(left, right, known=known)
        if found is None or not found.certain:
            return judge.each_pair(left, right, MUCH) or found
        return found

    def _more_seconds(self, best: LabConfig) -> float | None:
        """Return how long what was left out would take, with a whole proof; None if nothing was."""
        left_out = [row for row in self.rows if row.status in ("not_tried", "not_proved")]
        if not left_out:
            return None
        untried = [row.config for row in left_out if row.status == "not_tried"]
        unproved = [row.config for row in left_out if row.status == "not_proved"]
        pairs = [self._pair(config) for config in (best, *unproved)]
        return sum(map(self._costs.longest, untried)) + FINAL_PAIRS * max(pairs)

    def _needs(self, best: LabConfig, pairs: int) -> str:
        """Say how much more time the least proof takes, after so many pairs."""
        more = (LEAST_PAIRS - pairs) * self._pair(best) - (self._settings.time_left() or 0.0)
        return f"give the search {age_text(max(1.0, more))} more"


def _decided(found: Speed | None, pairs: int) -> bool:
    """Say whether more pairs would not change what so many pairs have shown."""
    if found is None or found.low is None or found.high is None:
        return False
    narrow = found.high <= NARROW * found.low or pairs >= WIDE_PAIRS
    return (found.low >= SURE and narrow) or found.ratio < 1
