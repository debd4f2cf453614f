"""Make the section of a dead job: its ranks over time, from a job of the doctor's document."""

from __future__ import annotations

from ..text.clock import clock_text
from ..text.numbers import number
from ..text.ranges import named_ranges
from ..text.units import DASH, count_text, duration_text
from . import documents as read
from .content import Map, MapRow, Part, Piece, Section, Table, Tone
from .documents import Document

MAX_ROWS = 64
TONES: dict[str, Tone] = {"failed": "bad", "unknown": "warn", "done": "ok"}
LEGEND = {
    "pending": "the rank that failed first",
    "allocated": "wrote to its log",
    "partly": "silent until its end",
}
SOURCE = "the files that the job left"


def section(job: Document) -> Section:
    """Return the ranks of a job over time, and how each ended."""
    rows = read.rows(job.get("ranks"))[:MAX_ROWS]
    begin, end = _span(rows)
    parts: list[Part] = []
    if begin is not None and end is not None and end > begin:
        drawn = [_row(row, begin, end) for row in rows]
        when = f"{clock_text(begin, '%Y-%m-%d %H:%M:%S')} to {clock_text(end)}"
        parts.append(
            Map("", ("Ranks", "Step", "End"), drawn, LEGEND, _notes(job), source=SOURCE, when=when)
        )
    else:
        table = [(_name(row), _step(row), _end(row)) for row in rows]
        tones = {
            number: TONES[how]
            for number, row in enumerate(rows)
            if (how := read.text(row.get("end"))) in TONES
        }
        parts.append(
            Table("", ("Ranks", "Step", "End"), table, (1,), _notes(job), tones, source=SOURCE)
        )
    world, attempts = number(job.get("world")), number(job.get("attempts"))
    lead = count_text(int(world), "rank") if world is not None else ""
    if lead and begin is not None and end is not None and end > begin:
        lead += f", the last {duration_text(end - begin)}"
    if lead and attempts is not None and attempts > 1:
        lead += f", attempt {attempts:.0f} of {attempts:.0f}"
    name = read.text(job.get("name"))
    title = f"The ranks of {name}" if name else "The ranks"
    return Section(title, parts if rows else [], f"{lead}." if lead else "")


def _span(rows: list[Document]) -> tuple[float | None, float | None]:
    """Return the times that are drawn: from a little before the first last words."""
    keys = ("last_words_seconds", "end_seconds")
    times = [at for row in rows for key in keys if (at := number(row.get(key))) is not None]
    if not times:
        return None, None
    first, last = min(times), max(times)
    return first - max(0.15 * (last - first), 1.0), last


def _row(row: Document, begin: float, end: float) -> MapRow:
    def place(at: float) -> float:
        return min(max((at - begin) / (end - begin), 0.0), 1.0)

    wrote, stop = number(row.get("last_words_seconds")), number(row.get("end_seconds"))
    first = row.get("culprit") is True
    pieces = []
    if wrote is not None:
        pieces.append(Piece(0.0, place(wrote), "pending" if first else "allocated"))
    if stop is not None and place(stop) > (place(wrote) if wrote is not None else 0.0):
        pieces.append(Piece(place(wrote) if wrote is not None else 0.0, place(stop), "partly"))
    return MapRow(f"{'▶ ' if first else ''}{_name(row)}", _step(row), 1.0, pieces, _end(row))


def _name(row: Document) -> str:
    ranks = row.get("ranks")
    known = [one for one in ranks if type(one) is int] if isinstance(ranks, list) else []
    return named_ranges("rank", known[:4096]) if known else "ranks"


def _step(row: Document) -> str:
    step = number(row.get("step"))
    return f"step {step:,.0f}" if step is not None else DASH


def _end(row: Document) -> str:
    host = read.text(row.get("host"))
    text = f"{read.text(row.get('end'))}: {read.text(row.get('text'))}"
    return f"{text} ({host})" if host else text


def _notes(job: Document) -> list[str]:
    """Return by how much the clocks of hosts were moved."""
    notes = []
    for row in read.rows(job.get("clocks")):
        offset, host = number(row.get("offset_seconds")), read.text(row.get("host"))
        if offset:
            way = "ahead of" if offset > 0 else "behind"
            notes.append(f"The clock of {host} was {duration_text(abs(offset))} {way} the first.")
    return notes[:16]
