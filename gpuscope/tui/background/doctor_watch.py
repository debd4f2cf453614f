"""This is the doctor of a session: it applies the live rules to each new picture.

It does so once a second at most, and adds what was examined aside. It costs what
:attr:`DoctorWatch.cost_seconds` says; where that grows, it looks less often, so that the screen is
never late. Of a recording it shows what :mod:`.judged_recording` says of the moment looked at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...doctor.finding import Finding, Report
from ...model.ended_jobs import EndedJob, ended_badly, sentence
from ...model.job_ends import NOTHING_SENT, End
from .checks import Aside
from .examined import examined
from .finding_history import Case, FindingHistory, open_counts, sort_cases
from .in_step import in_step
from .unseen_deaths import DeadTrainer, UnseenDeaths
from .view_state import ViewState

if TYPE_CHECKING:
    from ...doctor.finding import Pitfall
    from ...store.replay import ReplaySource
    from ...store.view import HistoryOf, HostView
    from .judged_recording import JudgedRecording, Moment
    from .log_entry import LogEntry

log = logging.getLogger("gpuscope.doctor")

BEGIN_SECONDS = 1.0
"""The rules are loaded so long after the first picture: the screen stands first."""
EVERY_SECONDS = 1.0
SHARE = 0.02
"""Of the viewer's time at most: rules that take 50 ms are asked every 2.5 s."""
ASIDE_SECONDS = 2.0
"""The child starts so long after the first picture: the screen comes first. And so long after a
trainer has ended: its last record is being written.
"""
REPLAYED = "the environment: not in a recording"
ELSEWHERE = "the environment: another machine's; check it there with gpuscope doctor"


