"""Take what a comparison needs out of a run's document.

The document may come from anywhere, so every value is checked. Only the standard library is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..text.numbers import number, whole
from .ledger import Entry

Document = dict[str, Any]
Median = tuple[float, float, float]
"""A median and the ends of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement of a run, in ``unit``.

    ``better`` is "higher", "lower", or "" if neither is better. ``interval`` returns its spread
    within one run, if the document has it. ``path`` is the document's key whose entry in
    ``unknown`` explains a null.
    """

    key: str
    title: str
    unit: str
    better: str
    take: Callable[[Document], float | None]
    interval: Callable[[Document], Median | None] | None = None
    path: str = ""

    def unknown(self, entry: Entry) -> str:
        """Return why it is null in this entry, in the document's own words."""
        return why(entry, self.path or self.key)


def samples_per_step(document: Document) -> float | None:
    """Return the samples of one step, of all ranks and micro-batches together."""
    value = number(document.get("samples_per_step"))
    return value if value is not None and value > 0 else None


def world_size(document: Document) -> int | None:
    """Return how many processes trained together."""
    return whole(document.get("world_size"), 1)


def why(entry: Entry, key: str) -> str:
    """Return why ``key`` of this entry's document is null."""
    if entry.problem:
        return entry.problem
    rows = entry.document.get("unknown")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("path") == key:
            return str(row.get("reason") or "not recorded")
    return entry.failure or "it was not measured"


def _key(name: str) -> Callable[[Document], float | None]:
    return lambda document: number(document.get(name))


def _step(name: str) -> Callable[[Document], float | None]:
    return lambda document: number(_steps(document).get(name))


def _steps(document: Document) -> dict[str, Any]:
    found = document.get("step_seconds")
    return found if isinstance(found, dict) else {}


def _median(document: Document, share: float = 1.0) -> Median | None:
    middle, low, high = (number(_steps(document).get(key)) for key in ("median", "low", "high"))
    if middle is None or low is None or high is None or not 0 < low <= middle <= high:
        return None
    return middle * share, low * share, high * share


def _per_sample(document: Document) -> float | None:
    median, samples = number(_steps(document).get("median")), samples_per_step(document)
    return median / samples if median is not None and samples else None


def _per_sample_interval(document: Document) -> Median | None:
    samples = samples_per_step(document)
    return _median(document, 1 / samples) if samples else None


PER_SAMPLE = Measure(
    "sample_seconds",
    "median step per sample",
    "s",
    "lower",
    _per_sample,
    _per_sample_interval,
    "step_seconds",
)
"""The only measure of speed that has an interval within one run and is also right if two runs have
different batches.
"""
MEASURES: tuple[Measure, ...] = (
    Measure(
        "samples_per_second", "samples/s, mean", "samples/s", "higher", _key("samples_per_second")
    ),
    Measure("step_seconds", "step, median", "s", "lower", _step("median"), _median),
    Measure("step_p95_seconds", "step, p95", "s", "lower", _step("p95"), path="step_seconds"),
    PER_SAMPLE,
    Measure("warmup_seconds", "warm-up", "s", "lower", _key("warmup_seconds")),
    Measure("input_seconds", "wait for input", "s", "lower", _key("input_seconds")),
    Measure(
        "peak_allocated_bytes", "peak allocated", "bytes", "lower", _key("peak_allocated_bytes")
    ),
    Measure("peak_reserved_bytes", "peak reserved", "bytes", "lower", _key("peak_reserved_bytes")),
    Measure("tensor_active_percent", "tensor share", "%", "higher", _key("tensor_active_percent")),
    Measure("validation_loss", "validation loss", "", "lower", _key("validation_loss")),
)
BY_KEY = {measure.key: measure for measure in MEASURES}
ALWAYS = ("samples_per_second", "step_seconds", "peak_allocated_bytes")
"""Shown also if their values are unknown, with the reason."""


# ── loss ──────────────────────────────────────────────────────────────────────────────────────────

Curve = list[tuple[float, float]]


def loss_curve(entry: Entry) -> Curve:
    """Return (samples seen, loss) in the order of samples.

    Points with values that are not numbers are left out.
    """
    return _points(entry.document.get("loss_curve"))


def loss_by_step(entry: Entry) -> Curve:
    """Return (step, loss), for trainers that do not report samples."""
    direct = _points(entry.document.get("loss_by_step"))
    samples = samples_per_step(entry.document)
    return direct or ([(x / samples, y) for x, y in loss_curve(entry)] if samples else [])


def _points(found: object) -> Curve:
    points = []
    for point in found if isinstance(found, list) else []:
        if isinstance(point, (list, tuple)) and len(point) == 2:
            x, loss = number(point[0]), number(point[1])
            if x is not None and loss is not None:
                points.append((x, loss))
    return sorted(points)


def loss_at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Return the loss at ``x``, interpolated between the neighbouring points.

    None outside of them.
    """
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[0][1] if len(points) == 1 and points[0][0] == x else None
