"""This module sums up many hosts in a line each, and all of them together.

It says what of a host is worth a line and how grave it is. It is pure: a
:class:`~gpuscope.store.view.HostView` goes in, a :class:`HostSummary` comes out. Bytes are ints or
floats, times seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from statistics import fmean
from typing import NamedTuple

from ...model.device_state import HANGS, DeviceState, is_idle
from ...model.ended_jobs import EndedJob, brief_text, ended_badly, joined
from ...model.job_ends import NOTHING_SENT, end_of
from ...model.job_order import worst_first
from ...model.job_state import judge_devices
from ...model.link_state import LinkState, link_state
from ...model.lost_loss import lost_loss
from ...model.memory_room import TIGHT_BYTES, rooms
from ...model.pace import pace_of
from ...model.reading_age import old_seconds
from ...model.stalls import find_stall
from ...store.view import DeviceView, HistoryOf, HostView, JobView, by_id, no_history
from ...text.units import bytes_text
from ...wire.frames import NOT_INITIALISED
from ..shared.device_state_text import in_short
from ..shared.job_notes import growth_lines
from ..shared.job_rows import devices_of
from ..shell.keymap import key_of
from .runs import HostJob, run_of

TOP_LEVEL = 7
"""The level of a device that is always busy: an eighth below its line, so that rows stay apart."""


class Grade(IntEnum):
    """How urgently a host needs attention, the most urgent first: a hang before a lost loss."""

    BROKEN = 0
    """It has lost a device, or a rank there keeps other hosts waiting."""
    STALLED = 1
    PROBLEM = 2
    UNREACHABLE = 3
    STALE = 4
    TIGHT = 5
    WARNING = 6
    ENDED = 7
    """A job has ended badly there in the last day. What runs there now is well."""
    CONNECTING = 8
    IDLE = 9
    FINE = 10


class Word(NamedTuple):
    """A sentence about what is wrong with a host, its grade, and the job that it is about.

    ``key`` is the job's on its host and ``job`` its title, "" for what is of the host itself.
    """

    grade: Grade
    text: str
    key: str = ""
    job: str = ""

    @property
    def named(self) -> str:
        """The sentence, after the title of its job where it does not name that itself."""
        return in_job(self.text, self.job)


class Level(NamedTuple):
    """How busy a device is, from 0 to :data:`TOP_LEVEL`, and its verdict; None where not known.

    It is as coarse as its picture, so that a summary changes only where that does.
    """

    level: int | None
    kind: str
    """As in :class:`~gpuscope.model.device_state.DeviceState`."""


def in_job(text: str, job: str) -> str:
    """Return a sentence after the title of its job, where it does not name that itself.

    A line of the script, such as ``train.py:7``, does not name the job.
    """
    named = not job or re.search(rf"{re.escape(job)}(?!:\d)", text)
    return text if named else f"{job}: {text}"


@dataclass(frozen=True, slots=True)
class HostSummary:
    """One host in a line.

    ``words`` say what is wrong, the worst first. ``devices`` is how many answer or should, and
    ``busy``, ``idle`` (held, and no load), ``free`` and ``lost`` are of them. Means and sums are
    over what is known, None where nothing is.
    """

    key: str
    name: str
    grade: Grade
    words: tuple[Word, ...]
    answered: bool
    """Whether the host has ever sent a reading."""
    current: bool
    """Whether its readings are current. If not, they are shown grey with their age."""
    state: str
    """The state of its link: :class:`~gpuscope.model.link_state.LinkState`."""
    retry_at: float | None = None
    """When the viewer tries again to reach it, on the viewer's monotonic clock."""
    devices: int = 0
    busy: int = 0
    idle: int = 0
    free: int = 0
    lost: int = 0
    """The devices on which no program can rely any more."""
    free_bytes: float = 0.0
    """The free memory of all free devices."""
    used_bytes: float | None = None
    total_bytes: float | None = None
    utilization_percent: float | None = None
    tensor_percent: float | None = None
    ended: tuple[EndedJob, ...] = ()
    """The jobs that ended badly there in the last day."""
    jobs: tuple[str, ...] = ()
    """Keys of the running jobs. A job with ranks on several hosts has the same key on each."""
    job: str = ""
    """The title of the job that the worst of ``words`` is about, else of the user's largest."""
    pace_seconds: float | None = None
    """Its seconds per step, None while none ends."""
    cpu_percent: int | None = None
    ram_percent: int | None = None
    """The load of all its cores, and how much of its memory no program can have."""
    no_gpus: str = ""
    """Why the host has no GPU, "" where it has one or nobody knows."""
    levels: tuple[Level, ...] = ()
    """Of each device how busy it is."""
    runs: Callable[[], tuple[HostJob, ...]] = field(default=tuple, compare=False)
    """What runs, a line for each job, worked out when it is first asked: few screens list it."""
    mine: bool = False
    text: str = ""
    """The text in which a filter searches, in lower case."""


