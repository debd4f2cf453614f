"""These functions make of the histories of a rank what the job screen draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...model.lost_loss import told_loss
from ...store.view import History
from ...wire.frames import Unknown

if TYPE_CHECKING:
    from ...store.view import Entity, HistoryOf, HostView, TrainerView

PEAK_SECONDS = 10.0
"""Of how long before the highest memory is shown at each moment, at least."""
NS = 1e9


def recent_peaks(history: History, seconds: float) -> list[float | None]:
    """Return for each moment the most of the ``seconds`` before.

    A reading is of a random moment of a step; only the highest of several says what steps need.
    """
    out: list[float | None] = []
    kept: deque[tuple[float, float]] = deque()  # falling: what may still be the highest
    for moment, value in zip(history.seconds, history.values, strict=True):
        while kept and kept[0][0] < moment - seconds:
            kept.popleft()
        if value is not None:
            while kept and kept[-1][1] <= value:
                kept.pop()
            kept.append((moment, value))
        out.append(kept[0][1] if kept and value is not None else None)
    return out


def part_of_step(part: History, compute: Sequence[float | None]) -> list[float | None]:
    """Return a part of the steps in nanoseconds, nothing where it was not measured.

    Then it is contained in what the step computes; a step of which that is unknown is unknown.
    """
    return [
        None if whole is None else max(0.0, value or 0.0) * NS
        for value, whole in zip(part.values, compute, strict=False)
    ]


def nanoseconds(history: History) -> list[float | None]:
    """Return the values of a history of seconds in nanoseconds."""
    return [None if value is None else max(0.0, value) * NS for value in history.values]


def loss_course(
    host: HostView, trainers: Iterable[TrainerView], history: HistoryOf, seconds: float | None
) -> tuple[TrainerView, History] | None:
    """Return the loss of the first trainer that tells one, else of one that told it before.

    One that is NaN by a log has its finite values there.
    """
    for one in sorted(trainers, key=lambda trainer: trainer.number("loss") is None):
        told = told_loss(host, one)
        by_log = told is not None and told[0] == "log_loss" and one.process is not None
        owner, column = (one.process, "log_loss") if by_log else (one.id, "loss")
        past = history(owner, column, seconds) if owner is not None else History()
        if any(value is not None for value in past.values):
            return one, past
    return None


def missing(entity: Entity, column: str, otherwise: str) -> str:
    """Return why there is no reading of a column."""
    reason = entity.reading(column)
    return reason.text if isinstance(reason, Unknown) and reason.text else otherwise
