"""Compare A with B: ratios with their intervals, and the settings that differ.

Each side is one run, or the repeats of one configuration. Every ratio is B over A. Only the
standard library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import intervals
from .comparison_row import LEAST_LOSS_DIFFERENCE, SINGLE, WITHIN, ComparisonRow
from .config import LabConfig
from .intervals import Interval
from .ledger import Entry
from .measures import (
    ALWAYS,
    MEASURES,
    PER_SAMPLE,
    Curve,
    Measure,
    loss_at,
    loss_by_step,
    loss_curve,
    samples_per_step,
    why,
    world_size,
)
from .toggles import BY_NAME


@dataclass(frozen=True, slots=True)
class Change:
    """A toggle in which the two sides differ, in words.

    If ``toggle`` is false, it is a difference of the surroundings.
    """

    name: str
    a: str
    b: str
    toggle: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two sides.

    ``break_even_step`` is the number of steps after which a compiled run has made up for its longer
    warm-up. If it is None, ``break_even_reason`` says why.
    """

    a: list[Entry]
    b: list[Entry]
    changes: list[Change]
    rows: list[ComparisonRow]
    break_even_step: int | None
    break_even_reason: str
    notes: list[str] = field(default_factory=list)
    apart: str = ""
    """Both models and devices where one of them differs, so that no row says what is better."""
    paired: int = 0
    """How many interleaved pairs the ratios are of; where there are any, other repeats are left
    out.
    """
    cut_short: list[str] = field(default_factory=list)
    """Those of ``notes`` that tell of runs which ended before all of their steps."""

    def row(self, key: str) -> ComparisonRow | None:
        return next((row for row in self.rows if row.key == key), None)


def compare(a: Sequence[Entry], b: Sequence[Entry]) -> Comparison:
    """Compare two sides of one entry or more each. Raises ValueError for an empty side.

    Runs that ended before all of their steps are left out, with a note, unless there are only such
    runs: they say little about speed.
    """
    if not a or not b:
        raise ValueError("nothing to compare: each side needs a run")
    left, right = (
        [entry for entry in side if not entry.cut_short] or list(side) for side in (a, b)
    )
    rows = [_row(measure, left, right) for measure in MEASURES]
    rows = [row for row in rows if row.a is not None or row.b is not None or row.key in ALWAYS]
    if _different_samples(left, right):  # a longer step with more samples is not worse
        rows = [replace(row, better="") if row.key in _OF_A_STEP else row for row in rows]
    rows += [_loss(left, right), *_efficiency(left, right)]
    if apart := _apart(left[0], right[0]):
        rows = [replace(row, better="") for row in rows]
    pairs = _pairs(left, right)
    first = pairs[0] if pairs else (left[0], right[0])  # repeats have seeds of their own
    changes = differences(*first)
    step, reason = _break_even(left, right, rows, changes)
    early = _cut_short((a, b), (left, right))
    return Comparison(
        left,
        right,
        changes,
        rows,
        step,
        reason,
        _notes((left, right), changes, rows, apart, early),
        apart,
        len(pairs),
        early,
    )


def kind_of(entry: Entry) -> tuple[str, str, LabConfig] | None:
    """Return model, device and all other settings of a run, None where one of them is unknown.

    Two runs can be compared where the first two are the same, and there is something to compare
    where the third is not.
    """
    model, device = model_of(entry), _device(entry)
    if entry.config is None or not model or not device:
        return None
    plain = LabConfig()
    alike = replace(entry.config, model=plain.model, device=plain.device, steps=plain.steps)
    return model, device, alike


def _apart(a: Entry, b: Entry) -> str:
    """Return ``gpt-tiny on CPU, gpt-small on H200`` where model or device differ, else ""."""
    models = [model_of(side) for side in (a, b)]
    devices = [_device(side) for side in (a, b)]
    if not any(None not in pair and pair[0] != pair[1] for pair in (models, devices)):
        return ""
    pairs = zip(models, devices, strict=True)
    return ", ".join(f"{m or 'unknown model'} on {d or 'unknown device'}" for m, d in pairs)


def _device(side: Entry) -> str | None:
    """Return what a side was trained on, CPUs without their names."""
    if side.device == "cpu":
        return "CPU"
    return side.device_name.removeprefix("NVIDIA ") if side.device_name else None


_OF_A_STEP = ("step_seconds", "step_p95_seconds", "warmup_seconds", "input_seconds")


def _different_samples(a: list[Entry], b: list[Entry]) -> bool:
    """Whether both sides report how many samples a step has, and the numbers differ."""
    samples = [samples_per_step(side[0].document) for side in (a, b)]
    return None not in samples and samples[0] != samples[1]


# ── ratios ────────────────────────────────────────────────────────────────────────────────────────

