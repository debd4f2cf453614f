"""Search for the fastest configuration: a plan that asks for one run after the other.

The search is a generator. It yields a :class:`Trial`, is sent the ledger's entry of that run, and
returns what it found. It knows no clock, no process and no file: the same entries lead to the same
search. So a search that was killed continues where it was, by being sent what the ledger holds.

It climbs: each change of switches is tried on the best configuration so far, and kept if it is
certainly faster, learns as well and fits. What usually brings most for its time comes first. This
is repeated until a whole round has kept nothing. At the end the winner and the baseline are run
again, in turns, in fresh processes: only these runs, which nobody has chosen by their result, say
how much faster it is. A budget keeps time for that. Where it has more, each switch that was changed
is taken back alone before, and what brings nothing is dropped. Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from ...errors import UserError
from ..config import LabConfig
from ..ledger import Entry
from ..rules import refusal
from ..toggles import Value
from . import judge
from .closing import Closing
from .findings import TOO_SHORT, CandidateRow, Found, Switch, Trial, words
from .judge import Speed
from .space import AXES, COMPILE_FIRST, EXTRAS, HOST_FIRST, Axis, Seen, Start, changes, jump
from .trials import LEAST_PAIRS, MUCH, is_config

STALE_TRIALS = 6
"""After this many trials of others the best configuration is run again, so that a machine that has
become slower does not make the candidates look worse."""
FEW_TRIALS = 4
"""Where there is time for fewer trials than this and the proof, the first one changes several
switches at once.
"""
JUMP_GAIN = 3.0
"""A first change of precision and micro-batch together that brings less than this is doubted."""
AMPLE = 2.0
"""How many times the time must be there that all trials up to the first compilation are expected to
take. Where it is not, compiling comes first.
"""
NO_FASTER = ("slower", "no_difference")
NOT_BETTER = "run again beside the baseline, it was not certainly better"
ALONE = frozenset({"batch", "accumulate"})
"""What is slower by these is slower in every mode of the compiler."""


class CannotTune(UserError):
    """There is nothing to search, or nothing runs."""


class Search(Closing):
    """One search from ``baseline``, on a device of which ``facts`` are known."""

    _later: list[dict[str, Value]]

    def run(self) -> Generator[Trial, Entry, Found]:
        """Ask for runs until the fastest configuration is known."""
        self._later = []
        self._slower: set[tuple[object, ...]] = set()
        self._unsettled: list[LabConfig] = []
        best = yield from self._begin()
        best = yield from self._climb(best)
        if self._good(self.baseline) is None:
            best, switches = yield from self._take_back(best)
            return self._found(best, None, switches)
        best, switches = yield from self._take_back(self._provable(best))
        if (shorter := self._provable(best)) != best:  # taking switches back took longer
            best, switches = yield from self._take_back(shorter)
        if best == self.baseline:
            return self._found(best, None, [])
        speed = yield from self._prove(best)
        if speed is None or not speed.certain or speed.ratio < 1 + judge.WORTH:
            row = self._rows[best]
            row.status = "not_proved" if self._unproved else "no_difference"
            row.reason = self._unproved or NOT_BETTER
            if speed is not None:  # the verdict is of these runs, and so must its ratio be
                row.speed, row.against = speed, self.baseline
                row.reason += f": its ratio is of these {speed.basis}"
            return self._found(self.baseline, None, [])
        # the same two were compared before: one page has one ratio for them, that of the proof
        if self._rows[best].against == self.baseline:
            self._rows[best].speed = speed
        if len(switches) == 1:  # without it the best is the baseline
            switches[0].brings, switches[0].reason = speed, ""
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
            self._more_seconds(best),
        )

    # ── the baseline ──────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> Generator[Trial, Entry, LabConfig]:
        """Run the baseline, or find a first configuration that runs."""
        self._rows[self.baseline] = CandidateRow(self.baseline, {}, "baseline")
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
                "The training does not run." if entry.failure else "The baseline was not measured.",
                problem,
                self.baseline.command() + " --headless    shows the whole error",
            )
        for change in self._smaller():
            config = self._with(self.baseline, change)
            if isinstance(config, str) or self._over(config, config):
                continue
            row = self._rows[config] = CandidateRow(config, dict(change), "failed")
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
        """Try every change on the best so far, until a whole round has kept nothing.

        A new micro-batch or compile mode begins the round anew: what was slower before may not be
        any more.
        """
        improved = True
        best = yield from self._jump(best)
        while improved:
            improved = False
            for axis in self._order(best):
                before = best
                best = yield from self._climb_along(axis, best)
                improved = improved or best != before
                if _regime(best) != _regime(before):
                    break
            else:
                if not improved:
                    best, improved = yield from self._settle(best)
                if not improved:
                    best, improved = yield from self._try_close_ones(best)
        for change in self._later:
            self._leave_out(best, change)
        return best

    def _jump(self, best: LabConfig) -> Generator[Trial, Entry, LabConfig]:
        """Change several switches at once where there is no time to try each alone.

        While nothing is kept there is nothing to lose, so it begins also where the proof may not
        fit.
        """
        left, trial = self._settings.time_left(), self._costs.next(best)
        proof = LEAST_PAIRS * self._pair(best)
        if left is None or left >= FEW_TRIALS * trial + proof or left < 2 * trial:
            return best
        change = jump(best, self._batch(best), self._facts(best), self._settings.limits)
        config = self._with(best, change or {})
        if change is None or not is_config(config):
            return best
        return config if (yield from self._try(best, change, postpone=True)) else best

    def _order(self, best: LabConfig) -> tuple[Axis, ...]:
        """Return the order of the kinds of changes: where time is short compiling comes first."""
        left = self._left(best)
        compiled = self._with(best, {"compile": "default"})
        if left is None or best.compile != "off" or not is_config(compiled):
            return AXES
        extras = [change for axis in EXTRAS for change in self._changes(axis, best)]
        configs = [config for change in extras if is_config(config := self._with(best, change))]
        needed = self._costs.next(compiled) + len(configs) * self._costs.again(best)
        if left >= AMPLE * needed:
            return AXES
        return HOST_FIRST if self._host_is_slower() else COMPILE_FIRST

    def _host_is_slower(self) -> bool:
        """Say whether a larger micro-batch has brought much, and no precision anything.

        Then the device waits for the host to launch its kernels.
        """
        kept = [row for row in self.rows if row.status == "kept"]
        larger = [row.speed for row in kept if row.changed.keys() == ALONE and row.speed]
        precise = any({"amp", "tf32"} & row.changed.keys() for row in kept)
        return not precise and any(speed.ratio >= MUCH for speed in larger)

    def _climb_along(self, axis: Axis, best: LabConfig) -> Generator[Trial, Entry, LabConfig]:
        """Try the changes of one kind; those on a new best begin again at the first."""
        kept = True
        while kept:
            kept = False
            for change in self._changes(axis, best):
                config = self._with(best, change)
                if not is_config(config) or self._is_known(best, config, change):
                    continue
                if self._lacks_time(best, config):
                    self._leave_out(best, change)
                elif (yield from self._try(best, change, postpone=True)):
                    best, kept = config, True
                    break
        return best

    def _is_known(self, best: LabConfig, config: LabConfig, change: Mapping[str, Value]) -> bool:
        """Say whether what has run tells that a change is not worth a trial."""
        if _where(best, change) in self._slower:
            return True
        if (known := self._rows.get(config)) is not None:
            return known.status != "not_tried"
        if config.amp != "off" and config.tf32 and change.keys() == {"amp"}:
            alike = self._rows.get(config.changed("tf32", False))
            if alike and alike.against == best.changed("tf32", False) and alike.status in NO_FASTER:
                return True  # its products do not become faster by what speeds up those of float32
        if self._sees_other_samples(config) and any(
            row.status == "loss" and row.changed == change for row in self.rows
        ):
            return True  # it learns worse, which the losses at another micro-batch cannot show
        return any(  # together with another switch, on the same best
            row.against == best
            and row.status in NO_FASTER
            and change.items() < row.changed.items()
            and not ("compile" in change and "amp" in row.changed)  # float32 may gain more by it
            for row in self.rows
        )

    def _lacks_time(self, best: LabConfig, config: LabConfig) -> bool:
        """Say whether the budget has no time for a first trial of a candidate."""
        limit = self._limit(config, best)
        if limit is None or limit > self._costs.surely(config):
            return False
        self._stopped = self._stopped or TOO_SHORT
        return True

    def _settle(self, best: LabConfig) -> Generator[Trial, Entry, tuple[LabConfig, bool]]:
        """Measure again what was unclear beside the best, with the time that is left."""
        waiting, self._unsettled = self._unsettled, []
        for config in waiting:
            row = self._rows[config]
            if row.against != best or not self._has_time(config, best, config):
                continue
            row.reason = ""
            row.speed, decision = yield from self._again(best, config)
            if decision == "faster":
                row.status = "kept"
                return config, True
        return best, False

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
        unusable = {"failed", "does_not_fit", "refused", "loss"}
        bf16 = [row for row in self.rows if row.changed == {"amp": "bf16"}]
        seen = Seen(
            tight=any(row.status == "does_not_fit" for row in self.rows),
            no_bf16=any(row.status in unusable for row in bf16),
            graphs=any(self._is_much(row) for row in self.rows),
            doubtful=any(self._is_doubtful(row) for row in self.rows),
            no_convolutions=self._of_baseline("convolutions") is False,
            casts=any(row.status in NO_FASTER for row in bf16),
        )
        facts, limits = self._facts(config), self._settings.limits
        return list(changes(axis, Start(config, self._batch(config), facts, limits, seen)))

    def _is_much(self, row: CandidateRow) -> bool:
        """Say whether a candidate that replays CUDA graphs was kept because that brings much."""
        graphs = row.changed.get("compile") == "reduce-overhead" and row.status == "kept"
        return graphs and row.speed is not None and row.speed.ratio >= MUCH

    def _is_doubtful(self, row: CandidateRow) -> bool:
        """Say whether a jump was kept that brought so little that bf16 may have made it slower."""
        jumped = row.status == "kept" and row.changed.keys() == {"amp", "batch", "accumulate"}
        return jumped and row.speed is not None and row.speed.ratio < JUMP_GAIN

    def _try(
        self, best: LabConfig, change: Mapping[str, Value], postpone: bool
    ) -> Generator[Trial, Entry, bool]:
        """Run one candidate and the best so far in turns, and say whether it replaces it."""
        config = self._with(best, change)
        if not is_config(config) or config == best:
            return False
        if not self._settings.limits.allows(self.baseline, config):
            return False
        row = CandidateRow(config, dict(change), "refused", against=best)
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
        row.status = "trying"
        self._rows[config] = row
        stale = self._trials_asked - self._last[best] >= STALE_TRIALS
        if stale and self._cheap(config, best):
            yield from self._ask(best, "the best so far, again")
        entry = yield from self._ask(
            config, words(change), self._limit(config, best), self._pace(best) or None
        )
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
            self._slower.add(_where(best, change))
        if decision == "unclear" and self._cheap(config, best, config):
            row.speed, decision = yield from self._again(best, config)
        elif decision == "unclear":
            decision = self._for_now(row)
        row.status = {"faster": "kept", "slower": "slower"}.get(decision, "no_difference")  # type: ignore[assignment]
        return decision == "faster"

    def _for_now(self, row: CandidateRow) -> judge.Decision:
        """Decide an unclear candidate by its one run; one that is not kept may be settled later."""
        if row.speed is not None and row.speed.ratio >= 1 + judge.CLEAR:
            return "faster"
        row.reason = "not repeated: the time went to other candidates"
        self._unsettled.append(row.config)
        return "alike"

    def _leave_out(self, best: LabConfig, change: Mapping[str, Value]) -> None:
        config = self._with(best, change)
        if isinstance(config, str) or config in self._rows:
            return
        if self._settings.limits.allows(self.baseline, config):
            self._rows[config] = CandidateRow(
                config, dict(change), "not_tried", against=best, reason=TOO_SHORT
            )


def _regime(config: LabConfig) -> tuple[object, ...]:
    """Return on what it depends whether the host or the device is the slower one."""
    return config.batch, config.accumulate, config.compile


def _where(best: LabConfig, change: Mapping[str, Value]) -> tuple[object, ...]:
    """Return a change and where its result holds."""
    return frozenset(change.items()), (() if set(change) == ALONE else _regime(best))
