"""Rows of the log, oldest first: what happened to the host, and what was done and said here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...paths import short_path
from ...text import styled
from ...text.clock import MINUTE, clock_text
from ...text.styled import Line
from ...text.width import beginning
from ...text.width import cells as text_cells
from ..background.log_entry import FOUND, GROUPS, HIDDEN, NOTICED, WARNED, LogEntry
from ..cells import fit
from ..shell.notices import Notice
from ..theme import Glyphs
from ..widgets.table import Cell, Column, TableRow

DAY = "%b %d"
SIGN = Column("sign", "", 1)
WHAT, TEXT = Column("what", "WHAT", 15), Column("text", "TEXT", 20, flex=1)
WHO = Column("who", "WHO", 12, priority=1)
NARROW, WHO_NARROW, WHO_CELLS = 100, 15, 26
"""A table with fewer cells has the time without the date, and at most so many cells for WHO."""
DATED, OF_ANOTHER_DAY = len("Sep 20 13:13:20"), len("Sep 20 13:13")
"""Cells of a time with its date: in a wide table, and where there is little room."""
MOST_UNUSED = 15
"""The most cells that a text leaves free only to end with a whole part."""
SHOWN = 500
ALL = ""
"""The group that has all but :data:`~gpuscope.tui.background.log_entry.HIDDEN`."""
OF_A_CARD = ("gpu-health", "gpu-clocks")
"""Pitfalls of the findings on what a GPU reports itself, which have rows of the GPU as well."""
SAME_SECONDS = 10.0
"""A finding and the row of its GPU come within so long; a finding ends a while after the row."""
FINDS = (FOUND, WARNED, NOTICED)
"""Words for a finding that a sign says as well."""
NEWS = {
    "file": ("files", "saved"),
    "link": ("probe", "link"),
    "probe": ("probe", "probe"),
    "signal": ("jobs", "signal"),
}
"""Notices that are news, by their kind: the group and the word. Others are the program's own."""


def columns(entries: Sequence[LogEntry], cells: int = NARROW) -> list[Column]:
    """Return the columns of a table that is so many cells wide.

    The date stands before the time where not all is of one day. In a narrow table the text begins
    with what happened.
    """
    days = {time.localtime(one.wall_seconds)[:3] for one in entries}
    wide = cells >= NARROW
    longest = max((text_cells(one.who) for one in entries), default=0)
    who = max(WHO.width, min(longest, WHO_CELLS if wide else WHO_NARROW))
    clock = Column("time", "TIME", (DATED if wide else OF_ANOTHER_DAY) if len(days) > 1 else 8)
    what = max((text_cells(one.word) for one in entries), default=0)
    shown = [WHAT._replace(width=max(len(WHAT.title), min(WHAT.width, what)))] if wide else []
    return [clock, SIGN, *shown, WHO._replace(width=who), TEXT]


def day(entry: LogEntry) -> str:
    """Return the day of an entry, as ``Nov 26``."""
    return clock_text(entry.wall_seconds, DAY)


def at_text(wall_seconds: float, today: str) -> str:
    """Return a time of the day: the minute with its date where it is not of ``today``."""
    other = today and clock_text(wall_seconds, DAY) != today
    return clock_text(wall_seconds, f"{DAY} {MINUTE}") if other else clock_text(wall_seconds)


def of_notices(notices: Iterable[Notice]) -> list[LogEntry]:
    """Return what the program has said, of which some is news: files, signals, lost links."""
    out = []
    for number, notice in enumerate(notices):
        group, word = NEWS.get(notice.kind, ("program", "notice"))
        saved = notice.severity == "ok" and word == "saved"
        token = "ok" if saved else "muted" if notice.severity == "ok" else notice.severity
        place = (notice.opens, notice.path) if notice.opens and notice.path is not None else ()
        serial = f"n{number}/{notice.wall_seconds}"
        entry = LogEntry(
            notice.wall_seconds, group, word, "gpuscope", notice.text, token, serial, place
        )
        if notice.path is not None:
            entry = replace(entry, path=short_path(notice.path))
        out.append(entry)
    return out


def chosen(
    entries: Iterable[LogEntry],
    group: str = ALL,
    text: str = "",
    until_seconds: float | None = None,
) -> list[LogEntry]:
    """Return the entries of a group that contain ``text``, oldest first, the newest of them."""
    needle = text.casefold()
    found = [
        one
        for one in (entries if group else _once_each(list(entries)))
        if (one.group == group if group else one.group not in HIDDEN)
        and (until_seconds is None or one.wall_seconds <= until_seconds + 0.5)
        and needle in f"{one.word} {one.who} {one.text}".casefold()
    ]
    found.sort(key=lambda one: one.wall_seconds)
    return found[-SHOWN:]