class Missing(NamedTuple):
    """For how many seconds a host is not heard, and in how many it is tried again.

    ``retry`` is None where nobody waits to try it again, and 0 while it is being tried.
    """

    seconds: float = 0.0
    retry: float | None = None


HERE = Missing()


def summarise(
    host: HostView,
    found: Sequence[Word] = (),
    history: HistoryOf = no_history,
    left: Sequence[EndedJob] = (),
    sent: Mapping[int, str] = NOTHING_SENT,
) -> HostSummary:
    """A host in a line; ``found`` is what the doctor's rules and the other hosts say of it.

    ``left`` are the jobs that ended badly there before it was watched, and ``sent`` holds, by pid,
    the signals that were sent from here.
    """
    answered = host.sampled_seconds is not None or bool(host.devices or host.processes)
    link = link_state(host)
    state, away = link.word, _away(link)
    if not answered and state == "live":  # its agent runs, and has read nothing yet
        state = "connecting"
    words: list[Word] = [away] if away is not None else []
    current = host.link.state in ("live", "replay")
    running = [job for job in worst_first(host) if end_of(job) is None]
    ended = joined(ended_badly(host, sent), left)
    judged = judge_devices(host, history)
    verdicts = [(device, judged[device.id]) for device in host.devices if device.gone is None]
    if current:
        words += [*found, *_of_devices(verdicts)]
        full = {device.id for device, verdict in verdicts if verdict.word == "full"}
        words += [
            word
            for job in running
            if job.trainers
            for word in _of_job(host, job, found, history, full)
        ]
        words += [Word(Grade.ENDED, brief_text(ended))] if ended else []
    words = sorted(dict.fromkeys(words), key=lambda word: word[0])
    unread = host.nvml if current and not host.devices else None
    cpu, available = host.number("cpu_percent"), host.number("memory_available_bytes")
    memory = host.definition.memory_total_bytes
    free = [device for device, verdict in verdicts if verdict.word == "free"]
    idle = [
        device
        for device, verdict in verdicts
        if verdict.word == "idle" or (verdict.word in HANGS and is_idle(device.readings))
    ]
    lost = [device for device, verdict in verdicts if verdict.kind == "bad"]
    busy = len(verdicts) - len(free) - len(idle) - len(lost)
    if words and words[0][0] < Grade.IDLE:
        grade = words[0][0]
    elif state in ("connecting", "queued"):
        grade = Grade.CONNECTING
    else:
        grade = Grade.FINE if busy or (running and not verdicts) else Grade.IDLE
    main = _main_job(host, running, words[0].key if words else "")

    @cache
    def runs() -> tuple[HostJob, ...]:
        warned = {
            word.key: (word.text, "bad" if word.grade <= Grade.PROBLEM else "warn")
            for word in reversed(words)
            if word.grade < Grade.ENDED
        }
        return tuple(
            run_of(host, job, _job_key(host, job), history, judged)._replace(
                warned=warned.get(job.key)
            )
            for job in running
        )

    return HostSummary(
        key=host.key,
        name=host.name,
        grade=grade,
        words=tuple(words),
        answered=answered,
        current=current,
        state=state,
        devices=len(verdicts),
        busy=busy,
        idle=len(idle),
        free=len(free),
        lost=len(lost),
        retry_at=host.link.retry_at,
        free_bytes=sum(device.number("free_bytes") or 0.0 for device in free),
        used_bytes=_total(device.number("used_bytes") for device, _ in verdicts),
        total_bytes=_total(device.definition.total_bytes for device, _ in verdicts),
        utilization_percent=_mean(device.number("utilization_percent") for device, _ in verdicts),
        tensor_percent=_mean(device.number("tensor_active_percent") for device, _ in verdicts),
        ended=ended,
        jobs=tuple(_job_key(host, job) for job in running),
        runs=runs,
        job=main.title if main is not None else "",
        pace_seconds=_pace(main),
        cpu_percent=None if cpu is None else round(cpu),
        ram_percent=round(100 - available / memory * 100) if available and memory else None,
        no_gpus=unread.text if unread is not None and unread.code != NOT_INITIALISED else "",
        levels=tuple(_level(device, verdict) for device, verdict in verdicts),
        mine=any(job.mine for job in running),
        text=_haystack(host, state, running, words),
    )


