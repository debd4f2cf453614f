"""Tell what a search has found: one sentence, a table, lines to paste, a document.

Only the standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...text.units import (
    DASH,
    age_text,
    bytes_text,
    count_text,
    pace_text,
    round_seconds,
    window_text,
)
from .. import compare as comparing
from ..config import LabConfig
from ..ledger import Entry
from ..sweep import cell_key
from ..tables import figure
from ..toggles import BY_NAME
from . import judge, paste
from .findings import BASELINE, NEEDED, STATUS, TOO_SHORT, CandidateRow, Found, Switch, label_of
from .goal import JOULES_IN_KWH, SPEED, WATTS, Goal

RATE = "samples_per_second"
COST_SAMPLES = 1_000_000
"""Samples that a price and an energy are given for, unless the user names another number."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search that has ended, with all its runs.

    ``device`` is cpu or cuda, ``capacity`` the memory in bytes of one device, None if unknown.
    ``goal`` holds the prices, and ``samples`` is the number that costs are given for.
    """

    group: str
    found: Found
    entries: Sequence[Entry]
    seconds: float
    capacity: int | None = None
    goal: Goal = SPEED
    samples: int = COST_SAMPLES

    @property
    def changed(self) -> bool:
        return self.found.best != self.found.baseline

    def runs(self, config: LabConfig) -> list[Entry]:
        """Return the successful runs of a configuration."""
        key = cell_key(config)
        return [entry for entry in self.entries if entry.cell == key and not entry.failure]

    def label(self, config: LabConfig) -> str:
        """Return in which switches a configuration differs from the baseline."""
        return label_of(config, self.found.baseline)

    @property
    def device(self) -> str:
        if self.found.baseline.device != "auto":
            return self.found.baseline.device
        return next((entry.device for entry in self.entries if entry.device), "cpu")

    def sentence(self) -> str:
        found = self.found
        if not self.changed:
            return self._nothing_faster()
        spare = self._spare()
        if found.speed is None:
            return (
                f"The baseline does not run ({found.baseline_failure}). This does: "
                f"{self.label(found.best)}{spare}."
            )
        gain = f"{found.speed.text} {self.goal.times} as the baseline"
        return f"Use {self.label(found.best)}: {gain}{spare}."

    def _nothing_faster(self) -> str:
        rows = [row for row in self.found.rows if row.status != "baseline"]
        unproved = next((row for row in rows if row.status == "not_proved"), None)
        if unproved is not None:
            as_good = unproved.speed and f"{unproved.speed.text} {self.goal.times}"
            seems = f" seems {as_good or self.goal.better}"
            return f"Not proved: {self.label(unproved.config)}{seems}. {self.left_out()}"
        if rows and all(row.status == "not_tried" for row in rows):
            return f"Not decided: only the baseline was run. {self.left_out()}"
        keep = f"Nothing that was tried is certainly {self.goal.better} than the baseline: keep it."
        return f"{keep} {self.left_out()}".rstrip()

    @property
    def enough_seconds(self) -> float | None:
        """The budget that is expected to suffice for what was left out; None if nothing was."""
        more = self.found.more_seconds
        return None if more is None else round_seconds(self.seconds + more)

    def left_out(self) -> str:
        """Say for what the budget was too short, and which would suffice; "" where it was not."""
        if self.enough_seconds is None:
            return ""
        untried = sum(row.status == "not_tried" for row in self.found.rows)
        tried = f"try {count_text(untried, 'more candidate')} and " if untried else ""
        enough = window_text(self.enough_seconds)
        return (
            f"What was left of the budget was too short to {tried}prove the best; a budget of "
            f"{enough} should be enough."
        )

    def _spare(self) -> str:
        reserved = judge.figure(self.runs(self.found.best), "peak_reserved_bytes")
        if self.capacity is None or reserved is None:
            return ""
        return f"; fits with {bytes_text(self.capacity - reserved)} to spare"

    def pays_back_steps(self) -> tuple[int | None, str]:
        """Return after how many steps the winner's longer warm-up is made up for, or why not."""
        ours, theirs = self.runs(self.found.best), self.runs(self.found.baseline)
        if not self.changed or not ours or not theirs:
            return None, "there is nothing to compare"
        result = comparing.compare(theirs, ours)
        if result.break_even_step is not None or "compiled" not in result.break_even_reason:
            return result.break_even_step, result.break_even_reason
        return None, "neither is compiled"

    def costs(self, config: LabConfig) -> dict[str, float | None]:
        """Return seconds, money and energy (joules) for ``samples`` samples; None if unknown."""
        runs = self.runs(config)
        rate, watts = judge.figure(runs, RATE), judge.figure(runs, WATTS)
        seconds = self.samples / rate if rate else None
        a_second = self.goal.money_of_second(watts)
        return {
            "samples": float(self.samples),
            "seconds": seconds,
            "money": seconds * a_second if seconds and a_second is not None else None,
            "joules": seconds * watts if seconds and watts else None,
        }

    def lines(self) -> list[str]:
        """Return the lines to paste into a training."""
        runs = self.runs(self.found.best)
        config = runs[0].document.get("config") if runs else None
        batch = config.get("batch") if isinstance(config, dict) else None
        return paste.lines(self.found.baseline, self.found.best, batch, self.device)

    # ── the document ──────────────────────────────────────────────────────────────────────────────

    def document(self) -> dict[str, Any]:
        """Return the document of ``gpuscope tune --json``."""
        found = self.found
        steps, reason = self.pays_back_steps()
        return {
            "group": self.group,
            "goal": self.goal.to_mapping(),
            "sentence": self.sentence(),
            "baseline": self._side(found.baseline),
            "best": self._side(found.best),
            "changed": self.changed,
            "speed": found.speed.to_mapping() if found.speed else None,
            "speed_reason": None if found.speed else self._no_speed(),
            "loss": found.loss.to_mapping() if found.loss else None,
            "switches": [_switch(row) for row in found.switches],
            "pays_back_after_steps": steps,
            "pays_back_reason": reason or None,
            "candidates": [self._row(row) for row in found.rows],
            "lines": self.lines(),
            "command": found.best.command(),
            "runs": len(self.entries),
            "seconds": self.seconds,
            "stopped": found.stopped or None,
            "left_out": self.left_out() or None,
            "enough_seconds": self.enough_seconds,
        }

    def _no_speed(self) -> str:
        return self.found.baseline_failure or "the baseline is the best"

    def _side(self, config: LabConfig) -> dict[str, Any]:
        runs = self.runs(config)
        keys = ("samples_per_second", "warmup_seconds", "peak_allocated_bytes")
        return {
            "label": self.label(config),
            "config": config.to_mapping(),
            **{key: judge.figure(runs, key) for key in (*keys, "peak_reserved_bytes")},
            WATTS: judge.figure(runs, WATTS),
            "cost": self.costs(config),
            "runs": [entry.id for entry in runs],
        }

    def _row(self, row: CandidateRow) -> dict[str, Any]:
        runs = self.runs(row.config)
        return {
            "label": self.label(row.config),
            "config": row.config.to_mapping(),
            "status": row.status,
            "reason": row.reason or None,
            "samples_per_second": judge.figure(runs, "samples_per_second"),
            "warmup_seconds": judge.figure(runs, "warmup_seconds"),
            "peak_reserved_bytes": judge.figure(runs, "peak_reserved_bytes"),
            "speed": row.speed.to_mapping() if row.speed else None,
            "against": self.label(row.against) if row.against else None,
            "cost": self.costs(row.config),
            "predicted_bytes": row.predicted.bytes if row.predicted else None,
            "loss_excess": row.loss.excess if row.loss else None,
            "runs": [entry.id for entry in runs],
        }

    # ── for people ────────────────────────────────────────────────────────────────────────────────

    def table(self) -> list[list[str]]:
        """Return the rows of the candidates with a heading, for a table of text."""
        than = "the best before" if self._climbed else BASELINE
        heading = ["settings", "runs", "samples/s", "warm-up", "reserved", f"over {than}", "result"]
        rows = [heading]
        for row in self.found.rows:
            runs = self.runs(row.config)
            figures = [
                figure(key, judge.figure(runs, key))
                for key in ("warmup_seconds", "peak_reserved_bytes")
            ]
            speed = row.speed.brief if row.speed else DASH
            label, count = self.label(row.config), str(len(runs) or DASH)
            rows.append([label, count, _pace(runs), *figures, speed, self._result(row)])
        if all(row[4] == DASH for row in rows[1:]):
            rows = [[*row[:4], *row[5:]] for row in rows]
        if self.goal.by_cost:
            costs = [self._cost_text(row.config) for row in self.found.rows]
            columns = zip(rows, [self._cost_heading(), *costs], strict=True)
            rows = [[*row[:3], cost, *row[3:]] for row, cost in columns]
        return rows

    @property
    def _climbed(self) -> bool:
        """Whether a candidate was compared with another one, and not with the baseline."""
        return any(row.against not in (None, self.found.baseline) for row in self.found.rows)

    def _result(self, row: CandidateRow) -> str:
        """Return the result of a candidate in a word or two; a reason stands below the table."""
        if row.config == self.found.best:
            return "keep it" if row.status == "baseline" else "the best"
        if row.status == "baseline":
            return DASH
        return self.goal.worse if row.status == "slower" else STATUS[row.status]

    def reasons(self) -> list[str]:
        """Return why candidates have their results, a line for each that a word does not tell."""
        told = (row for row in self.found.rows if row.reason and row.reason != TOO_SHORT)
        return [f"{self.label(row.config)}: {row.reason}." for row in told]

    def _cost_heading(self) -> str:
        million, rest = divmod(self.samples, 1_000_000)
        of = f"{million:,}M" if million and not rest else f"{self.samples:,}"
        return f"{'kWh' if self.goal.by_energy else 'price'}/{of} samples"

    def _cost_text(self, config: LabConfig) -> str:
        costs = self.costs(config)
        money, joules = costs["money"], costs["joules"]
        if self.goal.by_energy:
            return f"{joules / JOULES_IN_KWH:,.3g}" if joules is not None else DASH
        return money_text(money) if money is not None else DASH

    def switches(self) -> list[list[str]]:
        """Return what each switch of the winner brings, with a heading."""
        rows = [["switch", "was", "is", "gain"]]
        for one in self.found.switches:
            unknown = one.reason if one.reason in NEEDED else f"unknown: {one.reason}"
            brings = one.brings.text if one.brings else unknown
            rows.append(
                [one.name, text_of(one.name, one.before), text_of(one.name, one.after), brings]
            )
        return rows

    def _noise(self) -> str:
        """Say how much the runs of one configuration differ, where that hides a gain."""
        spreads = [judge.spread(self.runs(row.config), RATE) for row in self.found.rows]
        ends = max(filter(None, spreads), key=lambda ends: ends[1] / ends[0], default=None)
        if ends is None or ends[0] <= 0 or ends[1] < judge.NOISY * ends[0]:
            return ""
        lost = "" if self.changed else ", which hides a gain that is smaller"
        return (
            f"Runs with the same settings differ, from {pace_text(ends[0])} to "
            f"{pace_text(ends[1])} samples/s: the machine does other work as well{lost}. "
            "Search again when it is idle."
        )

    def _medians(self) -> str:
        """Say of what the ratios are where the speeds of the same two runs suggest others."""
        for row in self.found.rows if not self.goal.by_cost else ():
            sides = [self.runs(side) for side in (row.against, row.config) if side is not None]
            if row.speed is None or [len(runs) for runs in sides] != [1, 1]:
                continue
            before, after = (judge.figure(runs, RATE) for runs in sides)
            differ = after / before / row.speed.ratio if before and after else 1.0
            if row.speed.brief != judge.NOT_CLEAR and max(differ, 1 / differ) >= judge.NOISY:
                return (
                    "A ratio of two runs compares their median steps; samples/s counts all steps, "
                    f"and a few slow ones make {self.label(row.config)} look "
                    f"{'faster' if differ > 1 else 'slower'} there."
                )
        return ""

    def remarks(self) -> list[str]:
        """Return what else is to be known of the result, in sentences."""
        found = [said for said in (self._medians(), self._noise()) if said]
        if self.changed:
            steps, _ = self.pays_back_steps()
            sides = self.runs(self.found.baseline), self.runs(self.found.best)
            before, after = (judge.figure(side, RATE) for side in sides)
            if self.goal.by_cost and before and after:
                found.append(
                    f"It trains {pace_text(after)} samples/s instead of {pace_text(before)}."
                )
            if steps:
                found.append(f"Compiling takes longer at first: it pays off after {steps:,} steps.")
            loss = self.found.loss
            if loss is not None and loss.excess is not None:
                share = f"{abs(loss.excess) * 100:.2f} %"
                side = f"{share} {'higher' if loss.excess > 0 else 'lower'}"
                same = "the same" if share == "0.00 %" else side
                when = f"After {loss.at:,.0f} {loss.unit} with the same seed"
                found.append(f"{when} its loss is {same}.")
            elif loss is not None:
                found.append(f"Its loss was not compared: {loss.reason}.")
        found += self._cost_remarks()
        if self.changed and self.left_out():
            found.append(self.left_out())
        elif self.found.stopped and not self.left_out():
            found.append(f"The search ended early: {self.found.stopped}.")
        runs, took = count_text(len(self.entries), "run"), age_text(max(1.0, self.seconds))
        shows = f"gpuscope lab runs show {self.group}"
        found.append(f"{runs} in {took}, all in the ledger ({shows}).")
        return found

    def _cost_remarks(self) -> list[str]:
        before, after = self.costs(self.found.baseline), self.costs(self.found.best)
        found = []
        if after["money"] is not None:
            spent = before["money"]
            was = f" instead of {money_text(spent)}" if self.changed and spent else ""
            found.append(f"{self.samples:,} samples cost {money_text(after['money'])}{was}.")
        if after["joules"] is not None:
            was = (
                f" instead of {before['joules'] / JOULES_IN_KWH:,.3g}"
                if self.changed and before["joules"]
                else ""
            )
            energy = f"{after['joules'] / JOULES_IN_KWH:,.3g} kWh"
            found.append(f"{self.samples:,} samples take {energy}{was} on the GPU.")
        return found


