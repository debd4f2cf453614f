"""This module keeps which trainers ended badly in the last day that nobody has looked at yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.job_ends import NOTHING_SENT, End, end_of, job_end, may_end_silently

if TYPE_CHECKING:
    from ...doctor.finding import Report
    from ...store.view import HostView, JobView
    from .view_state import ViewState

DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class DeadTrainer:
    """What a trainer left that ended badly: its process, the wall clock of its end, the findings.

    ``name`` says which trainer it was, ``path`` is the file that it left.
    """

    pid: int
    ended: float
    report: Report
    name: str
    end: End
    path: str = ""

    @property
    def words(self) -> str:
        """Which trainer it was and how it ended."""
        return f"{self.name} {self.end.sentence}".strip()


class UnseenDeaths:
    """Jobs that ended badly, until the Doctor tab has shown them.

    ``state`` keeps the last death that was seen for the next session, and ``stopped`` has by pid
    what was sent from here to end a process: such an end is no death.
    """

    def __init__(self, state: ViewState, stopped: Mapping[int, str] = NOTHING_SENT) -> None:
        self._state, self._stopped = state, stopped
        self._watched: dict[tuple[int, ...], tuple[float, End]] = {}

    def look(self, host: HostView) -> None:
        """Note which jobs of a host ended badly while it was watched: their pids, when and how."""
        self._watched = {}
        for job in host.jobs:
            gone, end = end_of(job), job_end(job, self._stopped)
            if gone is None or end is None or gone.wall_seconds is None:
                continue
            if end.kind not in ("bad", "warn") or _is_no_failure(job, end):
                continue
            if (host.wall_seconds or 0.0) - gone.wall_seconds < DAY_SECONDS:
                pids = tuple(trainer.definition.pid for trainer in job.trainers)
                self._watched[pids] = gone.wall_seconds, end

    def clear(self) -> None:
        """Another host is looked at."""
        self._watched = {}

    def ends(self, left: Iterable[DeadTrainer]) -> dict[int, End]:
        """Return how each job ended that was not seen, by the pid of one of its ranks.

        ``left`` are the dead trainers of this host.
        """
        seen = self._state.deaths_seen
        return {pid: end for pid, (ended, end) in self._all(left).items() if ended > seen}

    def see(self, left: Iterable[DeadTrainer]) -> None:
        """Take all of them for seen."""
        ended = [at for at, _ in self._all(left).values()]
        self._state.deaths_seen = max([self._state.deaths_seen, *ended])

    def _all(self, left: Iterable[DeadTrainer]) -> dict[int, tuple[float, End]]:
        """Return when each job ended on the wall clock and how, by the pid of one of its ranks."""
        ends = {one.pid: (one.ended, one.end) for one in left}
        for pids, ended in self._watched.items():
            if pids and not ends.keys() & set(pids):
                ends[pids[0]] = ended
        return ends

    def better_known(self, pid: int, end: End) -> End:
        """Return how a process was seen to end, if its black box does not say it."""
        seen = (end for pids, (_, end) in self._watched.items() if pid in pids)
        return end if end.kind == "bad" else next(seen, end)


def _is_no_failure(job: JobView, end: End) -> bool:
    """Return whether the silent end of a job is as it should be: of a notebook, or of the Lab."""
    return end.kind == "warn" and any(
        may_end_silently(trainer.definition.script) for trainer in job.trainers
    )
