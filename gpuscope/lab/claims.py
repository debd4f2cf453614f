"""Define claims and read their table, and turn measured figures into a verdict.

A claim names its figures with their thresholds before anything is measured (``claims.toml``). A
figure is measured in repeats, and its 95 % interval is compared with its threshold. If the interval
is wholly inside, the figure holds. If it is wholly outside, the figure does not hold. Anything else
is undecided. A claim holds if every figure that counts holds, and does not hold if one of them does
not. Nothing is measured here, and torch is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from .. import checked_rows
from ..checked_rows import checked
from ..text.units import DASH
from . import intervals
from .config import LabConfig
from .intervals import Interval

Verdict = Literal["holds", "does_not_hold", "undecided", "cannot_be_tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FILE = Path(__file__).with_name("claims.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFigure:
    """One number of a claim with its threshold, both ends included.

    Without a threshold it is only shown. It is the quotient of two measures of cells
    (``CELL.MEASURE``), ``over`` and ``under``, or only ``over``.
    """

    key: str
    title: str
    kind: Literal["ratio", "value"] = "ratio"
    """A ratio is above 0 and averaged geometrically; a value may be anything and is averaged as it
    is.
    """
    over: str
    under: str = ""
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"
    counts: bool = True
    """Whether the claim's verdict depends on this figure.

    If not, it belongs to another statement, and is only shown.
    """
    devices: tuple[str, ...] = ("cuda", "cpu")
    gpus: int = 1

    @property
    def cells(self) -> set[str]:
        """The names of the cells that the figure is computed from."""
        return {measure.partition(".")[0] for measure in (self.over, self.under) if measure}

    @property
    def judged(self) -> bool:
        """Whether it has a threshold."""
        return self.at_least is not None or self.at_most is not None

    @property
    def ends(self) -> dict[str, float | None]:
        """The ends of the threshold, as JSON documents have them."""
        return {"at_least": self.at_least, "at_most": self.at_most}

    @property
    def threshold(self) -> str:
        """The threshold in words, "" without one."""
        low, high = ("" if end is None else self.number(end) for end in self.ends.values())
        if low and high:
            return f"= {low}" if low == high else f"{low} … {high}"
        return f"≥ {low}" if low else f"≤ {high}" if high else ""

    def number(self, value: float) -> str:
        """Return ``value`` with the figure's unit."""
        value = 100 * value if self.unit == "%" else value
        return f"{short(value)} {self.unit}".rstrip()

    def lacks(self, device: str, gpus: int) -> str:
        """Return what the figure needs and this machine lacks, "" if it can be measured."""
        if device not in self.devices:
            return "needs a GPU" if device == "cpu" else "is a claim about CPUs"
        return (
            f"needs {self.gpus} GPUs, {gpus} here" if device == "cuda" and gpus < self.gpus else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement about training that is tested by runs of its cells."""

    id: str
    statement: str
    stated: str
    """The statement, in its author's words, from which the threshold was derived."""
    figures: Mapping[str, ClaimFigure]
    cpu: str = ""
    """What is measured on a CPU, in words; ``cuda`` says it for a GPU if that differs."""
    cuda: str = ""
    cannot_cpu: str = ""
    """Why nothing is measured on a CPU."""
    all: Mapping[str, Any] = field(default_factory=dict)
    """Toggles of every cell; those in ``on_cuda`` take precedence on a GPU."""
    on_cuda: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its runs."""
    gpus: int = 1
    only: str = ""
    """The only type of device that the claim is about. A claim about CPU-only machines is measured
    with every GPU hidden.
    """

    def configuration(self, device: str) -> str:
        """Return what is measured on ``device``, in words; "" where nothing is."""
        if self.only not in ("", device):
            return ""
        return self.cpu if device == "cpu" else self.cuda or self.cpu

    def configs(self, device: str, gpus: int) -> dict[str, LabConfig]:
        """Return the cells that a figure needs here, each with all its toggles."""
        needed = {
            cell
            for figure in self.figures.values()
            if not figure.lacks(device, gpus)
            for cell in figure.cells
        }
        shared = {"device": device, **self.all, **(self.on_cuda if device == "cuda" else {})}
        return {
            name: LabConfig.from_mapping({**shared, **cell})
            for name, cell in self.cells.items()
            if name in needed
        }


@dataclass(slots=True)
class MeasuredFigure:
    """A figure as it was measured. ``verdict`` is None for one that has no threshold."""

    figure: ClaimFigure
    values: list[float | None]
    interval: Interval | None
    """The mean over the repeats; None if no repeat gave a figure."""
    verdict: Verdict | None
    reason: str = ""

    @property
    def why(self) -> str:
        """The reason, with the figure that it is about."""
        return f"{self.figure.title}: {self.reason}"

    def document(self) -> dict[str, Any]:
        """Return what the JSON document says about this figure."""
        figure = self.figure
        mean, low, high = self.interval or (None, None, None)
        return {
            **{name: getattr(figure, name) for name in ("key", "title", "kind", "unit")},
            "threshold": {**figure.ends, "words": figure.threshold},
            "counts": figure.counts and figure.judged,
            "values": self.values,
            "mean": mean,
            "low": low,
            "high": high,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(slots=True)
class ClaimResult:
    """A claim as it was measured on one machine."""

    claim: Claim
    device: str
    verdict: Verdict
    reason: str
    figures: list[MeasuredFigure] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """Other measurements, each with title, value and unit.

    They are shown and do not affect the verdict.
    """
    seconds: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return what the JSON document says about this claim."""
        return {
            **{name: getattr(self.claim, name) for name in ("id", "statement", "stated")},
            "device": self.device,
            "configuration": self.claim.configuration(self.device),
            "verdict": self.verdict,
            "reason": self.reason,
            "figures": [judged.document() for judged in self.figures],
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }


def load(file: Path = FILE) -> dict[str, Claim]:
    """Return all claims by their ids, in the order of the file. Raises TableError."""
    return checked_rows.load(file, "claim", _claim)


def _claim(row: Any) -> Claim:
    values = checked(row, Claim)
    figures = values.pop("figures", {}).items()
    made = {key: ClaimFigure(key=key, **checked(one, ClaimFigure)) for key, one in figures}
    if "cpu" not in values:
        values.setdefault("cannot_cpu", "needs a GPU")
    return Claim(**values, figures=made)


BY_ID = load()
CLAIMS = tuple(BY_ID.values())


def in_words(found: Verdict | None) -> str:
    """Return a verdict as people read it, a dash for None."""
    words = (found or DASH).replace("_", " ")
    return f"{words} here" if found == "cannot_be_tested" else words


def verdict(
    low: float | None, high: float | None, at_least: float | None, at_most: float | None
) -> Verdict:
    """Judge the interval ``low … high`` by a threshold with one or two ends, both included."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "undecided"
    floor = -math.inf if at_least is None else at_least
    ceiling = math.inf if at_most is None else at_most
    if floor <= low and high <= ceiling:
        return "holds"
    return "does_not_hold" if high < floor or low > ceiling else "undecided"


def judge(
    figure: ClaimFigure, values: Sequence[float | None], device: str, gpus: int, nothing: str = ""
) -> MeasuredFigure:
    """Return a figure with its verdict.

    If there are no values, ``nothing`` says why, as far as that is known. A repeat without a figure
    makes the figure undecided, because leaving out failures would bias the result.
    """
    if lacking := figure.lacks(device, gpus):
        found: Verdict | None = "cannot_be_tested" if figure.judged else None
        return MeasuredFigure(figure, [], None, found, lacking)
    least = 0.0 if figure.kind == "ratio" else -math.inf  # a ratio is above 0
    kept = [value if value is not None and least < value < math.inf else None for value in values]
    good = [value for value in kept if value is not None]
    mean_of = intervals.of_ratios if figure.kind == "ratio" else intervals.of_mean
    mean = mean_of(good) if good else None
    if not figure.judged:
        return MeasuredFigure(figure, kept, mean, None, "" if good else nothing or "not measured")
    found, reason = "undecided", "the interval includes the threshold"
    if not values:
        reason = nothing or "not measured"
    elif len(good) < len(kept):
        reason = f"{len(kept) - len(good)} of {len(kept)} repeats gave no figure"
    elif len(good) < 2:
        reason = "one repeat shows no spread"
    elif mean is not None:
        found = verdict(mean.low, mean.high, figure.at_least, figure.at_most)
    return MeasuredFigure(figure, kept, mean, found, reason if found == "undecided" else "")


def conclude(figures: Sequence[MeasuredFigure]) -> tuple[Verdict, str]:
    """Return the claim's verdict, and a note if it is neither "holds" nor "does not hold"."""
    counting = [judged for judged in figures if judged.figure.counts and judged.figure.judged]
    tested = [judged for judged in counting if judged.verdict != "cannot_be_tested"]
    missing = "; ".join(judged.why for judged in counting if judged not in tested)
    if not tested:
        return "cannot_be_tested", missing
    rest = f"in part: {missing}" if missing else ""
    if any(judged.verdict == "does_not_hold" for judged in tested):
        return "does_not_hold", rest
    open_ones = [judged for judged in tested if judged.verdict == "undecided"]
    if not open_ones:
        return "holds", rest
    why = list(dict.fromkeys(judged.reason for judged in open_ones))
    if len(why) > 1 or len(open_ones) < len(tested):
        why = [judged.why for judged in open_ones]
    return "undecided", "; ".join(why)


def short(value: float) -> str:
    """Return four significant digits, without an exponent as long as that is readable."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"
