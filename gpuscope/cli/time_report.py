"""Write where the time of trainers goes, for people: what ``gpuscope why`` prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import fsum

from ..doctor.live_causes import is_of_late_rank
from ..model.step_time import words_of
from ..model.time_ledger import SOURCE, Row, TimeLedger
from ..text import width as cells
from ..text.clock import clock_text
from ..text.ranges import interval_text
from ..text.units import DASH, brief_duration_text, count_text, duration_text, percent_text
from ..wire.clean import clean
from . import look, work
from .time_document import MAX_PLACES, TrainerTime, rank_to_report, waited_rank

MAX_RANKS = 64
BAR_CELLS = 24
LEAST_SHARE = 0.001
"""What takes less of the wall clock is no row of the table."""
LABEL = re.compile(r"(?:Gain|Seen|Fix|Now|Repro): ")
BELOW = "  ← below"
TOO_FEW = "too few samples to tell"


def text(ranks: Sequence[TrainerTime], width: int) -> list[str]:
    """Return the report: a sentence, the ranks, the rows, and what to do."""
    one = rank_to_report(ranks)
    ledger = one.ledger
    lines: list[str] = [f"{clean(one.name, 120)}: {one.sentence}"]
    lines += [_long_step(*each) for each in one.long_steps]
    late = waited_rank(ranks)
    if late is not None:
        waits = duration_text(late[1])
        lines.append(f"GPU trace: the others wait {waits} a step for {ranks[late[0]].short}.")
    if one.slowdown is not None:
        lines.append(f"{clean(one.slowdown.text, 300)}.")
    for each in one.urgent:
        for fix in each.fixes:
            lines += look.fix_lines("Now" if fix.now else "Fix", fix)
    lines += [clean(one.note, 300)] if one.note else []
    if one.work is not None and one.standstill is None:
        lines += work.lines(*one.work, ledger.step_seconds)
    told = [each for each in ranks if each.parts or each.ledger.sure]
    if len(ranks) > 1 and (one.standstill is None or told):
        lines += ["", *_ranks(ranks, one, width)]
    if one.parts:
        lines += ["", *_parts(one.parts, width)]
    if ledger.sure:
        lines += ["", *_rows(ledger, width)]
        unasked = " The GPU itself was not traced." if one.look is None and one.on_gpu else ""
        lines += ["", f"Source: {ledger.looks:,} {SOURCE}.{unasked}"]
    if one.look is not None and one.on_gpu and one.standstill is None:
        lines += ["", *look.lines(*one.look, width)]
    lines += _causes(one)
    if one.tune:
        lines += ["", f"Tune: {clean(one.tune, 512)}    finds the fastest settings"]
    return [part for line in lines for part in _wrapped(line, width)]


def _long_step(since: float | None, seconds: float) -> str:
    at = f" ({clock_text(since)})" if since is not None else ""
    return f"One step of {duration_text(seconds)}{at} is left out: it is not typical."


def _causes(one: TrainerTime) -> list[str]:
    """Return what makes it slow, without what the sentence and the ledger above tell already."""
    of_its_rows = [each.finding for each in one.judged] + [*one.waits_for] * one.is_late
    told = {part for each in of_its_rows for part in each.evidence if part.in_ledger}
    told = told if one.ledger.sure else set()
    sentence = one.sentence.casefold()
    told |= {
        part for each in one.waits_for for part in each.evidence if part.text.casefold() in sentence
    }
    gained = one.told_cause.finding if one.told_cause is not None else None
    own = [each.finding for each in one.judged if not (one.waits_for and is_of_late_rank(each))]
    causes = [*one.waits_for, *own, *one.readings]
    lines = []
    for number, each in enumerate(causes, 1):
        lines += look.finding_lines(number, each, told, each is not gained)
    if not causes:
        return []
    if one.lost:
        lines[:0] = ["", "For the next run:"]
    return [*lines, "", f"After a fix: {one.again}    shows whether steps are shorter"]


def _ranks(ranks: Sequence[TrainerTime], one: TrainerTime, width: int) -> list[str]:
    """A line for each rank: its step, and the rows that take most of it, as many as fit."""
    rows: list[tuple[str, str, list[str], str]] = []
    for each in ranks[:MAX_RANKS]:
        ledger = each.ledger
        step = brief_duration_text(each.step_seconds) if each.step_seconds is not None else DASH
        rows_told = ledger.rows[:4] if ledger.sure else ()
        most = [f"{row.words} {percent_text(row.share)}" for row in rows_told if row.share >= 0.01]
        words = words_of(dict(each.parts))
        most = most or [
            f"{words[name]} {duration_text(seconds)}" for name, seconds in each.parts[:4]
        ]
        rows.append((each.short, step, most or [TOO_FEW], BELOW if each is one else ""))
    first = max(cells.cells(row[0]) for row in rows)
    lines = [f"{cells.pad('RANK', first)}  {'STEP':>8}  WHERE ITS TIME GOES"]
    for name, step, most, mark in rows:
        line = f"{cells.pad(name, first)}  {step:>8}  {most[0]}"
        for part in most[1:]:
            if cells.cells(f"{line} · {part}{mark}") > width:
                break
            line += f" · {part}"
        lines.append(line + mark)
    if len(ranks) > MAX_RANKS:
        lines.append(f"and {len(ranks) - MAX_RANKS} more (--json has all)")
    return lines


def _parts(parts: Sequence[tuple[str, float]], width: int) -> list[str]:
    """Return the table of the parts of a step, which add up to it."""
    step, words = fsum(seconds for _, seconds in parts), words_of(dict(parts))
    lines = ["PART OF A STEP".ljust(32) + "SHARE".rjust(8) + "PER STEP".rjust(11)]
    for name, seconds in parts:
        share, each = percent_text(seconds / step), brief_duration_text(seconds)
        line = f"{words[name]:<32}{share:>8}{each:>11}  "
        lines.append(line + "█" * round(seconds / step * min(BAR_CELLS, max(0, width - len(line)))))
    return [*lines, f"{'step':<32}{'100 %':>8}{brief_duration_text(step):>11}"]


def _rows(ledger: TimeLedger, width: int) -> list[str]:
    step = ledger.step_seconds
    head = "ROW".ljust(32) + "SHARE".rjust(8) + "  95 %".ljust(17)
    lines = [head + ("PER STEP".rjust(9) if step is not None else "")]
    rows = ledger.whole
    for row in (one for one in rows if one.share >= LEAST_SHARE):
        lines.append(_row(row, ledger, width))
        if row.places:
            lines += [
                _place(clean(place, 200), percent_text(seconds / ledger.seconds), width)
                for place, seconds in row.places[:MAX_PLACES]
                if seconds >= 0.01 * ledger.seconds
            ]
    each = brief_duration_text(step) if step is not None else ""
    clock = (
        f"  {count_text(ledger.steps, 'step')} in {duration_text(ledger.seconds)}" if rows else ""
    )
    lines.append(f"{'wall clock':<32}{'100 %' if rows else DASH:>8}  {'':<15}{each:>9}{clock}")
    return lines


def _place(place: str, share: str, width: int) -> str:
    return f"    {cells.cut(place, max(20, width - 6 - len(share)))}  {share}"


def _row(row: Row, ledger: TimeLedger, width: int) -> str:
    step = ledger.step_seconds
    each = brief_duration_text(step * row.share) if step is not None else DASH
    share = percent_text(row.share)
    between = interval_text(percent_text(row.low), percent_text(row.high)) if row.looks else ""
    line = f"{row.words:<32}{share:>8}  {between:<15}{each:>9}  "
    room = min(BAR_CELLS, max(0, width - len(line)))
    return line + "█" * round(row.share * room)


def _wrapped(line: str, width: int) -> list[str]:
    """Break a sentence into lines; rows of tables, and what is to be copied, stay as they are.

    What follows a label stands in a column of its own.
    """
    line, copied = line.rstrip(), isinstance(line, look.Copied)
    if cells.cells(line) <= width or copied or "  " in line.strip() or "█" in line:
        return [line]
    text = line.lstrip()
    label = LABEL.match(text)
    pad = " " * (len(line) - len(text) + (label.end() if label else 0))
    parts = cells.wrap(text[label.end() :] if label else text, max(20, width - len(pad)))
    return [line[: len(pad)] + parts[0], *(pad + part for part in parts[1:])]
