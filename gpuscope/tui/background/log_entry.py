"""One line of the log, and the groups of lines that can be looked at alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.view import JobView


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log.

    ``group`` is a key of :data:`GROUPS`, ``word`` says what happened, ``token`` how grave it is.
    ``serial`` is unique and stays. ``place`` is what Enter opens, as ``Program.open`` takes it,
    ``job`` the key of the job that it is about, and ``path`` a file that was saved.
    """

    wall_seconds: float
    group: str
    word: str
    who: str
    text: str
    token: str
    serial: str
    place: tuple[object, ...] = ()
    job: str = ""
    path: str = ""


RUNNING, PROBE_LOST = "already running", "probe lost"
FOUND, SOLVED = "problem found", "problem gone"
WARNED, WARNING_GONE = "warning", "warning gone"
NOTICED, NO_LONGER = "noticed", "over"
WORDS = {
    "problem": (FOUND, SOLVED),
    "warning": (WARNED, WARNING_GONE),
    "info": (NOTICED, NO_LONGER),
}
"""What happened to a job, and to a finding that is a problem, a warning, or only worth noting."""
GROUPS = {
    "jobs": "jobs",
    "findings": "findings",
    "memory": "memory",
    "gpu": "GPUs",
    "files": "files",
    "probe": "probes",
    "output": "output",
    "program": "program",
}
"""The groups that can be shown alone, by key, with their names on the screen."""
HIDDEN = ("output", "program")
"""Groups that are shown only when chosen: they may be very long, or not about the training."""


def name_of_job(job: JobView) -> str:
    """Return the name of a job, as in the list of jobs."""
    return job.title + (f" ×{len(job.trainers)}" if len(job.trainers) > 1 else "")
