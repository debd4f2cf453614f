"""The trainers of this user that died here lately, and of what: for ``gpuscope doctor`` and for a viewer's Doctor tab.

A trainer that is killed, or that catches its own error and ends, has nobody beside it that could speak; its black box
and the record of its out-of-memory error lie here. What is over is no fault of what runs now: ``gpuscope doctor`` tells
it last, in a line each, and it never sets the exit code, so that a job script can begin with ``gpuscope doctor`` after
a job that failed. What its user ended (Ctrl-C, a notebook's kernel that was restarted) is left out, as far as that is
known: a signal that nobody handles leaves no word of itself.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....doctor.finding import Ended, Evidence, Finding, Fix, Report
from ....probe import blackbox, records
from ....store.blackbox import BoxReader, how_it_ended
from ....text.units import age_text
from ....wire import codec
from ....wire.clean import clean
from ....wire.frames import TrainerDef
from ... import dead_trainers

SECONDS = 3600.0
MOST = 3
"""Jobs of which it is told, the newest first. To read a box takes some 50 ms."""
MOST_BOXES = 8
TOGETHER_SECONDS = 120.0
"""Ranks of one job end within so long."""
TIMEOUT_SECONDS = 5.0
KERNEL_LOG = "/dev/kmsg"
UNSEEN = "was killed by a signal, crashed, or ended by os._exit"
_KILLED = re.compile(rb"[Kk]illed process (\d{1,10})\b[^\n]{0,200}")
_CRASHED = re.compile(rb"\[(\d{1,10})\]: (segfault|general protection fault|bus error)\b[^\n]{0,200}")
_RECORD = re.compile(r"oom-[\w.-]+-([1-9][0-9]*)-([0-9]+)-\d+\.(\w+)\.pickle\.gz")


@dataclass(frozen=True, slots=True)
class Death:
    """A trainer that died. ``name``: its script and pid; ``ended``: the wall clock of its last word; ``how`` it ended,
    in a few words; ``path``: what it left; ``report``: what the rules say of that, each finding ``past``."""

    pid: int
    name: str
    ended: float
    how: str
    path: Path
    report: Report


def examine(seconds: float = SECONDS, kernel_log: str = KERNEL_LOG) -> Report:
    """A line for each that died in the last ``seconds``, and the findings on it, as info."""
    report = Report()
    for death in deaths(seconds, MOST, kernel_log):
        findings = tuple(replace(one, severity="info") for one in death.report.findings)
        report += Report(findings=findings, ended=(_line(death),))
    return report


def _line(death: Death) -> Ended:
    text = f"{death.name}, {age_text(max(time.time() - death.ended, 1.0))} ago, {death.how}"
    known = next((one for one in death.report.findings if one.cause not in ("end.unseen", "end.host_memory")), None)
    verb = "replay"
    if known is not None:
        text, verb = f"{text}. {known.title} [{known.pitfall}]", "doctor"
    return Ended(text=text, command=f"gpuscope {verb} {shlex.quote(str(death.path))}")


def deaths(
    seconds: float = dead_trainers.RECENT_SECONDS, most: int = MOST, kernel_log: str = KERNEL_LOG
) -> Iterator[Death]:
    """Trainers that died in the last ``seconds``, the newest first: ``most`` that left a record of an out-of-memory
    error, and ``most`` jobs that left black boxes. The record knows more than the box of the same process, and stands
    for it. Of the ranks of a job the first that says why it ended stands for all: the others were ended for it."""
    told: set[tuple[int, int]] = set()
    since = time.time() - seconds
    for ended, pid, start, path in [one for one in _records() if one[0] >= since][:most]:
        found = _examined(path)
        if found.findings and (pid, start) not in told:
            told.add((pid, start))
            how = "ran out of memory on its device"
            name = f"pid {pid}"
            yield Death(pid, name, ended, how, path, _told(found, pid, name, ended, path, "gpuscope snapshot"))
    log: Mapping[int, tuple[str, str]] | None = None
    for ended, pid, start, path, trainer, told_itself in _of_boxes(since, most):
        if (pid, start) in told:
            continue
        script = {"-c": "python -c", "": "a trainer"}.get(trainer.script or "") or Path(trainer.script or "").name
        name = f"{script} (pid {pid})"
        if told_itself is None:
            log = _kernel(kernel_log) if log is None else log
            finding, how = _unexplained(name, pid, log)
            found = Report(findings=(finding,))
        else:
            how, found = clean(how_it_ended(told_itself), 400), _examined(path)
            # How fast it was matters no more.
            found = replace(found, findings=tuple(one for one in found.findings if one.severity == "problem"))
        yield Death(pid, name, ended, how, path, _told(found, pid, name, ended, path, "gpuscope replay"))


def _examined(path: Path) -> Report:
    from . import targets as doctor_targets

    return doctor_targets.examine([str(path)], False, TIMEOUT_SECONDS)


Box = tuple[float, int, int, Path, TrainerDef, "dict[str, Any] | None"]
"""(wall clock of the end, pid, start, path, definition, how it ended in its own words)."""


def _of_boxes(since: float, most: int) -> list[Box]:
    """One box for each job, ``most`` jobs: the first that says how it ended, else the newest. Another run at the same
    address is another job."""
    jobs: list[tuple[object, Box]] = []
    for ended, path in [one for one in dead_trainers.boxes() if one[0] >= since][:MOST_BOXES]:
        match = blackbox.NAME.fullmatch(path.name)
        pid, start = (int(match[1]), int(match[2])) if match else (0, 0)
        reader = BoxReader(path)
        trainer = _trainer(reader) or TrainerDef(pid)
        how = reader.ended
        key, box = trainer.job or (pid, start), (ended, pid, start, path, trainer, how)
        same = [n for n, (job, one) in enumerate(jobs) if job == key and one[0] - ended <= TOGETHER_SECONDS]
        if not same:
            jobs.append((key, box))
        elif how is not None and _when(how) < _when(jobs[same[0]][1][5]):
            jobs[same[0]] = key, box
    return [box for _, box in jobs[:most]]


def _when(how: Mapping[str, Any] | None) -> float:
    told = how.get("time") if how is not None else None
    return float(told) if isinstance(told, (int, float)) else float("inf")


def _trainer(reader: BoxReader) -> TrainerDef | None:
    for line in reader.lines():
        with contextlib.suppress(codec.WireError):
            trainer = getattr(codec.decode(line.line), "trainer", None)
            if isinstance(trainer, TrainerDef):
                return trainer
    return None


# ── what is where ──


def _records() -> list[tuple[float, int, int, Path]]:
    """The records of the last day whose process is gone, the newest first."""
    place = Path(records.place())
    out = []
    try:
        records.check_private(str(place))
        for path in place.iterdir():
            match = _RECORD.fullmatch(path.name)
            written = path.lstat().st_mtime
            if match is None or time.time() - written >= dead_trainers.RECENT_SECONDS:
                continue
            pid, start = int(match[1]), int(match[2])
            if match[3] in ("confirmed", "seen") and not blackbox.runs(pid, start):
                out.append((written, pid, start, path))
    except OSError:
        return []
    return sorted(out, reverse=True)


def _kernel(path: str) -> dict[int, tuple[str, str]]:
    """pid → (killed or crashed, the kernel's line). Empty where its log cannot be read, or has other pids than these:
    in a pid namespace."""
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


def _unexplained(name: str, pid: int, log: Mapping[int, tuple[str, str]]) -> tuple[Finding, str]:
    """The finding on one that left no word of its end, and that in a few words: by what the kernel's log says of it,
    where it says something."""
    finding = Finding(
        pitfall="host-memory-limit",
        cause="end.unseen",
        severity="info",
        confidence="prior",
        title=f"{name} {UNSEEN}",
        evidence=(Evidence(text="no exception and no out-of-memory error of the GPU stands in its black box"),),
        fixes=(Fix(title="Ask the kernel", now=True, command="dmesg | grep -i 'killed process'"),),
    )
    if pid not in log:
        return finding, UNSEEN
    what, line = log[pid]
    evidence = (Evidence(text=line, source="kernel log"), *finding.evidence)
    if what == "crashed":
        words = "crashed: the kernel noted a fault in its own or a library's code"
        return replace(finding, title=f"{name} {words}", evidence=evidence), words
    title = f"The kernel killed {name}: the host's memory ran out"
    killed = replace(finding, cause="end.host_memory", title=title, confidence="definite", evidence=evidence)
    return killed, "was killed by the kernel: the host's memory ran out"


def _told(found: Report, pid: int, name: str, ended: float, path: Path, verb: str) -> Report:
    """With whose it was and when, and how to look at it. A fix that needs the process alive is of no use any more."""
    from ....doctor import table

    when = time.strftime("%d %b %H:%M:%S", time.localtime(ended))
    line = Evidence(text=f"left by {name}, which ended {when}", source=path.name)
    look = "Look at what it held" if verb == "gpuscope snapshot" else "Look at its last minutes"
    way = Fix(title=look, now=True, command=f"{verb} {shlex.quote(str(path))}")
    out = []
    for one in found.findings:
        pid_only = f"pid {pid}"
        if pid_only in one.where:
            where = one.where if name in one.where else one.where.replace(pid_only, name)
        else:
            where = ", ".join(filter(None, (name, one.where)))
        known = one.fixes or table.load()[one.pitfall].fixes
        evidence = (*one.evidence, line)
        out.append(replace(one, where=where, evidence=evidence, fixes=(way, *known), past=True))
    return replace(found, findings=tuple(out), examined=())
