"""Put together what the files of a dead job say of each rank."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from . import (
    clocks,
    excerpt,
    read_box,
    read_core,
    read_elastic,
    read_flight,
    read_log,
    read_recording,
    rules,
)
from .find import FoundFile, find
from .model import Exit, Failure, Job, Moment, Rank
from .read_elastic import Listed
from .read_log import LogPart

LOOSE = -1
"""The number of the rank under which a job keeps what no file gives to a rank."""


def read_job(paths: Sequence[Path], name: str) -> Job:
    """Return what is known of the job that left these files or folders."""
    files, unread = find(paths)
    job = read_files(files, name, unread)
    job.files = files
    return job


def read_files(
    files: Sequence[FoundFile], name: str, unread: Iterable[str] = (), attempt: int | None = None
) -> Job:
    """Return what is known of the job that left these files.

    Of a job that torchrun started several times, it is the last attempt, or this one. What says
    nothing of its attempt, such as torchrun's own output, is taken for the last one.
    """
    job = Job(name, unread=list(unread))
    last = max((one.attempt for one in files), default=0)
    job.attempts = last + 1
    if attempt is None:
        files = [one for one in files if one.local is None or one.attempt == last]
    else:
        files = [one for one in files if one.local is not None and one.attempt == attempt]
    for one in files:
        job.found[one.kind] = job.found.get(one.kind, 0) + 1
    parts: list[LogPart] = []
    listed: list[Listed] = []
    texts = [one for one in files if one.kind == "text"]
    tail = excerpt.tail_bytes(len(texts))
    for one in texts:
        _read_text(job, one, tail, parts, listed)
    for one in files:
        if one.kind == "elastic":
            _read_error_file(job, one, parts)
        elif one.kind == "box":
            box = read_box.read(one)
            parts.extend(() if box is None else (box,))
        elif one.kind == "recording":
            _read_recording(job, one, parts)
        elif one.kind in ("core", "packed"):
            _read_core(job, one, parts)
    _number(job, parts, listed)
    _merge(job, parts)
    _add_listed(job, listed)
    _add_flights(job, [one for one in files if one.kind == "flight"])
    _give_out(job)
    _add_tasks(job, listed)
    _add_spawned(job)
    _give_cores(job)
    for rank in job.ranks.values():
        rank.failures = _each_once(one for one in rank.failures if not _went_on(rank, one.source))
        rank.moments = [
            one for one in rank.moments if one.means != "effect" or not _went_on(rank, one.source)
        ]
    clocks.align(job, listed)
    return job


def _read_text(
    job: Job, one: FoundFile, tail: int, parts: list[LogPart], listed: list[Listed]
) -> None:
    try:
        log = read_log.read(one, tail)
    except OSError as error:
        job.unread.append(f"{one.name}: cannot be read ({error.strerror or error}).")
        return
    job.bytes_read += log.bytes_read
    if log.problem:
        job.unread.append(f"{one.name}: was only partly read ({log.problem}).")
    parts += log.parts
    listed += log.listed
    if log.world is not None:
        job.world = max(job.world or 0, log.world)


def _read_error_file(job: Job, one: FoundFile, parts: list[LogPart]) -> None:
    try:
        failure = read_elastic.read_error_file(one)
    except (OSError, ValueError, AttributeError) as error:
        job.unread.append(f"{one.name}: is no whole error file of torchrun ({error}).")
        return
    if failure is not None:
        rules.classify(failure)
        about = Rank(LOOSE, failures=[failure], sources=[one.name])
        parts.append(LogPart(one, about))


def _read_recording(job: Job, one: FoundFile, parts: list[LogPart]) -> None:
    own, recorded, problem = read_recording.read(one)
    parts.extend(own)
    if recorded is not None:
        job.recorded.append(recorded)
    if problem:
        job.unread.append(f"{one.name}: {problem}.")


def _read_core(job: Job, one: FoundFile, parts: list[LogPart]) -> None:
    try:
        core, part = read_core.read(one)
    except read_core.PackedCore as error:
        job.unread.append(f"{one.name}: {error}.")
        return
    except (read_core.NoCore, OSError) as error:
        job.unread.append(f"{one.name}: this core file cannot be read ({error}).")
        return
    job.cores.append(core)
    job.world = max(job.world or 0, core.world or 0) or None
    parts.append(part)


def _number(job: Job, parts: Sequence[LogPart], listed: Sequence[Listed]) -> None:
    """Find the rank in the job of every part, also of those that know only that on their host."""
    bases: dict[str, int] = {}
    for part in parts:
        local = part.found.local if part.local is None else part.local
        rank = part.found.rank if part.rank is None else part.rank
        if local is not None and rank is not None:
            bases.setdefault(part.found.run or part.found.name, rank - local)
        elif part.rank is None:
            part.rank = rank
    for item in listed:
        run = item.error_file.partition("/attempt_")[0].rpartition("/")[2]
        for known in {part.found.run for part in parts if part.found.run}:
            if run and known.endswith(run):
                bases.setdefault(known, item.rank - item.local)
    runs = sorted({part.found.run for part in parts if part.found.local is not None})
    each = {
        run: 1 + max(part.found.local or 0 for part in parts if part.found.run == run)
        for run in runs
    }
    base = 0
    for run in runs:
        if run not in bases and len(runs) > 1 and len(bases) == 0:
            bases[run] = base
        base += each[run]
    by_pid = {item.pid: item.rank for item in listed}
    for part in parts:
        local = part.found.local if part.local is None else part.local
        if part.rank is None and local is not None:
            part.rank = local + bases.get(part.found.run or part.found.name, 0)
        elif part.rank is None and part.about.pid is not None:
            part.rank = by_pid.get(part.about.pid)


def _merge(job: Job, parts: Sequence[LogPart]) -> None:
    for part in parts:
        about = part.about
        rank = job.rank(LOOSE if part.rank is None else part.rank)
        if part.found.local is not None:
            rank.local = part.found.local
        rank.host = rank.host or part.found.host or about.host
        rank.pid = rank.pid or about.pid
        rank.has_log |= about.has_log
        rank.sources += about.sources
        rank.stacks += about.stacks
        rank.moments += about.moments
        rank.failures += about.failures
        if about.begin is not None:
            rank.begin = about.begin if rank.begin is None else min(rank.begin, about.begin)
        if about.last is not None:
            rank.last = about.last if rank.last is None else max(rank.last, about.last)
        if about.step is not None and (rank.step is None or _progress(about) >= _progress(rank)):
            rank.step, rank.epoch = about.step, about.epoch
            rank.step_time, rank.step_source = about.step_time, about.step_source
            rank.step_seconds = about.step_seconds
        if about.last_line and (about.finished or not rank.finished):
            rank.last_line = about.last_line
        rank.finished = rank.finished or about.finished
        rank.exit = rank.exit or about.exit
        rank.recorded = about.recorded or rank.recorded
        rank.gone = about.gone or rank.gone
        rank.last_lines += about.last_lines
        rank.complaints += [one for one in about.complaints if not _went_on(about, one[1])]


def _progress(rank: Rank) -> tuple[int, int]:
    return (rank.epoch or 0, rank.step or 0)


def _add_listed(job: Job, listed: Sequence[Listed]) -> None:
    """Add what torchrun's list of failed ranks says. Several launchers may list one rank."""
    for item in listed:
        rank = job.rank(item.rank)
        rank.local = item.local if rank.local is None else rank.local
        rank.host = rank.host or item.host
        rank.pid = rank.pid or item.pid
        if rank.exit is None or item.first:
            rank.exit = Exit(item.code, item.source, item.pid, item.time, item.first)
        if item.failure is not None:
            rules.classify(item.failure)
            if not rank.failures:
                rank.failures.append(item.failure)


