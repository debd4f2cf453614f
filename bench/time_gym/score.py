"""Says how right ``gpuscope why`` was: the bars of a run of the gym.

``python -m bench.time_gym.score results.json [results.json …]`` prints a line for each training and
the bars. With ``--again`` the causes are those that the rules of now find in what was seen then: a
change of the rules is judged without a card. Nothing is measured here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

Row = Mapping[str, Any]
NAMED_BAR = 0.90
"""The least share of the faulty trainings whose cause must be named first."""
UNATTRIBUTED_BAR = 0.02
WITHIN, WITHIN_BAR = 0.25, 0.80
"""So near the measured gain a prediction is, for this share of the single causes."""
WHY_SECONDS_BAR, NO_LOOK_SECONDS_BAR = 10.0, 1.5
NOISE_SHARE = 0.02
"""Of a step: two runs of the same training differ by so much."""
LEAST_STEPS, LEAST_SECONDS = 3, 1.0
WARM_STEPS, WARM_SECONDS = 2, 0.5
MEANWHILE_SECONDS = 1.0
"""The look at the GPU lies within so long after the question."""


FACTS = ("launch",)
"""Causes that may be told of a healthy training, but not as a warning.

A GPU that waits for late launches is a fact of a small model, and how long it waits was measured.
Whatever else is told of a healthy training is a false alarm, however mild its words are."""


@dataclass(frozen=True)
class Named:
    """A cause that was named, and what share of the wall clock its cure is said to save at most."""

    name: str
    share: float
    low: float
    high: float
    severity: str = "warning"

    @property
    def alarms(self) -> bool:
        """Return whether it is a false alarm if nothing is wrong."""
        return self.severity != "info" or self.name not in FACTS


def named(document: Row | None) -> list[Named]:
    """Return the causes of a document of ``why --json``, in its order."""
    return [
        Named(
            cause["row"],
            cause["saves_share_at_most"],
            cause["saves_share_at_most_low"],
            cause["saves_share_at_most_high"],
            cause["severity"],
        )
        for cause in (document or {}).get("causes") or ()
    ]


def step_seconds(row: Row) -> float | None:
    """Return the wall clock of a step by the clock outside, without what the look has cost.

    From the first print after the warm-up to the last; None where that is too short.
    """
    steps = row.get("steps") or []
    if not steps:
        return None
    begun = steps[0][0] + WARM_SECONDS
    usual = [one for one in steps if one[0] >= begun and one[1] > WARM_STEPS]
    if len(usual) < 2:
        return None
    seconds, count = usual[-1][0] - usual[0][0], usual[-1][1] - usual[0][1]
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    look = (row.get("why") or {}).get("look") or {}
    lost = look.get("lost_seconds")
    stood = look.get("stood_seconds") or 0.0
    return float(seconds - (stood if lost is None else lost)) / int(count)


def look_cost(row: Row) -> float | None:
    """Return how much time the steps lost around the question, by the clock outside.

    That is how much longer they took in the seconds of the look than as many did before and after;
    None where there are too few to tell.
    """
    steps, asked = row.get("steps") or [], row.get("asked")
    look = (row.get("why") or {}).get("look")
    if not asked or not look or look["problem"]:
        return None
    begin, end = asked[0], asked[0] + MEANWHILE_SECONDS
    before = [one for one in steps if steps[0][0] + WARM_SECONDS <= one[0] <= begin]
    after = [one for one in steps if one[0] >= end]
    if len(before) < 2 or len(after) < 2:
        return None
    spans = [(before[0], before[-1]), (after[0], after[-1])]
    seconds = sum(last[0] - first[0] for first, last in spans)
    count = sum(last[1] - first[1] for first, last in spans)
    if count < LEAST_STEPS:
        return None
    meanwhile = after[0][0] - before[-1][0]
    return float(meanwhile - (after[0][1] - before[-1][1]) * seconds / count)


def unattributed(row: Row) -> dict[str, float]:
    """Return what share of the clock has no name, of the thread and of the GPU."""
    document = row.get("why") or {}
    found = {}
    for key, rows in (
        ("thread", document.get("rows")),
        ("gpu", (document.get("look") or {}).get("rows")),
    ):
        if rows:
            found[key] = sum(one["share"] for one in rows if one["row"] == "unattributed")
    return found


@dataclass(frozen=True)
class Gain:
    """What the cure of the first cause was said to bring at most, and what it has brought.

    Shares of a step's wall clock.
    """

    name: str
    predicted: Named
    measured: float

    @property
    def held(self) -> bool:
        return self.predicted.high + NOISE_SHARE >= self.measured

    @property
    def near(self) -> bool:
        return abs(self.predicted.share - self.measured) <= WITHIN * self.measured


def is_faulty(row: Row) -> bool:
    return bool(row["names"]) and not row["cured"]


def is_right(row: Row) -> bool:
    """Return whether the cause of a faulty training is named first."""
    causes = named(row.get("why"))
    return bool(causes) and causes[0].name in row["names"]


def gains(rows: Sequence[Row]) -> list[Gain]:
    """Return the gains of the pairs whose cause was named first and that ran both ways."""
    cured = {row["subject"]: row for row in rows if row["cured"] and not row["problem"]}
    found = []
    for row in rows:
        other = cured.get(row["subject"])
        if not is_faulty(row) or row["problem"] or other is None or not is_right(row):
            continue
        slow, fast = step_seconds(row), step_seconds(other)
        if slow and fast:
            found.append(Gain(row["subject"], named(row["why"])[0], 1 - fast / slow))
    return found


def line_of(row: Row) -> str:
    """Return one line of the table."""
    if row["problem"]:
        return f"{row['name']:36} did not run: {row['problem']} {' | '.join(row['output'][-3:])}"
    causes = named(row["why"])
    said = ", ".join(f"{one.name} {one.share:.0%}" for one in causes[:3]) or "nothing"
    if is_faulty(row):
        verdict = "ok" if is_right(row) else f"WRONG ({' or '.join(row['names'])})"
    elif row["quiet"]:
        alarms = [one.name for one in causes if one.alarms]
        verdict = f"WRONG ({' and '.join(alarms)})" if alarms else "ok"
    else:
        verdict = "-"
    each, cost = step_seconds(row), look_cost(row)
    gone = unattributed(row)
    parts = [
        f"{row['name']:36}",
        f"{1e3 * each:8.1f} ms" if each else "       ? ms",
        f"why {row['why_seconds']:4.1f} s {row['no_look_seconds']:4.2f} s",
        "unattributed " + " ".join(f"{key} {share:.1%}" for key, share in gone.items()),
        f"cost {1e3 * cost:.0f} ms" if cost is not None else "cost ?",
        f"{verdict}: {said}",
    ]
    problem = (row["why"].get("look") or {}).get("problem")
    return "  ".join(parts) + (f"  (no look: {problem})" if problem else "")


def report(rows: Sequence[Row]) -> list[str]:
    """Return the bars, and what misses them."""
    ran = [row for row in rows if not row["problem"]]
    faulty = [row for row in ran if is_faulty(row)]
    quiet = [row for row in ran if not is_faulty(row) and row["quiet"]]
    healthy = [row for row in quiet if not row["names"]]
    right = [row for row in faulty if is_right(row)]
    loud = [row for row in quiet if any(one.alarms for one in named(row["why"]))]
    lines = [
        f"{len(rows)} trainings, {len(rows) - len(ran)} did not run: "
        + (", ".join(row["name"] for row in rows if row["problem"]) or "none"),
        f"first cause right: {_of(len(right), len(faulty))} (bar {NAMED_BAR:.0%})"
        + _names(row["name"] for row in faulty if row not in right),
        f"no warning: {_of(len(quiet) - len(loud), len(quiet))} of healthy ({len(healthy)}) and "
        f"cured ones (bar 100 %)" + _names(row["name"] for row in loud),
    ]
    for key in ("thread", "gpu"):
        shares = [gone[key] for gone in map(unattributed, ran) if key in gone]
        if shares:
            lines.append(
                f"not attributed, {key}: median {median(shares):.2%}, most {max(shares):.2%} "
                f"(bar {UNATTRIBUTED_BAR:.0%} in the median)"
            )
    told = gains(ran)
    single = {row["subject"] for row in rows if row["single"]}
    alone = [gain for gain in told if gain.name in single]
    if told:
        missed = [gain for gain in told if not gain.held]
        near = [gain for gain in alone if gain.near]
        lines += [
            f"'at most' held: {_of(len(told) - len(missed), len(told))} (bar 100 %)"
            + _names(gain.name for gain in missed),
            f"within {WITHIN:.0%} of the measured gain: {_of(len(near), len(alone))} of single "
            f"causes (bar {WITHIN_BAR:.0%})" + _names(g.name for g in alone if g not in near),
        ]
    if ran:
        took = [row["why_seconds"] for row in ran]
        quick = [row["no_look_seconds"] for row in ran]
        lines.append(
            f"why: median {median(took):.1f} s, most {max(took):.1f} s (bar {WHY_SECONDS_BAR:g}); "
            f"--no-look: median {median(quick):.2f} s, most {max(quick):.2f} s "
            f"(bar {NO_LOOK_SECONDS_BAR:g})"
        )
    costs = [cost for row in ran if (cost := look_cost(row)) is not None]
    said = [
        lost
        for row in ran
        if (lost := ((row["why"].get("look") or {}).get("lost_seconds"))) is not None
    ]
    if costs and said:
        lines.append(
            f"cost of a look: median {1e3 * median(costs):.0f} ms, most {1e3 * max(costs):.0f} ms "
            f"by the clock outside; as told {1e3 * median(said):.0f} ms, {1e3 * max(said):.0f} ms"
        )
    for gain in told:
        one = gain.predicted
        lines.append(
            f"  {gain.name:36} {one.name}: at most {one.share:.1%} ({one.low:.1%} to "
            f"{one.high:.1%}), measured {gain.measured:.1%}{'' if gain.held else '  NOT HELD'}"
        )
    return lines


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f", {part / whole:.0%}" if whole else "")


def _names(names: Any) -> str:
    listed = ", ".join(names)
    return f"; not: {listed}" if listed else ""


def main(words: Sequence[str]) -> int:
    """0: the files were read; 64: there are none."""
    paths = [word for word in words if word != "--again"]
    if not paths:
        print("usage: python -m bench.time_gym.score [--again] results.json …", file=sys.stderr)
        return 64
    rows: list[Row] = [row for path in paths for row in json.loads(Path(path).read_text())["rows"]]
    if len(paths) < len(words):
        from .kept import judged_again

        rows = list(judged_again(rows))
    print("\n".join([*map(line_of, rows), "", *report(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
