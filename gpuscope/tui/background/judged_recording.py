"""Judge a recording as if it had been watched from its start, whatever part of it is shown.

Findings and the log follow from what came before. A viewer that seeks has not seen that, so the
recording is read a second time here, from its start: the doctor and the journal look at the same
moments of recorded time, however one came to where one is. What they said at each of these moments
is kept, so that a seek back shows it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...doctor.finding import Finding, Report
from ...model.ended_jobs import EndedJob, ended_badly
from ...text.units import age_text
from .examined import examined
from .finding_history import Case, FindingHistory
from .journal import Journal

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ...store.replay import ReplaySource
    from ...store.store import Store
    from ...store.view import History, HostView
    from .log_entry import LogEntry

log = logging.getLogger("gpuscope.doctor")

EVERY_SECONDS = 1.0
"""The doctor looks so often while one watches live, and so often in recorded time."""
MOST_MOMENTS = 3600
"""Of a recording of more than an hour fewer moments a minute are judged, so that a seek to the end
of half a day takes half a minute, and what is kept stays within some 15 MB.
"""
TURN_SECONDS = 0.01
"""How long this works before the screen has its turn."""
TELL_SECONDS = 0.2
SAME_CLOCK_SECONDS = 1.0
"""Clocks that differ by less are the same: the wall clock was corrected a little meanwhile."""
LATE_SECONDS = 1.0
"""What takes longer than this is told on the screen."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known at one moment: ``seconds`` is its place in the recording.

    ``pending`` are the findings that are too new to be shown, ``ended`` the jobs that ended badly,
    and ``told`` counts the changes of the log until then. ``zero`` is where the times of ``cases``
    have their zero on the wall clock, None where that is unknown.
    """

    seconds: float
    report: Report
    cases: tuple[Case, ...]
    pending: list[tuple[Finding, float]]
    ended: tuple[EndedJob, ...]
    told: int
    zero: float | None

    def on_clock_of(self, host: HostView) -> Moment:
        """Return this with the times of the cases on the clock of a view of the same moment.

        A host that is rebooted begins its clock anew. The view goes on from what it has read of
        before, which a seek leaves out: the zero of its clock is another one then.
        """
        zero = zero_of(host)
        if zero is None or self.zero is None or abs(self.zero - zero) < SAME_CLOCK_SECONDS:
            return self
        later = self.zero - zero
        return replace(self, zero=zero, cases=tuple(one.moved(later) for one in self.cases))


def zero_of(host: HostView) -> float | None:
    """Return where the times of a view have their zero on the wall clock."""
    if host.wall_seconds is None or host.sampled_seconds is None:
        return None
    return host.wall_seconds - host.sampled_seconds


class JudgedRecording:
    """What was found and what happened at each moment of a recording that has been reached.

    ``stopped`` has by pid what was sent from here to end a process. ``changed`` is called when more
    is known.
    """

    def __init__(
        self, replay: ReplaySource, stopped: Mapping[int, str], changed: Callable[[], None]
    ) -> None:
        self._replay, self._stopped, self._changed = replay, stopped, changed
        self.every_seconds = max(EVERY_SECONDS, replay.duration_seconds / MOST_MOMENTS)
        self.cost_seconds: float | None = None
        """Processor time that the rules took the last time; None before they were asked."""
        self.problem = ""
        """Why nothing more is judged."""
        self._moments: list[Moment] = []
        self._seconds: list[float] = []
        self._reached = 0.0
        self._behind_since: float | None = None
        self._changes: list[tuple[str, LogEntry | None]] = []
        """Each change of the log in order: a serial and its entry, None where it was removed."""
        self._entries: tuple[int, dict[str, LogEntry]] = 0, {}
        self._task: asyncio.Task[None] | None = None
        self._telling: asyncio.TimerHandle | None = None

    def begin(self, table: Mapping[str, Pitfall] | None) -> None:
        """Begin to read; without a table of pitfalls only the log is kept."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(table))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the recording cannot be judged", exc_info=error)
            at = f"after {age_text(self._reached)} of it ({type(error).__name__})"
            self.problem = f"The recording could not be judged any further, {at}."
            self._behind_since = None
            self._tell()

    def close(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()
        if self._telling is not None:
            self._telling.cancel()

    # ── what is shown ──

    @property
    def moment(self) -> Moment | None:
        """The last moment that was judged before the one shown, None before the first."""
        at = bisect_right(self._seconds, self._replay.position_seconds)
        return self._moments[at - 1] if at else None

    @property
    def entries(self) -> dict[str, LogEntry]:
        """What had happened until :attr:`moment`, by serial: the same object until that changes."""
        moment = self.moment
        told = moment.told if moment is not None else 0
        if told != self._entries[0]:
            entries: dict[str, LogEntry] = {}
            for serial, entry in self._changes[:told]:
                if entry is None:
                    entries.pop(serial, None)
                else:
                    entries[serial] = entry
            self._entries = told, entries
        return self._entries[1]

    @property
    def judged_until(self) -> float | None:
        """Up to where the recording has been judged, None unless a seek has to wait for more."""
        since = self._behind_since
        late = since is not None and time.monotonic() - since > LATE_SECONDS
        return self._reached if late else None

    # ── judging ──

    async def _run(self, table: Mapping[str, Pitfall] | None) -> None:
        from ...store.store import Store

        replay, store, course, journal = self._replay, Store(), FindingHistory(), Journal()
        store.add_source(replay.key, replay.label, replay.badge)
        due, news = self.every_seconds, False
        turn_ends = time.perf_counter() + TURN_SECONDS
        for seconds, frame in replay.frames():
            while due <= seconds:
                if news:
                    await self._reach(due)
                    self._judge(due, store, course, journal, table)
                    news = False
                due += self.every_seconds * max(1, (seconds - due) // self.every_seconds)
            store.apply(replay.key, frame, seconds)
            news = True
            if time.perf_counter() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.perf_counter() + TURN_SECONDS
        if news:
            await self._reach(replay.duration_seconds)
            self._judge(replay.duration_seconds, store, course, journal, table)
        self._behind_since = None
        self._tell()

    async def _reach(self, seconds: float) -> None:
        """Wait until the replay has come to this place, which it may do by any seek."""
        clock, self._reached = self._replay.clock, seconds
        if clock.position < seconds:
            self._behind_since = None
            self._tell()
            while not await clock.wait_until(seconds, clock.generation):
                pass
        elif self._behind_since is None:
            self._behind_since = time.monotonic()
        else:
            self._tell()

    def _judge(
        self,
        seconds: float,
        store: Store,
        course: FindingHistory,
        journal: Journal,
        table: Mapping[str, Pitfall] | None,
    ) -> None:
        key = self._replay.key
        host = store.host(key)
        if host is None or host.sampled_seconds is None:
            return

        def history(entity_id: int, column: str, back: float | None = None) -> History:
            return store.history(key, entity_id, column, back)

        report = Report()
        if table is not None:
            began = time.thread_time()
            report, found = examined(host, history, table)
            self.cost_seconds = time.thread_time() - began
            if found is not None:
                course.follow(found, host.sampled_seconds)
        before, changes = dict(journal.entries), journal.changes
        journal.look(host, course.cases, self._stopped)
        if journal.changes != changes:
            self._changes += [(one, None) for one in before if one not in journal.entries]
            self._changes += [
                (serial, entry)
                for serial, entry in journal.entries.items()
                if before.get(serial) is not entry
            ]
        ended = tuple(ended_badly(host, self._stopped))
        self._moments.append(
            Moment(
                seconds,
                report,
                course.cases,
                course.pending,
                ended,
                len(self._changes),
                zero_of(host),
            )
        )
        self._seconds.append(seconds)

    def _tell(self) -> None:
        """Say soon that more is known, once for all that is found together."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._told)

    def _told(self) -> None:
        self._telling = None
        self._changed()
