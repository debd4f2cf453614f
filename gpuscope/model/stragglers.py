"""Find the rank of a job whose own work takes longer than that of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum

from ..store.view import DeviceView, History, HistoryOf, HostView, TrainerView, no_history
from ..wire.frames import TrainerDef
from .device_trainings import STARVED, recent_mean
from .rank_pace import LATEST, MOST, slower_rank
from .ranks import median
from .stalls import find_stall
from .step_time import OWN, SPLIT, split_of

STRAGGLES = 1.15
"""A rank that works this many times as long as the others makes them wait.

This holds if each rank has a GPU of its own. A lasting difference is reported from 1.07 times on,
on a CPU too, if the ranks are steadier than that: :mod:`.rank_pace`.
"""
STRAGGLES_ON_CPU = 1.5
"""The same where no rank uses CUDA. There the ranks share cores, and what they wait for each other
is not steady.

Measured with ``demos/ddp_train.py``, two healthy ranks over gloo on two busy cores, eight runs of
70 to 100 s: one rank worked 1.15 times as long as the other or longer in 81 of 139 readings, 1.5
times in 18, up to 4.2 times and for up to 25 s at a stretch; in all of :data:`WINDOWS` windows in
none of 59. With twice the work on one rank: in 15 of 20.
"""
HOST_PACED_SM, HOST_PACED_LOAD = 40.0, 85.0
"""SM activity and utilization (%) below which the CPU of a slow rank is its bottleneck.

Its own GPU has next to nothing to do then.
"""
RECENT_SECONDS = 60.0
WINDOWS, WINDOW_SECONDS = 3, 20.0
"""A straggler must be one in this many windows, this far apart.

Parts are means of 32 measured steps, two of them a second.
"""
MEASURED_STEPS, MEASURED_SECONDS = 32, 16.0
"""So many steps, and so long, a reading is the mean of: windows of a lasting difference that are so
far apart have no step in common, and are as many as there can be."""
QUICK, QUICK_SECONDS, QUICK_LATEST = "quick_own_seconds", 8.0, 5
"""The column of what the quickest steps take without waits, how far apart its windows are, and how
many of the latest a rank is judged by.

Ranks on a CPU share its cores with all that runs there, which delays one step and not the next. At
a load of 25 on two cores, the means of a healthy rank's work moved by 20 % between windows, and by
1 % relative to the other rank's where only the quickest third of the steps is compared.
"""
JUDGED_SECONDS = 5.0
"""How often a lasting difference is judged again; a screen asks many times a second."""
MAX_RANKS, MAX_JUDGED = 64, 256
_Windows = Callable[[int], Sequence[Mapping[str, float]]]
_Own = Callable[[Sequence[Mapping[str, float]]], Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own work takes longer than that of the others.

    ``usual_seconds`` is what the others take, ``step_seconds`` the step of all, and ``shares`` what
    of a step the others wait: each in one of the windows of the last minute of which that is known,
    the first three figures as their means. ``since`` is on the clock of samples, None where it is
    not known; ``wall`` is that moment on the wall clock. ``mostly`` names the part of the step that
    takes longer, ``mostly_seconds`` by how much.
    """

    trainer: TrainerView
    own_seconds: float
    usual_seconds: float
    step_seconds: float
    shares: tuple[float, ...]
    mostly: str
    mostly_seconds: float
    since: float | None = None
    wall: float | None = None

    @property
    def late_seconds(self) -> float:
        """How long the others wait for it in a step."""
        return self.own_seconds - self.usual_seconds

    @property
    def share(self) -> float:
        """What of a step the others wait for it."""
        return self.late_seconds / self.step_seconds


