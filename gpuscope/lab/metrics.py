"""What the lab's worker says on its stdout: one JSON object a line, and the document that ends a run.

| kind | when | fields |
|---|---|---|
| ``started`` | the model stands on its device | see :class:`Started` |
| ``step`` | after step 1, then at most ``RATE_HZ`` times a second | see :class:`Step` |
| ``ended`` | all steps done, or stopped on request | ``summary``: the document of :func:`document` |
| ``error`` | it could not start or go on | what, why, next: three sentences for a person |

One step is one optimizer step: ``accumulate`` micro-batches. Times are float seconds. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

RATE_HZ = 5.0
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """The run as it was resolved: ``config`` with the preset's batch filled in, what it runs on, how big it is."""

    kind: ClassVar[str] = "started"
    config: dict[str, Any]
    preset: str
    device: str  # cpu or cuda
    device_name: str
    torch_version: str
    parameters: int
    samples_per_step: int
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """The newest step and the pace since the previous record. ``None``: not measured, or not finite."""

    kind: ClassVar[str] = "step"
    step: int
    loss: float | None
    samples_per_second: float | None
    step_seconds: float | None  # median since the previous record
    scale: float | None = None  # of the grad scaler; None without one
    skipped: int = 0  # steps the grad scaler skipped so far
    warming_up: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    kind: ClassVar[str] = "ended"
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened, why, and the exact next command. ``summary`` is the document as far as it is known."""

    kind: ClassVar[str] = "error"
    what: str
    why: str
    next: str
    summary: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}\nWhy: {self.why}\nNext: {self.next}"


Record = Started | Step | Ended | Failure
KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (Started, Step, Ended, Failure)}


def finite(value: float | None) -> float | None:
    """``value``, or None where it is not a finite number: JSON has no nan."""
    return value if value is not None and math.isfinite(value) else None


def encode(record: Record) -> bytes:
    return json.dumps({"kind": record.kind, **asdict(record)}, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Record | None:
    """The record of one line; None for a line that is none (a newer worker's kind, or a stray print)."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    cls = KINDS.get(str(value.pop("kind", ""))) if isinstance(value, dict) else None
    if cls is None:
        return None
    known = {f.name for f in fields(cls)}
    try:
        return cls(**{name: item for name, item in value.items() if name in known})  # type: ignore[no-any-return]
    except TypeError:  # a field is missing
        return None


# ── the document ──────────────────────────────────────────────────────────────────────────────────────────────────────

MEASURED = (
    "loss_first", "loss_last", "samples_per_second", "step_seconds", "warmup_seconds", "peak_allocated_bytes",
    "peak_reserved_bytes",
)  # fmt: skip


def document(
    config: dict[str, Any],
    values: dict[str, Any],
    reasons: dict[str, tuple[str, str]],
    *,
    steps: int = 0,
    started: Started | None = None,
    skipped: int = 0,
    error: Failure | None = None,
) -> dict[str, Any]:
    """The document of ``gpuscope lab --headless --json``, the same keys whatever happened.

    ``values`` holds what was measured, by key; every other measured key is null, with the (code, text) that ``reasons``
    gives for it, or for ``""`` as the reason for all that have none of their own."""
    other = reasons.get("", ("not_measured", "the run ended before this was measured"))
    measured = {key: values.get(key) for key in MEASURED}
    unknown = [
        {"path": key, "code": reasons.get(key, other)[0], "reason": reasons.get(key, other)[1]}
        for key, value in measured.items()
        if value is None
    ]
    if started is None:
        unknown.insert(0, {"path": "device", "code": other[0], "reason": other[1]})
    return {
        "config": started.config if started else config,
        "device": started.device if started else None,
        "device_name": started.device_name if started else None,
        "preset": started.preset if started else None,
        "torch_version": started.torch_version if started else None,
        "steps": steps,
        "skipped_steps": skipped,
        **measured,
        "warnings": started.warnings if started else [],
        "unknown": unknown,
        "error": None if error is None else {"what": error.what, "why": error.why, "next": error.next},
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the closest ranks; ``values`` need not be sorted and must not be empty."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
