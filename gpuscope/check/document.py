"""The JSON document of ``gpuscope check``: bytes are ints, and what is not known is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..predict.document import FIGURES, PARTS, figure_of
from ..predict.measured_kernels import measured
from ..wire.clean import clean
from .outcome import BaselineChange, Checked, Outcome, ScriptFinding


def document(checked: Checked, code: int) -> dict[str, Any]:
    return {
        "file": clean(str(checked.configuration.file)),
        "trainings": [_training(one) for one in checked.outcomes],
        "scripts": [_finding(one) for one in checked.findings],
        "problems": [{"severity": "unchecked", "reason": text} for text in checked.problems],
        "updated": checked.updated or None,
        "seconds": checked.seconds,
        "exit_code": code,
    }


def _training(outcome: Outcome) -> dict[str, Any]:
    training, found = outcome.training, outcome.predicted
    figures: dict[str, Any] = {}
    if found is None:
        figures = {f"{name}_{part}": None for name in FIGURES for part in PARTS}
    else:
        prediction = found.answer.prediction
        for name, figure in zip(
            FIGURES, (prediction.allocated, prediction.reserved, prediction.device), strict=True
        ):
            figures |= figure_of(name, figure)
    return {
        "name": clean(training.name),
        "model": clean(training.model),
        "switches": dict(training.switches),
        "card": training.card.name if training.card else None,
        "torch": found.torch if found else None,
        "kernels_torch": measured().torch if found else None,
        **figures,
        "verdicts": [asdict(one) | {"next": one.next or None} for one in outcome.verdicts],
        "change": _change(outcome.change) if outcome.change else None,
        "seconds": outcome.seconds,
    }


def _change(change: BaselineChange) -> dict[str, Any]:
    return {
        "since": change.since,
        "before_bytes": change.before_bytes,
        "after_bytes": change.after_bytes,
        "modules": [
            {
                "module": clean(part.module),
                "category": part.category or None,
                "before_bytes": part.before_bytes,
                "after_bytes": part.after_bytes,
            }
            for part in change.parts
        ],
        "lines": [
            {
                "file": clean(one.file),
                "line": one.line,
                "text": clean(one.text) or None,
                "was": clean(one.was) or None,
                "bytes": one.bytes,
                "proof": one.proof,
            }
            for one in change.causes
        ]
        if change.by_line
        else None,
        "notes": list(change.notes),
    }


def _finding(one: ScriptFinding) -> dict[str, Any]:
    finding = one.finding
    return {
        "file": clean(one.file),
        "line": one.line,
        "pitfall": finding.pitfall,
        "cause": finding.cause,
        "title": clean(finding.title),
        "severity": finding.severity,
        "confidence": finding.confidence,
    }
