"""Judge two configurations by their runs: which one is better, and whether their losses agree.

In a search by cost each run has what a second of it costs: then "faster" is more samples for that.

Only the standard library is needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...text.numbers import number
from .. import intervals
from ..compare import compare, mean
from ..ledger import Entry
from ..measures import Curve, loss_by_step, loss_curve
from .goal import COST_OF_SECOND

WORTH = 0.01
"""A gain below this share is not worth a switch."""
CLEAR = 0.03
"""Two runs of one configuration differ by up to this share from one process to the next. A smaller
difference is measured again before it counts.
"""
PROCESSES = 1.6
"""Two runs of one configuration, each in a process that was started anew, differ by at most so many
times as their slow steps differ from the median ones: 95 % of 179 pairs of runs of seven models on
H200s. Steps that wait for the host are as fast in one process as the slow ones are in another.
"""
LOSS_SHARE = 4
"""Losses are compared over the last quarter of what both runs have seen, where they differ most."""
LEARNT = 1e-4
"""A loss that has fallen to this share of its first value leaves nothing to learn, as that of one
batch does which is used in each step. What is below it is rounding, of which no share is taken.
"""
BY_HEART = 0.05
"""That share where each step uses the same batch. Once it is nearly learnt by heart its loss falls
towards 0, and the smaller it is the more two precisions differ in it, by a part of one step.
"""
OTHER_SAMPLES = (
    "the factory gives its model the same batch in each step, so that another micro-batch learns "
    "other samples"
)

NOT_CLEAR = "not clear"
"""Stands for a ratio whose interval reaches from much slower to much faster."""
NOISY = 1.5
"""Runs of one configuration that differ by this factor are of a machine that does other things."""
Decision = Literal["faster", "slower", "alike", "unclear"]


@dataclass(frozen=True, slots=True)
class Speed:
    """How many times as fast B is as A: ``ratio`` with its 95 % interval and how it is known.

    In a search by cost: how many times as many samples B makes for what they cost.
    """

    ratio: float
    low: float | None
    high: float | None
    basis: str

    @property
    def certain(self) -> bool:
        """Whether B is faster by the whole interval."""
        return self.low is not None and self.low > 1.0

    @property
    def text(self) -> str:
        """The ratio with its interval."""
        return intervals.ratio_text(self.ratio, self.low, self.high)

    @property
    def brief(self) -> str:
        """The same for a table, where a few words after it say the result."""
        return brief_text(self.ratio, self.low, self.high)

    def to_mapping(self) -> dict[str, object]:
        return {"ratio": self.ratio, "low": self.low, "high": self.high, "basis": self.basis}


def brief_text(ratio: float | None, low: float | None, high: float | None) -> str:
    """Return a ratio with its interval, or that a wide one says nothing."""
    wide = intervals.is_wide(ratio, low, high)
    return NOT_CLEAR if wide else intervals.ratio_text(ratio, low, high)


def speed(a: Sequence[Entry], b: Sequence[Entry]) -> Speed | None:
    """Return how many times as fast ``b`` is as ``a`` in samples per second; None if unknown.

    Interleaved repeats are compared in pairs. Of one run each the interval covers the spread of
    steps within a run, and not what changes from one process to the next.
    """
    row = compare(a, b).row("sample_seconds")
    if row is None or row.ratio is None or row.ratio <= 0:
        return None
    ours, theirs = _cost(b), _cost(a)
    if not ours or not theirs:
        return None
    cheaper = theirs / ours
    low, high = (None if end is None or end <= 0 else cheaper / end for end in (row.high, row.low))
    return Speed(cheaper / row.ratio, low, high, row.basis)


def _cost(runs: Sequence[Entry]) -> float | None:
    """Return what a second of these runs costs, None if unknown; 1 where speed alone decides."""
    by_cost = any(COST_OF_SECOND in entry.document for entry in runs)
    return figure(runs, COST_OF_SECOND) if by_cost else 1.0


def pace(runs: Sequence[Entry]) -> float:
    """Return the samples in a second, or for what they cost; 0 where it is unknown."""
    rate, cost = figure(runs, "samples_per_second"), _cost(runs)
    return rate / cost if rate and cost else 0.0


def in_turns(
    a: Sequence[Entry],
    b: Sequence[Entry],
    *,
    known: tuple[Sequence[Entry], Sequence[Entry]] = ((), ()),
) -> Speed | None:
    """Return how many times as fast ``b`` is as ``a``, whose runs were made in turns, in pairs.

    ``known`` has all runs of both, with earlier ones: the interval is as wide as these vary.
    """
    pairs = [(x, y) for x, y in zip(_rates(a), _rates(b), strict=False) if x and y]
    if not pairs:
        return None
    found = intervals.paired([x for x, _ in pairs], [y for _, y in pairs])
    left, right = ([rate for rate in _rates(side) if rate] for side in known)
    found = intervals.widened(found, left, right, len(pairs))
    return Speed(found.middle, found.low, found.high, f"{len(pairs)} pairs of runs, in turns")


def _rates(runs: Sequence[Entry]) -> list[float | None]:
    return [pace([entry]) or None for entry in runs]


def each_pair(a: Sequence[Entry], b: Sequence[Entry], much: float) -> Speed | None:
    """Return how many times as fast ``b`` is by few pairs, each of which says that it is much.

    Student's t says nothing of one pair, and needs far more than a factor of ``much`` to be certain
    of two. The interval is from the lowest end to the highest of the pairs' own intervals, and at
    least as wide as processes differ whose steps vary so much.
    """
    found = [one for x, y in zip(a, b, strict=True) if (one := speed([x], [y]))]
    lows = [one.low for one in found if one.low is not None]
    highs = [one.high for one in found if one.high is not None]
    if not found or len(found) < len(a) or len(lows) < len(found) or min(lows) < much:
        return None
    ratio = math.exp(math.fsum(math.log(one.ratio) for one in found) / len(found))
    factor = math.exp(PROCESSES * math.hypot(_spread(a), _spread(b)))
    lows, highs = [*lows, ratio / factor], [*highs, ratio * factor]
    words = "1 pair of runs" if len(found) == 1 else f"{len(found)} pairs of runs, each by itself"
    return Speed(ratio, min(lows), max(highs), words)


def _spread(runs: Sequence[Entry]) -> float:
    """Return the logarithm of how much longer than the median the slowest steps of runs are."""
    found = [entry.document.get("step_seconds") for entry in runs]
    ends = [
        (number(steps.get("median")), number(steps.get("p95")))
        for steps in found
        if isinstance(steps, dict)
    ]
    return max((math.log(slow / middle) for middle, slow in ends if middle and slow), default=0.0)


def first_look(found: Speed | None) -> Decision:
    """Decide by one run of each, where the difference is clear; "unclear" asks for repeats."""
    if found is None or found.ratio < 1 + WORTH:
        certain = found is not None and found.high is not None and found.high < 1
        return "slower" if certain else "alike"
    return "faster" if found.ratio >= 1 + CLEAR and found.certain else "unclear"


def after_repeats(a: Sequence[Entry], b: Sequence[Entry]) -> Decision:
    """Decide by a few pairs of runs: "faster" where each pair says so, and all together clearly.

    A wrong "faster" costs little, because the winner is compared with the baseline again.
    """
    ratios = [found.ratio for pair in zip(a, b, strict=True) if (found := in_turns(*zip(pair)))]
    if len(ratios) < len(a) or not ratios:
        return "alike"
    average = mean(ratios)
    worth = average is not None and average >= 1 + WORTH
    return "faster" if min(ratios) > 1 and worth else "alike"


@dataclass(frozen=True, slots=True)
class Loss:
    """How much higher the loss of B is than that of A at equal ``unit``, as a share of A's.

    Where A's has fallen below :data:`LEARNT` of its first value, or :data:`BY_HEART` of one batch,
    it is a share of that.
    ``excess`` is None where it is unknown, and ``reason`` says why.
    """

    excess: float | None
    unit: str
    at: float = 0.0
    reason: str = ""

    def within(self, tolerance: float) -> bool:
        """Say whether B learns as well as A. An unknown loss is no reason to doubt it."""
        return self.excess is None or self.excess <= tolerance

    @property
    def text(self) -> str:
        """The excess in words, or why there is none."""
        if self.excess is None or self.reason:
            return self.reason
        return f"its loss is {self.excess:.1%} higher after {self.at:,.0f} {self.unit}"

    def to_mapping(self) -> dict[str, object]:
        return {
            "excess": self.excess,
            "unit": self.unit,
            "compared_up_to": self.at or None,
            "reason": self.reason or None,
        }


def loss(a: Entry, b: Entry, by_step: bool) -> Loss:
    """Compare the losses of two runs with the same seed after the same samples.

    ``by_step``: after as many optimizer steps, for runs whose steps see different numbers of
    samples.
    """
    unit, read = ("steps", loss_by_step) if by_step else ("samples", loss_curve)
    if _see_other_samples(a, b):
        return Loss(None, unit, reason=OTHER_SAMPLES)
    if _diverged(b) and not _diverged(a):
        return Loss(math.inf, unit, reason="its loss is not a finite number")
    one, other = read(a), read(b)
    if not one or not other:
        return Loss(None, unit, reason="a run reports no losses")
    end = min(one[-1][0], other[-1][0])
    begin = end * (1 - 1 / LOSS_SHARE)
    means = [_mean_between(curve, begin, end) for curve in (one, other)]
    if means[0] is None or means[1] is None or means[0] <= 0:
        return Loss(None, unit, reason="the runs have no common range, or a loss of 0 or below")
    learnt = BY_HEART if a.document.get("same_batch") else LEARNT
    whole = max(means[0], learnt * one[0][1])
    return Loss((means[1] - means[0]) / whole, unit, end)


def _see_other_samples(a: Entry, b: Entry) -> bool:
    """Whether the two micro-batches differ and each is drawn once, for all steps."""
    sizes = [
        samples / one.config.accumulate
        for one in (a, b)
        if one.config is not None and (samples := number(one.document.get("samples_per_step")))
    ]
    return len(set(sizes)) > 1 and any(one.document.get("same_batch") for one in (a, b))


def _diverged(entry: Entry) -> bool:
    rows = entry.document.get("unknown")
    return any(
        isinstance(row, dict) and row.get("path") == "loss_last" and row.get("code") == "not_finite"
        for row in (rows if isinstance(rows, list) else [])
    )


def _mean_between(curve: Curve, begin: float, end: float) -> float | None:
    """Return the mean loss from ``begin`` to ``end``, by the trapezoid rule."""
    inside = [point for point in curve if begin <= point[0] <= end]
    if len(inside) < 2:
        return inside[0][1] if inside else None
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(inside))
    return area / (inside[-1][0] - inside[0][0])


def spread(entries: Sequence[Entry], key: str) -> tuple[float, float] | None:
    """Return the lowest and the highest figure of several runs; None of fewer than two."""
    found = [value for one in entries if (value := number(one.document.get(key))) is not None]
    return (min(found), max(found)) if len(found) > 1 else None


def figure(entries: Sequence[Entry], key: str) -> float | None:
    """Return the mean of a figure, as comparisons make it, over the runs that have it.

    None where none has it.
    """
    found = [number(entry.document.get(key)) for entry in entries]
    return mean([value for value in found if value is not None])
