"""Count the jobs that ended badly in the last day, alike for every screen and verb.

Trainers leave black boxes on this machine, so all its jobs of that day are known. Of another host
and of a recording only those are known that ended while it was watched.

A job counts once, however many ranks it had. It ended badly if it failed, was killed, ran out of
memory, or ended without an error message. A job that its user stopped or that a signal asked to
end, and a notebook's kernel or a run of the Lab that ended silently, did not end badly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..store.view import LOCAL, HostView, JobView
from ..text.clock import MINUTE, clock_text
from ..text.units import count_text
from .job_ends import GRAVITY, NOTHING_SENT, End, counts_text, end_of, job_end, may_end_silently

RECENT_SECONDS = 86400.0
WINDOW = "in the last day"
"""The same window in words: no count of ended jobs is shown without it, or since when it counts."""
BAD = ("bad", "warn")
"""The kinds of an end that is counted."""


class EndedJob(NamedTuple):
    """A job that ended badly: the pids of its ranks, when on the wall clock, and how.

    ``since`` is when its host began to be watched, None where a whole day is known.
    """

    pids: tuple[int, ...]
    seconds: float
    end: End
    since: float | None = None


def ended_badly(host: HostView, sent: Mapping[int, str] = NOTHING_SENT) -> list[EndedJob]:
    """Return the jobs of a host that ended badly in the last day, the newest first.

    ``sent`` holds, by pid, the signals that were sent from here to end a process.
    """
    found, now = [], host.wall_seconds or 0.0
    began = host.began_wall_seconds
    whole = host.key == LOCAL or began is None or now - began >= RECENT_SECONDS
    for job in host.jobs:
        gone, end = end_of(job), job_end(job, sent)
        if gone is None or end is None or gone.wall_seconds is None:
            continue
        if end.kind not in BAD or _is_no_failure(job, end):
            continue
        if now - gone.wall_seconds < RECENT_SECONDS:
            pids = [one.definition.pid for one in job.trainers or job.processes]
            since = None if whole else began
            found.append(EndedJob(tuple(pids), gone.wall_seconds, end, since))
    return sorted(found, key=_newest_first)


def joined(*parts: Iterable[EndedJob]) -> tuple[EndedJob, ...]:
    """Return the jobs of several lists, the newest first; one that is in two of them counts once.

    Of what two lists say of the end of a job, the graver is taken: that one knows more.
    """
    out: list[EndedJob] = []
    for job in (one for part in parts for one in part):
        at = next((n for n, known in enumerate(out) if set(known.pids) & set(job.pids)), None)
        if at is None:
            out.append(job)
            continue
        known = out[at]
        pids = tuple(dict.fromkeys((*known.pids, *job.pids)))
        end = min(known.end, job.end, key=lambda one: GRAVITY.index(one.kind))
        since = None if None in (known.since, job.since) else known.since
        out[at] = EndedJob(pids, max(known.seconds, job.seconds), end, since)
    return tuple(sorted(out, key=_newest_first))


def brief_text(jobs: Sequence[EndedJob], window: bool = True) -> str:
    """Return how many ended, such as ``2 jobs ended badly in the last day: 1 failed, 1 killed``.

    Without ``window`` it is not said within which time.
    """
    how = _how(jobs, brief=True)
    how = how.removeprefix("1 ").removeprefix("ended ") if len(jobs) == 1 else how
    return f"{number_text(jobs, window)}: {how}" if jobs else ""


def number_text(jobs: Sequence[EndedJob], window: bool = True) -> str:
    """Return how many ended: ``3 jobs ended badly in the last day``; "" for none.

    Where none of them is from black boxes it is ``since 14:05``, when their hosts began to be
    watched.
    """
    number = f"{count_text(len(jobs), 'job')} ended badly"
    if not jobs or not window:
        return number if jobs else ""
    since = [one.since for one in jobs if one.since is not None]
    if len(since) == len(jobs):
        return f"{number} since {clock_text(min(since), MINUTE)}"
    return f"{number} {WINDOW}{', as far as watched' if since else ''}"


def sentence(jobs: Sequence[EndedJob]) -> str:
    """Return how many ended, and in which way; "" for none."""
    return f"{number_text(jobs)}: {_how(jobs)}" if jobs else ""


def _how(jobs: Sequence[EndedJob], brief: bool = False) -> str:
    """Return in which ways they ended; of several that ended in one way the number is told."""
    counts = counts_text([one.end for one in jobs], brief)
    number = f"{len(jobs)} "
    if len(jobs) < 2 or not counts.startswith(number):
        return counts
    return f"all {counts.removeprefix(number).removeprefix('ended ')}"


def _newest_first(job: EndedJob) -> float:
    return -job.seconds


def _is_no_failure(job: JobView, end: End) -> bool:
    """Return whether the silent end of a job is as it should be: of a notebook, or of the Lab."""
    return end.kind == "warn" and any(
        may_end_silently(trainer.definition.script) for trainer in job.trainers
    )