def _away(link: LinkState) -> Word | None:
    """Return why a host is not there; None where it is, or is only being connected."""
    grade = {"stale": Grade.STALE, "unreachable": Grade.UNREACHABLE}.get(link.word)
    why = link.why.removesuffix(f". {key_of('connect_again')}: connect again")
    return None if grade is None else Word(grade, why)


def _of_devices(verdicts: Sequence[tuple[DeviceView, DeviceState]]) -> Iterable[Word]:
    """Return the first device in each state that is a trouble, and how many more are in it."""
    seen: dict[tuple[Grade, str], tuple[str, int]] = {}
    for device, verdict in verdicts:
        grade = {"bad": Grade.BROKEN, "warn": Grade.WARNING}.get(verdict.kind)
        if grade is None or verdict.word in (*HANGS, "filling"):  # the words on the job say it
            continue
        grade = Grade.TIGHT if verdict.word == "full" else grade
        short = in_short(verdict.reason)
        reason = f": {short}" if short else ""
        first = f"GPU {device.definition.index} {verdict.word}{reason}"
        text, count = seen.get((grade, verdict.word), (first, 0))
        seen[grade, verdict.word] = text, count + 1
    for (grade, _), (text, count) in seen.items():
        yield Word(grade, text + (f" (and {count - 1} more)" if count > 1 else ""))


def _of_job(
    host: HostView, job: JobView, found: Sequence[Word], history: HistoryOf, full: Set[int]
) -> Iterable[Word]:
    """Return what a glance at a job's ranks tells.

    What the rules say in better words is not said again, nor that a job can have what is free on
    one of the ``full`` devices.
    """
    living = [trainer for trainer in job.trainers if trainer.gone is None]
    known = {word.grade for word in found if word.key in ("", job.key)}

    def of_it(grade: Grade, text: str) -> Word:
        return Word(grade, text, job.key, job.title)

    stall = find_stall(job.trainers)
    if stall is not None and min(known, default=Grade.FINE) > Grade.PROBLEM:
        yield (
            of_it(Grade.FINE, f"waiting: {stall.text}")
            if stall.busy
            else of_it(Grade.STALLED, f"stalled: {stall.text}")
        )
    loss = lost_loss(host, job, history)
    if loss is not None and Grade.PROBLEM not in known:
        yield of_it(Grade.PROBLEM, loss.text)
    for room in rooms(host.devices, living, history)[:1]:
        for (_, token), (text, _), *_ in growth_lines(host, room, len(living))[:1]:
            if token in ("bad", "warn") and Grade.PROBLEM not in known:
                grade = Grade.PROBLEM if token == "bad" else Grade.TIGHT
                yield of_it(grade, f"memory: {text}")
        old = old_seconds(host, room.allocator) is not None  # what was left then says nothing now
        if room.headroom_bytes is not None and room.headroom_bytes < TIGHT_BYTES and not old:
            device, left = by_id(host.devices, room.allocator.gpu), bytes_text(room.headroom_bytes)
            free = device.number("free_bytes") if device and device.id in full else None
            if free is None or bytes_text(free) != left:
                where = f" on GPU {device.definition.index}" if device is not None else ""
                yield of_it(Grade.TIGHT, f"{left} headroom{where}")


