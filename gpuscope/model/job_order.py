"""The order of jobs, which is the same on every screen and in every verb.

A job that hangs comes first, then one whose loss is NaN, then the rest, and what has ended last.
"""

from __future__ import annotations

from ..store.view import HostView, JobView
from .job_ends import end_of
from .lost_loss import lost_loss
from .stalls import find_stall

Trouble = tuple[int, float]
"""What is wrong with a job and for how long, as a key that sorts the worst first."""
HANGS, NO_LOSS, RUNS, ENDED = range(4)


def trouble(host: HostView, job: JobView) -> Trouble:
    """Return the trouble of a job.

    Only a hang tells for how long: since when a loss is NaN each window knows only as far as it has
    watched, and two windows are to show one order.
    """
    if end_of(job) is not None:
        return ENDED, 0.0
    stall = find_stall(job.trainers)
    if stall is not None and not stall.busy:
        return HANGS, -max(one.number("step_age_seconds") or 0.0 for one in job.trainers)
    return (RUNS if lost_loss(host, job) is None else NO_LOSS), 0.0


def worst_first(host: HostView) -> list[JobView]:
    """Return the jobs of a host, what hangs longest first.

    Where there is nothing to choose the user's own come first, and then the one with the lowest
    process id, as :attr:`~gpuscope.store.view.HostView.jobs` has them.
    """

    def place(job: JobView) -> tuple[int, bool, float]:
        kind, since = trouble(host, job)
        return kind, kind < ENDED and not job.mine, since

    return sorted(host.jobs, key=place)
