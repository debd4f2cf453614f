"""What holds now, beside the readings below the log: open findings, and how jobs ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ..background.finding_history import Case, group_cases
from ..background.log_entry import LogEntry
from ..doctor.case_times import duration_of_case
from ..doctor.text import SEVERITY_TOKENS, glyph_of
from ..shared.event_rows import event_lines
from ..theme import Glyphs


def open_lines(
    cases: Sequence[Case], ends: Sequence[LogEntry], host: HostView, glyphs: Glyphs, cells: int,
    rows: int,
) -> list[Line]:  # fmt: skip
    """Return the findings that hold, the worst first, and below them the ends of jobs."""
    out: list[Line] = [[("Open findings", "title")]]
    groups = group_cases([case for case in cases if not case.past and not case.dead])
    for group in groups:
        finding = group.first.finding
        sign = (f"{glyph_of(finding.severity, glyphs)} ", SEVERITY_TOKENS[finding.severity])
        many = f"{1 + len(group.others)}× " if group.others else ""
        since = ("   " + duration_of_case(group.first, host), "muted")
        out += styled.hang([sign], [(many + finding.title, "text"), since], cells)
    if not groups:
        out.append([(f"{glyphs.ok} ", "ok"), ("none", "muted")])
    out += [[], [("How jobs ended, the newest first", "title")]]
    if not ends:
        return [*out, [("no job has ended since gpuscope started", "muted")]][:rows]
    left = max(rows - len(out), 1)
    named = [replace(one, text=f"{one.who}: {one.text}") for one in ends]
    return [*out, *event_lines(named, glyphs, left, cells, host.wall_seconds)][:rows]
