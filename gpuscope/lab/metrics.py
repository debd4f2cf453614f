"""Define what the lab's worker writes to stdout: a JSON object in each line, the document last.

| kind | when | fields |
|---|---|---|
| ``started`` | the model stands on its device | see :class:`Started` |
| ``step`` | after step 1, then at most ``RATE_HZ`` times a second | see :class:`Step` |
| ``ended`` | all steps done, or stopped on request | ``summary``: the document of :func:`document` |
| ``error`` | it could not start or go on | what, why, next: three sentences for a person |

One step is one optimizer step: ``accumulate`` micro-batches. Times are float seconds. Only the
standard library is needed.
"""  # noqa: E501

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

RATE_HZ = 5.0
MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """A run after all defaults were filled in: what it runs on, and how large it is.

    ``config`` contains the preset's batch.
    """

    kind: ClassVar[str] = "started"
    config: dict[str, Any]
    preset: str
    device: str  # cpu or cuda
    device_name: str
    torch_version: str
    parameters: int
    samples_per_step: int
    """The effective batch: micro-batch × accumulation × ranks."""
    warnings: list[str] = field(default_factory=list)
    world_size: int = 1
    backend: str | None = None
    """``nccl`` or ``gloo``; None in a world of one."""
    devices: list[dict[str, Any]] = field(default_factory=list)
    """rank, device (``cpu``, ``cuda:N``), name and uuid of each."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """``python`` and ``cuda``: the versions that run, None without CUDA."""


@dataclass(frozen=True, slots=True)
class Step:
    """The newest step and the speed since the previous record.

    None means that a value was not measured, or is not finite.
    """

    kind: ClassVar[str] = "step"
    step: int
    loss: float | None
    samples_per_second: float | None
    step_seconds: float | None  # median since the previous record
    scale: float | None = None  # of the grad scaler; None without one
    skipped: int = 0  # steps the grad scaler skipped so far
    warming_up: bool = False
    # median wait for the batches of one step, since the previous record
    input_seconds: float | None = None
    validation_loss: float | None = None  # loss of the newest validation
    graphs: int | None = None  # that torch.compile has made so far; None without it
    graph_breaks: int | None = None
    recompiles: int | None = None


@dataclass(frozen=True, slots=True)
class RunEnded:
    kind: ClassVar[str] = "ended"
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The end of a run by an error: what happened, why, and the exact next command.

    ``summary`` is the document as far as it is known.
    """

    kind: ClassVar[str] = "error"
    what: str
    why: str
    next: str
    summary: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what}\nWhy: {self.why}\nNext: {self.next}"


Record = Started | Step | RunEnded | RunFailure
KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in (Started, Step, RunEnded, RunFailure)}


def finite(value: float | None) -> float | None:
    """Return ``value``, or None where it is not a finite number: JSON has no nan."""
    return value if value is not None and math.isfinite(value) else None


def encode(record: Record) -> bytes:
    return json.dumps({"kind": record.kind, **asdict(record)}, allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Record | None:
    """Return the record of one line.

    None for any other line, as of text that the run prints.
    """
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    cls = KINDS.get(str(value.pop("kind", ""))) if isinstance(value, dict) else None
    if cls is None:
        return None
    try:
        return cls(**value)  # type: ignore[no-any-return]
    except TypeError:  # its fields are not those of a record
        return None


# ── the document ──────────────────────────────────────────────────────────────────────────────────

MEASURED = (
    "loss_first", "loss_last", "samples_per_second", "step_seconds", "warmup_seconds",
    "peak_allocated_bytes", "peak_reserved_bytes", "input_seconds", "loss_curve",
    "tensor_active_percent", "ranks",
)  # fmt: skip
"""Keys that every run can measure; null, with a reason, if it did not."""
BY_TOGGLE = (
    "validation_loss", "validation_seconds", "validation_peak_allocated_bytes", "scale", "compile",
    "cache", "same_batch", "convolutions",
)  # fmt: skip
"""Keys that belong to a toggle; null, without a reason, if it is off."""
CURVE_POINTS = 200
"""Most points of ``loss_curve``."""


def document(
    config: dict[str, Any],
    values: dict[str, Any],
    reasons: dict[str, tuple[str, str]],
    *,
    steps: int = 0,
    started: Started | None = None,
    skipped: int = 0,
    error: RunFailure | None = None,
) -> dict[str, Any]:
    """Return the document of ``gpuscope lab --headless --json``, with the same keys in every case.

    ``values`` holds what was measured, by key; every other key of ``MEASURED`` is null, with the
    (code, text) that ``reasons`` gives for it, or for ``""`` as the reason for all that have none
    of their own; a key of ``BY_TOGGLE`` that is null has a reason only where ``reasons`` names it.

    | key | holds |
    |---|---|
    | ``samples_per_step`` | the effective batch: micro-batch × accumulation × ranks |
    | ``step_seconds`` | ``median``, ``p95``, ``count`` of steady steps; ``low``, ``high``: the median's 95 % interval |
    | ``loss_curve`` | ``[samples, loss]`` of at most ``CURVE_POINTS`` steps, evenly spaced |
    | ``input_seconds`` | median wait of a steady step for its batches, with the copy as far as the host waits for it |
    | ``validation_…`` | the last loss; median cost, which is no part of a step; allocated peak of the first one |
    | ``compile`` | ``mode``, ``fullgraph``, ``first_step_seconds``, ``graphs``, ``graph_breaks`` (rows of ``where``,
    ``reason``, ``count``), ``recompiles`` (rows of ``function``, ``reason``, ``count``) |
    | ``cache`` | ``released_bytes`` and ``seconds``: medians over the calls of ``empty_cache()`` |
    | ``same_batch`` | whether a factory's model got the same batch in the first two passes |
    | ``convolutions`` | whether the model has any, so that ``channels_last`` and ``cudnn_benchmark`` can do something |
    | ``ranks`` | ``rank``, ``device``, ``step_seconds`` (median), ``peak_allocated_bytes``, ``peak_reserved_bytes`` |
    | ``tensor_active_percent`` | from the driver: the worker leaves it null |
    """  # noqa: E501
    other = reasons.get("", ("not_measured", "the run ended before this was measured"))
    measured = {key: values.get(key) for key in (*MEASURED, *BY_TOGGLE)}
    unknown = [
        {"path": key, "code": reasons.get(key, other)[0], "reason": reasons.get(key, other)[1]}
        for key, value in measured.items()
        if value is None and (key in MEASURED or key in reasons)
    ]
    if started is None:
        unknown.insert(0, {"path": "device", "code": other[0], "reason": other[1]})
    return {
        "config": started.config if started else config,
        "device": started.device if started else None,
        "device_name": started.device_name if started else None,
        "devices": started.devices if started else [],
        "preset": started.preset if started else None,
        "torch_version": started.torch_version if started else None,
        "environment": started.environment if started else {},
        "parameters": started.parameters if started else None,
        "world_size": started.world_size if started else None,
        "backend": started.backend if started else None,
        "samples_per_step": started.samples_per_step if started else None,
        "steps": steps,
        "skipped_steps": skipped,
        **measured,
        "warnings": started.warnings if started else [],
        "unknown": unknown,
        "error": None
        if error is None
        else {"what": error.what, "why": error.why, "next": error.next},
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of values that need not be sorted and must not be empty.

    It is linear between the closest ranks.
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
