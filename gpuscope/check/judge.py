"""Judge one prediction against the budgets of its training.

A prediction has an error. A budget that lies within it is too close to call, which is a warning: it
neither passes nor fails by chance. A regression is judged without an error, because two predictions
of the same torch have the same one.
"""

from __future__ import annotations

from ..predict.errors import Estimate
from ..predict.report import need_text, with_error
from ..text.units import bytes_text, percent_text, signed_bytes_text
from .lock import NAME, Baseline, version
from .outcome import BudgetVerdict, Kind, Severity
from .predicted import Predicted
from .settings import CheckedTraining

UPDATE = "gpuscope check {} --update"


_MEASURE = "the prediction's error decides: measure it on the GPU, or leave more room"


def budgets(training: CheckedTraining, found: Predicted) -> list[BudgetVerdict]:
    """Return the verdicts of the budgets that need no baseline."""
    prediction = found.answer.prediction
    rows = [_fits(training, found)] if training.fits else []
    if training.peak_bytes is not None:
        what = "the whole GPU"
        rows.append(_limit(training, "peak", what, prediction.device, training.peak_bytes))
    if training.allocated_bytes is not None:
        what = "the tensors' peak"
        limit = training.allocated_bytes
        rows.append(_limit(training, "allocated", what, prediction.allocated, limit))
    return rows


def _fits(training: CheckedTraining, found: Predicted) -> BudgetVerdict:
    answer = found.answer
    judged, room = answer.verdict, answer.room
    assert judged is not None
    assert room is not None
    need = need_text(answer)
    line = training.line("fits")
    if judged.outcome == "fits":
        return BudgetVerdict("fits", "ok", f"fits on {room.card.name}: {need}", line=line)
    if judged.outcome == "too_close":
        text = f"too close to call on {room.card.name}: {need}"
        return BudgetVerdict("fits", "warning", text, _MEASURE, line)
    text = f"does not fit on {room.card.name}: {need}"
    return BudgetVerdict("fits", "problem", text, _what_if(training), line)


def _limit(
    training: CheckedTraining, kind: Kind, what: str, figure: Estimate, limit: int
) -> BudgetVerdict:
    need, most = with_error(figure), bytes_text(limit)
    line = training.line(kind)
    if figure.high <= limit:
        return BudgetVerdict(kind, "ok", f"{what} needs {need}; the budget is {most}", line=line)
    if figure.low <= limit:
        text = f"too close to call: {what} needs {need}, and the budget is {most}"
        return BudgetVerdict(kind, "warning", text, _MEASURE, line)
    text = f"{what} needs {need}, {bytes_text(figure.bytes - limit)} over its budget of {most}"
    return BudgetVerdict(kind, "problem", text, _what_if(training), line)


def _what_if(training: CheckedTraining) -> str:
    return f"what would help: gpuscope predict {_target(training)} --what-if"


def _target(training: CheckedTraining) -> str:
    model = training.model
    return model if ":" in model else f"--model {model}"


def regression(
    training: CheckedTraining, found: Predicted, before: int, since: str
) -> BudgetVerdict | None:
    """Return the verdict on the growth of the tensors' peak over ``before``.

    None if the training has no such budget.
    """
    allowed = training.regression
    if allowed is None:
        return None
    after = found.allocated_bytes
    grown, line = after - before, training.line("regression")
    share = percent_text(abs(grown) / before) if before else ""
    if grown > allowed.of(before):
        text = (
            f"the tensors' peak grew by {bytes_text(grown)} ({share}) since {since}: "
            f"{bytes_text(before)} → {bytes_text(after)}; {allowed.text} may be added"
        )
        next_ = f"if that is intended: {UPDATE.format(training.name)}, and commit {NAME}"
        return BudgetVerdict("regression", "problem", text, next_, line)
    if grown == 0:
        text = f"the tensors' peak is {bytes_text(after)}, as in {since}"
    else:
        text = (
            f"the tensors' peak is {bytes_text(after)}: {signed_bytes_text(grown)} ({share}) "
            f"since {since}; {allowed.text} may be added"
        )
    return BudgetVerdict("regression", "ok", text, line=line)


def usable(
    training: CheckedTraining, found: Predicted, known: Baseline | None
) -> BudgetVerdict | None:
    """Return why the baseline of a training cannot be compared, None if it can."""
    line, update = training.line("regression"), UPDATE.format(training.name)
    if known is None:
        text = f"new: {NAME} has no baseline for it"
        severity: Severity = "warning" if training.regression else "info"
        return BudgetVerdict("baseline", severity, text, f"{update}, and commit {NAME}", line)
    if version(known.torch) != version(found.torch):
        text = (
            f"not compared with {NAME}: that was made with torch {known.torch}, this is torch "
            f"{version(found.torch)}, which may allocate otherwise"
        )
        next_ = f"check with torch {known.torch}; or {update} with this one"
        severity = "warning" if training.regression else "info"
        return BudgetVerdict("baseline", severity, text, next_, line)
    return None
