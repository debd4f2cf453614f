"""This module makes the page of the Doctor tab that says what was checked, and what was not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...model.ended_jobs import sentence
from ...text import styled, width
from ...text.clock import clock_text
from ...text.styled import Line, Piece
from ...text.units import age_text, duration_text
from ..background.finding_history import all_well
from ..shared.event_rows import DAY, at_text, event_lines
from ..shell.keymap import key_of
from .case_times import duration_of_case
from .checked_courses import course_lines
from .checked_figures import AREAS, area_of, decides_in, sources_of
from .text import (
    LABEL,
    NOTHING,
    OVER,
    SEVERITY_TOKENS,
    UNEXAMINED,
    glyph_of,
    is_undecided,
    sign_of,
    with_label,
)

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall, Report
    from ...model.ended_jobs import EndedJob
    from ...store.view import HistoryOf, HostView
    from ..background.doctor_watch import DoctorWatch
    from ..background.finding_history import Case, CaseGroup
    from ..background.log_entry import LogEntry
    from ..background.unseen_deaths import DeadTrainer
    from ..theme import Glyphs
    from .checked_figures import Area

MOST_ENDED = 4
UNPROBED, NEXT_RUN = (
    "nothing: no trainer with a probe here",
    ". Next run: gpuscope run train.py",
)
COMMAND_CELLS = 26
ELSEWHERE = (
    ("gpuscope doctor", "this machine: driver, torch, allocator and NCCL settings"),
    ("gpuscope doctor train.py", "a script, before it runs"),
    ("gpuscope doctor train.log", "a log or a traceback: what ended the run, and the fix"),
    ("gpuscope doctor FILE", "a memory snapshot, or a recording"),
    ("gpuscope doctor FOLDER", "what a dead job left: which rank failed first"),
)
"""What the doctor examines that does not run here."""
ENDED = "Ended in the last day, from their black boxes"
AREA_CELLS = 13
HISTORY_LINES, PAST_LINES = 10, 24
MOST_RELATED = 5
HEAD_ROWS, FEW = 2, 5
COURSE_ROWS = 3
"""Rows of each course where nothing is wrong."""


def about(
    watch: DoctorWatch,
    host: HostView,
    readings: HistoryOf,
    opened: Sequence[LogEntry],
    glyphs: Glyphs,
    cells: int,
    tight: bool = False,
    over: Sequence[LogEntry] = (),
    roomy: bool = False,
    as_it_was: Sequence[Line] = (),
) -> list[Line]:
    """Return what was looked at, with its figures, and what could not be decided or checked.

    For what could not be decided it says what would decide it. ``opened`` has the findings that
    were opened and closed, ``over`` the jobs that ended, the newest first. ``tight`` leaves out
    what the rules look for, ``roomy`` adds how the figures went. ``as_it_was`` tells of the job
    that ended last where none runs any more.
    """
    report = watch.report
    holds = [case for case in watch.cases if not case.past and not case.dead]
    out: list[Line] = []
    if all_well(watch.cases):
        sign, text = (glyphs.ok, "ok"), NOTHING
        if not report.examined:
            sign, text = (glyphs.idle, "muted"), OVER if as_it_was else UNEXAMINED
        elif is_undecided(watch, host):
            sign, text = (glyphs.idle, "muted"), f"{NOTHING} so far"
        out += [[(f"{sign[0]} ", sign[1]), (f"{text}.", "title")], []]
    none = "nothing now: what ran has ended" if as_it_was else UNPROBED
    looked = report.examined or (none + ("" if host.badge else NEXT_RUN),)
    for number, line in enumerate(_packed(looked, cells - LABEL)):
        out += with_label("Checked" if number == 0 else "", [(line, "text")], cells)
    if watch.not_examined:
        out += with_label("Skipped", [(watch.not_examined, "muted")], cells)
    if watch.table is None and not watch.problem:
        out += with_label("", [("loading the checks", "muted")], cells)
    if watch.cost_seconds is not None:
        text = (
            f"{duration_text(watch.cost_seconds)} of CPU time for each check, at most one a second"
        )
        out += with_label("Overhead", [(text, "muted")], cells)
    out += as_it_was  # what the checks find where nothing trains says less
    if report.examined:
        out += [[], *_areas(watch, host, readings, holds, glyphs, cells, tight, roomy)]
    out += _abstained_lines(report, cells)
    if report.problems:
        out += [[], [("Could not be checked", "warn")]]
        out += styled.hang_lines(
            ([("  · ", "muted"), (text, "text")] for text in report.problems), cells
        )
    if opened:
        out += [[], [("Findings so far, the newest first", "accent")]]
        out += event_lines(opened, glyphs, HISTORY_LINES, cells, host.wall_seconds)
    if over[1:] or (over and not as_it_was):
        out += [[], [("Jobs that ended, the newest first", "accent")]]
        out += event_lines(over, glyphs, HISTORY_LINES, cells, host.wall_seconds)
    if watch.unexplained:
        out += [[], [("Ended with an error of their own", "accent")]]
        for one in watch.unexplained[:MOST_ENDED]:
            out += styled.hang([("  · ", "muted")], [(one.words, "muted")], cells)
            command = f"gpuscope replay {shlex.quote(one.path)}"
            out += styled.hang([("    ", "muted")], [(command, "accent")], cells)
    return out


def _packed(texts: Sequence[str], room: int) -> list[str]:
    """Return texts in lines, of which none is broken that has room in a line of its own."""
    lines: list[str] = []
    for text in texts:
        said = text.partition(". ")[0]  # what to do about it is on the Overview
        if lines and width.cells(f"{lines[-1]} · {said}") <= room:
            lines[-1] += f" · {said}"
        else:
            lines.append(said)
    return lines


def _abstained_lines(report: Report, cells: int) -> list[Line]:
    if not report.abstained:
        return []
    out: list[Line] = [[], [("Inconclusive, and what would decide it", "accent")]]
    for one in report.abstained:
        out += styled.hang([("  · ", "muted")], [(one.missing, "text")], cells)
    return out


def _areas(
    watch: DoctorWatch,
    host: HostView,
    readings: HistoryOf,
    holds: Sequence[Case],
    glyphs: Glyphs,
    cells: int,
    tight: bool,
    roomy: bool,
) -> list[Line]:
    """Return what each group of rules judges: its figures now, and what it looks for.

    The sign is that of the gravest finding there, or says that nothing was found, or that this is
    not known yet. With ``roomy`` there is a line that shows how its main reading went.
    """
    sources = sources_of(host, readings)
    out: list[Line] = [[("What each check finds now", "accent")]]
    hangs = any(area_of(case.finding.cause) == "hangs" for case in holds)
    for area in AREAS:
        figures = area.figures(host, sources)
        found = [case for case in holds if area_of(case.finding.cause) == area.name]
        doubt = area.in_a_hang if hangs else _waits(area, watch, host) if not found else ""
        sign = (glyphs.ok, "ok")
        if found:
            severity = found[0].finding.severity  # the worst stands first
            sign = (glyph_of(severity, glyphs), SEVERITY_TOKENS[severity])
        elif not all(figure.known for figure in figures) or not figures:
            sign = (glyphs.dash, "faint")
        elif doubt:
            sign = (glyphs.idle, "muted")
        head: Line = [(f"{sign[0]} ", sign[1]), (f"{area.name:{AREA_CELLS - 2}}", "text")]
        doubt = doubt if figures else ""
        text = " · ".join(figure.text for figure in figures) if figures else area.missing
        pieces: Line = [(text, "text" if figures else "muted")]
        out += styled.hang(head, [*pieces, (f"  ({doubt})" if doubt else "", "muted")], cells)
        if not tight:
            rules = [(f"looks for: {area.rules}", "faint")]
            out += styled.hang([(" " * AREA_CELLS, "text")], rules, cells)
        if roomy:
            rows = COURSE_ROWS if not holds else 1  # a finding needs the room
            went = course_lines(area.name, host, sources, glyphs, rows) if figures else []
            out += [[(" " * AREA_CELLS, "text"), *line] for line in went]
            out += [[]] if area is not AREAS[-1] else []
    return out


def _waits(area: Area, watch: DoctorWatch, host: HostView) -> str:
    """Return when an area's rules decide, "" where they have."""
    soon = [seconds for one, seconds in watch.pending if area_of(one.cause) == area.name]
    if soon:
        return f"known in {age_text(min(soon))}"
    return decides_in(host) if area.of_steps else ""


