"""Draw the ranks of a dead job over time, the row of the rank that failed first marked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...text.clock import clock_text
from ...text.ranges import named_ranges
from ...text.units import count_text, duration_text
from ...text.width import cells, cut, pad
from ...wire.clean import clean
from .model import Job, Rank, Suspect, Verdict
from .scene import Scene, ended_text, fatal, own_frame, short, stands_at, waits
from .waiting import came_later, unfinished

if TYPE_CHECKING:
    from ...text.styled import Line

MOST_ROWS = 24
LEAST_TIME_CELLS, MOST_TIME_CELLS = 17, 60
_STYLES = {"×": "bad", "○": "muted", "■": "muted", "✓": "ok", "?": "warn"}
_WORDS = {"×": "failed", "○": "waited", "■": "told", "✓": "done", "?": "unknown"}
_LEGEND = (
    ("×", "failed by itself"),
    ("?", "did not arrive, or not known"),
    ("○", "waited, or lost a connection"),
    ("■", "was told to end"),
    ("✓", "done"),
)


@dataclass(frozen=True, slots=True)
class RanksRow:
    """One or several ranks that ended alike, and at which times.

    ``sign`` is how they ended, a character of the legend. ``end`` is when, in seconds since 1970.
    """

    ranks: tuple[int, ...]
    culprit: bool
    sign: str
    text: str
    step: int | None
    begin: float | None
    last: float | None
    end: float | None
    host: str


def rows(job: Job, verdict: Verdict) -> list[RanksRow]:
    """Return the table's rows: the ranks of the first suspect, then the others, alike together."""
    scene = Scene(job)
    culprits = verdict.suspects[0].ranks if verdict.suspects else ()
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number in range(scene.world if scene.ranks else 0):
        sign, text = _how(scene, number, number in culprits)
        step = scene.get(number).step
        key = (number in culprits, sign, re.sub(r"\d", "#", text), step)
        alike.setdefault(key, []).append(number)
    made = []
    for (culprit, sign, _, step), numbers in alike.items():
        ranks = [scene.get(number) for number in numbers]
        hosts = {rank.host for rank in ranks}
        made.append(
            RanksRow(
                ranks=tuple(numbers),
                culprit=culprit,
                sign=sign,
                text=_how(scene, numbers[0], culprit)[1],
                step=step,
                begin=_least(rank.begin for rank in ranks),
                last=_most(_last(rank) for rank in ranks),
                end=_least(_end(rank) for rank in ranks),
                host=hosts.pop() if len(hosts) == 1 else "",
            )
        )
    return sorted(made, key=lambda row: (not row.culprit, row.sign != "×", row.ranks))


def _how(scene: Scene, number: int, culprit: bool) -> tuple[str, str]:
    """Return how a rank ended: a sign of the legend, and in words."""
    rank = scene.get(number)
    failure = scene.own_failures.get(number)
    if failure is not None:
        frame = own_frame(failure.frames, innermost_last=True)
        return "×", short(failure.text, 120) + (f" at {frame.place}" if frame else "")
    left = rank.exit
    told = rank.told is not None
    if left is not None and left.code not in (0, 1, -15) and not told and not rank.waited:
        return "×", ended_text(left.code, ()).removeprefix("was ")
    place, function, _ = stands_at(rank)
    if place and not waits(rank):
        return ("?" if culprit else "■"), f"was in {function} at {place}"
    last = fatal(rank)
    if rank.waited or waits(rank):
        frame = own_frame(last.frames, innermost_last=True) if last else None
        call = unfinished(rank)
        if last is None or came_later(last):
            known = call.place.partition(" in ")[0] if call is not None else place
            frame, place = (None, known) if known else (frame, place)
        where = f" at {frame.place}" if frame else f" at {place}" if place else ""
        effect = next(rank.effects(), None)
        lost = effect is not None and not re.search("timed? ?out|timeout", effect.text, re.I)
        return "○", ("lost a connection" if lost else "waited for others") + where
    if rank.finished or (left is not None and left.code == 0):
        return "✓", "done"
    if told:
        return ("?" if culprit else "■"), "ran until it was told to end"
    if left is not None:
        return "■", ended_text(left.code, ()).removeprefix("was ")
    if scene.moments("time-limit", "preempted", "cancelled", "agent-signal") and rank.sources:
        return "■", "ran until the job was ended"
    return "?", "nothing says how it ended" if rank.sources else "left nothing here"


def _last(rank: Rank) -> float | None:
    return _most((rank.last, rank.step_time))


