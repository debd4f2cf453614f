"""This module makes what stands around the segments of a snapshot on its first page.

That is what the doctor finds and how to fix it, the map of all segments to one scale, and who holds
most. The map, the stacks and the sizes are drawn as the printed report draws them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from ...doctor.finding import SEVERITY_TOKENS, Pitfall, Report
from ...doctor.report import fix_sentences
from ...doctor.steps import steps_of
from ...snapshot.drawing import Charset, glyphs_for
from ...snapshot.model import SnapshotDevice
from ...snapshot.report import (
    AREA_ROWS,
    fragmentation_lines,
    histogram_lines,
    stack_lines,
    trace_lines,
)
from ...text import styled
from ...text.styled import Line
from ..doctor.cure import steps_lines
from ..doctor.text import LABEL, glyph_of, with_label
from ..theme import ASCII, Glyphs

SCREEN = "SnapshotScreen"
"""The class of the screen whose keys the lines name."""
TEXT_ROWS, FEW_TEXT_ROWS = 4, 3
"""Rows of the map's panel that say what the map means; fewer where rows are few."""
LEAST_AREA_ROWS = 3
"""A course over time has so many rows at least."""
FEW_ROWS = 10
LEAST_MAP_ROWS = 3
HEADINGS = 3
"""Rows of two headings and the gap between them."""
BRIEF_ROWS = 12
"""In fewer rows the trade-offs are left out: the doctor has them."""


def charset(glyphs: Glyphs) -> Charset:
    """Return the characters of the printed report that this terminal can show."""
    return glyphs_for("ascii" if glyphs == ASCII else "utf-8")


def what_to_do(
    report: Report, table: Mapping[str, Pitfall], path: Path, glyphs: Glyphs, cells: int, rows: int
) -> list[Line]:
    """Return the findings with their fixes in at most ``rows`` rows, none where nothing is found.

    The first has all steps, the others what to do first.
    """
    if not report.findings:
        return []
    ends = with_label("next", next_lines(path, cells - LABEL), cells)
    parts: list[list[Line]] = []
    for number, finding in enumerate(report.findings):
        sign = (f"{glyph_of(finding.severity, glyphs)} ", SEVERITY_TOKENS[finding.severity])
        sure = (f"  {finding.confidence}", "muted")
        head = styled.hang([sign], [(finding.title, "title"), sure], cells)
        if number == 0:
            row = table.get(finding.pitfall)
            head += steps_lines(finding, row, True, cells, rows < BRIEF_ROWS, SCREEN)
        else:
            for fix in steps_of(finding, True)[:1]:
                head += with_label("fix", [(fix_sentences(fix, False), "text")], cells)
        parts.append(head)
        if finding.effect is not None:
            parts.append(with_label("gain", [(finding.effect.text, "text")], cells))
    out = parts[0][: rows - len(ends)]
    for part in parts[1:]:
        if len(out) + len(part) + len(ends) > rows:
            break  # half a sentence says nothing
        out += part
    return [*out, *ends]


def next_lines(path: Path, cells: int) -> Line:
    """Return the command that shows all of what the doctor finds in a file."""
    line: Line = [(f"gpuscope doctor {shlex.quote(str(path))}", "accent")]
    about: Line = [("   the evidence and all fixes", "muted")]
    return [*line, *about] if styled.cells([*line, *about]) <= cells else line


def map_lines(device: SnapshotDevice, glyphs: Glyphs, cells: int, rows: int) -> list[Line]:
    """Return all segments to one scale, with a legend, none where there is no room."""
    drawn = rows - (FEW_TEXT_ROWS if rows < FEW_ROWS else TEXT_ROWS)
    if drawn < LEAST_MAP_ROWS:
        return []
    lines = fragmentation_lines(device, cells, charset(glyphs), drawn)
    out: list[Line] = []
    for line in lines:
        parts, left = styled.wrap(line, cells), rows - len(out)
        if len(parts) > left > 0:
            rest = styled.join(parts[left - 1 :], " ")
            parts = [*parts[: left - 1], styled.cut_items(rest, cells, glyphs.ellipsis)]
        out += parts[:left]
    return out


def largest_lines(device: SnapshotDevice, glyphs: Glyphs, cells: int, rows: int) -> list[Line]:
    """Return who holds most, the sizes of the blocks, and the course, as far as there is room."""
    chars = charset(glyphs)
    stacks = stack_lines(device.stacks, cells, chars)
    sizes = histogram_lines(device.sizes, cells, chars)
    parts = [
        ("live bytes by stack", stacks[: max(1, min(rows // 2, rows - len(sizes) - HEADINGS))]),
        ("live blocks by size", sizes),
    ]
    out: list[Line] = []
    for title, lines in parts:
        if lines and len(out) + 3 <= rows:
            out += [*([[]] if out else []), [(title, "accent")], *lines]
    high = min(rows - len(out) - 2, AREA_ROWS)
    if device.trace is not None and high >= LEAST_AREA_ROWS:  # with its axis, or not at all
        out += [[], [("over time", "accent")], *trace_lines(device.trace, cells, chars, high)]
    return [styled.cut(line, cells) for line in out[:rows]]
