"""Examine what a trainer left behind after its end.

This is an allocator snapshot, the record of an out-of-memory error, a black box or a recording.
"""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..text.clock import SECOND, clock_text
from ..wire.clean import clean
from .finding import EndedTrainer, Finding, Report

if TYPE_CHECKING:
    from ..store.view import History, HostView, JobView
    from ..wire.frames import Frame
    from ..wire.recorded_lines import Line

EVERY_SECONDS = 2.0
"""Seconds between two runs of the rules before a trainer ends, by the recording's clock."""
MAX_SOURCES = 16
MAX_ENDED = 8
DAY_AND_SECOND = f"%d %b {SECOND}"
_KEY = "past"
_ENDING = (b'"gone"', b'"hello"', b'"bye"')
"""A part of a line that a trainer may print last."""
_TIME = b'"time"'
"""A part of a line that tells where a minute of a trainer went."""


def examine(path: str | Path, kind: str) -> Report:
    """Returns what the file at ``path`` shows.

    ``kind`` is snapshot (also for the record of an out-of-memory error), recording or box.
    """
    path = Path(path)
    if kind == "snapshot":
        from . import postmortem_snapshot

        return postmortem_snapshot.examine(path)
    return _replay(path, kind == "box")


def _replay(path: Path, box: bool) -> Report:
    """Returns what the live rules say of each job's last moment, and how it ended."""
    from ..store import past_file
    from ..store.blackbox import BoxReader
    from ..wire.recording import RecordingReader

    name = clean(path.name, 100)
    reader = BoxReader(path) if box else RecordingReader(path)
    members = reader.index()
    if not members:
        why = (
            reader.problem.text
            if reader.problem is not None
            else f"{name}: it has no complete sample"
        )
        return Report(problems=(why,))
    sources = sorted({member.source for member in members})[:MAX_SOURCES]
    ends, minutes = _ends(past_file.last_lines(reader))
    watchers = {
        source: _Watcher(name, ends.get(source, ()), minutes.get(source, ())) for source in sources
    }
    for line, frame in past_file.frames_in(past_file.last_lines(reader)):
        if line.source in watchers:
            watchers[line.source].take(frame, line.rx)
    report = Report(examined=(name,))
    for watcher in watchers.values():
        report += watcher.report(path)
    problem = reader.problem
    return report + Report(problems=(f"{name}: {problem.text}",)) if problem is not None else report


def _ends(lines: Iterable[Line]) -> tuple[dict[int, list[float]], dict[int, list[Line]]]:
    """Return for each source the times of the lines by which a trainer may end.

    And its lines that tell where the minutes went.
    """
    found: dict[int, list[float]] = {}
    minutes: dict[int, list[Line]] = {}
    for line in lines:
        if any(word in line.line for word in _ENDING):
            found.setdefault(line.source, []).append(line.rx)
        if _TIME in line.line:
            minutes.setdefault(line.source, []).append(line)
    return found, minutes


class _Watcher:
    """Replays one source into a store, and keeps what the rules said last of living jobs.

    Only their last word counts, so that they are asked shortly before each of the times ``ends``
    and at the end. A trainer tells with its end where its last ``minutes`` went: they are known to
    the rules before, so that they judge the same minutes as ``gpuscope why``.
    """

    def __init__(self, name: str, ends: Sequence[float], minutes: Sequence[Line]) -> None:
        from ..store.replay import BADGE
        from ..store.store import Store

        self._name = name
        self._ends, self._minutes = sorted(ends), deque(minutes)
        self._store = Store()
        self._store.add_source(_KEY, name, BADGE)
        self._said: dict[str, Report] = {}
        self._next = 0.0

    def take(self, frame: Frame, at: float) -> None:
        self._store.apply(_KEY, frame, at)
        if at >= self._next and self._ends_soon(at):
            self._next = at + EVERY_SECONDS
            self._learn_minutes(at)
            self._look()

    def _ends_soon(self, at: float) -> bool:
        """Return whether a trainer may end before the rules are asked again."""
        following = bisect_left(self._ends, at)
        return following < len(self._ends) and self._ends[following] <= at + EVERY_SECONDS

    def _learn_minutes(self, at: float) -> None:
        """Take in what is told of the minutes by the end that comes soon."""
        from ..store import past_file

        soon = []
        while self._minutes and self._minutes[0].rx <= at + EVERY_SECONDS:
            soon.append(self._minutes.popleft())
        for _, frame in past_file.frames_in(soon):
            if getattr(frame, "e", "") == "time":
                self._store.apply(_KEY, frame, at)

    def _look(self) -> None:
        from . import live

        host = self._store.view().host
        for job in host.jobs if host is not None else ():
            if host is not None and any(trainer.gone is None for trainer in job.trainers):
                pids = {trainer.definition.pid for trainer in job.trainers}
                self._said[job.key] = live.examine(host, self._history, pids)

    def _history(self, entity: int, column: str, seconds: float | None) -> History:
        return self._store.history(_KEY, entity, column, seconds)

    def report(self, path: Path) -> Report:
        """Returns what was said of each job when it was last seen to run, and how it ended."""
        from . import postmortem_end

        self._look()
        out = Report()
        for said in self._said.values():
            found = tuple(_of_the_past(one, path) for one in said.findings)
            out += Report(findings=found, abstained=said.abstained)
        host = self._store.view().host
        if host is None:
            return out
        command = f"gpuscope replay {shlex.quote(str(path))}"
        ended = tuple(
            EndedTrainer(text=text, command=command)
            for job in host.jobs[:MAX_ENDED]
            if (text := _end_of(host, job))
        )
        return out + postmortem_end.examine(host, host.jobs) + Report(ended=ended)


def _end_of(host: HostView, job: JobView) -> str:
    """Return which job ended, when, how, and where it was then; "" if it did not end badly."""
    from ..model.job_ends import end_of, job_end, last_state, lived_text

    gone, end = end_of(job), job_end(job)
    if gone is None or end is None or end.kind not in ("bad", "warn"):
        return ""
    ranks = len(job.trainers)
    who = f"{job.title} ×{ranks}" if ranks > 1 else job.title
    pid = f" (pid {job.trainers[0].definition.pid})" if ranks == 1 else ""
    when = "" if gone.wall_seconds is None else f", {clock_text(gone.wall_seconds, DAY_AND_SECOND)}"
    state = " · ".join(part for part in (*last_state(job), lived_text(host, job)) if part)
    return clean(f"{who}{pid}{when}, {end.sentence}{f' · {state}' if state else ''}", 600)


def _of_the_past(finding: Finding, path: Path) -> Finding:
    """Returns the finding without what could only have been done while the trainer ran.

    Why steps became slower could then be looked for on its host; now only the file tells.
    """
    if finding.cause == "live.slower":
        from .postmortem_oom import WORDINGS

        file = shlex.quote(str(path))
        fixes = WORDINGS.fixes(["where-time-went"], {"file": file})
        return replace(finding, fixes=tuple(fixes), verify=f"gpuscope replay {file}")
    return replace(finding, fixes=tuple(fix for fix in finding.fixes if not fix.now), verify="")
