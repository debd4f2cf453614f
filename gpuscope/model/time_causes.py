"""Rank what makes a training slow: one list, from the clock of its thread and a look at its GPU.

The clock books what the training thread did. Where nobody has looked at the GPU, a row is what its
cure brings at most. Where somebody has, ``model.time_look`` says what the GPU lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from . import time_left
from .look import Look
from .time_cause import (
    BARS,
    LEAST_LOW,
    PAUSES,
    SETTINGS,
    THREAD,
    Cause,
    Known,
    compiles_again,
    is_on,
)
from .time_ledger import Row, TimeLedger
from .time_look import MOST_COMPILING, Sums

BESIDE = ("read", "logging", "other", "copy")
"""Rows during which a GPU goes on working if it has something to do. They get the part of its idle
time that the rows before them leave."""
WAITING = ("input", "compile", "checkpoint", "validation", "collection")
"""Rows in which a GPU has nothing to do, whatever else the thread does."""


def ranked(
    ledger: TimeLedger, look: Look | None = None, known: Known | None = None
) -> tuple[Cause, ...]:
    """Return all that is worth curing, what brings most first.

    A row with few looks at the thread is no cause, but for those that are timed.
    """
    known = known or Known()
    if look is not None:
        found = list(Sums(ledger, look, known).causes())
    else:
        found = list(_by_clock(ledger, known))
    told = [one for one in found if _reaches(one)]
    return tuple(sorted(told, key=lambda one: (-one.share, one.name)))


def _reaches(cause: Cause) -> bool:
    bar = BARS[cause.name]
    if cause.name in SETTINGS:  # that it is on is certain
        return cause.share >= bar.told
    return cause.share >= bar.told and cause.low >= LEAST_LOW * bar.told


# ── where nobody has looked at the GPU ──


def _by_clock(ledger: TimeLedger, known: Known) -> Iterator[Cause]:
    """Yield the causes that the clock alone shows: each row is the most that its cure brings.

    Reads wait for what the GPU has to do anyway. They are left out if it is not known how long the
    GPU was idle. Without a GPU no copy, read or release of memory waits for one.
    """
    rows = {row.name: row for row in ledger.rows}
    names = {name: name for name in (*THREAD, *PAUSES)}
    if known.on_gpu:
        names |= {"copy": "copies-in", "release": "release"}
        names |= {"read": "read"} if known.idle is not None else {}
    for name, cause in names.items():
        row = rows.get(name)
        if row is None or not (ledger.sure or row.timed):
            continue
        if name == "compile" and not compiles_again(known):
            continue
        if name == "collection" and _is_compilers(rows):
            continue
        found = _bounded(_of_row(cause, row), rows, known)
        if name == "compile":
            found = _with_what_it_starts(found, rows)
        if name == "other" and not known.on_gpu:
            found = _with_its_reads(found, rows)
        if name in PAUSES and not row.timed:
            found = replace(found, high=max(found.high, _of_all_pauses(ledger, known)))
        yield found
    passes = _passes(rows)
    for name in SETTINGS:
        if is_on(known, name) and passes:
            yield Cause(name, min(1.0, passes), 0.0, 1.0, by="clock")


def _passes(rows: Mapping[str, Row]) -> float:
    return sum(rows[one].share for one in ("forward", "backward", "optimizer") if one in rows)


def _with_what_it_starts(compiling: Cause, rows: Mapping[str, Row]) -> Cause:
    """Return compiling with the collections of its objects.

    Where it takes most of the time, the passes too may go into the first launches of new kernels.
    """
    garbage = rows["collection"].share if _is_compilers(rows) else 0.0
    share = min(1.0, compiling.share + garbage)
    first = _passes(rows) if share > MOST_COMPILING else 0.0
    return replace(
        compiling,
        share=share,
        low=min(1.0, compiling.low + garbage),
        high=min(1.0, compiling.high + garbage + first),
    )


def _with_its_reads(own: Cause, rows: Mapping[str, Row]) -> Cause:
    """Return code of the script with what it reads, copies and releases, without a GPU.

    Nothing waits for a device there: ``.item()`` is a part of the function that calls it, and goes
    with it.
    """
    if own.clock is None or not own.clock.seconds:
        return own
    functions = {_function(line) for line, _ in own.clock.places}
    seconds = sum(
        spent
        for name in ("read", "copy", "release")
        for line, spent in (rows[name].places if name in rows else ())
        if _function(line) in functions
    )
    more = own.clock.share * seconds / own.clock.seconds
    return replace(
        own,
        share=min(1.0, own.share + more),
        low=min(1.0, own.low + more),
        high=min(1.0, own.high + more),
    )


def _function(line: str) -> tuple[str, str]:
    """Return the file and the function of a line of code."""
    place, _, function = line.partition(" ")
    return place.rpartition(":")[0], function


def _of_row(name: str, row: Row) -> Cause:
    place = row.places[0][0] if row.places else ""
    return Cause(name, row.share, row.low, row.high, place, clock=row, by="clock")


def _of_all_pauses(ledger: TimeLedger, known: Known) -> float:
    """Return the most that all pauses take, 0 where it is not known.

    It is less where the host runs ahead of its GPU, which nobody has looked at.
    """
    step = ledger.step_seconds
    return (time_left.pauses(known.median_step_seconds, step) or 0.0) if step else 0.0


def _is_compilers(rows: Mapping[str, Row]) -> bool:
    """Return whether the compiler creates the objects that are collected."""
    compiling, collection = rows.get("compile"), rows.get("collection")
    return compiling is not None and collection is not None and compiling.share > collection.share


def _bounded(cause: Cause, rows: Mapping[str, Row], known: Known) -> Cause:
    """Return a cause with no more than the GPU was idle, where that is known."""
    row = cause.clock
    if known.idle is None or row is None or row.name not in BESIDE:
        return cause
    shares = {name: one.share for name, one in rows.items()}
    share = won_while_idle(shares, known.idle, row.name)
    factor = share / row.share if row.share else 0.0
    return replace(cause, share=share, low=row.low * factor, high=min(1.0, row.high * factor))


def won_while_idle(shares: Mapping[str, float], idle: float, name: str = "read") -> float:
    """Return what share of the wall clock a row costs at most, where a GPU is idle for a share.

    The idle time of the rows that wait for something else is theirs: curing both does not win it
    twice.
    """
    before = {*WAITING, *BESIDE[: BESIDE.index(name)]}
    left = idle - sum(shares.get(one, 0.0) for one in before)
    return max(0.0, min(shares.get(name, 0.0), left))
