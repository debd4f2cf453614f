"""Where the wall clock of a training thread went: the probe's looks as rows that add up.

The probe books the time between two looks under what the thread did (``probe/time_ledger.py``).
Here the minutes are added up, and each row gets the interval that its number of looks allows.
``model.time_causes`` ranks what could be saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from ..store.view import TrainerView
from ..text.numbers import amount

Z95 = 1.96
"""Two-sided 95 % point of the normal distribution."""
MAX_MINUTES, MAX_ROWS, MAX_PLACES = 256, 64, 256
JUDGED_SECONDS = 300.0
"""The window to judge: pauses come every few minutes, and older ones may be over."""
MAX_KEPT = 1024
FEW_LOOKS = 25
"""With fewer looks no share is shown, because its interval is wider than half the clock."""

SOURCE = "samples of the training thread's stack"
"""Where the rows come from."""
WORDS: Mapping[str, str] = {
    "input": "input wait",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer",
    "communication": "communication",
    "read": "syncs such as .item()",
    "copy": "host-device copies",
    "compile": "compiling",
    "checkpoint": "saving checkpoints",
    "validation": "validation",
    "logging": "logging",
    "collection": "garbage collection",
    "profiler": "torch's profiler",
    "release": "torch.cuda.empty_cache()",
    "other": "other code",
    "unattributed": "not attributed",
}
"""What the rows are called. A name that is not here is shown as ``not attributed``."""
KNOWN_PAUSES = frozenset(("checkpoint", "validation", "logging", "compile", "collection"))
"""Rows that stay in the ledger however long a step takes for them: a training does them now and
again."""
RARE_STEPS = 2
"""So many long steps in a window are left out of it, as single events; more are a habit."""
OUTSIDE = frozenset(("checkpoint", "validation", "logging"))
"""Rows that are no part of a training step, wherever the script does them."""
ANYWHERE = frozenset(("other", "unattributed", "collection"))
"""Rows that may lie inside steps and between them: the looks do not tell which."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the ledger.

    ``share`` of the wall clock lies between ``low`` and ``high`` with 95 % confidence: Wilson's
    interval for as many looks. ``places`` are lines of code with their seconds, the longest first.
    """

    name: str
    seconds: float
    looks: int
    share: float
    low: float
    high: float
    places: tuple[tuple[str, float], ...] = ()

    @property
    def words(self) -> str:
        return WORDS.get(self.name, WORDS["unattributed"])

    @property
    def timed(self) -> bool:
        """Whether its seconds were timed, so that no number of looks makes them more certain."""
        return self.name == "collection"

    @property
    def inside(self) -> bool | None:
        """Whether it is a part of the steps; None where that is not known."""
        return None if self.name in ANYWHERE else self.name not in OUTSIDE


@dataclass(frozen=True, slots=True)
class LongStep:
    """A step that took very long: ``began`` is on the clock of samples, in seconds."""

    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeLedger:
    """The wall clock of one training thread over a window; ``rows`` add up to ``seconds``.

    ``without`` are single steps that took very long and are left out of all of it.
    """

    seconds: float
    steps: int
    looks: int
    rows: tuple[Row, ...]
    without: tuple[LongStep, ...] = ()

    @property
    def step_seconds(self) -> float | None:
        """Wall clock for each step, everything between steps included."""
        return self.seconds / self.steps if self.steps else None

    @property
    def whole(self) -> tuple[Row, ...]:
        """The rows with ``not attributed`` among them, however small: it is never hidden."""
        if not self.rows or any(row.name == "unattributed" for row in self.rows):
            return self.rows
        return (*self.rows, Row("unattributed", 0.0, 0, 0.0, 0.0, 0.0))

    @property
    def sure(self) -> bool:
        """Whether there were enough looks for shares to mean something."""
        return self.looks >= FEW_LOOKS

    @property
    def seconds_until_sure(self) -> float | None:
        """Return after how long there are enough looks at this rate; None while none is known."""
        if not self.looks or not self.seconds:
            return None
        return max(FEW_LOOKS - self.looks, 0) * self.seconds / self.looks


def read(answer: Mapping[str, Any], window_seconds: float | None = None) -> TimeLedger:
    """Return the ledger of a probe's answer to ``time``: of minutes that began in the window.

    A step or two that took very long are left out, because they say nothing of the others.
    What a probe sends is not trusted: rows that are no numbers are left out. A ledger without
    looks has no rows.
    """
    total, steps, looks, spread = 0.0, 0, 0, 0.0
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    places: dict[str, dict[str, float]] = {}
    minutes = answer.get("minutes")
    chosen = [
        minute
        for minute in (minutes[-MAX_MINUTES:] if isinstance(minutes, list) else ())
        if isinstance(minute, Mapping) and _is_in(minute, window_seconds)
    ]
    minutes, without = _without_long_steps(chosen)
    for minute in minutes:
        steps += int(amount(minute.get("steps")) or 0)
        seen = int(amount(minute.get("looks")) or 0)
        looks += seen
        before = total
        for name, spent, count in _triples(minute.get("rows"), MAX_ROWS):
            name = name if name in WORDS else "unattributed"
            took, number = amount(spent) or 0.0, int(amount(count) or 0)
            total += took
            seconds[name] = seconds.get(name, 0.0) + took
            counts[name] = counts.get(name, 0) + number
        even = amount(minute.get("even_looks")) or seen
        spread += (total - before) ** 2 / even if even else 0.0
        for name, place, spent in _triples(minute.get("places"), MAX_PLACES):
            if isinstance(place, str) and place:
                kept = places.setdefault(name, {})
                kept[place[:512]] = kept.get(place[:512], 0.0) + (amount(spent) or 0.0)
    even = total * total / spread if spread else 0.0
    rows = []
    for name, took in sorted(seconds.items(), key=lambda item: -item[1]):
        share = took / total if total else 0.0
        low, high = (share, share) if name == "collection" else interval(share, even)
        where = sorted(places.get(name, {}).items(), key=lambda item: -item[1])
        rows.append(Row(name, took, counts[name], share, low, high, tuple(where)))
    return TimeLedger(total, steps, looks, tuple(rows), without)


def _is_in(minute: Mapping[str, Any], window_seconds: float | None) -> bool:
    age = amount(minute.get("age_seconds"))
    return window_seconds is None or (age is not None and age <= window_seconds)


def _without_long_steps(
    minutes: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], tuple[LongStep, ...]]:
    """Return minutes without the single steps that took very long, and those steps that ended."""
    ended = [int(amount(minute.get("long_steps")) or 0) for minute in minutes]
    hangs = bool(minutes) and bool(minutes[-1].get("hang"))
    if not 0 < sum(ended) + hangs <= RARE_STEPS:
        return minutes, ()
    steps = [
        LongStep((amount(minute.get("long_m")) or 0.0) / 1e9, amount(minute["long_seconds"]) or 0.0)
        for minute, count in zip(minutes, ended, strict=True)
        if count and "long_seconds" in minute
    ]
    return [_without(one, n) for one, n in zip(minutes, ended, strict=True)], tuple(steps)


def _without(
    minute: Mapping[str, Any],
    ended: int,
    parts: Sequence[str] = ("hang", "long"),
    kept: frozenset[str] = KNOWN_PAUSES,
) -> Mapping[str, Any]:
    """Return a minute without what was booked during its long steps, but for the ``kept`` rows."""
    rows: dict[str, tuple[float, float]] = {}
    places: dict[tuple[str, str], float] = {}
    for name, spent, count, place in _of_long_steps(minute, *parts):
        if name not in kept:
            before = rows.get(name, (0.0, 0.0))
            rows[name] = before[0] + spent, before[1] + count
            places[name, place] = places.get((name, place), 0.0) + spent
    if not rows:
        return minute
    left = []
    for name, spent, count in _triples(minute.get("rows"), MAX_ROWS):
        off = rows.get(name, (0.0, 0.0))
        took, seen = (amount(spent) or 0.0) - off[0], (amount(count) or 0.0) - off[1]
        if took > 0:
            left.append([name, took, max(int(seen), 0)])
    there = [
        [name, place, took]
        for name, place, spent in _triples(minute.get("places"), MAX_PLACES)
        if (took := (amount(spent) or 0.0) - places.get((name, place), 0.0)) > 0.01
    ]
    looks = int(amount(minute.get("looks")) or 0)
    fewer = max(looks - int(sum(count for _, count in rows.values())), 0)
    even = (amount(minute.get("even_looks")) or looks) * fewer / looks if looks else 0.0
    steps = max(int(amount(minute.get("steps")) or 0) - ended, 0)
    return {
        **minute, "rows": left, "places": there, "looks": fewer, "even_looks": even, "steps": steps,
    }  # fmt: skip


def _of_long_steps(
    minute: Mapping[str, Any], *parts: str
) -> Iterable[tuple[str, float, float, str]]:
    """Return what was booked during long steps: row, seconds, looks and line of code."""
    for part in parts:
        lines = minute.get(part)
        for one in lines[:MAX_ROWS] if isinstance(lines, list) else ():
            if isinstance(one, list) and len(one) == 4 and isinstance(one[0], str):
                name, spent, count, place = one
                known = name if name in WORDS else "unattributed"
                seen = amount(count) or 0.0
                yield known, amount(spent) or 0.0, seen, place if isinstance(place, str) else ""


def during_hang(trainer: TrainerView, waits: bool = False) -> TimeLedger:
    """Return what a trainer that hangs has done since its last step, as far as it is told.

    It has no rows where its probe does not tell what belongs to the hang. Of a rank that ``waits``
    for others the backward pass is communication: there DDP and FSDP wait for their collectives,
    below the last function that a stack shows.
    """
    alias = {"backward": "communication"} if waits else {}
    now, age = trainer.sampled_seconds, trainer.number("step_age_seconds")
    if now is None or age is None:
        return read({})
    minutes = []
    for minute in trainer.minutes:
        booked = list(_of_long_steps(minute, "hang")) if _end(minute) > now - age else []
        rows = [[alias.get(name, name), spent, count] for name, spent, count, _ in booked]
        places = [[alias.get(name, name), place, spent] for name, spent, _, place in booked]
        looks = int(sum(count for _, _, count, _ in booked))
        minutes.append({"rows": rows, "places": places, "looks": looks, "steps": 0})
    return read({"minutes": minutes})


def of_trainer(trainer: TrainerView, window_seconds: float | None = None) -> TimeLedger:
    """Return the ledger of what is known of a trainer, back from its last minute.

    For a trainer that has ended these are its last minutes.
    """
    end = max(map(_end, trainer.minutes), default=0.0)
    minutes = [
        {**minute, "age_seconds": max(0.0, end - minute["m"] / 1e9)} for minute in trainer.minutes
    ]
    return read({"minutes": minutes}, window_seconds)


_kept: dict[str, tuple[object, TimeLedger]] = {}


def recent(trainer: TrainerView) -> TimeLedger:
    """Return the ledger of the window that all surfaces judge, added up once for each minute."""
    kept = _kept.get(trainer.key)
    if kept is None or kept[0] is not trainer.minutes:
        if len(_kept) >= MAX_KEPT:  # of trainers that have ended
            _kept.clear()
        kept = _kept[trainer.key] = trainer.minutes, of_trainer(trainer, JUDGED_SECONDS)
    return kept[1]


def until_last_step(
    trainer: TrainerView, window_seconds: float | None = JUDGED_SECONDS
) -> TimeLedger:
    """Return the same of a trainer that hangs: of the time before its last step.

    The ledger has no rows where nothing is known of that time.
    """
    minutes = tuple(minutes_of_steps(trainer))
    return of_trainer(replace(trainer, minutes=minutes), window_seconds)


def minutes_of_steps(trainer: TrainerView) -> Sequence[Mapping[str, Any]]:
    """Return the minutes of a trainer that hangs, without the hang: it is no part of any step.

    Where its probe does not tell what belongs to the hang, these are the minutes that had ended
    before.
    """
    now, age = trainer.sampled_seconds, trainer.number("step_age_seconds")
    if now is None or age is None:
        return trainer.minutes
    last, out = now - age, []
    for minute in trainer.minutes:
        if _end(minute) <= last + 1.0:
            out.append(minute)
        elif minute["m"] / 1e9 < last and minute.get("hang"):
            out.append({**_without(minute, 0, ("hang",), frozenset()), "hang": []})
    return out


def _end(minute: Mapping[str, Any]) -> float:
    return float(minute["m"]) / 1e9 + (amount(minute.get("seconds")) or 0.0)


def interval(share: float, looks: float) -> tuple[float, float]:
    """Return the bounds of a share that ``looks`` looks have found, with 95 % confidence.

    ``looks`` are as many as there would be at even distances: see ``even_looks`` of the probe.

    Wilson's score interval (E. B. Wilson, 1927): unlike the usual one it does not collapse where
    a row was never or always seen.
    """
    if looks <= 0:
        return 0.0, 1.0
    square = Z95 * Z95
    middle = (share + square / (2 * looks)) / (1 + square / looks)
    half = Z95 * sqrt(share * (1 - share) / looks + square / (4 * looks * looks))
    half /= 1 + square / looks
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _triples(rows: Any, most: int) -> Iterable[tuple[str, Any, Any]]:
    for row in rows[:most] if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str):
            yield row[0], row[1], row[2]
