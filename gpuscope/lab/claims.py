"""What a claim is, and when it holds. No measuring here and no torch: the rule that turns figures into a verdict.

A claim names its figures with their thresholds before anything is measured (``claims.toml``). A figure is measured in
repeats; its 95 % interval against its threshold decides: wholly inside holds, wholly outside does not hold, anything
else is undecided. A claim holds where every figure that counts holds, and does not hold where one of them does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from . import intervals
from .config import LabConfig

Verdict = Literal["holds", "does_not_hold", "undecided", "cannot_be_tested"]
WORDS: dict[str, str] = {
    "holds": "holds",
    "does_not_hold": "does not hold",
    "undecided": "undecided",
    "cannot_be_tested": "cannot be tested here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a claim with its threshold, both ends included. Without a threshold it is only shown.

    ``kind``: a *ratio* is above 0 and averaged geometrically; a *value* may be anything and is averaged as it is.
    ``over`` and ``under`` are measures of cells (``CELL.MEASURE``) whose quotient it is; a loop gives it by its key.
    """

    key: str
    title: str
    kind: Literal["ratio", "value"] = "ratio"
    over: str = ""
    under: str = ""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"
    counts: bool = True
    """Whether the claim's verdict rests on it; if not, it is measured against another statement, and only shown."""
    devices: tuple[str, ...] = ("cuda", "cpu")
    gpus: int = 1

    @property
    def cells(self) -> set[str]:
        """The names of the cells that it is made from."""
        return {measure.partition(".")[0] for measure in (self.over, self.under) if measure}

    @property
    def judged(self) -> bool:
        """Whether there is a threshold at all."""
        return self.at_least is not None or self.at_most is not None

    @property
    def threshold(self) -> str:
        """The threshold in words, "" without one."""
        low, high = self.at_least, self.at_most
        if low is not None and high is not None:
            return f"= {self.number(low)}" if low == high else f"{self.number(low)} … {self.number(high)}"
        if low is not None:
            return f"≥ {self.number(low)}"
        return f"≤ {self.number(high)}" if high is not None else ""

    def number(self, value: float) -> str:
        """``value`` with the figure's unit."""
        if self.unit == "%":
            return f"{short(100 * value)} %"
        return f"{short(value)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement about training, and how it is put to the test: by ``cells``, or by a loop of its own.

    ``cpu`` and ``cuda`` say in words what is measured there, ``cannot_cpu`` why it means nothing on a CPU. ``only`` is
    the one type of device it is about, if any: a statement on CPU-only machines is measured with every GPU hidden."""

    id: str
    statement: str
    stated: str
    """In whose words: what the threshold was made from."""
    figures: tuple[Figure, ...]
    cpu: str = ""
    cuda: str = ""
    cannot_cpu: str = ""
    all: Mapping[str, Any] = field(default_factory=dict)
    """Toggles of every cell; ``on_cuda`` comes over them where it is measured on a GPU."""
    on_cuda: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its runs are started with."""
    loop: str = ""
    gpus: int = 1
    only: str = ""

    def device(self, machine: str) -> str:
        """The type of device it is measured on, on a machine whose device is ``machine`` (``cpu`` or ``cuda``)."""
        return self.only or machine

    def configuration(self, device: str) -> str:
        """What is measured on ``device``, in words; "" where nothing is."""
        return self.cuda if device == "cuda" else self.cpu

    def configs(self, device: str, gpus: int) -> dict[str, LabConfig]:
        """The cells that a figure needs on ``device`` with so many GPUs, each with all its toggles."""
        figures = [one for one in self.figures if device in one.devices and (device == "cpu" or gpus >= one.gpus)]
        needed = set().union(*(figure.cells for figure in figures)) if figures else set()
        whole = {"device": device, **self.all, **(self.on_cuda if device == "cuda" else {})}
        return {name: LabConfig.from_mapping({**whole, **self.cells[name]}) for name in self.cells if name in needed}


class Estimate(NamedTuple):
    """A figure's mean over its repeats and the 95 % interval of it; None where the repeats do not give one."""

    mean: float | None
    low: float | None
    high: float | None