def straggler(
    ranks: Iterable[TrainerView], history: HistoryOf = no_history, host: HostView | None = None
) -> Straggler | None:
    """Return the rank whose own work takes longer than that of the others, None without one.

    There is none while the job hangs: the one that holds it up then is in :mod:`.stalls`.

    It does where it works much longer now and in each earlier window, or a little longer than the
    noise of some minutes explains. ``host`` has the wall clock.

    One window can mislead: measured steps are few, and no two ranks measure the same ones. Windows
    of which nothing is known do not count, but for ranks on a CPU, where the noise is such that all
    of them have to be known.
    """
    living = [trainer for trainer in ranks if trainer.gone is None]
    if find_stall(living) is not None:
        return None
    on_cpu = not any(trainer.definition.cuda for trainer in living)
    parts = [split_of(trainer) for trainer in living]
    own = own_seconds(parts)
    if len(own) < 2:
        return None
    before = _windows(living, history)
    worst, lasting = _much_slower(living, own, before, on_cpu), None
    if history is not no_history:
        lasting = _lasting(living, own, history)
        if lasting is not None and worst not in (None, lasting[0]):
            lasting = None
    since, quick = None, False
    if lasting is not None:
        worst, since, quick = lasting[0], lasting[1].since, lasting[1].quick
    if worst is None or own[worst] <= 0:
        return None
    found = _lateness(living, worst, before, history is not no_history, quick)
    if found is None:
        return None
    return replace(found, since=since, wall=_wall(host, since))


def lateness(
    living: Sequence[TrainerView], worst: int, history: HistoryOf = no_history
) -> Straggler | None:
    """Return by how much the rank at a place works longer than the others, None where it does not.

    Measured steps are few, so a figure of now alone would jump: it is the mean of the windows of
    the last minute in which that rank worked longer.
    """
    return _lateness(living, worst, _windows(living, history), history is not no_history)


def _windows(living: Sequence[TrainerView], history: HistoryOf) -> _Windows:
    """Return what gives the parts of a step of each rank in a window: 0 is now, 1 the one before.

    Each is read once, as many histories go into it.
    """

    @cache
    def window(number: int) -> Sequence[Mapping[str, float]]:
        if not number:
            return [{**split_of(one), **_quick_of(one)} for one in living]
        return [_split_before(one, history, number * WINDOW_SECONDS) for one in living]

    return window


def _quick_of(trainer: TrainerView) -> dict[str, float]:
    found = trainer.number(QUICK)
    return {} if found is None else {QUICK: found}


def _lateness(
    living: Sequence[TrainerView],
    worst: int,
    window: _Windows,
    has_past: bool,
    quick: bool = False,
) -> Straggler | None:
    seen: list[tuple[float, float, float, dict[str, float]]] = []
    for number in range(WINDOWS if has_past else 1):
        parts = window(number)
        own = quick_seconds(parts) if quick else own_seconds(parts)
        others = [place for place in own if place != worst]
        if worst not in own or not others:
            break
        usual = median(own[place] for place in others)
        if not 0 < usual < own[worst]:
            break
        more = {
            part: parts[worst].get(part, 0.0) - median(parts[n].get(part, 0.0) for n in others)
            for part in OWN
        }
        step = own[worst] + max(0.0, parts[worst].get("communication", 0.0))
        if quick:  # they wait longer in the mean of all steps
            step = max(step, _whole(parts[worst]))
        seen.append((own[worst], usual, step, more))
    if not seen:
        return None
    works, usuals, steps, _ = zip(*seen, strict=True)
    work, usual, step = (fsum(each) / len(seen) for each in (works, usuals, steps))
    excess = {part: fsum(more[part] for *_, more in seen) / len(seen) for part in OWN}
    most = max(OWN, key=excess.__getitem__)
    shares = tuple((longest - least) / whole for longest, least, whole, _ in seen)
    # each rank measures other steps, so one part alone may seem to take more than all of it
    alone = max(0.0, min(excess[most], work - usual))
    return Straggler(living[worst], work, usual, step, shares, most, alone)


@dataclass(frozen=True, slots=True)
class HostPaced:
    """The GPU of a slow rank waits too: its SMs, or any kernel, run ``percent`` of the time."""

    device: DeviceView
    percent: float
    by_sms: bool


