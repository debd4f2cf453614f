"""Find the trainers that a verb is about, where it takes a whole job: a PID, a job, or nothing.

A PID is a trainer or a process that started some, such as torchrun or a script. A job is named by
its key or by its script. Without a name, the only running job is meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import UserError
from ..missing_file import MissingFile
from ..model.ranks import pid_of
from ..wire.clean import clean
from .one_trainer import FIND_SECONDS, has_socket, is_started_with_us, not_found, pids_with_socket
from .watched_host import NoLook, WatchedHost

if TYPE_CHECKING:
    from ..store.view import HostView, JobView, TrainerView
    from .remote import Target

ALL_SECONDS = 1.2
"""Seconds after the host's first sample in which its other trainers must be found and answer."""
FIND_THERE_SECONDS = 4.0
"""Seconds that an agent elsewhere may take to find a probe, once it has reported its host."""
ASK_SECONDS = 0.5
"""So long after its first sample another host is asked whether it has the process at all."""
NONE_SECONDS = 3.0
"""Seconds to look at this host before it is reported that no such trainer exists."""
MAX_LISTED = 16


async def trainers_of(
    there: WatchedHost,
    place: Target,
    verb: str,
    job: str = "",
    error: type[UserError] = UserError,
    *,
    at_once: bool = False,
    words_for: Callable[[int], str] | None = None,
) -> tuple[TrainerView, ...]:
    """Return the trainers that are meant, by rank. Raises ``error`` where there are none.

    A trainer that is named by its own PID is returned as soon as its probe has answered; for a job,
    all ranks are waited for. With ``at_once`` a probe that starts with the first step is not waited
    for. ``words_for`` gives the words that mean a process of this place on the command line.
    """
    found: tuple[TrainerView, ...] = ()
    lacks: list[asyncio.Task[bool]] = []

    def lacks_it(seen: float) -> bool:
        """Return whether another host has answered that it has no such process."""
        if place.pid is None or not place.is_remote or seen < ASK_SECONDS:
            return False
        if not lacks:
            lacks.append(asyncio.ensure_future(there.lacks_process(place.pid)))
        return lacks[0].done() and lacks[0].result()

    def enough(host: HostView, seen: float) -> bool:
        nonlocal found
        found = _matching_trainers(host, place, job)
        named = place.pid is not None and any(t.definition.pid == place.pid for t in found)
        patience = FIND_THERE_SECONDS if place.is_remote else NONE_SECONDS
        if _has_or_gets_a_probe(place):
            patience = FIND_SECONDS
            if at_once and not _has_a_probe(place):
                patience = 0.0
        all_here = bool(found) and seen >= ALL_SECONDS
        if named or all_here or seen > patience or _has_ended(place):
            return True
        return not found and lacks_it(seen)

    # without an answer of the host, the error says so
    with contextlib.suppress(NoLook):
        await there.until(enough, FIND_SECONDS)
    if found:
        for asked in lacks:
            asked.cancel()
        return found
    host = there.host
    if place.pid is not None:
        known = await lacks[0] if lacks else None
        raise error(await not_found(there, place, verb, known))
    if job and not os.path.lexists(job) and not _jobs(host):
        raise MissingFile(job)
    raise error(_none(host, place, verb, job, words_for or place.words_for))


def _has_or_gets_a_probe(place: Target) -> bool:
    """Return whether a probe in this process listens here, or starts with its first step."""
    if place.pid is None or place.is_remote:
        return False
    return has_socket(place.pid) or is_started_with_us(place.pid)


def _has_a_probe(place: Target) -> bool:
    """Return whether a probe listens here in this process, or in one that it has started."""
    from ..process.procfs import descends

    pid = place.pid or 0
    return any(one == pid or descends(one, pid) for one in pids_with_socket())


def _has_ended(place: Target) -> bool:
    from ..process.procfs import start_ticks

    return place.pid is not None and not place.is_remote and start_ticks(place.pid) is None