def _add_flights(job: Job, files: Sequence[FoundFile]) -> None:
    for dump in read_flight.read_all(files):
        if dump.failure:
            job.unread.append(f"{dump.found.name}: {dump.failure}.")
            continue
        if dump.world:
            job.world = max(job.world or 0, dump.world)
        if dump.rank is None:
            job.unread.append(f"{dump.found.name}: nothing says which rank's dump it is.")
            continue
        rank = job.rank(dump.rank)
        rank.has_flight = True
        rank.host = rank.host or dump.found.host or dump.host
        rank.sources.append(dump.found.name)
        job.flight_names.add(dump.found.name)
        for group, calls in dump.calls.items():
            if len(calls) > len(rank.calls.get(group, ())) or _has_places(calls):
                rank.calls[group] = calls


def _has_places(calls: Sequence[object]) -> bool:
    return any(getattr(call, "place", "") for call in calls[-4:])


def _went_on(rank: Rank, source: str) -> bool:
    """Return whether a rank made steps, or came to its end, after this line of the same log."""
    file, line = _file_and_line(source)
    steps = _file_and_line(rank.step_source)
    end = _file_and_line(rank.finished)
    return (steps[0] == file and steps[1] > line + 3 > 3) or (end[0] == file and end[1] > line > 0)


def _file_and_line(source: str) -> tuple[str, int]:
    file, _, line = source.rpartition(":")
    return (file, int(line)) if line.isdigit() else (source, 0)


