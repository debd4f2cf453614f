"""Read from a recording, or from a black box, the end of each rank: its steps, memory and place.

Of a recording that holds several jobs, the one that was seen last counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.job_ends import how_it_ended
from ...snapshot.model import Frame
from ...text.ranges import ranges_text
from ...text.units import bytes_text, duration_text
from .find import FoundFile
from .model import Failure, Moment, Rank, Recorded, Stack
from .read_log import LogPart
from .rules import classify

if TYPE_CHECKING:
    from ...store.store import Store
    from ...store.view import HostView, JobView, TrainerView
    from ...wire import frames
    from ...wire.recorded_lines import Line

_KEY = "past"
_GONE = b'"gone"'


def read(found: FoundFile) -> tuple[list[LogPart], Recorded | None, str]:
    """Return what a recording says of each rank, who held up the others, and why it says less."""
    from ...store.past_file import MAX_SOURCES, frames_in, last_lines
    from ...wire.recording import RecordingReader

    reader = RecordingReader(found.path)
    sources: dict[int, _Source] = {}
    for line, frame in frames_in(last_lines(reader)):
        if line.source in sources or len(sources) < MAX_SOURCES:
            sources.setdefault(line.source, _Source(found.name)).take(line, frame)
    problem = reader.problem.text if reader.problem is not None else ""
    hosts = [(source, host) for source in sources.values() if (host := source.host()) is not None]
    key = _last_job([host for _, host in hosts])
    if not key:
        return [], None, problem or "it has no rank of a training"
    parts = []
    for source, host in hosts:
        for trainer in [one for job in host.jobs if job.key == key for one in job.trainers]:
            part = _part(found, host, trainer, len(hosts) > 1)
            part.about.begin = source.begin
            parts.append(part)
    living = [one for source in sources.values() for one in source.living.get(key, ())]
    recorded = _judged(found.name, living)
    _mark_waiting(parts, recorded)
    return parts, recorded, problem


class _Source:
    """Replays the lines of one host, and keeps each job as it was before its first rank ended."""

    def __init__(self, name: str) -> None:
        from ...store.store import Store

        self._store: Store = Store()
        self._store.add_source(_KEY, name)
        self.living: dict[str, Sequence[TrainerView]] = {}
        self.begin: float | None = None

    def take(self, line: Line, frame: frames.Frame) -> None:
        if _GONE in line.line:
            self._look()
        self._store.apply(_KEY, frame, line.rx)
        if self.begin is None:
            host = self._store.view().host
            self.begin = host.wall_seconds if host is not None else None

    def host(self) -> HostView | None:
        """Return the host as it was at the end."""
        self._look()
        return self._store.view().host

    def _look(self) -> None:
        host = self._store.view().host
        for job in host.jobs if host is not None else ():
            if job.trainers and all(one.gone is None for one in job.trainers):
                self.living[job.key] = job.trainers


def _judged(name: str, living: Sequence[TrainerView]) -> Recorded:
    """Return which of a job's ranks held up the others, as they were before one of them ended."""
    from ...model.stalls import find_stall, place

    stall = find_stall(living) if len(living) > 1 else None
    if stall is None or not stall.behind:
        return Recorded(name, [], [], "")
    at = place(stall.behind[0])
    file, _, line = at.line.rpartition(":")
    frame = Frame(file, int(line), at.function) if file and line.isdigit() else None
    return Recorded(name, _ranks(stall.behind), _ranks(stall.waiting), stall.text, frame)


def _ranks(trainers: Sequence[TrainerView]) -> list[int]:
    return [one.definition.rank for one in trainers if one.definition.rank is not None]


def _last_job(hosts: Sequence[HostView]) -> str:
    """Return the key of the job that was seen last, of several the one with most ranks."""
    jobs = [(host, job) for host in hosts for job in host.jobs if job.trainers]
    if not jobs:
        return ""
    return max(jobs, key=lambda one: (_seen(*one), len(one[1].trainers)))[1].key


def _seen(host: HostView, job: JobView) -> float:
    if any(one.gone is None for one in job.trainers):
        return host.wall_seconds or float("inf")
    return max(one.gone.wall_seconds or 0.0 for one in job.trainers if one.gone is not None)


def _part(found: FoundFile, host: HostView, trainer: TrainerView, several: bool) -> LogPart:
    about = about_trainer(host, trainer, found.name)
    about.host = host.name if several else ""
    failure = _failure(host, trainer, found.name)
    if failure is not None:
        about.failures.append(failure)
    return LogPart(found, about, trainer.definition.rank, None)


def about_trainer(host: HostView, trainer: TrainerView, name: str) -> Rank:
    """Return what the last readings of a trainer say of its rank."""
    about = Rank(-1, pid=trainer.definition.pid, sources=[name])
    about.local = trainer.definition.local_rank
    last = _wall(host, trainer.sampled_seconds)
    step, age = trainer.number("step"), trainer.number("step_age_seconds")
    about.step = int(step) if step is not None else None
    about.step_seconds = trainer.number("step_seconds")
    about.step_time = last - (age or 0.0) if last is not None else None
    about.step_source = name
    about.last = last
    about.recorded = (_words(trainer, age), name)
    if trainer.gone is not None:
        about.last = trainer.gone.wall_seconds or last
        about.gone = (about.last or 0.0, how_it_ended(trainer.gone).sentence)
        end = how_it_ended(trainer.gone)
        if end.word == "ended" and not end.how:
            about.finished, about.last_line = name, end.sentence
    return about


def _wall(host: HostView, seconds: float | None) -> float | None:
    """Return a time of the host's monotonic clock in seconds since 1970."""
    if seconds is None or host.wall_seconds is None or host.sampled_seconds is None:
        return host.wall_seconds
    return host.wall_seconds - (host.sampled_seconds - seconds)


def _words(trainer: TrainerView, age: float | None) -> str:
    """Return the last step and the memory of a trainer in words."""
    words = []
    step = trainer.number("step")
    if step is not None:
        words.append(f"step {step:.0f}")
    if age is not None and age >= 1.0:
        words.append(f"which had ended {duration_text(age)} before")
    for one in trainer.allocators[:1]:
        allocated, reserved = one.number("allocated_bytes"), one.number("reserved_bytes")
        if allocated is not None:
            words.append(f"{bytes_text(allocated)} of its GPU's memory allocated")
        if reserved is not None:
            words.append(f"{bytes_text(reserved)} reserved")
    return ", ".join(words)


def _failure(host: HostView, trainer: TrainerView, name: str) -> Failure | None:
    """Return the exception that ended a trainer, if its probe reported one."""
    for event in reversed(host.events):
        if event.id == trainer.id and "how" in event.data and "type" in event.data:
            text = f"{event.data['type']}: {str(event.data.get('message', ''))[:2000]}"
            at = trainer.gone.wall_seconds if trainer.gone is not None else host.wall_seconds
            failure = Failure([text], [[]], name, at)
            classify(failure)
            return failure
    return None


def _mark_waiting(parts: Sequence[LogPart], recorded: Recorded) -> None:
    """Note of each rank that it waited, or where it was while the others did."""
    for part in parts:
        if part.rank in recorded.waiting and recorded.behind:
            text = f"waited for ranks {ranges_text(sorted(recorded.behind))}"
            moment = Moment("recorded", "effect", "", text, recorded.source, rank=part.rank)
            part.about.moments.append(moment)
        elif part.rank in recorded.behind and recorded.frame is not None:
            part.about.stacks.append(Stack([recorded.frame], recorded.source, "probe"))
