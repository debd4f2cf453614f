"""Find this user's trainers that ended badly here lately, and why.

A trainer that is killed, or that catches its own error and ends, has no other process that could
report it. What remains is its black box and the record of its out-of-memory error. Past failures
are no fault of what runs now: ``gpuscope doctor`` lists them last, in one line each, and they never
affect the exit code, so a job script can begin with ``gpuscope doctor`` after a job that failed.
Trainers that their user ended (Ctrl-C, a restarted notebook kernel) are left out as far as that is
known: a signal without a handler leaves no trace.

``gpuscope doctor`` without a target and the Doctor tab of a viewer show the result.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ....doctor.finding import EndedTrainer, Evidence, Finding, Report
from ....doctor.postmortem_oom import WORDINGS
from ....model.ended_jobs import RECENT_SECONDS
from ....model.job_ends import End, counts_text, end_of_box
from ....probe import blackbox, records
from ....text.clock import SECOND, clock_text
from ....text.process_name import short_script
from ....text.units import age_text, count_text
from ....wire.clean import clean
from ... import dead_trainers

SECONDS = 3600.0
MOST = 3
"""Only this many jobs are reported, the newest first; reading the box of each takes some 50 ms."""
TIMEOUT_SECONDS = 5.0
KERNEL_LOG = "/dev/kmsg"
_KILLED = re.compile(rb"[Kk]illed process (\d{1,10})\b[^\n]{0,200}")
_CRASHED = re.compile(
    rb"\[(\d{1,10})\]: (segfault|general protection fault|bus error)\b[^\n]{0,200}"
)
_RECORD = re.compile(r"oom-[\w.-]+-([1-9][0-9]*)-([0-9]+)-\d+\.(\w+)\.pickle\.gz")


@dataclass(frozen=True, slots=True)
class Death:
    """A trainer that ended badly.

    ``name`` is its script and pid. ``ended`` is the wall-clock time of its last message, and
    ``end`` says how it ended. ``path`` is the file that it left, and ``report`` is
    what the rules find in it; every finding is marked as ``past``.
    """

    pid: int
    name: str
    ended: float
    end: End
    path: Path
    report: Report


def examine(seconds: float = SECONDS, kernel_log: str = KERNEL_LOG) -> Report:
    """Returns a line and the findings, as info, on each trainer that ended badly in ``seconds``.

    After these a line counts the other jobs of the last day.
    """
    report = Report(ended_here=dead_trainers.ended())
    shown: set[int] = set()
    for death in deaths(seconds, MOST, kernel_log):
        findings = tuple(replace(one, severity="info") for one in death.report.findings)
        report += Report(findings=findings, ended=(_line(death),))
        shown.add(death.pid)
    others = [job.end for job in dead_trainers.counted() if not shown.intersection(job.pids)]
    if others and shown:
        how, count = counts_text(others), f"{len(others)} "
        if how.startswith(count):  # all in one way: their number is said already
            how = ("all " if len(others) > 1 else "") + how.removeprefix(count)
        more = f"{count_text(len(others), 'more job')}: {how}"
        boxes = shlex.quote(blackbox.directory())
        report += Report(ended=(EndedTrainer(text=more, command=f"ls -t {boxes}/*.box"),))
    return report


def _line(death: Death) -> EndedTrainer:
    text = (
        f"{death.name}, {age_text(max(time.time() - death.ended, 1.0))} ago, {death.end.sentence}"
    )
    known = next(
        (
            one
            for one in death.report.findings
            if one.cause not in ("end.unseen", "end.host_memory")
        ),
        None,
    )
    verb = "replay"
    if known is not None:
        text, verb = f"{text}. {known.title} [{known.pitfall}]", "doctor"
    return EndedTrainer(text=text, command=f"gpuscope {verb} {shlex.quote(str(death.path))}")


def deaths(
    seconds: float = RECENT_SECONDS, most: int = MOST, kernel_log: str = KERNEL_LOG
) -> Iterator[Death]:
    """Yield the trainers that ended badly in the last ``seconds``, the newest first.

    These are up to ``most`` trainers that left a record of an out-of-memory error, and up to
    ``most`` jobs that left black boxes. A record replaces the box of the same process, because it
    contains more. Of the ranks of a job, the first one that says why it ended represents all,
    because its end made the others end.
    """
    reported: set[tuple[int, int]] = set()
    since = time.time() - seconds
    for ended, pid, start, path in [one for one in _records() if one[0] >= since][:most]:
        found = _examined(path)
        if found.findings and (pid, start) not in reported:
            reported.add((pid, start))
            how = End("out of memory", "bad", "on its GPU")
            name = f"pid {pid}"
            yield Death(
                pid,
                name,
                ended,
                how,
                path,
                _of_the_dead(found, pid, name, ended, path, "look-at-snapshot"),
            )
    log: Mapping[int, tuple[str, str]] | None = None
    for job in [one for one in dead_trainers.jobs() if one.ended >= since][:most]:
        path, ended, last_words = job.path, job.ended, job.last_words
        pid, start = map(int, path.name.partition(".")[0].split("-"))
        if (pid, start) in reported:
            continue
        told = job.trainer.script if job.trainer is not None else None
        script = short_script(told) if told else "a trainer"
        name = f"{script} (pid {pid})"
        if last_words is None or last_words.get("how") == "signal":
            log = _kernel_lines(kernel_log) if log is None else log
            how, finding = _unexplained(name, pid, log, end_of_box(last_words))
            found = Report(findings=(finding,))
        else:
            how, found = end_of_box(last_words), _examined(path)
            how = replace(how, text=clean(how.text, 400))
            # The speed of a trainer that has ended no longer matters.
            found = replace(
                found, findings=tuple(one for one in found.findings if one.severity == "problem")
            )
        yield Death(
            pid,
            name,
            ended,
            how,
            path,
            _of_the_dead(found, pid, name, ended, path, "look-at-recording"),
        )


def _examined(path: Path) -> Report:
    from . import targets as doctor_targets

    return doctor_targets.examine([str(path)], False, TIMEOUT_SECONDS)


# ── what is where ──


def _records() -> list[tuple[float, int, int, Path]]:
    """Returns the records of the last day whose process is gone, the newest first."""
    place = Path(records.place())
    out = []
    try:
        records.check_private(str(place))
        for path in place.iterdir():
            match = _RECORD.fullmatch(path.name)
            written = path.lstat().st_mtime
            if match is None or time.time() - written >= RECENT_SECONDS:
                continue
            pid, start = int(match[1]), int(match[2])
            if match[3] in ("confirmed", "seen") and not blackbox.runs(pid, start):
                out.append((written, pid, start, path))
    except OSError:
        return []
    return sorted(out, reverse=True)


def _kernel_lines(path: str) -> dict[int, tuple[str, str]]:
    """Return by pid whether the kernel's log reports a kill or a crash, and the line that does.

    The result is empty where the log cannot be read, and inside a pid namespace, where the pids in
    the log are different ones.
    """
    from ....agent.environment_host import kernel_records
    from ....collect.container import own_pid_namespace

    if own_pid_namespace():
        return {}
    found: dict[int, tuple[str, str]] = {}
    try:
        for record in kernel_records(path):
            for pattern, what in ((_KILLED, "killed"), (_CRASHED, "crashed")):
                match = pattern.search(record)
                if match is not None:
                    found[int(match[1])] = what, clean(match[0].decode("utf-8", "replace"), 300)
    except OSError:
        pass
    return found


# ── findings on the dead ──


def _unexplained(
    name: str, pid: int, log: Mapping[int, tuple[str, str]], seen: End
) -> tuple[End, Finding]:
    """Return how a trainer without last words ended by the kernel's log, and the finding on it.

    ``seen`` is how it ended as far as somebody saw it.
    """
    what, line = log.get(pid, ("", ""))
    end = {
        "killed": End(
            "out of memory", "bad", "the kernel killed it because the host's memory ran out"
        ),
        "crashed": End("killed", "bad", "the kernel logged a fault in its code", "by a crash"),
    }.get(what, seen)
    silent = Evidence("its black box has no exception and no GPU out-of-memory error")
    found = WORDINGS.finding(
        {"killed": "end.host_memory.killed", "crashed": "end.unseen.crashed"}.get(
            what, "end.unseen.signal" if seen.word == "killed" else "end.unseen"
        ),
        {"name": name, "end": seen.phrase},
        severity="info",
        confidence="definite" if what == "killed" else "prior",
        evidence=(Evidence(line, "kernel log"), silent) if line else (silent,),
    )
    return end, found


def _of_the_dead(found: Report, pid: int, name: str, ended: float, path: Path, look: str) -> Report:
    """Returns the report with whose it was, when that ended, and the fix ``look`` first."""
    from ....doctor import table

    when = clock_text(ended, f"%d %b {SECOND}")
    line = Evidence(f"left by {name}, which ended {when}", path.name)
    more = WORDINGS.fixes([look], {"path": shlex.quote(str(path))})
    out = []
    for one in found.findings:
        pid_only = f"pid {pid}"
        if pid_only in one.where:
            where = one.where if name in one.where else one.where.replace(pid_only, name)
        else:
            where = ", ".join(filter(None, (name, one.where)))
        known = one.fixes or table.load()[one.pitfall].fixes
        evidence = (*one.evidence, line)
        out.append(replace(one, where=where, evidence=evidence, fixes=(*more, *known), past=True))
    return replace(found, findings=tuple(out), examined=(), ended=())