@dataclass(slots=True)
class Judged:
    """A figure as measured. ``verdict`` is None for one that has no threshold."""

    figure: Figure
    values: list[float | None]
    estimate: Estimate
    verdict: Verdict | None
    reason: str = ""

    def document(self) -> dict[str, Any]:
        figure = self.figure
        return {
            "key": figure.key,
            "title": figure.title,
            "kind": figure.kind,
            "unit": figure.unit,
            "threshold": {"at_least": figure.at_least, "at_most": figure.at_most, "words": figure.threshold},
            "counts": figure.counts and figure.judged,
            "values": self.values,
            "mean": self.estimate.mean,
            "low": self.estimate.low,
            "high": self.estimate.high,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Note:
    """Something else the measure found: shown with the claim, judged by nothing."""

    title: str
    value: float | str | None
    unit: str = ""


@dataclass(slots=True)
class Result:
    """A claim as measured on one machine."""

    claim: Claim
    device: str
    configuration: str
    verdict: Verdict
    reason: str
    figures: list[Judged]
    notes: list[Note]
    seconds: float

    def document(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "statement": self.claim.statement,
            "stated": self.claim.stated,
            "device": self.device,
            "configuration": self.configuration,
            "verdict": self.verdict,
            "reason": self.reason,
            "figures": [judged.document() for judged in self.figures],
            "notes": [{"title": note.title, "value": note.value, "unit": note.unit} for note in self.notes],
            "seconds": round(self.seconds, 3),
        }


# ── the rule ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def estimate(values: Sequence[float], kind: str) -> Estimate:
    """Mean and 95 % interval (Student's t) of finite ``values``, of their logarithms where they are ratios."""
    if not values:
        return Estimate(None, None, None)
    if kind == "ratio":
        return Estimate(*intervals.paired([1.0] * len(values), values))
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    error = intervals.t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - error, mean + error)


def verdict(low: float | None, high: float | None, at_least: float | None, at_most: float | None) -> Verdict:
    """The interval ``low … high`` against a threshold with one or two ends, both included."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "undecided"
    floor = -math.inf if at_least is None else at_least
    ceiling = math.inf if at_most is None else at_most
    if floor <= low and high <= ceiling:
        return "holds"
    if high < floor or low > ceiling:
        return "does_not_hold"
    return "undecided"


def usable(value: float | None, kind: str) -> bool:
    """Whether a repeat gave a figure: a finite number, above 0 where it is a ratio."""
    return value is not None and math.isfinite(value) and (kind != "ratio" or value > 0)


def judge(figure: Figure, values: Sequence[float | None], device: str, gpus: int, nothing: str = "") -> Judged:
    """A figure with its verdict. ``nothing`` is why there are no values, where something is known about that. A repeat
    without a figure leaves it undecided: leaving out what went wrong would pick what is measured."""
    kept = [value if usable(value, figure.kind) else None for value in values]
    good = [value for value in kept if value is not None]
    if device not in figure.devices:
        reason = "needs a CUDA device" if device == "cpu" else "is about CPUs"
        return Judged(figure, [], Estimate(None, None, None), "cannot_be_tested" if figure.judged else None, reason)
    if device == "cuda" and gpus < figure.gpus:
        reason = f"needs {figure.gpus} GPUs, {gpus} here"
        return Judged(figure, [], Estimate(None, None, None), "cannot_be_tested" if figure.judged else None, reason)
    found = estimate(good, figure.kind)
    if not figure.judged:
        return Judged(figure, kept, found, None, "" if good else nothing or "not measured")
    if not values:
        return Judged(figure, kept, found, "undecided", nothing or "not measured")
    if len(good) < len(kept):
        return Judged(
            figure, kept, found, "undecided", f"{len(kept) - len(good)} of {len(kept)} repeats gave no figure"
        )
    if len(good) < 2:
        return Judged(figure, kept, found, "undecided", "one repeat shows no spread")
    decided = verdict(found.low, found.high, figure.at_least, figure.at_most)
    reason = "the interval lies across the threshold" if decided == "undecided" else ""
    return Judged(figure, kept, found, decided, reason)


def conclude(figures: Sequence[Judged]) -> tuple[Verdict, str]:
    """The claim's verdict from its figures, and why it is not plainly one of holds and does not hold."""
    counting = [judged for judged in figures if judged.figure.counts and judged.figure.judged]
    tested = [judged for judged in counting if judged.verdict != "cannot_be_tested"]
    missing = [f"{judged.figure.title}: {judged.reason}" for judged in counting if judged.verdict == "cannot_be_tested"]
    rest = f"in part: {'; '.join(missing)}" if missing else ""
    if not tested:
        return "cannot_be_tested", "; ".join(missing)
    if any(judged.verdict == "does_not_hold" for judged in tested):
        return "does_not_hold", rest
    open_ones = [judged for judged in tested if judged.verdict == "undecided"]
    if open_ones:
        why = list(dict.fromkeys(judged.reason for judged in open_ones))
        if len(why) > 1 or len(open_ones) < len(tested):
            why = [f"{judged.figure.title}: {judged.reason}" for judged in open_ones]
        return "undecided", "; ".join(why)
    return "holds", rest


def short(value: float) -> str:
    """Four significant digits without zeros at the end, without an exponent where that stays readable."""
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if size < 1e-4 or size >= 1e6:
        return f"{value:.2e}"
    digits = max(0, 3 - math.floor(math.log10(size)))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