def elsewhere(cells: int) -> list[Line]:
    """Return what can be checked besides what runs here, and how."""
    out: list[Line] = []
    for command, text in ELSEWHERE:
        out += styled.hang([(f"{command:{COMMAND_CELLS}}", "accent")], [(text, "muted")], cells)
    keys = [(key_of("palette"), "pitfalls, by a word such as oom, slow or hang, with their fixes")]
    keys += [(key_of("lab"), "the Lab: run a known mistake and its fix, and compare them")]
    out.append([])
    for key, text in keys:
        out += styled.hang([(f"{key:{COMMAND_CELLS}}", "bold accent")], [(text, "muted")], cells)
    return out


def known_pitfalls(table: Mapping[str, Pitfall], cells: int, rows: int) -> list[Line]:
    """Return a line for each pitfall of the table, as many as have room."""
    found = list(table.values())[: max(0, rows - HEAD_ROWS)]
    if len(found) < FEW:
        return []
    wide = max(len(row.id) for row in found) + 2
    out: list[Line] = [
        [],
        [
            (f"Known pitfalls, {len(table)} in all", "accent"),
            (f"   {key_of('palette')} and its name: in full", "muted"),
        ],
    ]
    return out + [
        styled.cut([(f"{row.id:{wide}}", "text"), (row.title, "muted")], cells) for row in found
    ]


