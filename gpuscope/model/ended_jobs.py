"""Count the jobs that ended badly in the last day, alike for every screen and verb.

A job counts once, however many ranks it had. It ended badly if it failed, was killed, ran out of
memory, or ended without an error message. A job that its user stopped or that a signal asked to
end, and a notebook's kernel or a run of the Lab that ended silently, did not end badly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..store.view import HostView, JobView
from ..text.units import count_text
from .job_ends import GRAVITY, NOTHING_SENT, End, counts_text, end_of, job_end, may_end_silently

RECENT_SECONDS = 86400.0
WINDOW = "in the last day"
"""The same window in words: no count of ended jobs is shown without it."""
BAD = ("bad", "warn")
"""The kinds of an end that is counted."""


class EndedJob(NamedTuple):
    """A job that ended badly: the pids of its ranks, when on the wall clock, and how."""

    pids: tuple[int, ...]
    seconds: float
    end: End


def ended_badly(host: HostView, sent: Mapping[int, str] = NOTHING_SENT) -> list[EndedJob]:
    """Return the jobs of a host that ended badly in the last day, the newest first.

    ``sent`` holds, by pid, the signals that were sent from here to end a process.
    """
    found = []
    for job in host.jobs:
        gone, end = end_of(job), job_end(job, sent)
        if gone is None or end is None or gone.wall_seconds is None:
            continue
        if end.kind not in BAD or _is_no_failure(job, end):
            continue
        if (host.wall_seconds or 0.0) - gone.wall_seconds < RECENT_SECONDS:
            pids = [one.definition.pid for one in job.trainers or job.processes]
            found.append(EndedJob(tuple(pids), gone.wall_seconds, end))
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
        out[at] = EndedJob(pids, max(known.seconds, job.seconds), end)
    return tuple(sorted(out, key=_newest_first))


def brief_text(jobs: Sequence[EndedJob], window: bool = True) -> str:
    """Return how many ended, such as ``2 jobs ended badly in the last day: 1 failed, 1 killed``.

    Without ``window`` it is not said within which time.
    """
    counts = counts_text([one.end for one in jobs], brief=True)
    how = counts.removeprefix("1 ").removeprefix("ended ") if len(jobs) == 1 else counts
    return f"{number_text(jobs, window)}: {how}" if jobs else ""


def number_text(jobs: Sequence[EndedJob], window: bool = True) -> str:
    """Return how many ended: ``3 jobs ended badly in the last day``; "" for none."""
    number = f"{count_text(len(jobs), 'job')} ended badly"
    return "" if not jobs else f"{number} {WINDOW}" if window else number


def sentence(jobs: Sequence[EndedJob]) -> str:
    """Return how many ended, and in which way; "" for none."""
    return f"{number_text(jobs)}: {counts_text([one.end for one in jobs])}" if jobs else ""


def _newest_first(job: EndedJob) -> float:
    return -job.seconds


def _is_no_failure(job: JobView, end: End) -> bool:
    """Return whether the silent end of a job is as it should be: of a notebook, or of the Lab."""
    return end.kind == "warn" and any(
        may_end_silently(trainer.definition.script) for trainer in job.trainers
    )
