"""This module keeps which trainers died in the last day that nobody has looked at yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.job_ends import NOTHING_SENT, end_of, job_end

if TYPE_CHECKING:
    from ...doctor.finding import Report
    from ...store.view import HostView
    from .view_state import ViewState

DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class DeadTrainer:
    """What a trainer left that died: its process, the wall clock of its end, the findings.

    ``words`` say which trainer it was and how it ended.
    """

    pid: int
    ended: float
    report: Report
    words: str = ""


class UnseenDeaths:
    """Jobs that died, until the Doctor tab has shown them.

    ``state`` keeps the last death that was seen for the next session, and ``stopped`` has by pid
    what was sent from here to end a process: such an end is no death.
    """

    def __init__(self, state: ViewState, stopped: Mapping[int, str] = NOTHING_SENT) -> None:
        self._state, self._stopped = state, stopped
        self._watched: dict[tuple[int, ...], float] = {}

    def look(self, host: HostView) -> None:
        """Note which jobs of a host have died while it was watched: their pids, and when."""
        self._watched = {}
        for job in host.jobs:
            gone, end = end_of(job), job_end(job, self._stopped)
            if gone is None or end is None or end.kind != "bad" or gone.wall_seconds is None:
                continue
            if (host.wall_seconds or 0.0) - gone.wall_seconds < DAY_SECONDS:
                pids = tuple(trainer.definition.pid for trainer in job.trainers)
                self._watched[pids] = gone.wall_seconds

    def clear(self) -> None:
        """Another host is looked at."""
        self._watched = {}

    def pids(self, left: Iterable[DeadTrainer]) -> set[int]:
        """Return a pid of each job that died and was not seen; ``left`` are those of this host."""
        ends = self._ends(left)
        return {pid for pid, ended in ends.items() if ended > self._state.deaths_seen}

    def see(self, left: Iterable[DeadTrainer]) -> None:
        """Take all of them for seen."""
        self._state.deaths_seen = max([self._state.deaths_seen, *self._ends(left).values()])

    def _ends(self, left: Iterable[DeadTrainer]) -> dict[int, float]:
        """Return when each job ended on the wall clock, by the pid of one of its ranks."""
        ends = {one.pid: one.ended for one in left}
        for pids, ended in self._watched.items():
            if pids and not ends.keys() & set(pids):
                ends[pids[0]] = ended
        return ends
