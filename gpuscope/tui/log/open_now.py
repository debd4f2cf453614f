"""What else holds now, beside the event that was chosen: open findings, and how jobs ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ..background.finding_history import Case, group_cases
from ..background.log_entry import LogEntry
from ..doctor.case_times import duration_of_case
from ..doctor.text import SEVERITY_TOKENS, glyph_of, told_of
from ..shared.event_rows import event_lines
from ..theme import Glyphs


def open_lines(
    cases: Sequence[Case], ends: Sequence[LogEntry], host: HostView, glyphs: Glyphs, cells: int,
    rows: int,
) -> list[Line]:  # fmt: skip
    """Return these findings if they hold, the worst first, and below them the ends of jobs."""
    out: list[Line] = []
    groups = group_cases([case for case in cases if not case.past and not case.dead])
    for group in groups:
        finding = group.first.finding
        sign = (f"{glyph_of(finding.severity, glyphs)} ", SEVERITY_TOKENS[finding.severity])
        many, title = told_of(group)
        since = ("   " + duration_of_case(group.first, host), "muted")
        out += styled.hang([sign], [(many + title, "text"), since], cells)
    if out:
        out = [[("Other open findings", "title")], *out, []]
    out.append([("How jobs ended, the newest first", "title")])
    if not ends:
        where = "in this recording so far" if host.badge else "since gpuscope started"
        return [*out, [(f"no job has ended {where}", "muted")]][:rows]
    left = max(rows - len(out), 1)
    named = [replace(one, text=f"{one.who}: {one.text}") for one in ends]
    return [*out, *event_lines(named, glyphs, left, cells, host.wall_seconds)][:rows]