def _end(rank: Rank) -> float | None:
    """Return when a rank failed, or when it ended."""
    times = [one.time for one in rank.failures if one.time is not None]
    times += [one.time for one in rank.moments if one.means == "effect" and one.time is not None]
    if times:
        return min(times)
    if rank.exit is not None and rank.exit.time is not None:
        return rank.exit.time
    return rank.told.time if rank.told is not None else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((one for one in values if one is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def lines(job: Job, verdict: Verdict, width: int) -> list[Line]:
    """Return the table as lines of at most ``width`` columns."""
    found = rows(job, verdict)
    if not found:
        return []
    shown = found[:MOST_ROWS]
    names = [_name(row) for row in shown]
    room = min(max(map(cells, names)), 18)
    begin, end = _span(shown)
    timed = begin is not None and end is not None and end > begin
    steps = max((cells(_step(row)) for row in shown), default=0)
    time_cells = 0
    if timed:
        left = width - 4 - room - steps - 3
        time_cells = max(min((left * 2) // 5, MOST_TIME_CELLS), 0)
        timed = time_cells >= LEAST_TIME_CELLS
    out: list[Line] = [_title(job, begin, end, width)]
    if timed and begin is not None and end is not None:
        out.append(_axis(begin, end, room, time_cells))
    for row, name in zip(shown, names, strict=True):
        style = "title" if row.culprit else "text"
        line: Line = [
            ("▶ " if row.culprit else "  ", "bad"),
            (pad(cut(name, room), room), style),
        ]
        used = 2 + room
        if timed and begin is not None and end is not None:
            line += [("  ", ""), *_bar(row, begin, end, time_cells)]
            used += 2 + time_cells
        if steps:
            line += [("  ", ""), (pad(_step(row), steps), "muted")]
            used += 2 + steps
        text = clean(row.text, 200)
        line += [(f"  {row.sign} ", _STYLES[row.sign]), (cut(text, width - used - 4), style)]
        out.append(line)
    if len(found) > len(shown):
        out.append([(f"  and {len(found) - len(shown)} more rows: --json", "muted")])
    signs = {row.sign for row in shown}
    legend = "  ".join(f"{sign} {text}" for sign, text in _LEGEND if sign in signs)
    return [*out, [(cut("  " + legend, width), "faint")], []]


def _name(row: RanksRow) -> str:
    text = named_ranges("rank", row.ranks)
    if cells(text) > 18:
        text = f"{len(row.ranks)} ranks"
    return text


def _step(row: RanksRow) -> str:
    return "" if row.step is None else f"step {row.step}"


def _title(job: Job, begin: float | None, end: float | None, width: int) -> Line:
    scene = Scene(job)
    hosts = len(scene.hosts)
    text = count_text(scene.world, "rank")
    if hosts > 1:
        text += f" on {hosts} hosts"
    if begin is not None and end is not None and end > begin:
        text += f", the last {duration_text(end - begin)}"
    for host, (offset, _) in list(job.offsets.items())[:1]:
        more = f" and {len(job.offsets) - 1} more" if len(job.offsets) > 1 else ""
        way = "ahead of" if offset > 0 else "behind"
        text += f"; the clock of {host}{more} was {duration_text(abs(offset))} {way} the first"
    if job.attempts > 1:
        text += f", attempt {job.attempts} of {job.attempts}"
    return [("Ranks", "accent"), (cut(f"  {text}", width - 5), "muted")]


def _span(shown: Iterable[RanksRow]) -> tuple[float | None, float | None]:
    """Return the times that the table covers: from before the first last words to the last ones."""
    ends = [at for row in shown for at in (row.last, row.end) if at is not None]
    if not ends:
        return None, None
    first, last = min(ends), max(ends)
    begin = first - max(0.15 * (last - first), 1.0)
    return begin, last


def _axis(begin: float, end: float, room: int, time_cells: int) -> Line:
    left, right = clock_text(begin), clock_text(end)
    middle = pad("", time_cells - cells(left) - cells(right))
    return [(pad("", 4 + room), ""), (left + middle + right, "faint")]


def _bar(row: RanksRow, begin: float, end: float, time_cells: int) -> Line:
    """Return a row over time: a line while its ranks wrote, dots until their end, and a sign."""

    def cell(at: float) -> int:
        return min(max(round((at - begin) / (end - begin) * (time_cells - 1)), 0), time_cells - 1)

    stop = row.end if row.end is not None else row.last
    if stop is None:
        return [(pad("", time_cells), "")]
    to = cell(stop)
    wrote = min(cell(row.last), to) if row.last is not None else 0
    style = "title" if row.culprit else "muted"
    return [
        ("─" * wrote, style),
        ("·" * (to - wrote), "faint"),
        (row.sign, _STYLES[row.sign]),
        (pad("", time_cells - to - 1), ""),
    ]


def document(job: Job, verdict: Verdict) -> dict[str, Any]:
    """Return the job and its verdict as JSON."""
    scene = Scene(job)
    return {
        "name": job.name,
        "world": scene.world if scene.ranks else None,
        "attempts": job.attempts,
        "bytes_read": job.bytes_read,
        "files": job.found,
        "clocks": [
            {"host": host, "offset_seconds": offset, "spread_seconds": spread}
            for host, (offset, spread) in job.offsets.items()
        ],
        "suspects": [_suspect(one) for one in verdict.suspects],
        "ranks": [
            {
                "ranks": list(row.ranks),
                "culprit": row.culprit,
                "end": _WORDS[row.sign],
                "text": clean(row.text, 300),
                "step": row.step,
                "host": row.host or None,
                "begin_seconds": row.begin,
                "last_words_seconds": row.last,
                "end_seconds": row.end,
            }
            for row in rows(job, verdict)
        ],
    }


def _suspect(one: Suspect) -> dict[str, Any]:
    return {
        "cause": one.cause.partition(".")[2],
        "ranks": list(one.ranks),
        "confidence": one.confidence,
        "weight": round(one.weight, 2),
        "host": one.host or None,
        "where": one.where or None,
        "time_seconds": one.time,
    }