_Values = Mapping[int, float | None]
"""Values by ``id()`` of the entry."""
_Figures = tuple[float | None, float | None]
_Ratio = tuple[float | None, float | None, float | None]
_NO_RATIO: _Ratio = (None, None, None)


def _row(measure: Measure, a: list[Entry], b: list[Entry]) -> ComparisonRow:
    of_a, of_b = ({id(entry): measure.take(entry.document) for entry in side} for side in (a, b))
    interval, basis, shown = _ratio(a, b, of_a, of_b, measure)
    reason = ""
    if interval is None:
        missing = next((pair for pair in (("A", a, of_a), ("B", b, of_b)) if _none(pair[2])), None)
        reason = (
            f"{missing[0]}: {measure.unknown(missing[1][0])}"
            if missing
            else "one of them is 0: no ratio"
        )
    found: _Ratio = interval or _NO_RATIO
    named = measure.key, measure.title, measure.unit
    return ComparisonRow(*named, *shown, *found, basis, measure.better, reason)


def _none(values: _Values) -> bool:
    return all(value is None for value in values.values())


def _ratio(
    a: list[Entry], b: list[Entry], of_a: _Values, of_b: _Values, measure: Measure | None = None
) -> tuple[Interval | None, str, _Figures]:
    """Return the ratio, its basis, and the values to show for a and b."""
    pairs = [
        (x, y) for x, y in _pairs(a, b) if (of_a[id(x)] or 0.0) > 0 and (of_b[id(y)] or 0.0) > 0
    ]
    if pairs:  # repeats that only one side has (so far) are left out
        a, b = [x for x, _ in pairs], [y for _, y in pairs]
        of_a, of_b = {id(x): of_a[id(x)] for x in a}, {id(y): of_b[id(y)] for y in b}
    if len(pairs) >= 2:
        xs, ys = [of_a[id(x)] or 0.0 for x in a], [of_b[id(y)] or 0.0 for y in b]
        return intervals.paired(xs, ys), f"{len(pairs)} interleaved repeats", (mean(xs), mean(ys))
    xs, ys = ([value for value in values.values() if value is not None] for values in (of_a, of_b))
    shown = (mean(xs), mean(ys))
    if not xs or not ys or min(*xs, *ys) <= 0:
        return None, "", shown
    if min(len(xs), len(ys)) >= 2:
        return intervals.separate(xs, ys), f"{len(xs)} and {len(ys)} separate runs", shown
    if measure and measure.interval and len(a) == len(b) == 1:
        of_left, of_right = measure.interval(a[0].document), measure.interval(b[0].document)
        if of_left and of_right:
            return intervals.of_medians(of_left, of_right), WITHIN, shown
    return intervals.separate(xs, ys), SINGLE, shown


def _pairs(a: list[Entry], b: list[Entry]) -> list[tuple[Entry, Entry]]:
    """Return pairs of runs that were interleaved: the same repeat of the same group."""
    theirs = {(entry.group, entry.repeat): entry for entry in b if entry.group}
    return [
        (entry, theirs[entry.group, entry.repeat])
        for entry in a
        if (entry.group, entry.repeat) in theirs
    ]


def mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean of the values; the arithmetic mean if one of them is not above 0.

    With geometric means, the ratio of two means is the mean of the ratios.
    """
    if len(values) < 2:
        return values[0] if values else None
    if min(values) > 0:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


# ── loss ──────────────────────────────────────────────────────────────────────────────────────────


def _loss(a: list[Entry], b: list[Entry]) -> ComparisonRow:
    """Return the row of the loss after as many samples as the shortest run has seen.

    If a trainer does not report its samples, it is the loss after as many steps.
    """
    for unit, read in (("samples", loss_curve), ("steps", loss_by_step)):
        curves: dict[int, Curve] = {id(entry): read(entry) for entry in (*a, *b)}
        if all(any(curves[id(entry)] for entry in side) for side in (a, b)):
            return _loss_after(a, b, curves, unit)
    letter, side = next(
        ((name, side) for name, side in (("A", a), ("B", b)) if not _has_loss(side)), ("A", a)
    )
    key = "loss_by_step" if "loss_by_step" in side[0].document else "loss_curve"
    reason = f"{letter}: {why(side[0], key)}"
    return ComparisonRow(
        "loss", "loss at equal samples", "", None, None, better="lower", reason=reason
    )


def _has_loss(side: list[Entry]) -> bool:
    return any(loss_curve(entry) or loss_by_step(entry) for entry in side)


def _loss_after(
    a: list[Entry], b: list[Entry], curves: dict[int, Curve], unit: str
) -> ComparisonRow:
    at = min(points[-1][0] for points in curves.values() if points)
    of_a, of_b = ({id(entry): loss_at(curves[id(entry)], at) for entry in side} for side in (a, b))
    interval, basis, shown = _ratio(a, b, of_a, of_b)
    reason = ""
    if interval is None:
        short = None in shown
        reason = f"they share no number of {unit}" if short else "a loss of 0 or below has no ratio"
    title = f"loss after {at:,.0f} {unit}"
    found: _Ratio = interval or _NO_RATIO
    least = max(LEAST_LOSS_DIFFERENCE, _scatter(of_a), _scatter(of_b))
    return ComparisonRow("loss", title, "", *shown, *found, basis, "lower", reason, least)


def _scatter(losses: _Values) -> float:
    """Return how far the losses of one configuration lie apart by their seeds alone.

    It is the standard deviation of their logarithms, so a share; 0 for a single run.
    """
    return intervals.scatter([loss for loss in losses.values() if loss is not None and loss > 0])


# ── scaling, and the price of compiling ───────────────────────────────────────────────────────────


def _efficiency(a: list[Entry], b: list[Entry]) -> list[ComparisonRow]:
    """Return the scaling efficiency of B against A, which has fewer processes; 1 is linear scaling.

    At the same micro-batch this is weak scaling, at the same effective batch strong scaling. For
    other combinations it would say nothing.
    """
    worlds = world_size(a[0].document), world_size(b[0].document)
    if (
        worlds[0] is None
        or worlds[1] is None
        or worlds[0] == worlds[1]
        or model_of(a[0]) != model_of(b[0])
    ):
        return []
    shapes = [
        (e.config.batch, e.config.accumulate) if e.config and e.config.batch else None
        for e in (a[0], b[0])
    ]
    effective = [samples_per_step(side[0].document) for side in (a, b)]
    if shapes[0] is not None and shapes[0] == shapes[1]:
        kind = "weak scaling"
    elif effective[0] is not None and effective[0] == effective[1]:
        kind = "strong scaling"
    else:
        return []
    title = f"efficiency, {kind} {worlds[0]} → {worlds[1]}"
    row = _row(PER_SAMPLE, a, b)
    if row.ratio is None:
        return [
            ComparisonRow("efficiency", title, "", None, None, better="higher", reason=row.reason)
        ]
    share = worlds[0] / worlds[1]
    low, high = (share / bound if bound else None for bound in (row.high, row.low))
    return [
        ComparisonRow(
            "efficiency",
            title,
            "",
            1.0,
            share / row.ratio,
            share / row.ratio,
            low,
            high,
            row.basis,
            "higher",
        )
    ]


def model_of(entry: Entry) -> str | None:
    """Return what was trained; None if it is not known.

    It is the preset that a family's name meant, or a user's own model.
    """
    preset = entry.document.get("preset")
    return str(preset) if preset else entry.config.model if entry.config else None


def _break_even(
    a: list[Entry], b: list[Entry], rows: list[ComparisonRow], changes: list[Change]
) -> tuple[int | None, str]:
    """Return after how many steps compiling has paid off, or why that is not known.

    It is (additional seconds of warm-up) / (seconds saved in each step).
    """
    compiled = [bool(side[0].config and side[0].config.compile != "off") for side in (a, b)]
    if compiled[0] == compiled[1]:
        return None, "both are compiled" if compiled[0] else "neither is compiled"
    found = {row.key: row for row in rows}
    step, warm = found.get("step_seconds"), found.get("warmup_seconds")
    if (
        step is None
        or step.a is None
        or step.b is None
        or warm is None
        or warm.a is None
        or warm.b is None
    ):
        return None, "a median step or a warm-up is unknown"
    if samples_per_step(a[0].document) != samples_per_step(b[0].document):
        return None, "their steps have different numbers of samples"
    gained, longer = (
        (step.a - step.b, warm.b - warm.a) if compiled[1] else (step.b - step.a, warm.a - warm.b)
    )
    if not step.decided:
        why = "includes 1" if step.low is not None else "is unknown"
        return None, f"whether compiled is faster is undecided: the step's interval {why}"
    if gained <= 0:
        others = [c.name.replace("_", " ") for c in changes if _may_be_why(c)]
        if others:
            return None, f"slower, but compile is not all that differs: {', '.join(others)}"
        return None, "compiled is not faster: it never makes up for its warm-up"
    return max(0, math.ceil(longer / gained)), ""


def _may_be_why(change: Change) -> bool:
    """Whether a difference other than compiling may make a training slower."""
    if change.toggle:
        return change.name not in ("compile", "fullgraph", "seed", "steps")
    return change.name in _SURROUNDINGS or change.name in _LOUD


# ── what differs ──────────────────────────────────────────────────────────────────────────────────

_SURROUNDINGS = ("device", "device_name", "torch_version", "world_size", "backend")
_LOUD = {
    "device": "different kinds of device: {a} and {b}",
    "device_name": "different devices: {a} and {b}",
    "torch_version": "different torch: {a} and {b}",
    "driver": "different drivers: {a} and {b}",
    "cuda": "different CUDA: {a} and {b}",
    "host": "different hosts: {a} and {b}",
}


def differences(left: Entry, right: Entry) -> list[Change]:
    """Return what differs: toggles first, in their order, then the surroundings."""
    changes = []
    if left.config and right.config:
        for name, toggle in BY_NAME.items():
            x, y = getattr(left.config, name), getattr(right.config, name)
            models = (model_of(left), model_of(right))
            if name == "model" and None not in models:
                # the name of a family stands for one of its models, which depends on the device
                if models[0] != models[1]:
                    changes.append(Change(name, str(models[0]), str(models[1]), True))
            elif name == "device" and None not in (left.device, right.device):
                # "auto" stands for a device: what differs is told with the surroundings
                if x != y and left.device != right.device:
                    changes.append(Change(name, toggle.text(x), toggle.text(y), True))
            elif x != y:
                changes.append(Change(name, toggle.text(x), toggle.text(y), True))
    around = [
        {**side.environment, **{name: side.document.get(name) for name in _SURROUNDINGS}}
        for side in (left, right)
    ]
    for name in (*_SURROUNDINGS, *sorted(left.environment.keys() & right.environment.keys())):
        x, y = around[0].get(name), around[1].get(name)
        if (
            x is not None
            and y is not None
            and x != y
            and name not in [change.name for change in changes]
        ):
            changes.append(Change(name, str(x), str(y), False))
    return changes


def _cut_short(given: Sequence[Sequence[Entry]], used: Sequence[list[Entry]]) -> list[str]:
    """Return a note for each side with runs that ended before all of their steps."""
    notes = []
    for letter, side, kept in zip("AB", given, used, strict=True):
        early = [entry for entry in side if entry.cut_short]
        if not early:
            continue
        how = early[0].cut_short + (f": {early[0].failure}" if early[0].failure else "")
        if len(side) == 1:
            notes.append(f"{letter} {how}")
        else:
            left_out = "" if len(kept) == len(side) else " (left out)"
            notes.append(f"{letter}: {len(early)} of {len(side)} runs ended early{left_out}: {how}")
    return notes


def _notes(
    used: Sequence[list[Entry]],
    changes: list[Change],
    rows: list[ComparisonRow],
    apart: str,
    cut_short: list[str],
) -> list[str]:
    notes = [*cut_short, *([f"not comparable: {apart}"] if apart else [])]
    notes += [
        _LOUD[c.name].format(a=c.a, b=c.b) for c in changes if c.name in _LOUD and not c.toggle
    ]
    for letter, kept in zip("AB", used, strict=True):
        if len({entry.torch_version for entry in kept}) > 1:
            notes.append(f"{letter}: its runs used different torch versions")
        if kept[0].source == "recording":
            notes.append(
                f"{letter} is a recording: its settings are unknown, so differences are not listed"
            )
        elif any(entry.config is None for entry in kept):
            notes.append(
                f"{letter}: this gpuscope does not know its settings, so the differences are "
                f"unknown"
            )
    if _different_samples(*used):
        samples = [samples_per_step(side[0].document) or 0 for side in used]
        notes.append(
            f"a step has {samples[0]:,.0f} and {samples[1]:,.0f} samples: compare samples/s"
        )
    bases = {row.basis for row in rows if row.basis}
    noisy = next((row for row in rows if row.wide and row.basis not in (WITHIN, SINGLE)), None)
    if noisy is not None and noisy.ratio is not None:
        runs = len(_pairs(*used)) or min(map(len, used))
        interval = Interval(noisy.ratio, noisy.low, noisy.high)
        wanted = intervals.repeats_wanted(interval, runs)
        enough = f"{wanted} repeats may be enough, or" if wanted else "repeats hardly help, but"
        notes.append(f"too noisy: {enough} a machine that does nothing else")
    if WITHIN in bases:
        notes.append("95 % interval: noise between steps of one run, not between runs")
    elif bases == {SINGLE}:
        once = [letter for letter, kept in zip("AB", used, strict=True) if len(kept) == 1]
        who = " and ".join(once)
        notes.append(f"{who} ran only once: the noise between runs is unknown")
    if bases <= {WITHIN, SINGLE} and all(side[0].source != "recording" for side in used):
        notes.append(
            "interleaved repeats cover it: gpuscope lab sweep --repeats 5 --vary TOGGLE=A,B"
        )
    return notes
