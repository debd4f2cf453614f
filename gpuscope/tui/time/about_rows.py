"""This module says what a selected row of the clock or of the GPU means, and why a job stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.look import Look
from ...model.lost_loss import loss_of
from ...model.standstill import standstill_of
from ...model.time_ledger import TimeLedger
from ...store.view import HostView, TrainerView
from ...text.styled import Line
from ..shared.next_step import first_step
from .rows import row_of
from .text import coverage_text, gpu_detail, row_detail, stopped_lines

if TYPE_CHECKING:
    from ...doctor.live_causes import Judged
    from ..shell.session import Session


def about_gpu_row(key: str, look: Look | None) -> tuple[str, list[Line]]:
    """Return the heading and the lines for a row of what a look found; empty for no such row."""
    row = next((row for row in look.rows if row.name == row_of(key)), None) if look else None
    if look is None or row is None:
        return "", []
    return row.words.capitalize(), list(gpu_detail(row, look))


def about_clock_row(
    key: str, ledger: TimeLedger, look: Look | None, judged: Sequence[Judged] | None, live: bool
) -> tuple[str, list[Line]]:
    """Return the heading and the lines for a row of the wall clock, or for all of it."""
    row = next((row for row in ledger.whole if row.name == key), None)
    if row is not None:
        return row.words.capitalize(), list(row_detail(row, ledger, look, judged, live))
    return "Wall clock", [[(f"{coverage_text(ledger).capitalize()}.", "text")]]


def why_it_stands(session: Session, host: HostView, trainer: TrainerView) -> list[Line]:
    """Return since when its job stands still and what to do first; nothing while it steps."""
    job, live = host.job_of(trainer), not session.why_not("stacks")
    lines = stopped_lines(standstill_of(trainer, job))
    return [*lines, *first_step(host, job, session.doctor.cases, live)] if lines else []


def lost_lines(session: Session, host: HostView, trainer: TrainerView) -> list[Line]:
    """Return since when its loss is NaN, and what to do first; nothing while it is finite."""
    lost, live = loss_of(host, trainer), not session.why_not("stacks")
    if lost is None:
        return []
    line: Line = [(lost.what, "bad"), (f" {lost.place}: a faster step is no gain.", "text")]
    return [line, *first_step(host, host.job_of(trainer), session.doctor.cases, live)]
