"""This module makes the page of the Doctor tab that says what was checked, and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...text import styled
from ...text.styled import Line
from ...text.units import duration_text
from .text import NOTHING, UNEXAMINED, with_label

if TYPE_CHECKING:
    from ...doctor.finding import Report
    from ..theme import Glyphs
    from .watch import Watch

MOST_ENDED = 4
LOOKED_FOR = (
    ("hangs", "a rank that is stuck, lost or behind, and which line it is at"),
    ("memory", "growth, too little room, fragmentation, other programs on the card"),
    ("time", "waiting for input, pauses such as checkpoints, copies, communication, late launches, "
     "recompiles, idle tensor cores, a slower rank"),
    ("GPUs", "lost or silent, errors, slowed clocks, full, shared by ranks"),
    ("host", "memory, /dev/shm"),
)  # fmt: skip
"""What the rules of ``doctor.live`` find."""


def about(watch: Watch, glyphs: Glyphs, cells: int) -> list[Line]:
    """Return what was looked at, what could not be decided, and what could not be checked.

    For what could not be decided it says what would decide it.
    """
    report = watch.report
    holds = [case for case in watch.cases if not case.past]
    out: list[Line] = []
    if not holds:
        sign, text = (
            ((glyphs.ok, "ok"), NOTHING)
            if report.examined
            else ((glyphs.idle, "muted"), UNEXAMINED)
        )
        out += [[(f"{sign[0]} ", sign[1]), (f"{text}.", "title")], []]
    looked = (
        ", ".join(report.examined)
        or "nothing: no trainer with a probe here. Next run: gpuscope run train.py"
    )
    out += with_label("Checked", [(looked, "text")], cells)
    if watch.not_examined:
        out += with_label("Left out", [(watch.not_examined, "muted")], cells)
    if watch.table is None and not watch.problem:
        out += with_label("", [("loading the rules", "muted")], cells)
    if watch.cost_seconds is not None:
        text = (
            f"{duration_text(watch.cost_seconds)} of CPU time for each check, at most one a second"
        )
        out += with_label("Overhead", [(text, "muted")], cells)
    if report.examined:
        out += _looked_for(cells)
    for number, text in enumerate(watch.unexplained[:MOST_ENDED]):
        out += with_label("Ended" if number == 0 else "", [(text, "muted")], cells)
    out += _abstained_lines(report, cells)
    if report.problems:
        out += [[], [("Could not be checked", "warn")]]
        out += styled.hang_lines(
            ([("  · ", "muted"), (text, "text")] for text in report.problems), cells
        )
    return out


def _abstained_lines(report: Report, cells: int) -> list[Line]:
    if not report.abstained:
        return []
    out: list[Line] = [[], [("Inconclusive, and what would decide it", "accent")]]
    for one in report.abstained:
        out += styled.hang(
            [("  · ", "muted")], [(f"{one.pitfall}: ", "muted"), (one.missing, "text")], cells
        )
    return out


def _looked_for(cells: int) -> list[Line]:
    """Return what the rules look for, a line each."""
    return [
        line
        for number, (name, text) in enumerate(LOOKED_FOR)
        for line in with_label("" if number else "Rules", [(f"{name}: {text}", "muted")], cells)
    ]