class DoctorWatch:
    """What is known to be wrong with the host that is looked at.

    ``changed`` is called when something new is known. ``local`` tells whether the machine
    looked at is this one, so that its environment and its dead can be examined. ``replay`` is
    what is looked at where it is a recording. ``state`` keeps which deaths were seen, ``stopped``
    has by pid what was sent from here to end a process.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        local: Callable[[], bool],
        replay: ReplaySource | None = None,
        state: ViewState | None = None,
        stopped: Mapping[int, str] = NOTHING_SENT,
        aside: Aside | None = None,
    ) -> None:
        self._local = local
        self._recording: JudgedRecording | None = None
        if replay is not None:
            from .judged_recording import JudgedRecording

            self._recording = JudgedRecording(replay, stopped, changed)
        self._unseen, self._stopped = UnseenDeaths(state or ViewState()), stopped
        self.table: Mapping[str, Pitfall] | None = None
        """None until it is read."""
        self.problem = ""
        """Why nothing can be judged."""
        self.live = Report()
        self.environment: Report | None = None
        self.cost_seconds: float | None = None
        """Processor time that the rules took the last time; None before they were asked."""
        self.why_no_proof = "no finding is selected"
        """Set by the tab: why the finding under the cursor cannot be proved in the Lab, "" where it
        can.
        """
        self.more_fixes = False
        """Set by the tab: whether the finding under the cursor has more than one fix that can be
        copied.
        """
        self._changed = changed
        self._course: FindingHistory | Moment = FindingHistory()
        self._moment: Moment | None = None
        self._left: dict[tuple[int, float], DeadTrainer] = {}
        self._boxed: tuple[EndedJob, ...] = ()
        """The jobs of this machine that left black boxes, also those that are not examined."""
        self._aside = aside or Aside(self._take_report)
        self._asked = False
        self._gone: set[str] | None = None
        self._looked: HostView | None = None
        self.waits = False
        """Whether it is too early to look at the last picture."""
        self._in_step: tuple[HostView, HostView, HostView] | None = None
        """A picture, the one that was looked at, and what :meth:`in_step` has made of them."""
        self._next = 0.0
        self._host_key = ""
        self._preparing: asyncio.Task[None] | None = None
        self._cases: tuple[Case, ...] | None = None

    # ── the table and the rules ──

    def prepare(self) -> None:
        """Read the table and load the rules, without raising anything.

        That takes 0.1 s the first time.
        """
        from ...doctor import live, postmortem_end, report, table  # noqa: F401  # loaded here, by whatever thread

        try:
            self.table = table.load()
        except table.TableError as error:
            self.problem = f"The pitfall table: {error}. Install gpuscope again."

    def begin(self) -> None:
        """Load what is needed, in a thread; nothing is judged before that."""
        if self._preparing is None and self.table is None and not self.problem:
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        from ..runs.ledger_view import in_own_thread

        await asyncio.sleep(BEGIN_SECONDS)
        try:
            await in_own_thread(self.prepare)
        except Exception as error:
            log.exception("the doctor cannot be loaded")
            self.problem = f"The rules cannot be loaded: {error!r}. Install gpuscope again."
        self._changed()

    def look(self, host: HostView | None, history: HistoryOf) -> bool:
        """Judge the picture where it is new and due, and return whether it was judged."""
        key = "" if host is None else host.key
        # what was found elsewhere goes at once, also while the new host has said nothing yet
        if key != self._host_key:
            self._course = FindingHistory()
            self._unseen.clear()
            self._host_key, self._gone = key, None
            self.live, self._cases, self._looked = Report(), None, None
        if host is None or host.sampled_seconds is None:
            return False
        self.begin()
        if self._recording is not None:
            self._looked = host
            return self._look_up(self._recording, host)
        now = time.monotonic()
        if self.table is None or host is self._looked:
            return False
        self.waits = now < self._next and self._looked is not None
        if self.waits:
            return False
        self._unseen.watched(ended_badly(host, self._stopped))
        self._looked = host
        began, own = time.perf_counter(), time.thread_time()
        self._judge(host, history)
        self.cost_seconds = time.thread_time() - own
        self._next = now + max(EVERY_SECONDS, (time.perf_counter() - began) / SHARE)
        self._start_background_checks(host)
        return True

    def _look_up(self, recording: JudgedRecording, host: HostView) -> bool:
        """Take what is known of the moment of a recording, and return whether that is new."""
        if self.table is not None or self.problem:
            recording.begin(self.table)
        moment, failed = recording.moment, self.problem
        moment = moment.on_clock_of(host) if moment is not None else None
        self.problem = self.problem or recording.problem
        if moment == self._moment and self.problem == failed:
            return False
        self._moment, self._cases = moment, None
        self._course = moment or FindingHistory()
        self.live = moment.report if moment is not None else Report()
        self._unseen.watched(moment.ended if moment is not None else ())
        self.cost_seconds = recording.cost_seconds
        return True

    def in_step(self, host: HostView) -> HostView:
        """Return a picture of a live host whose shares of the time are those of the findings."""
        if self._recording is not None or self._looked is None:
            return host
        before, looked, made = self._in_step or (None, None, host)
        if before is not host or looked is not self._looked:
            made = in_step(host, self._looked)
            self._in_step = host, self._looked, made
        return made

    @property
    def told(self) -> dict[str, LogEntry] | None:
        """The log of a recording until the moment looked at, None where none is looked at."""
        return self._recording.entries if self._recording is not None else None

    @property
    def judged_until(self) -> float | None:
        """Up to where a recording has been judged, None unless a seek has to wait for more."""
        return self._recording.judged_until if self._recording is not None else None

    def _judge(self, host: HostView, history: HistoryOf) -> None:
        assert self.table is not None
        assert host.sampled_seconds is not None
        assert isinstance(self._course, FindingHistory)
        self.live, found = examined(host, history, self.table)
        if found is not None:
            self._course.follow(found, host.sampled_seconds)
            self._cases = None

    # ── what is examined aside ──

    def _start_background_checks(self, host: HostView) -> None:
        if not self._local():
            return
        gone = {trainer.key for trainer in host.trainers if trainer.gone is not None}
        if not self._asked:
            self._asked = True
            self._aside.start(("environment", "left"), ASIDE_SECONDS)
        elif self._gone is not None and gone - self._gone and not self._aside.running:
            self._aside.start(("left",), ASIDE_SECONDS)
        elif self._aside.running:
            return  # asked again when it has ended
        self._gone = gone

    def _take_report(self, part: str, report: Report, more: Mapping[str, Any]) -> None:
        if part == "ended":
            self._boxed = tuple(
                EndedJob(tuple(map(int, one["pids"])), float(one["seconds"]), End(**one["end"]))
                for one in more["jobs"]
            )
        elif part == "left":
            pid, ended = int(more["pid"]), float(more["ended"])
            found = DeadTrainer(
                pid, ended, report, str(more.get("name", "")), End(**more["end"]), str(more["path"])
            )
            self._left[pid, ended] = found
        elif part == "environment":
            self.environment = report
        else:
            self.environment = (self.environment or Report()) + report
        self._cases = None
        self._changed()

    def close(self) -> None:
        """The session ends: nothing is waited for."""
        self._aside.close()
        if self._recording is not None:
            self._recording.close()
        if self._preparing is not None:
            self._preparing.cancel()

    # ── what is shown ──

    @property
    def cases(self) -> tuple[Case, ...]:
        """All there is to show: what holds, the worst first, then what no longer does."""
        if self._cases is None:
            here = self._local()
            left = self._local_deaths()
            known = {one.pid for one in left}
            out = [
                case for case in self._course.cases if case.kind != "end" or case.pid not in known
            ]
            number = -1
            if self.environment is not None and here:
                from ...doctor.live_states import OF_THE_CARD

                judged = OF_THE_CARD if self._looked is not None else frozenset[str]()
                told = {case.finding.title for case in out if case.kind == "live" and not case.past}
                for one in self.environment.findings:
                    if one.cause in judged or one.title in told:
                        continue  # what is so now is among the live ones
                    out.append(Case(number, one, "environment"))
                    number -= 1
            for dead in left:  # numbers fall: the newest comes first
                for one in reversed(dead.report.findings):
                    if one.cause == "end.unseen" and dead.end.word == "killed":
                        title = f"{dead.name} was {dead.end.sentence}"  # it was seen, no guess
                        one = replace(one, title=title, confidence="definite")
                    out.append(Case(number, one, "left", since=dead.ended))
                    number -= 1
            self._cases = sort_cases(out)
        return self._cases

    @property
    def pending(self) -> list[tuple[Finding, float]]:
        """The findings that are too new to be shown, and in how many seconds they are."""
        return self._course.pending

    def _local_deaths(self) -> list[DeadTrainer]:
        """Trainers that ended badly on this machine, the oldest first."""
        if not self._local():
            return []
        known = self._unseen.better_known
        left = (replace(one, end=known(one.pid, one.end)) for one in self._left.values())
        return sorted(left, key=lambda one: one.ended)

    @property
    def deaths(self) -> list[DeadTrainer]:
        """Trainers that ended badly on this machine in the last day, the newest first."""
        return self._local_deaths()[::-1]

    @property
    def unexplained(self) -> tuple[DeadTrainer, ...]:
        """Trainers that ended of something no rule knows, the newest first."""
        return tuple(one for one in self.deaths if not one.report.findings)

    @property
    def ended(self) -> tuple[EndedJob, ...]:
        """The jobs that ended badly in the last day on the host looked at, the newest first."""
        return self._unseen.jobs(self.left_here if self._local() else ())

    @property
    def left_here(self) -> tuple[EndedJob, ...]:
        """The jobs of this user that left files on this machine when they ended badly."""
        known = self._unseen.better_known
        left = (EndedJob((d.pid,), d.ended, known(d.pid, d.end)) for d in self._left.values())
        return (*self._boxed, *left)

    @property
    def ended_here(self) -> str:
        """How many jobs ended badly here in the last day and how, "" for none."""
        return sentence(self.ended)

    @property
    def sees_a_hang(self) -> bool:
        """Whether a job stands still now."""
        return any(one.grave and one.finding.cause.startswith("stall.") for one in self.cases)

    def counts(self) -> tuple[int, int, tuple[EndedJob, ...], bool]:
        """Return what is open, what ended badly, and whether any of that was not looked at.

        Open are the problems and the warnings that hold, each row of the list once.
        """
        ended = self.ended
        news = self._recording is None and self._unseen.is_news(ended)
        return *open_counts(self.cases), ended, news

    def see_deaths(self) -> None:
        """The screen has shown how jobs ended: they are no news any more."""
        if self._recording is None:
            self._unseen.see(self.ended)

    @property
    def report(self) -> Report:
        """What was examined, not decided and not checked, in one: no findings."""
        both = replace(self.live, findings=())
        if self._local():
            for one in self._left.values():
                both += Report(abstained=one.report.abstained, problems=one.report.problems)
            both += replace(self.environment or Report(), findings=())
        named = {case.finding.pitfall for case in self.cases if not case.past}
        return Report(
            abstained=tuple(
                one for one in dict.fromkeys(both.abstained) if one.pitfall not in named
            ),
            problems=tuple(
                dict.fromkeys(both.problems + ((self.problem,) if self.problem else ()))
            ),
            examined=tuple(dict.fromkeys(both.examined)),
        )

    @property
    def not_examined(self) -> str:
        """Why the environment is not among what was examined; "" where it is."""
        if self._local():
            return "" if self.environment is not None else "the environment is being checked"
        return REPLAYED if self._recording is not None else ELSEWHERE