def happened(
    deaths: Sequence[DeadTrainer],
    events: Sequence[LogEntry],
    glyphs: Glyphs,
    cells: int,
    now: float | None = None,
    ended_here: str = "",
) -> list[Line]:
    """Return the newest trainers that ended badly here, and what happened while this ran.

    ``ended_here`` says how many there were in the last day.
    """
    out: list[Line] = []
    if deaths:
        heading = f"{ended_here}; the newest, from their black boxes" if ended_here else ENDED
        out += [[], *styled.wrap([(heading, "accent")], cells)]
        today = clock_text(now, DAY) if now is not None else ""
        for one in deaths[:HISTORY_LINES]:
            at = at_text(one.ended, today)
            finding = next(iter(one.report.findings), None)
            text = finding.title if finding is not None else one.words
            head: Line = [(f"{at} ", "faint"), (f"pid {one.pid}  ", "muted")]
            out += styled.hang(head, [(text or "of an unknown cause", "text")], cells)
    if events:
        out += [[], [("What happened here, the newest first", "accent")]]
        out += event_lines(events, glyphs, PAST_LINES, cells, now)
    return out


def related(row: Pitfall, table: Mapping[str, Pitfall], cells: int) -> list[Line]:
    """Return the pitfalls that a pitfall's page names, and those whose pages name it."""
    own = _words_of(row)
    found = [
        other
        for other in table.values()
        if other.id != row.id and (other.id in own or row.id in _words_of(other))
    ]
    if not found:
        return []
    out: list[Line] = [[], [("Related pitfalls", "accent")]]
    for other in found[:MOST_RELATED]:
        out += styled.hang([(f"  {other.id}  ", "text")], [(other.title, "muted")], cells)
    return out


def _words_of(row: Pitfall) -> str:
    """Return all that the page of a pitfall says."""
    fixes = (f"{fix.title} {fix.cost}" for fix in row.fixes)
    return " ".join((row.symptom, row.now, row.not_when, row.cost, *fixes))


def ended_page(
    group: CaseGroup, ended: Sequence[EndedJob], host: HostView, glyphs: Glyphs, cells: int
) -> list[Line]:
    """Return the page of the folded row: each job that ended and is explained in a line or two."""
    out: list[Line] = [*styled.wrap([(sentence(ended), "title")], cells), []]
    for one in group.unfolded():
        case = one.first
        sign: Piece = sign_of(case, glyphs)
        facts = f"   {duration_of_case(case, host)}   {case.finding.where}"
        out += styled.hang([sign], [(case.finding.title, "text"), (facts, "muted")], cells)
    out += [[], [(key_of("open"), "bold accent"), (": list each of them, or fold them", "muted")]]
    return out