def _once_each(entries: Sequence[LogEntry]) -> list[LogEntry]:
    """Return the entries without the findings that only repeat a row of their GPU."""
    of_gpus = [one for one in entries if one.group == "gpu"]
    return [
        one
        for one in entries
        if one.place[:1] != ("finding",)
        or one.place[1] not in OF_A_CARD
        or not any(
            row.who == one.who
            and (row.token == "ok") == (one.token == "ok")
            and abs(row.wall_seconds - one.wall_seconds) < SAME_SECONDS
            for row in of_gpus
        )
    ]


def counts(entries: Sequence[LogEntry]) -> dict[str, int]:
    """Return how many entries there are in each group, and in all that are shown together."""
    by_group = Counter(one.group for one in entries)
    together = sum(one.group not in HIDDEN for one in _once_each(entries))
    return {ALL: together, **{group: by_group[group] for group in GROUPS}}


def sign(token: str, glyphs: Glyphs) -> str:
    """Return the sign of a severity, which can be told apart without colours."""
    return {"bad": glyphs.bad, "warn": glyphs.warn, "ok": glyphs.ok}.get(token, glyphs.dash)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text that ends with its last whole part and an ellipsis where it is too long."""

    text: str
    token: str

    def draw(self, cells: int, glyphs: Glyphs) -> Line:
        line: Line = [(self.text, self.token)]
        if styled.cells(line) <= cells:
            return line
        shown = styled.plain(styled.cut_whole(line, max(0, cells - 2), glyphs.ellipsis))
        if cells - text_cells(shown) > MOST_UNUSED:  # a part of the next part says more
            whole, space, _ = beginning(self.text, cells - 1).rpartition(" ")
            closed = whole.count("(") == whole.count(")")
            more = closed and text_cells(whole) > text_cells(shown)
            shown = whole if space and more else shown
        if shown.endswith(glyphs.ellipsis):
            return [(shown, self.token)]
        return [(f"{shown} {glyphs.ellipsis}", self.token)]


def row(
    entry: LogEntry, glyphs: Glyphs, dated: bool = False, today: str = "", begins: bool = False
) -> TableRow:
    """Return one line as the table draws it.

    ``dated`` sets the day before the time. Where there is little room, only an entry of another
    day than ``today`` has it. Who it is of stands before the text, which does not name it again.
    With ``begins`` the text begins with what happened, where its sign does not say that.
    """
    word = f"{entry.word}: " if begins and entry.word not in FINDS else ""
    at = (
        f"{day(entry)} {clock_text(entry.wall_seconds)}"
        if dated
        else at_text(entry.wall_seconds, today)
    )
    grave = entry.token in ("bad", "warn")
    cells: dict[str, Cell] = {
        "time": [(at, "faint")],
        "sign": [(sign(entry.token, glyphs), entry.token if entry.token != "text" else "faint")],
        "what": [(entry.word, entry.token)],
        "who": [(entry.who, "text" if grave else "muted")],
        "text": Sentence(
            word + entry.text.removeprefix(f"{entry.who} "),
            "muted" if entry.token == "muted" else "text",
        ),
    }
    return TableRow(entry.serial, cells)


def event_lines(
    found: Sequence[LogEntry], glyphs: Glyphs, height: int, width: int, now: float | None = None
) -> list[Line]:
    """Return what happened to one job in ``height`` lines, the newest first.

    ``found`` is in that order. What is longer than a line goes on in the next. What is of another
    day than ``now``, by default the newest of them, has its date.
    """
    lines: list[Line] = []
    today = clock_text(now, DAY) if now is not None else day(found[0]) if found else ""
    time_cells = max((len(at_text(one.wall_seconds, today)) for one in found[:height]), default=0)
    word_cells = max((styled.cells([(one.word, "")]) for one in found[:height]), default=0)
    for one in found:
        at = at_text(one.wall_seconds, today).rjust(time_cells)
        token = one.token if one.token != "text" else "faint"
        head: Line = [(f"{at} ", "faint"), (f"{sign(one.token, glyphs)} ", token)]
        head.append((fit(one.word, word_cells) + " ", one.token))
        indent = styled.cells(head)
        text = (one.text, "muted" if one.token == "muted" else "text")
        lines += styled.wrap([*head, text], max(width, indent + 20), indent)
        if len(lines) >= height:
            break
    return lines[:height] or [[("nothing has happened since gpuscope first saw it", "muted")]]
