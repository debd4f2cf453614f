"""Write where the time of trainers goes, as text and as JSON: what ``gpuscope why`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..doctor.live_causes import Judged
from ..model import rank_times
from ..model.look import Look, waited_for
from ..model.rank_times import Odd, odd_sentence
from ..model.slowdown import Slowdown
from ..model.stragglers import Straggler
from ..model.time_cause import Cause
from ..model.time_ledger import Row, TimeLedger
from ..model.time_sentence import sentence
from ..model.useful_work import UsefulWork
from ..text import width as cells
from ..text.ranges import interval_text
from ..text.units import DASH, duration_text, percent_text
from ..wire.clean import clean
from . import look, work

MAX_PLACES = 3
MAX_RANKS = 64
BAR_CELLS = 24
WITH_PLACES = frozenset(("input", "read", "checkpoint", "validation", "other"))
SOURCE = "samples of the training thread's stack"


@dataclass(frozen=True)
class TrainerTime:
    """What is known about the time of one trainer.

    ``name`` is its name for people (``train.py, rank 3, pid 4242``), and ``short`` its name in a
    table of ranks. ``again`` is the command that repeats the question, and ``note`` contains
    further remarks.
    """

    name: str
    short: str
    pid: int
    rank: int | None
    job: str | None
    ledger: TimeLedger
    slowdown: Slowdown | None = None
    straggler: Straggler | None = None
    """How it keeps the other ranks waiting, by the parts of its steps."""
    again: str = ""
    note: str = ""
    look: tuple[Look | None, str] | None = None
    """What was seen on its GPU, or None and why nothing was; None where nobody looked."""
    work: tuple[UsefulWork | None, str] | None = None
    """What a step of it computes, or None and why that is not known; None where nobody asked."""
    judged: tuple[Judged, ...] = ()
    """What makes it slow, what brings most first."""
    stopped: str = ""
    """Since when no step has ended, in a sentence; "" while steps end."""
    settings: tuple[str, ...] = ()
    """Settings for debugging and the like that are on in it."""
    tune: str = ""
    """The command that searches faster settings of it, "" where none can be named."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        return tuple(one.cause for one in self.judged)


def rank_to_report(ranks: Sequence[TrainerTime]) -> tuple[TrainerTime, Odd | None]:
    """Return the rank of a job to report in full, and how it differs from the others.

    :func:`gpuscope.model.rank_times.rank_to_report` makes the choice.
    """
    late = _late(ranks)
    slow = next((one.short for one in ranks if one.straggler is not None), None)
    key, odd = rank_times.rank_to_report(
        {one.short: one.ledger for one in ranks}, ranks[late[0]].short if late is not None else slow
    )
    return next(one for one in ranks if one.short == key), odd


def _late(ranks: Sequence[TrainerTime]) -> tuple[int, float] | None:
    """The place of the rank that the others' collectives wait for, and for how long in a step."""
    looks = {at: one.look[0] for at, one in enumerate(ranks) if one.look and one.look[0]}
    return waited_for({at: seen for at, seen in looks.items() if seen is not None})


# ── the document ──


def document(target: str, ranks: Sequence[TrainerTime]) -> dict[str, Any]:
    """Return what ``--json`` prints. Shares are fractions of 1; seconds are wall-clock time.

    The keys at the top level are those of the named trainer; ``trainers`` has all of them.
    """
    one, odd = rank_to_report(ranks)
    return {
        "target": clean(target, 512),
        **_trainer(one),
        "odd_rank": None
        if odd is None
        else {
            "rank": one.rank,
            "pid": one.pid,
            "row": odd.row.name,
            "share": odd.row.share,
            "usual_share": odd.usual_share,
            "step_seconds": odd.seconds,
            "usual_step_seconds": odd.usual_seconds,
        },
        "straggler": next((_straggler(each) for each in ranks if each.straggler is not None), None),
        "trainers": [_trainer(each) for each in ranks],
    }


def _straggler(one: TrainerTime) -> dict[str, Any] | None:
    slow = one.straggler
    if slow is None:
        return None
    return {
        "rank": one.rank,
        "pid": one.pid,
        "since": slow.wall,
        "own_step_seconds": slow.own_seconds,
        "usual_own_step_seconds": slow.usual_seconds,
    }


def _trainer(one: TrainerTime) -> dict[str, Any]:
    ledger, slowdown = one.ledger, one.slowdown
    return {
        "name": clean(one.name, 200),
        "pid": one.pid,
        "rank": one.rank,
        "job": clean(one.job, 200) if one.job is not None else None,
        "window_seconds": round(ledger.seconds, 6),
        "steps": ledger.steps,
        "step_seconds": ledger.step_seconds,
        "looks": ledger.looks,
        "enough_looks": ledger.sure,
        "sentence": sentence(ledger, one.causes),
        "rows": [_row_document(row) for row in ledger.rows],
        "causes": look.causes_document(one.judged, one.again, ledger.step_seconds),
        "slower": None
        if slowdown is None
        else {
            "since": slowdown.wall,
            "step_seconds_before": slowdown.change.before,
            "step_seconds_after": slowdown.change.after,
            "changed_then": [clean(then, 200) for then in slowdown.then],
        },
        "note": one.note,
        "settings": list(one.settings),
        "tune": clean(one.tune, 512) or None,
        "look": look.document(*one.look) if one.look is not None else None,
        "useful_work": work.document(*one.work, ledger.step_seconds)
        if one.work is not None
        else None,
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "row": row.name,
        "seconds": round(row.seconds, 6),
        "share": row.share,
        "share_low": row.low,
        "share_high": row.high,
        "places": [
            {"place": clean(place, 512), "seconds": round(seconds, 6)}
            for place, seconds in row.places[:MAX_PLACES]
        ],
    }


