"""A host in a line, and all hosts in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...model.device_state import NEARLY_FULL
from ...model.ended_jobs import number_text
from ...text import styled
from ...text.styled import Line, Piece, merged
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
from ..theme import Glyphs, Tokens
from ..widgets.bars import Meter
from ..widgets.pane import WAITING
from ..widgets.table import Cell, Column, TableRow
from .summary import HERE, Grade, HostSummary, HostTotals, Level, Missing, Word

COLUMNS = (
    Column("mark", "", 1),
    Column("host", "HOST", 10, flex=2, most=28),
    Column("state", "LINK", 10, flex=1, most=16),
    Column("busy", "BUSY", 5, align="right", priority=4),
    Column("free", "FREE", 4, align="right"),
    Column("load", "UTIL", 5, align="right"),
    Column("each", "GPUS", 4, priority=3),
    Column("tensor", "TENS", 5, align="right", priority=6),
    Column("memory", "MEM", 5, align="right", priority=5),
    Column("room", "", 6, flex=1, most=14, priority=8),
    Column("bytes", "USED/TOTAL GiB", 14, align="right", priority=9),
    Column("cpu", "CPU", 5, align="right", priority=7),
    Column("ram", "RAM", 5, align="right", priority=7),
    Column("job", "JOB", 9, flex=1, most=24, priority=2),
    Column("pace", "STEP TIME", 9, align="right"),
    Column("worst", "STATE", 14, flex=12),
)
HOST_CELLS, WIDE_HOST_CELLS = 20, 28
"""The most cells of the column of names, on a narrow and on a wide terminal."""
WIDE_COLUMNS, WIDE_WORST, WORST = 100, 29, 24
"""The width from which a terminal counts as wide, and the least cells of the column of the worst
finding on a wide and on a narrow one.
"""
JOB_CELLS = 14
"""The cells that a job has before the worst finding gets more."""
MOST_EACH = 16
"""The most cells of the GPUs of a host, a block each."""
NARROW_CELLS = 37
"""The cells that frame, gaps and the four figures take in a narrow table."""
FIGURES_CELLS = 17
"""Those of the three figures on GPUs."""
SORT_TITLES = {
    "worst": ("worst", "STATE"),
    "name": ("host", "HOST"),
    "free": ("free", "FREE"),
    "load": ("load", "UTIL"),
    "memory": ("memory", "MEM"),
    "pace": ("pace", "STEP TIME"),
}
ROOMS_SHOWN = 12
AWAY = ("stale", "unreachable")
"""States of a link in which a host sends nothing new."""
_TOKENS = {
    Grade.BROKEN: "bad",
    Grade.STALLED: "bad",
    Grade.PROBLEM: "bad",
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
LINK_TOKENS = {"connecting": "muted", "queued": "faint", "stale": "warn", "unreachable": "bad"}
"""The colours of the states of a link that are named. A live link is not: its readings show it."""
FAINT: Piece = ("–", "faint")


def columns(
    sort: str,
    width: int = 80,
    longest: int = 0,
    link: int | None = None,
    worst: int = 0,
    job: int = 0,
    devices: int = 0,
) -> list[Column]:
    """Return the columns for a terminal of ``width`` cells, the one that is sorted by marked.

    ``longest`` are the cells of the longest name of a host, which comes before figures that can
    be seen one step deeper, 0 where it is not known. ``link`` are those of the longest state of a
    link, which has no column where all hosts are live, or where the worst says it. What neither
    needs is for the worst, of which the longest text has ``worst`` cells; that of a job has
    ``job``. The host with most GPUs has ``devices``.
    """
    key, title = SORT_TITLES[sort]
    wide = width >= WIDE_COLUMNS
    host = min(longest, WIDE_HOST_CELLS if wide else HOST_CELLS)
    least = WIDE_WORST if wide else WORST if link is not None else 0
    share = width // 2 - 8 if wide else width - NARROW_CELLS - max(host, len("HOST"))
    share += 0 if devices or wide else FIGURES_CELLS
    widths = {"host": host, "worst": max(least, min(worst, share)), "job": min(job, JOB_CELLS)}
    widths["each"] = min(devices, MOST_EACH)
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
    marked = f"{title}▾"
    return [
        c._replace(title=marked, width=max(c.width, text_cells(marked))) if c.key == key else c
        for c in out
    ]


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


@dataclass(frozen=True, slots=True)
class EachDevice:
    """The load of each GPU of a host as a block, and a sign in place of one that is in trouble.

    Where there are more GPUs than cells, a block is the mean of several.
    """

    levels: tuple[Level, ...]
    current: bool

    def draw(self, cells: int, glyphs: Glyphs) -> Line:
        by = -(-len(self.levels) // max(cells, 1)) or 1
        groups = [self.levels[at : at + by] for at in range(0, len(self.levels), by)]
        return merged(self._block(group, glyphs) for group in groups)

    def _block(self, group: Sequence[Level], glyphs: Glyphs) -> Piece:
        kinds = {level.kind for level in group}
        known = [level.level for level in group if level.level is not None]
        if not self.current or not known:
            token = "faint"
        else:
            token = "warn" if "warn" in kinds else "idle" if kinds == {"idle"} else "ok"
        if "bad" in kinds:
            return glyphs.bad, "bad" if self.current else "faint"
        return glyphs.up[max(round(fmean(known)), 1)] if known else glyphs.unknown, token


def mark_of(grade: Grade, glyphs: Glyphs) -> Piece:
    """Return the sign of a grade, which can be told apart without colours."""
    glyph = {
        Grade.BROKEN: glyphs.bad,
        Grade.STALLED: glyphs.bad,
        Grade.PROBLEM: glyphs.bad,
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
    room: int = 0,
) -> TableRow:
    """Return the row of a host, called ``name`` where that is given.

    What is not of now is grey. For how long a host is missing stands beside the state of its link,
    which begins the worst on a ``narrow`` table and where the host gave no figures: it has their
    room for it. The worst has ``room`` for so many cells.
    """
    token = "text" if one.current else "faint"
    link = LINK_TOKENS.get(one.state)
    away = one.state in AWAY
    cells: dict[str, Cell] = {
        "mark": [mark_of(one.grade, tokens.glyphs)],
        "host": HostName(name or one.name, "title" if one.current or away else "muted"),
        "worst": worst_cell(one, missing, narrow, room),
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
        "each": EachDevice(one.levels, one.current) if one.devices else "",
        "tensor": [(percent_text(tensor / 100, whole=True), token)]
        if tensor is not None
        else [FAINT],
        "memory": [(percent_text(share / 100, whole=True), full or token)]
        if share is not None
        else [FAINT],
        "bytes": [
            (amount_text(used) if used is not None else "–", token),
            (f"/{amount_text(total)}" if total else "/–", dim),
        ]
        if one.devices
        else [FAINT],
        "room": Meter(share, room) if one.devices else "",
        "cpu": _share(one.cpu_percent, token),
        "ram": _share(one.ram_percent, token),
        "job": [(one.job, token), (more, dim)],
        "pace": [(brief_duration_text(one.pace_seconds), token)]
        if one.pace_seconds is not None
        else [FAINT],
    }


def _share(percent: int | None, token: str) -> Line:
    return [FAINT] if percent is None else [(percent_text(percent / 100, whole=True), token)]


def worst_cell(
    one: HostSummary, missing: Missing = HERE, narrow: bool = False, room: int = 0
) -> Line:
    """The worst in few words; what is well says whether it works.

    A ``narrow`` table has no column of jobs, so that it names the job here. What else is wrong
    follows as far as there is ``room`` in cells, and is counted where there is not.
    """
    if not one.words:
        well = _WELL[one.grade]
        return [(" · ".join(filter(None, (well, "no GPUs" if one.no_gpus else ""))), "faint")]
    worst, *others = one.words
    text = worst.named if narrow else worst.text
    token = _token(worst)
    if one.state == "unreachable" and missing.retry is None:
        reason, _, rest = text.partition(". Next: ")
        command = rest.partition(", ")[0]
        return [(reason, token), (f" · {command}" if command else " · no retry", "title")]
    if one.state == "unreachable":  # what happens next comes first: a reason may be long
        return [(f"{next_try(missing)}: ", "title"), (text, token)]
    out: Line = [(text, token)]
    if others and room:  # how many more there are is never cut off
        out = styled.cut(out, room - len(f" · {len(others)} more"))
    for at, word in enumerate(others):
        left = len(others) - at
        after = len(f" · {left - 1} more") if left > 1 else 0
        if styled.cells(out) + len(" · ") + text_cells(word.named) + after > room:
            return [*out, (f" · {left} more", "faint")]
        out += [(" · ", "faint"), (word.named, _token(word))]
    return out


def _token(word: Word) -> str:
    return "text" if word.grade <= Grade.UNREACHABLE else "muted"


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
    first: Line = [(count_text(now.hosts, "host"), "title")]
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
