"""Compare the ranks of a job.

That is who is behind and who waits, who computes longest, and who runs out of memory first.

All from single readings; nothing here knows a screen. Seconds and bytes as in ``wire.frames``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ..store.growth import Forecast, forecast, releasable
from ..store.view import AllocView, DeviceView, HistoryOf, TrainerView, no_history
from ..wire.frames import NOT_SUPPORTED, Unknown
from .fullest import at_the_fullest, seconds_of

SPLIT = ("input", "h2d", "compute", "optimizer", "communication", "other")
"""Where a step's time goes: columns ``*_seconds``, which add up to :func:`measured_step`."""
OWN = ("input", "h2d", "compute", "optimizer", "other")
"""All but waiting for other ranks."""
STEPS_LATE = 3.0
SECONDS_BEHIND = 2.0
STALL_SECONDS = 5.0
"""No step for so long, and for :data:`STEPS_LATE` usual ones: it stands."""
STRAGGLES = 1.15
"""A rank that works so many times as long as the others makes them wait, where each rank has a GPU
of its own.
"""
STRAGGLES_ON_CPU = 1.5
"""The same where no rank uses CUDA. There the ranks share cores, and what they wait for each other
is not steady.

Measured with ``demos/ddp_train.py``, two healthy ranks over gloo on two busy cores, eight runs of
70 to 100 s: one rank worked 1.15 times as long as the other or longer in 81 of 139 readings, 1.5
times in 18, up to 4.2 times and for up to 25 s at a stretch; in all of :data:`WINDOWS` windows in
none of 59. With twice the work on one rank: in 15 of 20.
"""
WINDOWS, WINDOW_SECONDS = 3, 20.0
"""A straggler is one in so many windows, so far apart. Parts are means of 32 measured steps, two of
them a second.
"""
IMBALANCED = 1.15
SLOWER = 1.15
_UNTOLD = ("not_sent", "no_reason", NOT_SUPPORTED)
"""Codes of a ``stall_at`` that say nothing about whether it stands."""
_COLLECTIVES = (
    "all_reduce", "allreduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all",
    "recv", "send", "reduce", "gather", "scatter", "wait",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks that stand.

    ``behind``: those that the others wait for; empty where that cannot be told, and for a trainer
    by itself. ``text`` is a sentence for people. ``busy``: those behind get on with something that
    is no step.
    """

    behind: tuple[TrainerView, ...]
    waiting: tuple[TrainerView, ...]
    text: str
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own work takes longer than that of the others.

    ``usual_seconds`` is what the others take; ``text`` is for people.
    """

    trainer: TrainerView
    own_seconds: float
    usual_seconds: float
    text: str


def name_of(trainer: TrainerView) -> str:
    """``rank 3``, or ``pid 4711`` for a trainer without a rank."""
    rank = trainer.definition.rank
    return f"rank {rank}" if rank is not None else f"pid {trainer.definition.pid}"


def names_of(trainers: Sequence[TrainerView]) -> str:
    """``rank 3``, ``ranks 0–2, 5``, ``pid 4711``."""
    ranks = sorted(t.definition.rank for t in trainers if t.definition.rank is not None)
    if len(ranks) < len(trainers) or len(trainers) == 1:
        return ", ".join(name_of(t) for t in trainers)
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return "ranks " + ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in spans
    )


# ── time ──


def split_of(trainer: TrainerView) -> dict[str, float]:
    """Seconds of a step by :data:`SPLIT`, of those that are known; empty where none is."""
    found = {name: trainer.number(f"{name}_seconds") for name in SPLIT}
    return {name: value for name, value in found.items() if value is not None}


def measured_step(trainers: Iterable[TrainerView]) -> float | None:
    """Return the seconds of a step as the sum of its parts, the mean over these ranks.

    None where the parts are not known.

    This is the step to show beside parts or shares of it: the mean of the very steps that were
    taken apart. The column ``step_seconds`` is a median of other steps, and tells how fast a
    training usually is.
    """
    known = [
        sum(max(0.0, seconds) for seconds in parts.values())
        for t in trainers
        if (parts := split_of(t))
    ]
    return fsum(known) / len(known) if known and any(known) else None


def shares_of(trainers: Iterable[TrainerView]) -> dict[str, float]:
    """Return the mean share of each part of a step over these ranks.

    The shares add up to 1; empty where none is known.
    """
    sums: dict[str, float] = {}
    for trainer in trainers:
        for name, seconds in split_of(trainer).items():
            sums[name] = sums.get(name, 0.0) + max(0.0, seconds)
    total = sum(sums.values())
    return {name: sums[name] / total for name in SPLIT if name in sums} if total > 0 else {}


