"""A host in a line, all hosts in two, and one host's troubles in full."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...doctor.steps import STACKS
from ...model.device_state import NEARLY_FULL
from ...model.ended_jobs import number_text
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line, Piece
from ...text.units import (
    age_text,
    amount_text,
    brief_duration_text,
    bytes_text,
    count_text,
    percent_text,
    short_age_text,
)
from ...text.width import beginning, ending
from ...text.width import cells as text_cells
from ..shell.keymap import key_of
from ..theme import Glyphs, Tokens
from ..widgets.bars import Meter
from ..widgets.pane import WAITING
from ..widgets.table import Cell, Column, TableRow
from .summary import HERE, Grade, HostSummary, HostTotals, Missing

if TYPE_CHECKING:
    from ...doctor.finding import Fix

NO_STEPS: Mapping[str, Fix] = MappingProxyType({})
COLUMNS = (
    Column("mark", "", 1),
    Column("host", "HOST", 10, flex=2, most=28),
    Column("state", "LINK", 10, flex=1, most=16),
    Column("busy", "BUSY", 5, align="right"),
    Column("free", "FREE", 4, align="right"),
    Column("load", "UTIL", 5, align="right"),
    Column("meter", "", 6, flex=1, most=14, priority=7),
    Column("tensor", "TENS", 5, align="right", priority=2),
    Column("memory", "MEM", 5, align="right", priority=5),
    Column("room", "", 6, flex=1, most=14, priority=8),
    Column("bytes", "USED/TOTAL GiB", 14, align="right", priority=9),
    Column("job", "JOB", 9, flex=1, most=24, priority=3),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("worst", "WORST", 14, flex=12),
)
HOST_CELLS, WIDE_HOST_CELLS = 20, 28
"""The most cells of the column of names, on a narrow and on a wide terminal."""
WIDE_COLUMNS, WIDE_WORST, WORST = 100, 29, 24
"""The width from which a terminal counts as wide, and the least cells of the column of the worst
finding on a wide and on a narrow one.
"""
JOB_CELLS = 14
"""The cells that a job has before the worst finding gets more."""
NARROW_CELLS = 37
"""The cells that frame, gaps and the four figures take in a narrow table."""
SORT_TITLES = {
    "worst": ("worst", "WORST"),
    "name": ("host", "HOST"),
    "free": ("free", "FREE"),
    "load": ("load", "UTIL"),
    "memory": ("memory", "MEM"),
}
ROOMS_SHOWN = 12
AWAY = ("stale", "unreachable")
"""States of a link in which a host sends nothing new."""
_TOKENS = {
    Grade.PROBLEM: "bad",
    Grade.STALLED: "bad",
    Grade.UNREACHABLE: "bad",
    Grade.STALE: "warn",
    Grade.TIGHT: "warn",
    Grade.WARNING: "warn",
    Grade.ENDED: "warn",
    Grade.CONNECTING: "muted",
    Grade.IDLE: "idle",
    Grade.FINE: "ok",
}
_WELL = {Grade.CONNECTING: "", Grade.IDLE: "idle", Grade.FINE: "ok"}
_LINK_TOKENS = {"connecting": "muted", "queued": "faint", "stale": "warn", "unreachable": "bad"}
"""The colours of the states of a link that are named. A live link is not: its readings show it."""
FAINT: Piece = ("–", "faint")


def columns(
    sort: str,
    width: int = 80,
    longest: int = 0,
    link: int | None = None,
    worst: int = 0,
    job: int = 0,
) -> list[Column]:
    """Return the columns for a terminal of ``width`` cells, the one that is sorted by marked.

    ``longest`` are the cells of the longest name of a host, which comes before figures that can
    be seen one step deeper, 0 where it is not known. ``link`` are those of the longest state of a
    link, which has no column where all hosts are live, or where the worst says it. What neither
    needs is for the worst, of which the longest text has ``worst`` cells; that of a job has
    ``job``.
    """
    key, title = SORT_TITLES[sort]
    wide = width >= WIDE_COLUMNS
    host = min(longest, WIDE_HOST_CELLS if wide else HOST_CELLS)
    least = WIDE_WORST if wide else WORST if link is not None else 0
    share = width // 3 - 2 if wide else width - NARROW_CELLS - max(host, len("HOST"))
    widths = {"host": host, "worst": max(least, min(worst, share)), "job": min(job, JOB_CELLS)}
    out = [
        c._replace(width=max(c.width, widths.get(c.key, 0)))
        for c in COLUMNS
        if wide or c.key != "job"  # the worst has its name there
    ]
    if longest:
        cells = max(host, len("HOST"))
        out = [
            c._replace(width=min(c.width, cells), most=cells) if c.key == "host" else c for c in out
        ]
    if link is not None:
        cells = max(link, len("LINK"))
        out = [c._replace(width=cells, most=cells) if c.key == "state" else c for c in out]
        out = [c for c in out if c.key != "state" or link]
    return [c._replace(title=title[: c.width - 1] + "▾") if c.key == key else c for c in out]


def with_figures(listed: Sequence[Column], rows: Sequence[TableRow]) -> list[Column]:
    """Return the columns in which a row says anything, and that by which the rows are sorted."""

    def told(cell: Cell) -> bool:
        if not isinstance(cell, Sequence):
            return True  # it draws itself
        return bool("".join(piece[0] for piece in cell).strip(" –/"))

    def kept(column: Column) -> bool:
        always = column.key in ("mark", "host", "worst") or column.title.endswith("▾")
        return always or any(told(row.cells.get(column.key, "")) for row in rows)

    return [column for column in listed if not rows or kept(column)]


def without_domain(names: Iterable[str]) -> dict[str, str]:
    """Return the names of hosts without the domain that all of them share.

    It tells nobody from another, and hides what does.
    """
    full = list(names)
    domains = {name.partition(".")[2] for name in full}
    short = {name: name.partition(".")[0] for name in full}
    alike = len(full) > 1 and len(domains) == 1 and domains != {""}
    numeric = any(name.replace(".", "").isdigit() for name in full)  # addresses share no domain
    return (
        short
        if alike and not numeric and len(set(short.values())) == len(set(full))
        else {n: n for n in full}
    )


@dataclass(frozen=True, slots=True)
class HostName:
    """A name that is cut in its middle.

    Hosts of one cluster often begin alike and differ at the end.
    """

    name: str
    token: str

    def draw(self, cells: int, glyphs: Glyphs) -> Line:
        if text_cells(self.name) <= cells or cells < 6:
            return [(self.name, self.token)]
        head = beginning(self.name, (cells - 1) // 2)
        tail = ending(self.name, cells - 1 - text_cells(head))
        return [(f"{head}{glyphs.ellipsis}{tail}", self.token)]


def mark_of(grade: Grade, glyphs: Glyphs) -> Piece:
    """Return the sign of a grade, which can be told apart without colours."""
    glyph = {
        Grade.PROBLEM: glyphs.bad,
        Grade.STALLED: glyphs.bad,
        Grade.UNREACHABLE: glyphs.bad,
        Grade.CONNECTING: glyphs.unknown,
        Grade.IDLE: glyphs.idle,
        Grade.FINE: glyphs.ok,
    }.get(grade, glyphs.warn)
    return glyph, _TOKENS[grade]


def host_row(
    one: HostSummary,
    tokens: Tokens,
    name: str = "",
    missing: Missing = HERE,
    narrow: bool = False,
) -> TableRow:
    """Return the row of a host, called ``name`` where that is given.

    What is not of now is grey. For how long a host is missing stands beside the state of its link,
    which begins the worst on a ``narrow`` table and where the host gave no figures: it has their
    room for it.
    """
    token = "text" if one.current else "faint"
    link = _LINK_TOKENS.get(one.state)
    away = one.state in AWAY
    cells: dict[str, Cell] = {
        "mark": [mark_of(one.grade, tokens.glyphs)],
        "host": HostName(name or one.name, "title" if one.current or away else "muted"),
        "worst": worst_cell(one, missing, narrow),
    }
    if link is not None and (narrow or not one.answered):
        age = f" {age_text(max(missing.seconds, 1.0))}" if away else ""
        worst = worst_cell(one, missing, narrow)
        told = any(text for text, _ in worst)
        tried = one.state == "unreachable" and missing.retry is not None
        after: Line = [(", " if tried else ": ", link), *worst] if told else []
        cells["worst"] = [(f"{one.state}{age}", link), *after]
    elif link is not None:
        age = f" {short_age_text(max(missing.seconds, 1.0))}" if away else ""
        cells["state"] = [(f"{one.state}{age}", link)]
    if one.answered:
        cells |= _figures(one, token)
    return TableRow(one.key, cells, "muted", spans="worst")


def _figures(one: HostSummary, token: str) -> dict[str, Cell]:
    load, tensor, used, total = (
        one.utilization_percent,
        one.tensor_percent,
        one.used_bytes,
        one.total_bytes,
    )
    bright = (
        "text"
        if not one.current
        else "warn"
        if load is not None and load < 1 and one.busy
        else "ok"
    )
    load_token = token if not one.current else "idle" if load is not None and load < 1 else bright
    share = used / total * 100 if used is not None and total else None
    full = "warn" if share is not None and share > 100 * NEARLY_FULL and one.current else ""
    room = (full or "allocated") if one.current else "free"
    dim = "muted" if one.current else "faint"
    more = f" +{len(one.jobs) - 1}" if len(one.jobs) > 1 else ""
    return {
        "busy": [(f"{one.busy}", token), (f"/{one.devices}", dim)] if one.devices else [FAINT],
        "free": [(str(one.free), "faint" if not one.current or not one.free else "title")]
        if one.devices
        else [FAINT],
        "load": [(percent_text(load / 100, whole=True), load_token)]
        if load is not None
        else [FAINT],
        "meter": Meter(load, load_token if one.current else "free") if one.devices else "",
        "tensor": [(percent_text(tensor / 100, whole=True), token)]
        if tensor is not None
        else [FAINT],
        "memory": [(percent_text(share / 100, whole=True), full or token)]
        if share is not None
        else [FAINT],
        "bytes": [
            (amount_text(used) if used is not None else "–", token),
            (f"/{amount_text(total)}" if total else "/–", dim),
        ],
        "room": Meter(share, room) if one.devices else "",
        "job": [(one.job, token), (more, dim)],
        "pace": [(brief_duration_text(one.pace_seconds), token)]
        if one.pace_seconds is not None
        else [FAINT],
    }


def worst_cell(one: HostSummary, missing: Missing = HERE, narrow: bool = False) -> Line:
    """The worst in few words; what is well says whether it works.

    A ``narrow`` table has no column of jobs, so that it names the job here.
    """
    if one.words:
        worst = one.words[0]
        text = worst.named if narrow else worst.text
        token = "text" if worst.grade <= Grade.UNREACHABLE else "muted"
        more = f" · {len(one.words) - 1} more" if len(one.words) > 1 else ""
        if one.state == "unreachable" and missing.retry is None:
            reason, _, rest = text.partition(". Next: ")
            command = rest.partition(", ")[0]
            then: Line = [(f" · {command}" if command else " · no retry", "title")]
            return [(reason, token), *then, (more, "faint")]
        if one.state == "unreachable":  # what happens next comes first: a reason may be long
            return [(f"{next_try(missing)}: ", "title"), (text, token), (more, "faint")]
        return [(text, token), (more, "faint")]
    return [(_WELL[one.grade], "faint")]


def next_try(missing: Missing) -> str:
    """Return when an unreachable host is tried again."""
    if missing.retry is None:
        return "no retry"
    return (
        f"retry in {age_text(max(round(missing.retry), 1))}"
        if missing.retry >= 0.5
        else "trying now"
    )


def totals_lines(now: HostTotals, shown: int, width: int, tokens: Tokens) -> list[Line]:
    """Return the sums over hosts and devices in two lines of at most ``width`` cells.

    The second says where there is room.
    """
    if not now.hosts:
        return [[(WAITING, "muted")]]
    glyphs = tokens.glyphs
    sound = now.reachable - now.problems - now.warned
    first: Line = [(f"{now.hosts} hosts", "title")]
    if shown != now.hosts:
        first.append((f", {shown} shown", "accent"))
    first.append((": ", "muted"))
    counts = (
        (now.problems, f"{glyphs.bad} {now.problems} in trouble", "bad"),
        (now.unreachable, f"{glyphs.bad} {now.unreachable} unreachable", "bad"),
        (now.warned, f"{glyphs.warn} {now.warned} with a warning", "warn"),
        (now.stale, f"{glyphs.warn} {now.stale} stale", "warn"),
        (now.connecting, f"{now.connecting} connecting", "muted"),
        (sound, f"{sound} ok", "ok"),
    )
    first += styled.join(
        ([(words, token)] for count, words, token in counts if count), " · ", "faint"
    )
    second: Line = [(f"{now.devices} GPUs", "title"), (": ", "muted")] if now.devices else []
    uses = (
        (now.lost, "lost", "bad"),
        (now.unheard, "no data", "warn"),
        (now.busy, "busy", "text"),
        (now.idle, "idle", "idle"),
        (now.free, "free", "ok"),
    )
    second += styled.join(
        ([(f"{count} {word}", token)] for count, word, token in uses if count), " · ", "faint"
    )
    if now.devices and now.jobs:
        second += [("   ", "text"), (count_text(now.jobs, "job"), "text")]
    if now.ended:
        first += [(" · ", "faint"), (number_text(now.ended), "warn")]
    room = room_pieces(now, width - styled.cells(second) - 3)
    if room:
        second += [("   ", "text"), *room]
    return [first, second] if second else [first]


def room_pieces(now: HostTotals, cells: int) -> Line:
    """Return where there is room, as many hosts as fit.

    An example is ``free: node-07 8× 140 GiB · node-12 2× 80 GiB``.
    """
    out: Line = [("free: ", "muted")]
    for number, (name, devices, size) in enumerate(now.room[:ROOMS_SHOWN]):
        piece: Line = [(" · ", "faint")] if number else []
        piece += [(name, "text"), (f" {devices}× {bytes_text(size / devices)}", "ok")]
        if styled.cells(out) + styled.cells(piece) + 2 > cells:
            return [*out, (" …", "faint")] if number else []
        out += piece
    return [*out, (" …", "faint")] if len(now.room) > ROOMS_SHOWN else out if now.room else []


def detail_lines(
    one: HostSummary,
    missing: Missing,
    cells: int,
    rows: int,
    tokens: Tokens,
    said: bool = False,
    steps: Mapping[str, Fix] = NO_STEPS,
) -> list[Line]:
    """Return all that is wrong with a host, in full as far as ``rows`` reach.

    ``steps`` are what to do first, by the words they are for. Where its row has ``said`` the first
    of it, and there is nothing to do about it, that is left out. Where nothing is wrong besides, it
    names the host's job.
    """
    lines: list[Line] = []
    if one.state in AWAY:
        lines += missing_lines(one, missing, cells)
    for word in one.words[said and not _first_step(one, steps) :]:
        glyph, token = mark_of(word.grade, tokens.glyphs)
        lines += styled.hang([(f"{glyph} ", token)], [(word.named, "text")], cells)
        if (fix := steps.get(word.text)) is not None:
            lines.append(styled.cut([("  do first: ", "accent"), *step_line(fix)], cells))
    if not lines:
        what = one.job or ("nothing runs here" if one.answered else "no reading so far")
        where = f" · {one.free} of {one.devices} GPUs free" if one.free and one.devices else ""
        glyph, token = mark_of(one.grade, tokens.glyphs)
        lines = [
            [
                (f"{glyph} ", token),
                (f"{what}{where}", "text"),
                (f"   {key_of('open')}: this host", "faint"),
            ]
        ]
    return lines[:rows]


def _first_step(one: HostSummary, steps: Mapping[str, Fix]) -> bool:
    return bool(one.words) and one.words[0].text in steps


def step_line(fix: Fix) -> Line:
    """Return a first step in words, with the keys that lead to it from the list of hosts."""
    opens: Piece = (key_of("open"), "bold accent")
    if STACKS.fullmatch(fix.command):
        stacks: Piece = (key_of("stacks"), "bold accent")
        ends: Piece = (key_of("signal"), "bold accent")
        shows: Piece = (" shows the stacks of its threads, ", "text")
        return [opens, (", ", "text"), stacks, shows, ends, (" ends the job", "text")]
    how: Line = [(" · ", "faint"), opens, (f" {key_of('doctor')}: how", "muted")]
    return [(fix.title.rstrip("."), "text"), *how]


def missing_lines(one: HostSummary, missing: Missing, cells: int) -> list[Line]:
    """Return since when a host is missing, what happens next, and how old its figures are."""
    glyph = _LINK_TOKENS[one.state]
    since = clock_text(time.time() - missing.seconds)
    first: Line = [
        (f"{one.state} ", glyph),
        (f"since {since}, for {age_text(missing.seconds)}", "text"),
    ]
    if one.state == "unreachable":
        first += [(" · ", "faint"), (next_try(missing), "title")]
    first += [(" · ", "faint"), (key_of("connect_again"), "accent"), (": connect now", "muted")]
    if one.answered:
        first.append((" · the figures are from before", "muted"))
    return styled.hang([("  ", "text")], first, cells)
