"""The JSON document of ``gpuscope predict``.

Bytes are ints, unknown is null with a row in ``unknown``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..exit_status import ExitStatus
from ..wire.clean import clean
from .answer import Answer, Tried
from .errors import Estimate
from .largest import Largest
from .measured_kernels import measured
from .prediction import Prediction
from .request import CannotPredict, Doubt
from .verdict import FitVerdict

FIGURES = ("peak_allocated", "peak_reserved", "device_peak")
PARTS = ("bytes", "error_percent", "low_bytes", "high_bytes")
"""The parts of each figure: the expected number; the upper side of its error in percent, which is
the lower one too unless a doubt only adds; the least and the most that it may be.
"""
EXIT_CODES = {
    "fits": ExitStatus.OK,
    "too_close": ExitStatus.WARNINGS,
    "does_not_fit": ExitStatus.PROBLEMS,
}


def exit_code(verdict: FitVerdict | None) -> int:
    """Return 0 if it fits, or no card was named; 1 if it is too close; 2 if it does not fit."""
    return ExitStatus.OK if verdict is None else EXIT_CODES[verdict.outcome]


def document(answer: Answer) -> dict[str, Any]:
    prediction = answer.prediction
    result: dict[str, Any] = {
        "model": clean(answer.request.model),
        "request": asdict(answer.request),
    }
    result |= {"batch": answer.batch, "parameters": answer.parameters, "torch": clean(answer.torch)}
    result["kernels_torch"] = measured().torch
    result["allocator_settings"] = answer.settings.text()
    result |= _totals(prediction)
    room = answer.room
    at = answer.peak_at
    result |= {
        "outside": asdict(answer.outside),
        "capacity": None
        if room is None
        else {**asdict(room.card), "limit_bytes": room.limit_bytes},
        "categories": prediction.categories,
        "modules": [
            {"module": clean(name), "bytes": size} for name, size in answer.modules.items()
        ],
        "outside_modules": [
            {"category": category, "operation": clean(operation), "bytes": size}
            for (category, operation), size in answer.outside_modules.items()
        ],
        "peak_at": {
            "step": at.step,
            "phase": at.phase,
            "module": clean(answer.module),
            "operation": clean(answer.operation),
            "event": at.event,
        },
        **_verdict("", answer.verdict),
        **_verdict("now_", answer.verdict_now),
        **_largest("largest_batch", answer.largest),
        **_largest("largest_context", answer.largest_context),
        "what_if": None if answer.what_if is None else [_tried(one) for one in answer.what_if],
        "left_out": [
            {"fix": one.key, "title": clean(one.title), "reason": clean(one.reason)}
            for one in answer.left_out
        ],
        "doubts": [_doubt(one) for one in answer.doubts],
        "seconds": answer.seconds,
        "error": None,
        "unknown": _unknowns(answer),
        "exit_code": exit_code(answer.verdict),
    }
    return result


def failure(model: str, trouble: CannotPredict, seconds: float) -> dict[str, Any]:
    """Return the document of a failure: the same keys, all null, with the reason."""
    what, why, then = (clean(str(word)) for word in trouble.args[:3])
    names = [f"{name}_{part}" for name in FIGURES for part in PARTS]
    names += [
        "categories",
        "modules",
        "outside_modules",
        "peak_at",
        "verdict",
        "largest_batch",
        "largest_context",
        "what_if",
    ]
    return {
        "model": clean(model),
        **dict.fromkeys(names),
        "doubts": [],
        "seconds": round(seconds, 3),
        "error": {"code": trouble.code, "what": what, "why": why, "next": then},
        "unknown": [_unknown(name, trouble.code, f"{what} {why}") for name in names],
        "exit_code": ExitStatus.UNCHECKED,
    }


def _largest(name: str, found: Largest | None) -> dict[str, Any]:
    """Return the keys of a search: the largest number, its range, and whether it was traced."""
    values = (found.batch, found.low, found.high, found.traced) if found else (None,) * 4
    return dict(zip(_parts_of_largest(name), values, strict=True))


def _parts_of_largest(name: str) -> tuple[str, ...]:
    return (name, *(f"{name}_{part}" for part in ("low", "high", "traced")))


def _totals(prediction: Prediction) -> dict[str, Any]:
    return {
        **figure_of("peak_allocated", prediction.allocated),
        **figure_of("peak_reserved", prediction.reserved),
        **figure_of("device_peak", prediction.device),
    }


def figure_of(name: str, figure: Estimate) -> dict[str, Any]:
    """Return a figure under the keys of ``PARTS``."""
    values = (figure.bytes, figure.error_percent, figure.low, figure.high)
    return {f"{name}_{part}": value for part, value in zip(PARTS, values, strict=True)}


def _verdict(prefix: str, judged: FitVerdict | None) -> dict[str, Any]:
    return {
        f"{prefix}verdict": None if judged is None else judged.outcome,
        f"{prefix}spare_bytes": None if judged is None else judged.spare_bytes,
        f"{prefix}retries": None if judged is None else judged.retries,
        f"{prefix}without_scratch": None if judged is None else judged.without_scratch,
    }


def _tried(one: Tried) -> dict[str, Any]:
    return {
        "fix": one.fix.key,
        "title": clean(one.fix.title),
        **_totals(one.prediction),
        "freed_bytes": one.freed_bytes,
        "freed_reserved_bytes": one.freed_reserved_bytes,
        "verdict": None if one.verdict is None else one.verdict.outcome,
        "change": clean(one.fix.change),
        "cost": one.fix.cost,
        "seconds": one.seconds,
    }


def _doubt(one: Doubt) -> dict[str, Any]:
    return {
        "code": one.code,
        "text": clean(one.text),
        "operation": clean(one.operation),
        "percent": one.percent,
        "upward": one.upward,
        "less_percent": one.less_percent,
    }


_TOGETHER = {
    "verdict": ("verdict", "spare_bytes", "retries", "without_scratch", "capacity"),
    "now_verdict": ("now_verdict", "now_spare_bytes", "now_retries", "now_without_scratch"),
    "largest_batch": _parts_of_largest("largest_batch"),
    "largest_context": _parts_of_largest("largest_context"),
}
"""Keys that are unknown for the same reason."""
_NOT_REPLAYED = ("not_needed", "decided by the peaks alone: nothing was replayed against the limit")
_NOBODY = ("not_asked", "the GPU is not in this host, or no process uses it")


def _unknowns(answer: Answer) -> list[dict[str, str]]:
    reasons = dict(answer.why_not)
    if answer.verdict_now is None:
        reasons["now_verdict"] = _NOBODY
    rows = [
        _unknown(key, *why) for name, why in reasons.items() for key in _TOGETHER.get(name, (name,))
    ]
    for key, judged in (("retries", answer.verdict), ("now_retries", answer.verdict_now)):
        if judged is not None and judged.retries is None:
            rows.append(_unknown(key, *_NOT_REPLAYED))
    return rows


def _unknown(path: str, code: str, reason: str) -> dict[str, str]:
    return {"path": path, "code": code, "reason": clean(reason)}