def input_share(trainer: TrainerView) -> float | None:
    """Return the share of a step spent waiting for the input pipeline, 0..1.

    It is that of the device where it is measured, else of the thread that trains. None where
    neither is known.
    """
    wait, step = input_wait(trainer)
    return min(1.0, wait / step) if wait is not None and step else None


def input_wait(trainer: TrainerView) -> tuple[float | None, float | None]:
    """Return the seconds that a step waits for its input, and the seconds of the step.

    Both are means over the same steps.

    Probes of earlier versions do not send the mean of the recent steps: their median stands for it.
    """
    measured = trainer.number("input_seconds")
    if measured is not None and "compute" in split_of(trainer):
        return max(0.0, measured), measured_step([trainer])
    mean = trainer.number("step_seconds_mean")
    return trainer.number("loader_wait_seconds"), trainer.number(
        "step_seconds"
    ) if mean is None else mean


def straggler(ranks: Iterable[TrainerView], history: HistoryOf = no_history) -> Straggler | None:
    """Return the rank whose own work takes much longer than that of the others.

    It must do so now and in each earlier window; None otherwise.

    One window can mislead: measured steps are few, and no two ranks measure the same ones. Windows
    of which nothing is known do not count, but for ranks on a CPU, where the noise is such that all
    of them have to be known.
    """
    living = [trainer for trainer in ranks if trainer.gone is None]
    on_cpu = not any(trainer.definition.cuda for trainer in living)
    least = _least(living)
    parts = [split_of(trainer) for trainer in living]
    own = _own_seconds(parts)
    worst = _longest(own, least)
    if worst is None:
        return None
    for number in range(1, WINDOWS):
        then = _own_seconds(
            [_split_before(trainer, history, number * WINDOW_SECONDS) for trainer in living]
        )
        known = worst in then and len(then) > 1
        if _longest(then, least) != worst if known else on_cpu:
            return None
    others = [number for number in own if number != worst]
    usual = _median(own[number] for number in others)
    excess = {
        part: parts[worst].get(part, 0.0) - _median(parts[n].get(part, 0.0) for n in others)
        for part in OWN
    }
    most = max(OWN, key=excess.__getitem__)
    words = f"{name_of(living[worst])} works {_ms(own[worst])} a step, the others {_ms(usual)}"
    return Straggler(
        living[worst], own[worst], usual, f"{words}: mostly {most} (+{_ms(excess[most])})"
    )


def one_works_longest(ranks: Sequence[TrainerView]) -> bool:
    """Tell whether one rank works much longer than the others by the readings of now.

    By them alone it may be a straggler.
    """
    return (
        _longest(_own_seconds([split_of(trainer) for trainer in ranks]), _least(ranks)) is not None
    )


def _least(ranks: Iterable[TrainerView]) -> float:
    return STRAGGLES if any(trainer.definition.cuda for trainer in ranks) else STRAGGLES_ON_CPU