# ── text ──


def text(ranks: Sequence[TrainerTime], width: int) -> list[str]:
    """Return the report: a sentence, the ranks, the rows, and what to do."""
    one, odd = rank_to_report(ranks)
    ledger = one.ledger
    said = [one.stopped, sentence(ledger, one.causes)]
    lines = [f"{clean(one.name, 120)}: {' '.join(part for part in said if part)}"]
    if odd is not None:
        lines.append(odd_sentence(odd))
    lines += [each.straggler.sentence for each in ranks if each.straggler is not None]
    late = _late(ranks)
    if late is not None:
        waits = duration_text(late[1])
        lines.append(f"On their GPUs the others wait {waits} a step for {ranks[late[0]].short}.")
    if one.slowdown is not None:
        lines.append(f"{clean(one.slowdown.text, 300)}.")
    if one.work is not None:
        lines += work.lines(*one.work, ledger.step_seconds)
    lines += [clean(one.note, 300)] if one.note else []
    if len(ranks) > 1:
        lines += ["", *_ranks(ranks, one)]
    lines += ["", *_rows(ledger, width)]
    if ledger.sure:
        unasked = "" if one.look is not None else " The GPU itself was not traced."
        lines += ["", f"Source: {ledger.looks} {SOURCE}.{unasked}"]
    if one.look is not None:
        lines += ["", *look.lines(*one.look, width)]
    for number, each in enumerate(one.judged, 1):
        lines += look.finding_lines(number, each.finding, one.again)
    if one.tune:
        lines += ["", f"Search: {clean(one.tune, 512)}    tries settings, and proves the fastest"]
    return [part for line in lines for part in _wrapped(line.rstrip(), width)]


def _ranks(ranks: Sequence[TrainerTime], one: TrainerTime) -> list[str]:
    """A line for each rank: its step, and the rows that take most of it."""
    rows = [("RANK", "STEP", "WHERE ITS TIME GOES")]
    for each in ranks[:MAX_RANKS]:
        ledger = each.ledger
        step = duration_text(ledger.step_seconds) if ledger.step_seconds is not None else DASH
        most = " · ".join(
            f"{row.words} {percent_text(row.share)}" for row in ledger.rows[:4] if row.share >= 0.01
        )
        mark = "  ←" if each is one else ""
        rows.append((each.short, step, (most or "nothing is known yet") + mark))
    first = max(cells.cells(row[0]) for row in rows)
    lines = [f"{cells.pad(row[0], first)}  {row[1]:>8}  {row[2]}" for row in rows]
    if len(ranks) > MAX_RANKS:
        lines.append(f"and {len(ranks) - MAX_RANKS} more (--json has all)")
    return lines


def _rows(ledger: TimeLedger, width: int) -> list[str]:
    step = ledger.step_seconds
    head = "ROW".ljust(32) + "SHARE".rjust(8) + "  95 %".ljust(17)
    lines = [head + ("PER STEP".rjust(9) if step is not None else "")]
    rows = ledger.whole
    for row in rows:
        lines.append(_row(row, ledger, width))
        if row.places and row.name in WITH_PLACES:
            lines += [
                f"    {clean(place, 200)}  {percent_text(seconds / ledger.seconds)}"[: width or 80]
                for place, seconds in row.places[:MAX_PLACES]
                if seconds >= 0.01 * ledger.seconds
            ]
    each = duration_text(step) if step is not None else ""
    clock = f"  {ledger.steps} steps in {duration_text(ledger.seconds)}" if rows else ""
    lines.append(f"{'wall clock':<32}{'100 %' if rows else DASH:>8}  {'':<15}{each:>9}{clock}")
    return lines


def _row(row: Row, ledger: TimeLedger, width: int) -> str:
    step = ledger.step_seconds
    each = duration_text(step * row.share) if step is not None else DASH
    share = percent_text(row.share)
    between = interval_text(percent_text(row.low), percent_text(row.high)) if row.looks else ""
    line = f"{row.words:<32}{share:>8}  {between:<15}{each:>9}  "
    room = min(BAR_CELLS, max(0, width - len(line)))
    return line + "█" * round(row.share * room)


def _wrapped(line: str, width: int) -> list[str]:
    """Break a sentence into lines; rows of tables stay as they are."""
    indent = len(line) - len(line.lstrip())
    if cells.cells(line) <= width or "  " in line.strip() or "█" in line:
        return [line]
    pad = " " * indent
    return [pad + part for part in cells.wrap(line.strip(), max(20, width - indent))]