def host_paced(
    host: HostView, slow: TrainerView, history: HistoryOf = no_history
) -> HostPaced | None:
    """Return how little a slow rank's own GPU works, None where it works.

    Where CPUs launch kernels too slowly, the rank that is a little ahead finds its work queued,
    finishes early, and then waits for nearly all of the step. How long the others wait then does
    not show how much more work the slow rank has.
    """
    parts = split_of(slow)
    if parts.get("input", 0.0) + parts.get("h2d", 0.0) >= STARVED * sum(parts.values()):
        return None
    homes = {one.gpu for one in slow.allocators if one.gone is None}
    for device in (d for d in host.devices if d.id in homes and d.gone is None):
        sm = recent_mean(device, "sm_active_percent", history, RECENT_SECONDS)
        load = recent_mean(device, "utilization_percent", history, RECENT_SECONDS)
        if sm is not None and sm < HOST_PACED_SM:
            return HostPaced(device, sm, True)
        if sm is None and load is not None and load < HOST_PACED_LOAD:
            return HostPaced(device, load, False)
    return None


def _much_slower(
    living: Sequence[TrainerView], own: Mapping[int, float], window: _Windows, on_cpu: bool
) -> int | None:
    """Return who works much longer now and in each earlier window."""
    least = _least(living)
    worst = _longest(own, least)
    if worst is None:
        return None
    for number in range(1, WINDOWS):
        then = own_seconds(window(number))
        known = worst in then and len(then) > 1
        if _longest(then, least) != worst if known else on_cpu:
            return None
    return worst


def _wall(host: HostView | None, seconds: float | None) -> float | None:
    if host is None or seconds is None:
        return None
    if host.wall_seconds is None or host.sampled_seconds is None:
        return None
    return host.wall_seconds - (host.sampled_seconds - seconds)