def _each_once(failures: Iterable[Failure]) -> list[Failure]:
    """Return the exceptions of a rank, each once though its log and its error file both have it."""
    kept: dict[str, Failure] = {}
    for failure in failures:
        first = kept.setdefault(failure.text[:300], failure)
        if first is not failure:
            first.time = failure.time if first.time is None else first.time
            first.fatal |= failure.fatal
            if not first.frames:
                first.stacks, first.first = failure.stacks, failure.first
                first.chain = failure.chain
    return list(kept.values())


def _give_out(job: Job) -> None:
    """Give messages and stacks that name a rank or a process to that rank."""
    by_pid: dict[int | None, Rank] = {
        rank.pid: rank for rank in job.ranks.values() if rank.pid is not None
    }
    for rank in list(job.ranks.values()):
        keep: list[Moment] = []
        for moment in rank.moments:
            owner = _owner(job, moment, by_pid)
            if moment.rule in ("closing", "forced") and owner is not None:
                owner.told = owner.told or moment
            elif owner is not None and owner is not rank:
                owner.moments.append(moment)
            elif owner is None and rank.number == LOOSE:
                job.moments.append(moment)
            else:
                keep.append(moment)
        rank.moments = keep
        for failure in [one for one in rank.failures if one.rank not in (None, rank.number)]:
            rank.failures.remove(failure)
            job.rank(failure.rank or 0).failures.append(failure)
        loose = rank.number == LOOSE  # the numbers of processes are unique on one host only
        for stack in list(rank.stacks):
            if stack.rank is None and not (loose and stack.pid in by_pid):
                continue
            other = job.rank(stack.rank) if stack.rank is not None else by_pid[stack.pid]
            if other is not rank:
                rank.stacks.remove(stack)
                other.stacks.append(stack)
    failed = [one for one in job.moments if one.rule == "failed"]
    if len(failed) >= job.attempts:  # else the last attempt did not fail
        for moment in failed:
            _add_exit(job, moment)


def _add_exit(job: Job, moment: Moment) -> None:
    """Add an exit code that torchrun names with the rank on its host, if there is one host."""
    local = int(moment.fields["local"])
    owners = [rank for rank in job.ranks.values() if rank.local == local]
    if len(owners) == 1 and owners[0].exit is None and not owners[0].finished:
        owners[0].pid = int(moment.fields["pid"])
        owners[0].exit = Exit(
            int(moment.fields["code"]), moment.source, owners[0].pid, moment.time, True
        )


def _add_tasks(job: Job, listed: Sequence[Listed]) -> None:
    """Add how srun saw its tasks end, where each task is a rank.

    This is the case if no torchrun started the ranks. Tasks that end after srun has aborted the
    step were made to end.
    """
    ends = [one for one in job.moments if one.rule in ("slurm-exit", "aborting")]
    if listed or any(rank.local is not None for rank in job.ranks.values()):
        return
    ends.sort(key=lambda one: (one.source.rpartition(":")[0], _line_of(one.source)))
    aborted: Moment | None = None
    for one in ends:
        if one.rule == "aborting":
            aborted = aborted or one
            continue
        code = int(one.fields["code"]) if "code" in one.fields else -_SIGNALS[one.fields["how"]]
        for number in _numbers(one.fields["tasks"]):
            rank = job.rank(number)
            rank.host = rank.host or one.host
            rank.exit = rank.exit or Exit(code, one.source, time=one.time)
            if aborted is not None and code in (-signal.SIGTERM, -signal.SIGKILL):
                rank.told = rank.told or aborted


def _add_spawned(job: Job) -> None:
    """Add how torch.multiprocessing saw a process end that printed nothing."""
    loose = job.ranks.get(LOOSE)
    for failure in loose.failures if loose is not None else ():
        match = _SPAWNED.search(failure.text)
        if match is not None:
            rank = job.rank(int(match["rank"]))
            code = int(match["code"]) if match["code"] else -_signal_named(match["signal"])
            rank.exit = rank.exit or Exit(code, failure.source, time=failure.time, first=True)


def _give_cores(job: Job) -> None:
    """Give a core file that names no rank to the rank whose process it is of."""
    by_pid = {rank.pid: number for number, rank in job.ranks.items() if number != LOOSE}
    for core in job.cores:
        core.rank = by_pid.get(core.pid) if core.rank is None else core.rank


def _signal_named(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        return int(signal.SIGKILL)


_SPAWNED = re.compile(
    r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
}


def _line_of(source: str) -> int:
    line = source.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers of ``0,4-7``, at most a few thousand of them."""
    for part in text.split(",")[:1000]:
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            yield from range(int(first), min(int(last or first), int(first) + 4096) + 1)


def _owner(job: Job, moment: Moment, by_pid: dict[int | None, Rank]) -> Rank | None:
    if moment.rank is not None:
        return job.rank(moment.rank)
    pid = moment.fields.get("pid", "")
    return by_pid.get(int(pid)) if pid.isdigit() else None