def _matching_trainers(host: HostView, place: Target, job: str) -> tuple[TrainerView, ...]:
    jobs = [
        (one, living)
        for one in host.jobs
        if (living := tuple(t for t in one.trainers if _speaks(t)))
    ]
    if place.pid is not None:
        every = [trainer for _, living in jobs for trainer in living]
        own = tuple(t for t in every if t.definition.pid == place.pid)
        return own or tuple(t for t in every if _started_by(host, t, place))
    if job:
        jobs = [(one, living) for one, living in jobs if _is_called(one, job)]
    return jobs[0][1] if len(jobs) == 1 else ()


def _is_called(one: JobView, job: str) -> bool:
    """Whether a job is meant by its key, its title or the path of its script."""
    script = os.path.basename(job) if job.endswith(".py") else job
    return job == one.key or script == one.title


def _speaks(trainer: TrainerView) -> bool:
    return trainer.gone is None and trainer.sampled_seconds is not None


def _started_by(host: HostView, trainer: TrainerView, place: Target) -> bool:
    """Whether a trainer is below the process of a place."""
    pid = place.pid or 0
    if not place.is_remote:
        from ..process.procfs import descends

        return descends(trainer.definition.pid, pid)
    parents = {one.definition.pid: one.definition.ppid for one in host.processes}
    at: int | None = trainer.definition.pid
    for _ in range(64):
        at = parents.get(at) if at is not None else None
        if at == pid:
            return True
    return False


def _jobs(host: HostView) -> list[JobView]:
    return [one for one in host.jobs if any(_speaks(t) for t in one.trainers)]


def _none(
    host: HostView, place: Target, verb: str, job: str, words_for: Callable[[int], str]
) -> str:
    """Return why no job is meant, with those to choose from."""
    where = f" on {host.name}" if place.is_remote else " here"
    if host.sampled_seconds is None:
        why = f": {host.link.reason}" if host.link.reason else ""
        elsewhere = f" {place.where}" if place.is_remote else ""
        return f"the agent{where} does not answer{why}.\nTry: gpuscope ps{elsewhere}"
    jobs = _jobs(host)
    if not jobs:
        return (
            f"no trainer with a probe runs{where}.\n"
            "Start one: gpuscope run train.py    In a running one: gpuscope attach PID --inject"
        )
    called = [one for one in jobs if _is_called(one, job)]
    lines = [
        f"  gpuscope {verb} {words_for(_pid(host, one))}    ({_about(one, place)})"
        for one in called or jobs
    ]
    if job:
        exists = os.path.lexists(place.text)
        nothing = "no running job" if exists else "no recording, host or job"
        what = f"{len(called)} jobs are called" if called else f"{nothing} is called"
        head = f"{what} {clean(job, 100)}{where if called else ''}. Choose one:"
    else:
        head = f"{len(jobs)} jobs run{where}. Choose one:"
    return "\n".join([head, *lines[:MAX_LISTED]])


def name_of_job(host: HostView, job: JobView) -> str:
    """Return the word that means all ranks of a job of this host, "" where there is none.

    That is its title; where another job has that too, the PID of the process that has started the
    ranks. The key of a job would be taken for the name of a host.
    """
    if sum(one.title == job.title for one in host.jobs) == 1:
        return clean(job.title, 200)
    starter = _starter(host, job)
    return "" if starter is None else str(starter)


def _starter(host: HostView, job: JobView) -> int | None:
    """Return the process that has started all ranks of a job, such as torchrun; None if unknown."""
    ranks = {t.definition.pid for t in job.trainers if _speaks(t)}
    parents = {one.definition.ppid for one in host.processes if one.definition.pid in ranks}
    known = {one.definition.pid for one in host.processes}
    found = parents.pop() if len(parents) == 1 and len(ranks & known) == len(ranks) > 1 else None
    return found if found is not None and found > 1 else None


def _pid(host: HostView, job: JobView) -> int:
    """Return the PID that means a job: of what has started its ranks, else of the first one."""
    return _starter(host, job) or pid_of(job) or 0


def _about(job: JobView, place: Target) -> str:
    ranks, where = sum(_speaks(t) for t in job.trainers), "there" if place.is_remote else "here"
    return f"{clean(job.title, 60)}{f', {ranks} ranks {where}' if ranks > 1 else ''}"
