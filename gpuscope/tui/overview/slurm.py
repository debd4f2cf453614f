"""This module tells when Slurm ends the jobs that are shown.

Each job's host is asked once a minute, and only while somebody looks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...model.pace import seconds_left
from ...store.pending_requests import SourceError
from ...text.clock import MINUTE, clock_text
from ...text.numbers import number
from ...text.styled import Line, Piece
from ...text.units import age_text
from ...wire.clean import clean
from ..tasks import Tasks

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.view import HostView, JobView
    from ..shell.session import Session

EVERY_SECONDS = 60.0
_KEY = re.compile(r"slurm:(\d{1,12})\.")
_NUMBER = re.compile(r"\d{1,12}$")


class SlurmEnds:
    """What is known of the ends that Slurm has set for the jobs of a host.

    :meth:`notes` has a line for each job that runs under Slurm.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: dict[tuple[str, str], tuple[float, float | str | None]] = {}
        self._tasks = Tasks()

    def notes(self, host: HostView) -> dict[str, Line]:
        """Return the notes by the key of the job, at once, from the answer that came last."""
        hosts = self._session.hosts
        if self._session.replay is not None or hosts is None or host.wall_seconds is None:
            return {}
        source = next((one for one in hosts.sources if one.key == host.key), None)
        out = {}
        for job in host.jobs:
            number = number_of(job)
            if number and source is not None:
                latest = self._latest(source, number)
                if latest is not None:
                    out[job.key] = line(number, latest, host.wall_seconds, _eta(job))
        return out

    def _latest(self, source: Source, number: str) -> float | str | None:
        key = source.key, number
        at, latest = self._told.get(key, (-EVERY_SECONDS, None))
        now = time.monotonic()
        if now - at >= EVERY_SECONDS:
            self._told[key] = now, latest
            self._tasks.begin(self._ask(source, number))
        return latest

    async def _ask(self, source: Source, number: str) -> None:
        answer: float | str
        try:
            answer = read((await source.request("environment", {"slurm_job": number}, 15.0)).value)
        except SourceError as error:
            answer = error.what
        self._told[source.key, number] = time.monotonic(), answer


def number_of(job: JobView) -> str:
    """Return the number that Slurm gave to a running job, "" where it runs without Slurm.

    It is read from the job's key or from the control group of its processes.
    """
    if all(one.gone is not None for one in (*job.trainers, *job.processes)):
        return ""
    found = _KEY.match(job.key)
    number = next((p.definition.slurm_job for p in job.processes if p.definition.slurm_job), None)
    return found[1] if found else number if number and _NUMBER.match(number) else ""


def read(value: Mapping[str, Any]) -> float | str:
    """Return the end in seconds since the epoch, or why it is not known."""
    end, reason = number(value.get("slurm_end")), value.get("text")
    if end is not None and 0 < end < 1e11:
        return end
    return (
        clean(reason, 200)
        if isinstance(reason, str) and reason
        else "the agent there does not report it"
    )


def line(number: str, state: float | str, now: float, eta_seconds: float | None) -> Line:
    """Return the note of a job that Slurm ends.

    An example is ``slurm: job 123 ends 18:40, in 2 h 10 min · 40 min before it is done``.
    """
    label: Piece = ("slurm: ", "faint")
    if isinstance(state, str):
        return [label, (f"end of job {number} unknown: {state}", "muted")]
    left = state - now
    at = clock_text(state, MINUTE if abs(left) < 43200 else f"%d %b {MINUTE}")
    if left <= 0:
        return [label, (f"job {number} reached its end at {at}", "warn")]
    out: Line = [label, (f"job {number} ends {at}, in {age_text(left)}", "text")]
    if eta_seconds is not None and eta_seconds > left:
        out.append((f" · {age_text(eta_seconds - left)} before it is done", "warn"))
    return out


def _eta(job: JobView) -> float | None:
    etas = [n for t in job.trainers if t.gone is None and (n := seconds_left(t)) is not None]
    return max(etas, default=None)
