"""This module keeps which jobs ended badly in the last day, and whether that was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...model.ended_jobs import EndedJob, joined
from ...model.job_ends import End

if TYPE_CHECKING:
    from ...doctor.finding import Report
    from .view_state import ViewState


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
    """Jobs that ended badly. They are news until the Doctor tab has shown them.

    ``state`` keeps the last death that was seen for the next session.
    """

    def __init__(self, state: ViewState) -> None:
        self._state = state
        self._watched: Sequence[EndedJob] = ()

    def watched(self, jobs: Sequence[EndedJob]) -> None:
        """Note which jobs of a host ended badly while it was watched."""
        self._watched = jobs

    def clear(self) -> None:
        """Another host is looked at."""
        self._watched = ()

    def jobs(self, left: Iterable[EndedJob]) -> tuple[EndedJob, ...]:
        """Return them with those that ``left`` something on this host, the newest first."""
        return joined(self._watched, left)

    def is_news(self, jobs: Sequence[EndedJob]) -> bool:
        """Return whether any of these has ended since the Doctor tab has shown them."""
        return any(one.seconds > self._state.deaths_seen for one in jobs)

    def see(self, jobs: Sequence[EndedJob]) -> None:
        """Take all of these for seen."""
        ended = [one.seconds for one in jobs]
        self._state.deaths_seen = max([self._state.deaths_seen, *ended])

    def better_known(self, pid: int, end: End) -> End:
        """Return how a process was seen to end, if its black box does not say it."""
        seen = (one.end for one in self._watched if pid in one.pids)
        return end if end.kind == "bad" else next(seen, end)