def _own_seconds(splits: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """What a step takes without waiting for the other ranks, by the number of the rank.

    Where the waiting of a rank is not known it is contained in its computing. So where it is known
    of some ranks, only those are told: the others would seem to work as long as the slowest.
    """
    whole = {number: parts for number, parts in enumerate(splits) if "compute" in parts}
    apart = {number: parts for number, parts in whole.items() if "communication" in parts}
    return {
        number: sum(parts.get(name, 0.0) for name in OWN)
        for number, parts in (apart or whole).items()
    }


def _longest(own: Mapping[int, float], least: float) -> int | None:
    """Return who works longest.

    None unless that is at least ``least`` times as long as the others usually do.
    """
    if len(own) < 2:
        return None
    worst = max(own, key=own.__getitem__)
    usual = _median(seconds for number, seconds in own.items() if number != worst)
    return (
        worst if usual > 0 and own[worst] >= least * usual and own[worst] - usual >= 1e-3 else None
    )


def _split_before(trainer: TrainerView, history: HistoryOf, seconds: float) -> dict[str, float]:
    """:func:`split_of` as it was so many seconds before the last sample."""
    found = {}
    for name in SPLIT:
        course = history(trainer.id, f"{name}_seconds", seconds + WINDOW_SECONDS)
        now = (
            trainer.sampled_seconds
            if trainer.sampled_seconds is not None
            else max(course.seconds, default=0.0)
        )
        place = bisect_right(course.seconds, now - seconds) - 1
        if place >= 0 and (value := course.values[place]) is not None:
            found[name] = value
    return found


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def slower_than_before(trainers: Iterable[TrainerView]) -> float | None:
    """Return how many times as long as an hour ago a step takes.

    It is that of the rank with the largest change; None if not known.
    """
    found = [
        now / before
        for t in trainers
        if (now := t.number("step_seconds")) is not None
        and (before := t.number("step_seconds_hour_ago"))
    ]
    return max(found) if found else None


# ── standing still ──


def place(trainer: TrainerView) -> tuple[str, str]:
    """Return where a trainer's main thread stands.

    That is (``data.py:88``, ``__getitem__``), empty where it is not known.

    Of ``train.py:60 main ← graph.py:979 run`` the user's line and what it calls: (``train.py:60``,
    ``run``).
    """
    reading = trainer.reading("stall_at")
    if not isinstance(reading, str) or not reading.strip():
        return "", ""
    outer, _, inner = reading.strip().partition(" ← ")
    where, _, function = outer.strip().partition(" ")
    inside = inner.strip().partition(" ")[2].strip()
    return where.rsplit("/", 1)[-1], inside or function.strip()


def is_overdue(trainer: TrainerView) -> bool:
    """Whether its step should have ended long ago."""
    age, usual = trainer.number("step_age_seconds"), trainer.number("step_seconds")
    return (
        age is not None and usual is not None and age > STALL_SECONDS and age > STEPS_LATE * usual
    )


def stands(trainer: TrainerView) -> bool:
    """Tell whether a trainer has stopped.

    Its probe says so, which sees its main thread; otherwise the age of its last step alone.
    """
    reading = trainer.reading("stall_at")
    if isinstance(reading, Unknown) and reading.code in _UNTOLD:
        return is_overdue(trainer)
    return isinstance(reading, str)


def find_stall(ranks: Sequence[TrainerView]) -> Stall | None:
    """Who keeps a standing job; None while it steps.

    The rank that launched fewest collectives is the one the others wait for; where all launched as
    many, the one that stands outside a collective.
    """
    living = [t for t in ranks if t.gone is None]
    late = [t for t in living if stands(t)]
    if not late or (len(living) > 1 and len(late) * 2 <= len(living)):
        return None
    if len(living) == 1:
        where, function = place(late[0])
        text = f"no step for {late[0].number('step_age_seconds') or 0:.0f} s"
        return Stall((), (), f"{text}: it stands at {where}{_in(function)}" if where else text)
    behind = _behind(living)
    waiting = tuple(t for t in living if t not in behind)
    if not behind:
        return Stall(
            (),
            tuple(living),
            f"no step on any rank: {_where(living[0])}; who keeps them cannot be told",
        )
    if not any(stands(t) for t in behind):
        verb = "is" if len(behind) == 1 else "are"
        text = (
            f"{names_of(behind)} {verb} busy with something that is no step (an evaluation, a "
            "checkpoint)"
        )
        return Stall(behind, waiting, f"{text}; {_wait(waiting)}", busy=True)
    text = f"{names_of(behind)} {_where(behind[0], 'stands' if len(behind) == 1 else 'stand')}"
    return Stall(behind, waiting, f"{text}; {_wait(waiting)}")


def _behind(living: Sequence[TrainerView]) -> tuple[TrainerView, ...]:
    for column in ("collectives", "step"):
        counts = [t.number(column) for t in living]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and min(known) < max(known):
            low = min(known)
            fewest = tuple(t for t, count in zip(living, counts, strict=True) if count == low)
            if len(fewest) * 2 <= len(living):
                return fewest
    outside = tuple(t for t in living if place(t)[0] and not waits_in_collective(t))
    inside = [t for t in living if waits_in_collective(t)]
    return outside if len(inside) + len(outside) == len(living) and inside else ()


def waits_in_collective(trainer: TrainerView) -> bool:
    """Whether its main thread stands in a function that waits for other ranks."""
    function = place(trainer)[1]
    return any(name in function for name in _COLLECTIVES)


def _where(trainer: TrainerView, verb: str = "it stands") -> str:
    where, function = place(trainer)
    if not where:
        reading = trainer.reading("stall_at")
        why = getattr(reading, "text", "")
        return f"{verb}, nobody knows where" + (f" ({why})" if why else "")
    return f"{verb} at {where}{_in(function)}"


def _in(function: str) -> str:
    return f" in {function}" if function else ""


def _wait(waiting: Sequence[TrainerView]) -> str:
    """``ranks 0–2 wait in all_reduce``."""
    verb = "waits" if len(waiting) == 1 else "wait"
    inside = {place(t)[1] for t in waiting if waits_in_collective(t)}
    places = {place(t) for t in waiting if place(t)[0]}
    if len(inside) == 1:
        how = f" in {inside.pop()}"
    elif len(places) == 1:
        where, function = places.pop()
        how = f" for it at {where}{_in(function)}"
    else:
        how = " for it"
    return f"{names_of(waiting)} {verb}{how}"


def worst_rank(ranks: Sequence[TrainerView]) -> tuple[TrainerView | None, str]:
    """The running rank that keeps the others, and why in words; None when all are alike.

    A job that stands: see :func:`find_stall`. Else the rank whose last step is oldest against its
    usual step time, if that is more than three usual steps and two seconds behind the other ranks.
    """
    stall = find_stall(ranks)
    if stall is not None and stall.behind:
        return stall.behind[0], stall.text
    ages = [
        (t, age)
        for t in ranks
        if t.gone is None and (age := t.number("step_age_seconds")) is not None
    ]
    steps = [
        s for trainer, _ in ages if (s := trainer.number("step_seconds")) is not None and s > 0
    ]
    if len(ages) < 2 or not steps:
        return None, ""
    usual = _median(steps)
    worst, age = max(ages, key=lambda pair: pair[1] / (pair[0].number("step_seconds") or usual))
    others = _median(other for trainer, other in ages if trainer is not worst)
    if age <= STEPS_LATE * usual or age <= others + SECONDS_BEHIND:
        return None, ""
    where, function = place(worst)
    at = f" at {where}{_in(function)}" if where else ""
    text = f"{name_of(worst)}{at}: last step {age:.1f} s ago, the others {others:.1f} s"
    return worst, f"{text}; a step usually takes {usual:.3g} s"


# ── memory ──


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """The memory that is left to one allocator.

    ``runs_out`` is set where its memory grows and that moment is near enough to be told.
    """

    trainer: TrainerView
    allocator: AllocView
    headroom_bytes: float | None
    runs_out: Forecast | None


def headroom(
    devices: Iterable[DeviceView],
    trainer: TrainerView,
    allocator: AllocView,
    history: HistoryOf = no_history,
) -> float | None:
    """Return the bytes that a trainer can still get on its device.

    They are free there, or torch's cache gives them back before it fails. None where either is not
    known.

    What is idle between two layers is needed again within the step. So the cache counts as it was
    at the fullest moment of the last steps, as far as ``history`` tells of them; the moment at hand
    alone makes the room rise and fall.
    """
    allocator = at_the_fullest(allocator, history, seconds_of(trainer)).allocator
    device = next((d for d in devices if d.id == allocator.gpu), None)
    free, reserved = (
        device.number("free_bytes") if device else None,
        allocator.number("reserved_bytes"),
    )
    active = allocator.number("active_bytes")
    active = allocator.number("allocated_bytes") if active is None else active
    if free is None or reserved is None or active is None:
        return None
    return free + releasable(reserved, active, allocator.number("inactive_split_bytes") or 0.0)


def rooms(
    devices: Sequence[DeviceView],
    ranks: Iterable[TrainerView],
    history: HistoryOf = no_history,
    ended: bool = False,
) -> list[MemoryRoom]:
    """Return the memory room of every living rank's allocators on a device.

    The one that runs out first is in front: by forecast, then by room. ``ended``: those of ranks
    that are gone too, which have no room any more.
    """
    out = []
    for trainer in ranks:
        for allocator in trainer.allocators:
            if (ended or trainer.gone is None) and allocator.definition.ordinal >= 0:
                left = (
                    headroom(devices, trainer, allocator, history) if trainer.gone is None else None
                )
                ends = forecast(allocator.growth, left, trainer.number("step_seconds"))
                out.append(MemoryRoom(trainer, allocator, left, ends))
    inf = float("inf")
    return sorted(
        out,
        key=lambda room: (
            room.runs_out.steps if room.runs_out else inf,
            room.headroom_bytes if room.headroom_bytes is not None else inf,
        ),
    )


def imbalance(ranks: Iterable[TrainerView], column: str = "allocated_bytes") -> float | None:
    """The largest of a column of the ranks' allocators over their mean: 1 when all hold as much."""
    sizes = []
    for trainer in ranks:
        parts = [size for a in trainer.allocators if (size := a.number(column)) is not None]
        if trainer.gone is None and parts:
            sizes.append(sum(parts))
    mean = fsum(sizes) / len(sizes) if len(sizes) > 1 else 0.0
    return max(sizes) / mean if mean > 0 else None


def _median(values: Iterable[float]) -> float:
    """The library's.

    It is loaded where ranks are compared, and not by a verb that looks once and never comes here.
    """
    from statistics import median

    return median(values)
