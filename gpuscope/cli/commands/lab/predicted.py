"""``gpuscope lab --headless --predict`` says what the run should have needed on a GPU."""

from __future__ import annotations

from typing import Any

from ....lab.config import LabConfig
from ....text.units import bytes_text

SECONDS = 120.0


def with_prediction(document: dict[str, Any], config: LabConfig) -> dict[str, Any]:
    """Return the document with ``predicted``, or with null and a reason.

    It has the predicted peaks with errors and bounds, and how far the measured peaks are from them.
    It is computed after the run, so that it does not disturb the measurement.
    """
    from ....predict.answer import REFERENCE, TracedRequest, Tracer
    from ....predict.child import Tracer as Child
    from ....predict.document import figure_of
    from ....predict.from_lab_config import request_of, settings_of
    from ....predict.request import CannotPredict

    request = request_of(config, REFERENCE.architecture, document.get("world_size") or 2)
    with Child() as child:
        tracer: Tracer = lambda request: child.trace(request, SECONDS)  # noqa: E731
        try:
            answer = TracedRequest(request, tracer, None, settings_of(config), SECONDS).finish()
        except CannotPredict as trouble:
            reason = " ".join(str(word) for word in trouble.args[:2])
            row = {"path": "predicted", "code": trouble.code, "reason": reason}
            return {**document, "predicted": None, "unknown": [*document.get("unknown", []), row]}
    totals = answer.prediction
    found: dict[str, Any] = {"seconds": answer.seconds}
    for name, figure in (("peak_allocated", totals.allocated), ("peak_reserved", totals.reserved)):
        measured = document.get(f"{name}_bytes")
        found |= figure_of(name, figure)
        if isinstance(measured, (int, float)) and measured > 0:
            found[f"{name}_off_percent"] = round(100 * (figure.bytes / measured - 1), 2)
    return {**document, "predicted": found}


def in_words(document: dict[str, Any]) -> str:
    """Return one line with the prediction, to print with the measured peak."""
    found = document.get("predicted")
    if not found:
        why = next(
            (row["reason"] for row in document["unknown"] if row["path"] == "predicted"),
            "unknown",
        )
        return f"predicted     unknown, {why}"
    size, low, high = (
        bytes_text(found[f"peak_allocated_{part}bytes"]) for part in ("", "low_", "high_")
    )
    text = f"{size} ({low} to {high}) allocated"
    off = found.get("peak_allocated_off_percent")
    return f"predicted     {text}" + (f", {off:+.1f} % off" if off is not None else " on a GPU")
