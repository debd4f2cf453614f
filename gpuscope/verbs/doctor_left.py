"""For ``gpuscope doctor`` without a target: the trainers of this user that died here in the last hour, and of what.

A trainer that is killed, or that catches its own error and ends, has nobody beside it that could speak; its black box
and the record of its out-of-memory error lie here. What is over is no fault of what runs now: these findings are info
and never set the exit code, so that a job script can begin with ``gpuscope doctor`` after a job that failed.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

from ..doctor.finding import Evidence, Finding, Report
from ..wire.clean import clean

SECONDS = 3600.0
MOST = 2
"""Of records and of boxes: the newest. Each takes some 50 ms to read."""
KERNEL_LOG = "/dev/kmsg"
_KILLED = re.compile(rb"[Kk]illed process (\d{1,10})\b[^\n]{0,200}")
_CRASHED = re.compile(rb"\[(\d{1,10})\]: (segfault|general protection fault|bus error)\b[^\n]{0,200}")


def examine(seconds: float = SECONDS, kernel_log: str = KERNEL_LOG) -> Report:
    """Findings on the dead, the newest first; a name of each in ``examined``."""
    from .doctor_aside import left

    report = Report()
    log: dict[int, tuple[str, str]] | None = None
    for pid, ended, found in left(seconds, MOST):
        name = f"pid {pid}, which died {_ago(time.time() - ended)} ago"
        findings = found.findings
        if any(one.cause == "end.unseen" for one in findings):
            log = _kernel(kernel_log) if log is None else log
            findings = tuple(_by_the_kernel(one, pid, log) for one in findings)
        if not findings:
            name += f" ({_last_words(pid)})"
        report += Report(findings=tuple(replace(one, severity="info") for one in findings), examined=(name,))
    return report


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds) / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


def _last_words(pid: int) -> str:
    from ..store.blackbox import BoxReader
    from .died import boxes

    path = next((path for _, path in boxes() if path.name.startswith(f"{pid}-")), None)
    ended = (BoxReader(path).ended if path is not None else None) or {}
    if ended.get("how") != "exception":
        return "no rule knows its end"
    return clean(f"{ended.get('type', 'an exception')}: {str(ended.get('message', '')).partition(chr(10))[0]}", 160)


def _kernel(path: str) -> dict[int, tuple[str, str]]:
    """pid → (killed or crashed, the kernel's line). Empty where its log cannot be read, or has other pids than these:
    in a pid namespace."""
    from ..agent.environment_host import kernel_records
    from ..collect.container import own_pid_namespace

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


def _by_the_kernel(finding: Finding, pid: int, log: dict[int, tuple[str, str]]) -> Finding:
    """With what the kernel's log says of the pid."""
    if finding.cause != "end.unseen" or pid not in log:
        return finding
    what, line = log[pid]
    evidence = (Evidence(text=line, source="kernel log"), *finding.evidence)
    if what == "crashed":
        title = f"pid {pid} crashed: the kernel noted a fault in its own or a library's code"
        return replace(finding, title=title, evidence=evidence)
    title = f"The kernel killed pid {pid}: the host's memory ran out"
    return replace(finding, cause="end.host_memory", title=title, confidence="definite", evidence=evidence)
