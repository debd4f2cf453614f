"""This module says what helps a training whose memory grows.

Only what stops the growth counts. A fix that frees memory once delays the end, by as many steps as
the growth needs to take the freed bytes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...model.growth import GrowthRate, trend_of
from ...model.memory_room import room_of
from ...store.view import HistoryOf, HostView
from ...text.styled import Line
from ...text.units import bytes_text
from ..widgets.table import TableRow
from .cure_list import Cure
from .subjects import Subject

if TYPE_CHECKING:
    from ...doctor.finding import Fix, Pitfall
    from ...predict.trainer_what_if import Freed
    from ..background.finding_history import Case

CAUSE = "live.memory_grows"
DELAYS = "delays"
"""The key of the row that holds what only delays the end."""


@dataclass(frozen=True, slots=True)
class Growing:
    """The growth of a trainer's memory: its trend, and when memory ends as far as it is known."""

    trend: GrowthRate
    ends: str

    @property
    def title(self) -> str:
        """What the table is about, in a line."""
        ends = f", out of memory in {self.ends}" if self.ends else ""
        return f"What if: +{bytes_text(self.trend.slope)} per step{ends}"


def growing(host: HostView, subject: Subject, history: HistoryOf) -> Growing | None:
    """Return the growth of the trainer that is looked at, None where its memory does not grow."""
    trainer, allocator = subject.trainer, subject.allocator
    trend = trend_of(allocator) if allocator is not None else None
    if trainer is None or allocator is None or trend is None or not trend.grows:
        return None
    ends = room_of(host.devices, trainer, allocator, history).runs_out
    return Growing(trend, ends.text if ends is not None else "")


class GrowthStop(NamedTuple):
    """A fix of the doctor that stops the growth, how sure it is, and the id of its pitfall."""

    fix: Fix
    sure: str
    pitfall: str

    @property
    def doubt(self) -> str:
        """How sure it is, and where to read why."""
        return f"{self.sure}; the Doctor says why, and how to find the line"


def stopping(cases: Iterable[Case], pid: int) -> list[GrowthStop]:
    """Return the doctor's fixes that stop the growth, the surest first."""
    found: dict[str, GrowthStop] = {}
    for case in cases:
        finding = case.finding
        if case.past or case.dead or finding.cause != CAUSE or case.pid != pid:
            continue
        sure = "a guess" if finding.confidence == "prior" else finding.confidence
        for fix in finding.fixes:
            if not fix.now:
                found.setdefault(fix.title, GrowthStop(fix, sure, finding.pitfall))
    return list(found.values())


def steps_won(one: Freed, trend: GrowthRate) -> float:
    """Return the most steps that a fix delays the end by, at the present pace of growth."""
    return one.high / trend.low


def rows_of(stops: Sequence[GrowthStop], others: Sequence[Freed], now: Growing) -> list[TableRow]:
    """Return a row for each fix that stops the growth, and one for all that only delay the end."""
    rows = [
        TableRow(
            fix.title,
            {
                "freed": [("stops it", "ok")],
                "error": [(sure, "muted")],
                "fix": [(fix.title, "text")],
                "change": [(_change(fix), "muted")],
            },
        )
        for fix, sure, _ in stops
    ]
    if others:
        most = max(steps_won(one, now.trend) for one in others)
        count = f"{len(others)} others only delay" if len(others) > 1 else "1 other only delays"
        rows.append(
            TableRow(
                DELAYS,
                {
                    "freed": [("delays it", "warn")],
                    "fix": [(f"{count} it, by {most:,.0f} steps at most", "muted")],
                    "change": [(" · ".join(one.change for one in others), "faint")],
                },
                "muted",
            )
        )
    return rows


def about(
    stops: Sequence[GrowthStop], others: Sequence[Freed], now: Growing
) -> dict[str, list[Line]]:
    """Return what is said below the table of each row."""
    out: dict[str, list[Line]] = {}
    for stop in stops:
        change = _change(stop.fix) or stop.fix.title
        out[stop.fix.title] = [
            [("how: ", "muted"), (change, "text")],
            [("sure: ", "muted"), (stop.doubt, "muted")],
        ]
    pace = bytes_text(now.trend.slope)
    out[DELAYS] = [
        [
            (f"{one.title}: ", "muted"),
            (f"{steps_won(one, now.trend):,.0f} steps at most", "text"),
            (f", where each still adds {pace}", "muted"),
        ]
        for one in others
    ]
    return out


def cures_of(
    stops: Sequence[GrowthStop],
    others: Sequence[Freed],
    now: Growing,
    table: Mapping[str, Pitfall] | None,
) -> list[Cure]:
    """Return every fix in full, with the costs that the table of pitfalls names."""
    out = []
    for stop in stops:
        fix, row = stop.fix, (table or {}).get(stop.pitfall)
        lines = "\n".join(
            [
                *(sign + line for sign, line in fix.signed_code()),
                *filter(None, (fix.environment, fix.command)),
            ]
        )
        facts = [("sure", stop.doubt)]
        if cost := fix.cost or (row.cost if row is not None else ""):
            facts.append(("costs", cost))
        if row is not None:
            facts.append(("skip if", row.not_when))
        out.append(Cure(fix.title, fix.title, "", lines, facts))
    pace = bytes_text(now.trend.slope)
    for one in others:
        won = f"by {steps_won(one, now.trend):,.0f} steps at most; each still adds {pace}"
        facts = [("delays", won), ("costs", one.cost)]
        out.append(Cure(DELAYS, one.title, one.change, one.code, facts))
    return out


def _change(fix: Fix) -> str:
    parts = (fix.before.strip(), fix.code.strip() or fix.environment or fix.command)
    return " → ".join(" ; ".join(part.splitlines()) for part in parts if part)