# ── what lasts ──


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A rank that has been slower for some windows, since when, and whether quick steps say so."""

    key: str
    since: float | None
    quick: bool


_judged: dict[tuple[str, ...], tuple[TrainerDef, float, _Lasting | None]] = {}


def _lasting(
    living: Sequence[TrainerView], own: Mapping[int, float], history: HistoryOf
) -> tuple[int, _Lasting] | None:
    """Return who has been slower for some windows.

    Of those in ``own``, whose wait for the others is known as well as it can be.
    """
    numbers = sorted(own)[:MAX_RANKS]
    ranks = [living[number] for number in numbers]
    first = ranks[0]
    key, now = tuple(trainer.key for trainer in ranks), first.sampled_seconds
    if now is None:
        return None
    kept = _judged.get(key)
    if kept is None or kept[0] is not first.definition or not 0 <= now - kept[1] < JUDGED_SECONDS:
        if len(_judged) >= MAX_JUDGED:
            _judged.clear()
        kept = _judged[key] = first.definition, now, _judge(ranks, now, own, history)
    found = kept[2]
    if found is None:
        return None
    places = zip(numbers, ranks, strict=True)
    return next(n for n, trainer in places if trainer.key == found.key), found


def _judge(
    ranks: Sequence[TrainerView], now: float, own: Mapping[int, float], history: HistoryOf
) -> _Lasting | None:
    quick = [{QUICK: history(one.id, QUICK, (MOST + 1) * QUICK_SECONDS)} for one in ranks]
    found = _slower(ranks, now, QUICK_SECONDS, quick, quick_seconds, QUICK_LATEST)
    if found is not None:
        return _Lasting(*found, quick=True)
    apart = max(MEASURED_SECONDS, MEASURED_STEPS * median(own.values()))
    courses = [
        {name: history(trainer.id, f"{name}_seconds", (MOST + 1) * apart) for name in SPLIT}
        for trainer in ranks
    ]
    found = _slower(ranks, now, apart, courses, own_seconds, LATEST)
    return _Lasting(*found, quick=False) if found is not None else None


def _slower(
    ranks: Sequence[TrainerView],
    now: float,
    apart: float,
    courses: Sequence[Mapping[str, History]],
    own_of: _Own,
    latest: int,
) -> tuple[str, float | None] | None:
    """Return who is slower by windows that are so far apart, and since when."""
    windows: list[list[float]] = []
    for number in range(MOST):
        moment = now - number * apart
        then = own_of([_split_at(course, moment) for course in courses])
        if len(then) < len(ranks):
            break
        windows.append([then[at] for at in range(len(ranks))])
    slower = slower_rank([list(one) for one in zip(*windows[::-1], strict=True)], latest)
    if slower is None:
        return None
    since = None
    if slower.since is not None:
        # A window has the steps before it: it is slower some seconds after the rank is.
        since = now - (len(windows) - 1 - slower.since + 0.5) * apart
    return ranks[slower.place].key, since


def _split_at(course: Mapping[str, History], moment: float) -> dict[str, float]:
    """Return the parts of a step as last reported before a moment."""
    found = {}
    for name, one in course.items():
        place = bisect_right(one.seconds, moment) - 1
        if place >= 0 and (value := one.values[place]) is not None:
            found[name] = value
    return found


def quick_seconds(splits: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """Return what the quickest steps take without the wait for other ranks, by rank."""
    return {number: parts[QUICK] for number, parts in enumerate(splits) if QUICK in parts}


def one_works_longest(ranks: Sequence[TrainerView]) -> bool:
    """Tell whether, by the present readings alone, one rank works much longer than the others."""
    return (
        _longest(own_seconds([split_of(trainer) for trainer in ranks]), _least(ranks)) is not None
    )


def _least(ranks: Iterable[TrainerView]) -> float:
    return STRAGGLES if any(trainer.definition.cuda for trainer in ranks) else STRAGGLES_ON_CPU


def own_seconds(splits: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """Return the step time without the wait for other ranks, by rank.

    If the wait of a rank is not known, it is contained in its compute time. So if it is known for
    some ranks, only those are returned, because the others would seem as slow as the slowest.
    Ranks whose waits are known step together, so a step takes all of them equally long: what is
    not waited of their mean step is own. Each rank measures other steps, and by those alone two
    ranks that are alike seem to differ.
    """
    whole = {number: parts for number, parts in enumerate(splits) if "compute" in parts}
    apart = {number: parts for number, parts in whole.items() if "communication" in parts}
    if apart:
        step = sum(_whole(parts) for parts in apart.values()) / len(apart)
        return {number: step - parts["communication"] for number, parts in apart.items()}
    return {number: sum(parts.get(name, 0.0) for name in OWN) for number, parts in whole.items()}


def _whole(parts: Mapping[str, float]) -> float:
    """Return the mean step of a rank by its parts."""
    return sum(parts.get(name, 0.0) for name in SPLIT)


def _longest(own: Mapping[int, float], least: float) -> int | None:
    """Return who works longest.

    None unless that is at least ``least`` times as long as the others usually do.
    """
    if len(own) < 2:
        return None
    worst = max(own, key=own.__getitem__)
    usual = median(seconds for number, seconds in own.items() if number != worst)
    return (
        worst if usual > 0 and own[worst] >= least * usual and own[worst] - usual >= 1e-3 else None
    )


def _split_before(trainer: TrainerView, history: HistoryOf, seconds: float) -> dict[str, float]:
    """Return :func:`split_of` as it was some seconds before the last sample."""
    columns = {**{name: f"{name}_seconds" for name in SPLIT}, QUICK: QUICK}
    course = {
        name: history(trainer.id, column, seconds + WINDOW_SECONDS)
        for name, column in columns.items()
    }
    now = trainer.sampled_seconds
    if now is None:
        now = max((max(one.seconds, default=0.0) for one in course.values()), default=0.0)
    return _split_at(course, now - seconds)