def _pace(runs: Sequence[Entry]) -> str:
    """Return the mean speed of runs, and from which to which they differ: ``189 (107–416)``."""
    middle, ends = figure(RATE, judge.figure(runs, RATE)), judge.spread(runs, RATE)
    if ends is None or ends[1] < (1 + judge.CLEAR) * ends[0]:
        return middle
    return f"{middle} ({pace_text(ends[0])}–{pace_text(ends[1])})"


def text_of(name: str, value: object) -> str:
    """Return the value of a switch, or of several that were changed together, in words."""
    toggle = BY_NAME.get(name)
    if toggle is None or isinstance(value, float):
        return str(value)
    return (
        toggle.text(value) if value is None or isinstance(value, (str, int, bool)) else str(value)
    )


def _switch(row: Switch) -> dict[str, Any]:
    return {
        "name": row.name,
        "before": row.before,
        "after": row.after,
        "brings": row.brings.to_mapping() if row.brings else None,
        "reason": row.reason or None,
    }


def money_text(amount: float) -> str:
    """Return an amount of money: ``1,234.50``, and ``0.0014`` for what is less than a tenth."""
    digits = 2 if amount == 0 or amount >= 0.1 else 1 - math.floor(math.log10(amount))
    return f"{amount:,.{digits}f}"