def _main_job(host: HostView, running: Sequence[JobView], worst: str) -> JobView | None:
    """Return the job that the row of a host names: that of the ``worst`` beside it, by its key.

    Else it is the user's own, then one with a probe, then the one on most devices.
    """

    def weight(job: JobView) -> tuple[bool, bool, bool, int]:
        devices = len(devices_of(host, job))
        return job.key == worst, job.mine, bool(job.trainers), devices

    return max(running, key=weight, default=None)


def _pace(job: JobView | None) -> float | None:
    """Return the seconds per step of the slowest rank, None while none of its steps ends."""
    return pace_of(job.trainers).seconds if job is not None else None


def _job_key(host: HostView, job: JobView) -> str:
    """Return the key of a job in the cluster.

    A job without a key of its own is this host's.
    """
    named = any(trainer.definition.job == job.key for trainer in job.trainers)
    return job.key if named else f"{host.key} {job.key}"


def _haystack(host: HostView, state: str, jobs: Sequence[JobView], words: Sequence[Word]) -> str:
    parts = [host.name, host.key, state, *(word.text for word in words)]
    parts += [f"{job.title} {job.user or ''}" for job in jobs]
    return " ".join(parts).casefold()


def _level(device: DeviceView, verdict: DeviceState) -> Level:
    load = device.number("utilization_percent")
    level = None if load is None else max(round(load / 100 * TOP_LEVEL), int(load >= 1))
    return Level(level, "bad" if verdict.urgent else verdict.kind)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


@dataclass(frozen=True, slots=True)
class HostTotals:
    """The sums over all hosts.

    ``busy``, ``idle``, ``free`` and ``lost`` devices are those of hosts that are heard now, and
    ``unheard`` are the devices of the others. ``problems`` and ``warned`` are hosts. ``room`` are
    the hosts with free devices, the most first, as (name, devices, bytes).
    """

    hosts: int
    reachable: int
    stale: int
    unreachable: int
    connecting: int
    devices: int
    busy: int
    idle: int
    free: int
    lost: int
    unheard: int
    jobs: int
    ended: tuple[EndedJob, ...]
    problems: int
    warned: int
    room: tuple[tuple[str, int, float], ...]


def totals(summaries: Sequence[HostSummary]) -> HostTotals:
    """Return the sums over these hosts.

    Room is counted only on hosts that send readings now.
    """
    room = [(one.name, one.free, one.free_bytes) for one in summaries if one.free and one.current]
    heard = [one for one in summaries if one.current and one.answered]
    return HostTotals(
        hosts=len(summaries),
        reachable=len(heard),
        stale=sum(one.state == "stale" for one in summaries),
        unreachable=sum(one.state == "unreachable" for one in summaries),
        connecting=sum(one.state in ("connecting", "queued") for one in summaries),
        devices=sum(one.devices for one in summaries),
        busy=sum(one.busy for one in heard),
        idle=sum(one.idle for one in heard),
        free=sum(one.free for one in heard),
        lost=sum(one.lost for one in heard),
        unheard=sum(one.devices for one in summaries if not one.current),
        jobs=len({key for one in heard for key in one.jobs}),
        ended=tuple(job for one in heard for job in one.ended),
        problems=sum(one.grade <= Grade.PROBLEM for one in heard),
        warned=sum(Grade.PROBLEM < one.grade <= Grade.ENDED for one in heard),
        room=tuple(sorted(room, key=lambda entry: (-entry[1], -entry[2]))),
    )
